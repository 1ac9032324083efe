//! Operators between scalars and vectors, with Prometheus's matching.

use hashbrown::HashMap;

use promql_parser::parser::token::{self, TokenId};
use promql_parser::parser::{BinModifier, BinaryExpr, LabelModifier, VectorMatchCardinality};

use super::eval::{Context, Failed, Value, eval as eval_expr};
use super::functions::merge;
use super::{ABSENT, Labels, Row, is_absent};

fn compare(op: TokenId, a: f64, b: f64) -> Option<bool> {
    Some(match op {
        token::T_EQLC => a == b,
        token::T_NEQ => a != b,
        token::T_GTR => a > b,
        token::T_LSS => a < b,
        token::T_GTE => a >= b,
        token::T_LTE => a <= b,
        _ => return None,
    })
}

fn is_comparison(op: TokenId) -> bool {
    compare(op, 0.0, 0.0).is_some()
}

fn arithmetic(op: TokenId, a: f64, b: f64) -> Option<f64> {
    Some(match op {
        token::T_ADD => a + b,
        token::T_SUB => a - b,
        token::T_MUL => a * b,
        token::T_DIV => a / b,
        token::T_MOD => a % b,
        token::T_POW => a.powf(b),
        token::T_ATAN2 => a.atan2(b),
        _ => return None,
    })
}

/// The result of an operator on two numbers; a comparison that does not hold is absent, unless 0 or 1 is wanted.
fn apply(op: TokenId, a: f64, b: f64, kept: f64, as_bool: bool) -> f64 {
    match compare(op, a, b) {
        Some(holds) if as_bool => f64::from(holds),
        Some(true) => kept,
        Some(false) => ABSENT,
        None => arithmetic(op, a, b).unwrap_or(f64::NAN),
    }
}

pub fn eval(e: &BinaryExpr, cx: &Context) -> Result<Value, Failed> {
    let op = e.op.id();
    let set = matches!(op, token::T_LAND | token::T_LOR | token::T_LUNLESS);
    if !set && !is_comparison(op) && arithmetic(op, 1.0, 1.0).is_none() {
        return Err(format!("the operator {} is not supported", e.op));
    }
    let plain = BinModifier::default();
    let modifier = e.modifier.as_ref().unwrap_or(&plain);
    if modifier.fill_values.lhs.is_some() || modifier.fill_values.rhs.is_some() {
        return Err("the modifier fill is not supported".into());
    }
    let as_bool = modifier.return_bool;
    match (eval_expr(&e.lhs, cx)?, eval_expr(&e.rhs, cx)?) {
        (Value::Scalar(_), Value::Scalar(_)) if is_comparison(op) && !as_bool => {
            Err("comparisons between scalars must use bool".into())
        }
        (Value::Scalar(a), Value::Scalar(b)) => {
            Ok(Value::Scalar(a.iter().zip(&b).map(|(a, b)| apply(op, *a, *b, *a, as_bool)).collect()))
        }
        (Value::Vector(rows), Value::Scalar(b)) => {
            with_scalar(rows, op, as_bool, cx, |i, v| apply(op, v, b[i], v, as_bool)).map(Value::Vector)
        }
        (Value::Scalar(a), Value::Vector(rows)) => {
            with_scalar(rows, op, as_bool, cx, |i, v| apply(op, a[i], v, v, as_bool)).map(Value::Vector)
        }
        (Value::Vector(a), Value::Vector(b)) if set => set_operation(op, a, b, modifier, cx).map(Value::Vector),
        (Value::Vector(a), Value::Vector(b)) => vectors(op, a, b, modifier, cx).map(Value::Vector),
        _ => Err(format!("the operator {} does not accept strings", e.op)),
    }
}

fn with_scalar(
    mut rows: Vec<Row>,
    op: TokenId,
    as_bool: bool,
    cx: &Context,
    value: impl Fn(usize, f64) -> f64,
) -> Result<Vec<Row>, Failed> {
    let drops_name = !is_comparison(op) || as_bool;
    for row in &mut rows {
        cx.still_wanted()?;
        for (i, v) in row.values.iter_mut().enumerate().filter(|(_, v)| !is_absent(**v)) {
            *v = value(i, *v);
        }
        if drops_name {
            row.labels = row.labels.without_name();
        }
    }
    merge(rows)
}

/// The labels by which both sides are matched.
fn signature(labels: &Labels, modifier: &BinModifier) -> Labels {
    match &modifier.matching {
        Some(LabelModifier::Include(names)) => labels.keep(&names.labels),
        Some(LabelModifier::Exclude(names)) => labels.drop(&names.labels).without_name(),
        None => labels.without_name(),
    }
}

/// Which series of one signature has a value at a step, by its position.
#[derive(Clone, Copy)]
enum Partner {
    Nobody,
    One(u32),
    /// The first of them.
    Several(u32),
}

/// The partners of each signature, by step. Where labels change over time, a signature has many, one at a step: going through
/// all of them at every step would take too long.
fn partners_of(rows: &[Row], modifier: &BinModifier, cx: &Context) -> Result<HashMap<Labels, Vec<Partner>>, Failed> {
    let mut out: HashMap<Labels, Vec<Partner>> = HashMap::new();
    for (place, row) in rows.iter().enumerate() {
        cx.still_wanted()?;
        let partners =
            out.entry(signature(&row.labels, modifier)).or_insert_with(|| vec![Partner::Nobody; row.values.len()]);
        for (partner, _) in partners.iter_mut().zip(&row.values).filter(|(_, v)| !is_absent(**v)) {
            *partner = match *partner {
                Partner::Nobody => Partner::One(place as u32),
                Partner::One(first) | Partner::Several(first) => Partner::Several(first),
            };
        }
    }
    Ok(out)
}

fn set_operation(
    op: TokenId,
    a: Vec<Row>,
    b: Vec<Row>,
    modifier: &BinModifier,
    cx: &Context,
) -> Result<Vec<Row>, Failed> {
    let steps = a.first().or(b.first()).map_or(0, |r| r.values.len());
    let presence = |rows: &[Row]| -> Result<HashMap<Labels, Vec<bool>>, Failed> {
        let mut there: HashMap<Labels, Vec<bool>> = HashMap::new();
        for row in rows {
            cx.still_wanted()?;
            let seen = there.entry(signature(&row.labels, modifier)).or_insert_with(|| vec![false; steps]);
            row.values.iter().zip(seen).for_each(|(v, seen)| *seen |= !is_absent(*v));
        }
        Ok(there)
    };
    let masked = |rows: Vec<Row>, there: &HashMap<Labels, Vec<bool>>, keep_where: bool| -> Result<Vec<Row>, Failed> {
        let mut out = Vec::new();
        for mut row in rows {
            cx.still_wanted()?;
            let seen = there.get(&signature(&row.labels, modifier));
            for (i, v) in row.values.iter_mut().enumerate() {
                if seen.is_some_and(|s| s[i]) != keep_where {
                    *v = ABSENT;
                }
            }
            if row.values.iter().any(|v| !is_absent(*v)) {
                out.push(row);
            }
        }
        Ok(out)
    };
    match op {
        token::T_LAND => masked(a, &presence(&b)?, true),
        token::T_LUNLESS => masked(a, &presence(&b)?, false),
        _ => {
            let there = presence(&a)?;
            let mut out = a;
            // The left side may have the same labels twice; the first counts.
            let mut index: HashMap<Labels, usize> = HashMap::with_capacity(out.len());
            for (place, row) in out.iter().enumerate() {
                index.entry(row.labels.clone()).or_insert(place);
            }
            // A series that is on both sides is one series.
            for extra in masked(b, &there, false)? {
                match index.get(&extra.labels) {
                    Some(place) => {
                        for (v, x) in out[*place].values.iter_mut().zip(extra.values) {
                            if is_absent(*v) {
                                *v = x;
                            }
                        }
                    }
                    None => {
                        index.insert(extra.labels.clone(), out.len());
                        out.push(extra);
                    }
                }
            }
            Ok(out)
        }
    }
}

fn vectors(op: TokenId, a: Vec<Row>, b: Vec<Row>, modifier: &BinModifier, cx: &Context) -> Result<Vec<Row>, Failed> {
    // The "many" side gives the labels; with one to one that is the left.
    let swapped = matches!(modifier.card, VectorMatchCardinality::OneToMany(_));
    let (many, one) = if swapped { (b, a) } else { (a, b) };
    let one_to_one = matches!(modifier.card, VectorMatchCardinality::OneToOne);
    let partners = partners_of(&one, modifier, cx)?;
    let as_bool = modifier.return_bool;
    let drops_name = !is_comparison(op) || as_bool;
    let mut out: Vec<Row> = Vec::new();
    // One to one: which steps of a signature have had their match.
    let mut used: HashMap<Labels, Vec<bool>> = HashMap::new();
    for row in &many {
        cx.still_wanted()?;
        let key = signature(&row.labels, modifier);
        let Some(partner_at) = partners.get(&key) else { continue };
        let taken = used.entry(key).or_insert_with(|| vec![false; row.values.len()]);
        // As a rule there is one partner; where labels change over time there are several, one at a step.
        let mut results: Vec<(Labels, Vec<f64>)> = Vec::new();
        let mut last: Option<(usize, usize)> = None;
        for (i, v) in row.values.iter().enumerate().filter(|(_, v)| !is_absent(**v)) {
            let partner = match partner_at[i] {
                Partner::Nobody => continue,
                Partner::One(place) => place as usize,
                Partner::Several(first) => {
                    let side = if swapped { "left" } else { "right" };
                    return Err(format!(
                        "found duplicate series for the match group on the {side} hand-side of the operation, such \
                         as {}: many-to-many matching is not allowed: matching labels must be unique on one side",
                        one[first as usize].labels
                    ));
                }
            };
            if one_to_one && std::mem::replace(&mut taken[i], true) {
                return Err(
                    "multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)"
                        .to_string(),
                );
            }
            let other = one[partner].values[i];
            let (l, r) = if swapped { (other, *v) } else { (*v, other) };
            let result = apply(op, l, r, l, as_bool);
            if is_absent(result) {
                continue;
            }
            let place = match last {
                Some((known, place)) if known == partner => place,
                _ => {
                    cx.still_wanted()?;
                    let labels = result_labels(&row.labels, &one[partner].labels, modifier, drops_name);
                    match results.iter().position(|(l, _)| *l == labels) {
                        Some(place) => place,
                        None => {
                            cx.room.take(1, row.values.len())?;
                            results.push((labels, vec![ABSENT; row.values.len()]));
                            results.len() - 1
                        }
                    }
                }
            };
            last = Some((partner, place));
            results[place].1[i] = result;
        }
        out.extend(results.into_iter().map(|(labels, values)| Row { labels, values }));
    }
    merge(out)
}

fn result_labels(many: &Labels, one: &Labels, modifier: &BinModifier, drops_name: bool) -> Labels {
    let mut labels = if drops_name { many.without_name() } else { many.clone() };
    if matches!(modifier.card, VectorMatchCardinality::OneToOne) {
        labels = match &modifier.matching {
            Some(LabelModifier::Include(names)) => labels.keep(&names.labels),
            Some(LabelModifier::Exclude(names)) => labels.drop(&names.labels),
            None => labels,
        };
    }
    for name in modifier.card.labels().map_or(&[][..], |l| &l.labels) {
        labels = labels.with(name, one.get(name));
    }
    labels
}
