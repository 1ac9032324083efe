//! `sum`, `avg`, `topk` and the like.

use hashbrown::HashMap;

use promql_parser::parser::token;
use promql_parser::parser::{AggregateExpr, LabelModifier};

use super::eval::{Context, Failed, Value, Watch, eval as eval_expr};
use super::functions::{number_text, scalar};
use super::{ABSENT, Labels, Row, is_absent, window};

fn group_labels(labels: &Labels, modifier: &Option<LabelModifier>) -> Labels {
    match modifier {
        None => Labels::default(),
        Some(LabelModifier::Include(names)) => labels.keep(&names.labels),
        Some(LabelModifier::Exclude(names)) => labels.drop(&names.labels).without_name(),
    }
}

pub fn eval(e: &AggregateExpr, cx: &Context) -> Result<Vec<Row>, Failed> {
    let Value::Vector(rows) = eval_expr(&e.expr, cx)? else {
        return Err(format!("{} expects an instant vector", e.op));
    };
    // Groups in the order in which they are first seen.
    let mut index: HashMap<Labels, usize> = HashMap::new();
    let mut groups: Vec<(Labels, Vec<Row>)> = Vec::new();
    for row in rows {
        cx.still_wanted()?;
        let labels = group_labels(&row.labels, &e.modifier);
        let place = *index.entry(labels.clone()).or_insert_with(|| {
            groups.push((labels, Vec::new()));
            groups.len() - 1
        });
        groups[place].1.push(row);
    }
    let steps = cx.steps.count();
    let mut watch = cx.watch();
    match e.op.id() {
        token::T_TOPK | token::T_BOTTOMK => {
            let k = parameter(e, cx)?;
            let top = e.op.id() == token::T_TOPK;
            let mut out = Vec::new();
            for (_, rows) in groups {
                out.extend(pick(rows, &k, top, &mut watch)?);
            }
            Ok(out)
        }
        token::T_COUNT_VALUES => count_values(e, cx, groups, &mut watch),
        op => {
            let phi = if op == token::T_QUANTILE { parameter(e, cx)? } else { Vec::new() };
            let fold: fn(&mut Vec<f64>, f64) -> f64 = match op {
                token::T_SUM => |v, _| window::sum(v.iter().copied()),
                token::T_AVG => |v, _| window::mean(v),
                token::T_MIN => |v, _| window::min(v),
                token::T_MAX => |v, _| window::max(v),
                token::T_COUNT => |v, _| v.len() as f64,
                token::T_GROUP => |_, _| 1.0,
                token::T_STDDEV => |v, _| window::variance(v).sqrt(),
                token::T_STDVAR => |v, _| window::variance(v),
                token::T_QUANTILE => |v, phi| window::quantile(phi, v),
                _ => return Err(format!("the aggregation {} is not supported", e.op)),
            };
            let mut present = Vec::new();
            let mut out = Vec::with_capacity(groups.len());
            for (labels, rows) in groups {
                let mut values = Vec::with_capacity(steps);
                for step in 0..steps {
                    watch.pass(rows.len())?;
                    present.clear();
                    present.extend(rows.iter().map(|r| r.values[step]).filter(|v| !is_absent(*v)));
                    values.push(match present.is_empty() {
                        true => ABSENT,
                        false => fold(&mut present, phi.get(step).copied().unwrap_or(0.0)),
                    });
                }
                out.push(Row { labels, values });
            }
            Ok(out)
        }
    }
}

fn parameter(e: &AggregateExpr, cx: &Context) -> Result<Vec<f64>, Failed> {
    scalar(e.param.as_deref().ok_or_else(|| format!("{} expects a number as its first argument", e.op))?, cx)
}

/// At every step the `k` largest or smallest; the others are absent there. NaN comes last in both cases.
fn pick(mut rows: Vec<Row>, k: &[f64], top: bool, watch: &mut Watch) -> Result<Vec<Row>, Failed> {
    let mut kept = vec![false; rows.len()];
    for (step, k) in k.iter().enumerate() {
        watch.pass(rows.len())?;
        kept.fill(false);
        let mut order: Vec<usize> = (0..rows.len()).filter(|i| !is_absent(rows[*i].values[step])).collect();
        let value = |i: usize| rows[i].values[step];
        order.sort_by(|a, b| {
            let (a, b) = (value(*a), value(*b));
            a.is_nan().cmp(&b.is_nan()).then(if top { b.total_cmp(&a) } else { a.total_cmp(&b) })
        });
        let k = if *k >= 1.0 { *k as usize } else { 0 };
        order.iter().take(k).for_each(|i| kept[*i] = true);
        for (row, kept) in rows.iter_mut().zip(&kept) {
            if !kept {
                row.values[step] = ABSENT;
            }
        }
    }
    if let [step] = k
        && !step.is_nan()
        && rows.first().is_some_and(|r| r.values.len() == 1)
    {
        // An instant query gives them in their order.
        rows.sort_by(|a, b| {
            let (a, b) = (a.values[0], b.values[0]);
            a.is_nan().cmp(&b.is_nan()).then(if top { b.total_cmp(&a) } else { a.total_cmp(&b) })
        });
    }
    rows.retain(|r| r.values.iter().any(|v| !is_absent(*v)));
    Ok(rows)
}

fn count_values(
    e: &AggregateExpr,
    cx: &Context,
    groups: Vec<(Labels, Vec<Row>)>,
    watch: &mut Watch,
) -> Result<Vec<Row>, Failed> {
    let steps = cx.steps.count();
    let Some(Value::Text(name)) = e.param.as_deref().map(|p| eval_expr(p, cx)).transpose()? else {
        return Err("count_values expects a label name as its first argument".into());
    };
    let mut out = Vec::new();
    for (labels, rows) in groups {
        let mut index: HashMap<String, usize> = HashMap::new();
        let mut counts: Vec<(String, Vec<f64>)> = Vec::new();
        for row in &rows {
            for (step, v) in row.values.iter().enumerate().filter(|(_, v)| !is_absent(**v)) {
                watch.pass(1)?;
                let text = number_text(*v);
                let place = match index.get(&text) {
                    Some(place) => *place,
                    None => {
                        // A series for every value there ever is: that can be as many as there are steps.
                        cx.room.take(1, steps)?;
                        index.insert(text.clone(), counts.len());
                        counts.push((text, vec![ABSENT; steps]));
                        counts.len() - 1
                    }
                };
                let count = &mut counts[place].1[step];
                *count = if is_absent(*count) { 1.0 } else { *count + 1.0 };
            }
        }
        out.extend(counts.into_iter().map(|(text, values)| Row { labels: labels.with(&name, &text), values }));
    }
    Ok(out)
}
