//! Functions by name.

use hashbrown::HashMap;

use chrono::{DateTime, Datelike as _, Timelike as _, Utc};
use promql_parser::parser::{Call, Expr};

use super::eval::{Context, Failed, Value, eval, instant, windows};
use super::labels::NAME;
use super::window::{self, Bucket, Window};
use super::{ABSENT, Labels, Row, is_absent, patterns};

/// Every function that is supported. Others are refused by name.
pub const SUPPORTED: &[&str] = &[
    "abs",
    "absent",
    "absent_over_time",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "avg_over_time",
    "ceil",
    "changes",
    "clamp",
    "clamp_max",
    "clamp_min",
    "cos",
    "cosh",
    "count_over_time",
    "day_of_month",
    "day_of_week",
    "day_of_year",
    "days_in_month",
    "deg",
    "delta",
    "deriv",
    "exp",
    "first_over_time",
    "floor",
    "histogram_count",
    "histogram_fraction",
    "histogram_quantile",
    "hour",
    "idelta",
    "increase",
    "irate",
    "label_join",
    "label_replace",
    "last_over_time",
    "ln",
    "log10",
    "log2",
    "mad_over_time",
    "max_over_time",
    "min_over_time",
    "minute",
    "month",
    "pi",
    "predict_linear",
    "present_over_time",
    "quantile_over_time",
    "rad",
    "rate",
    "resets",
    "round",
    "scalar",
    "sgn",
    "sin",
    "sinh",
    "sort",
    "sort_desc",
    "sqrt",
    "stddev_over_time",
    "stdvar_over_time",
    "sum_over_time",
    "tan",
    "tanh",
    "time",
    "timestamp",
    "vector",
    "year",
];

pub fn check(name: &str) -> Result<(), Failed> {
    match SUPPORTED.contains(&name) {
        true => Ok(()),
        false if matches!(name, "histogram_sum" | "histogram_avg") => Err(format!(
            "the function {name} is not supported because it needs native histograms. For a classic histogram, the sum is the \
             series name_sum, and the mean is rate(name_sum[5m]) / rate(name_count[5m])"
        )),
        false => Err(format!("the function {name} is not supported; supported functions: {}", SUPPORTED.join(", "))),
    }
}

/// Rows with the same labels become one, as long as they are never there at the same step.
pub fn merge(rows: Vec<Row>) -> Result<Vec<Row>, Failed> {
    let mut index: HashMap<Labels, usize> = HashMap::with_capacity(rows.len());
    let mut out: Vec<Row> = Vec::with_capacity(rows.len());
    for row in rows {
        match index.get(&row.labels) {
            None => {
                index.insert(row.labels.clone(), out.len());
                out.push(row);
            }
            Some(place) => {
                for (have, new) in out[*place].values.iter_mut().zip(&row.values) {
                    if is_absent(*new) {
                        continue;
                    }
                    if !is_absent(*have) {
                        return Err(format!("vector cannot contain metrics with the same labelset: {}", row.labels));
                    }
                    *have = *new;
                }
            }
        }
    }
    Ok(out)
}

/// A function of each value; the name of the metric goes.
pub fn map_rows(rows: Vec<Row>, cx: &Context, f: impl Fn(f64) -> f64) -> Result<Vec<Row>, Failed> {
    by_step(rows, cx, |_, v| f(v))
}

pub fn scalar(expr: &Expr, cx: &Context) -> Result<Vec<f64>, Failed> {
    match eval(expr, cx)? {
        Value::Scalar(values) => Ok(values),
        _ => Err(format!("{expr} is not a scalar")),
    }
}

fn vector(expr: &Expr, cx: &Context) -> Result<Vec<Row>, Failed> {
    match eval(expr, cx)? {
        Value::Vector(rows) => Ok(rows),
        _ => Err(format!("{expr} is not an instant vector")),
    }
}

fn text_argument(expr: &Expr, cx: &Context) -> Result<String, Failed> {
    match eval(expr, cx)? {
        Value::Text(text) => Ok(text),
        _ => Err(format!("{expr} is not a string")),
    }
}

/// A number as Prometheus writes it in labels.
pub fn number_text(v: f64) -> String {
    if v == f64::INFINITY {
        "+Inf".into()
    } else if v == f64::NEG_INFINITY {
        "-Inf".into()
    } else {
        v.to_string()
    }
}

pub fn call(call: &Call, cx: &Context) -> Result<Value, Failed> {
    let name = call.func.name;
    check(name)?;
    let args: Vec<&Expr> = call.args.args.iter().map(AsRef::as_ref).collect();
    let arg = |i: usize| args.get(i).copied().ok_or_else(|| format!("{name} expects more arguments"));
    let steps = cx.steps.count();
    if let Some(f) = plain(name) {
        return Ok(Value::Vector(map_rows(vector(arg(0)?, cx)?, cx, f)?));
    }
    if let Some(f) = over_time(name) {
        return Ok(Value::Vector(windows(arg(0)?, cx, keeps_name(name), |w, _| f(w))?));
    }
    if let Some(f) = calendar(name) {
        let rows = match args.first() {
            Some(e) => vector(e, cx)?,
            None => vec![Row { labels: Labels::default(), values: now(cx) }],
        };
        // A number that is no date has none of its parts.
        let date = |v: f64| DateTime::from_timestamp(v as i64, 0).filter(|_| v.is_finite());
        return Ok(Value::Vector(map_rows(rows, cx, |v| date(v).map_or(f64::NAN, f))?));
    }
    Ok(match name {
        "time" => Value::Scalar(now(cx)),
        "pi" => Value::Scalar(vec![std::f64::consts::PI; steps]),
        "scalar" => {
            let rows = vector(arg(0)?, cx)?;
            Value::Scalar(
                (0..steps)
                    .map(|i| {
                        let mut there = rows.iter().map(|r| r.values[i]).filter(|v| !is_absent(*v));
                        match (there.next(), there.next()) {
                            (Some(v), None) => v,
                            _ => f64::NAN,
                        }
                    })
                    .collect(),
            )
        }
        "vector" => Value::Vector(vec![Row { labels: Labels::default(), values: scalar(arg(0)?, cx)? }]),
        "timestamp" => {
            let mut inner = arg(0)?;
            while let Expr::Paren(e) = inner {
                inner = &e.expr;
            }
            match inner {
                Expr::VectorSelector(vs) => Value::Vector(map_rows(instant(vs, cx, true)?, cx, |v| v)?),
                other => {
                    let times = now(cx);
                    let mut rows = vector(other, cx)?;
                    for row in &mut rows {
                        for (v, t) in row.values.iter_mut().zip(&times).filter(|(v, _)| !is_absent(**v)) {
                            *v = *t;
                        }
                    }
                    Value::Vector(map_rows(rows, cx, |v| v)?)
                }
            }
        }
        "clamp" | "clamp_min" | "clamp_max" => {
            let rows = vector(arg(0)?, cx)?;
            let first = scalar(arg(1)?, cx)?;
            let (low, high) = match name {
                "clamp" => (first, scalar(arg(2)?, cx)?),
                "clamp_min" => (first, vec![f64::INFINITY; steps]),
                _ => (vec![f64::NEG_INFINITY; steps], first),
            };
            let clamp = |i: usize, v: f64| {
                if low[i] > high[i] {
                    ABSENT
                } else if v.is_nan() || low[i].is_nan() || high[i].is_nan() {
                    f64::NAN
                } else {
                    v.max(low[i]).min(high[i])
                }
            };
            Value::Vector(by_step(rows, cx, clamp)?)
        }
        "round" => {
            let rows = vector(arg(0)?, cx)?;
            let nearest = match args.get(1) {
                Some(e) => scalar(e, cx)?,
                None => vec![1.0; steps],
            };
            // The inverse, because 1/10 is not a double but 10 is.
            Value::Vector(by_step(rows, cx, |i, v| {
                let inverse = 1.0 / nearest[i];
                (v * inverse + 0.5).floor() / inverse
            })?)
        }
        "sort" | "sort_desc" => {
            let mut rows = vector(arg(0)?, cx)?;
            if steps == 1 {
                let sign = if name == "sort" { 1.0 } else { -1.0 };
                rows.sort_by(|a, b| {
                    let (a, b) = (a.values[0], b.values[0]);
                    a.is_nan().cmp(&b.is_nan()).then((a * sign).total_cmp(&(b * sign)))
                });
            }
            Value::Vector(rows)
        }
        "absent" => {
            let rows = vector(arg(0)?, cx)?;
            let values = (0..steps).map(|i| match rows.iter().any(|r| !is_absent(r.values[i])) {
                true => ABSENT,
                false => 1.0,
            });
            Value::Vector(vec![Row { labels: selector_labels(arg(0)?), values: values.collect() }])
        }
        "absent_over_time" => {
            let rows = windows(arg(0)?, cx, true, |_, _| Some(1.0))?;
            let values = (0..steps).map(|i| match rows.iter().any(|r| !is_absent(r.values[i])) {
                true => ABSENT,
                false => 1.0,
            });
            Value::Vector(vec![Row { labels: selector_labels(arg(0)?), values: values.collect() }])
        }
        "quantile_over_time" => {
            let phi = scalar(arg(0)?, cx)?;
            Value::Vector(windows(arg(1)?, cx, false, |w, i| Some(window::quantile(phi[i], &mut w.values.to_vec())))?)
        }
        "predict_linear" => {
            let ahead = scalar(arg(1)?, cx)?;
            Value::Vector(windows(arg(0)?, cx, false, |w, i| window::predict_linear(w, ahead[i], cx.steps.at(i)))?)
        }
        "histogram_quantile" => {
            let q = scalar(arg(0)?, cx)?;
            by_buckets(vector(arg(1)?, cx)?, cx, |i, buckets| window::histogram_quantile(q[i], buckets))?
        }
        "histogram_fraction" => {
            let (lower, upper) = (scalar(arg(0)?, cx)?, scalar(arg(1)?, cx)?);
            let fraction =
                |i: usize, buckets: &mut Vec<Bucket>| window::histogram_fraction(lower[i], upper[i], buckets);
            by_buckets(vector(arg(2)?, cx)?, cx, fraction)?
        }
        "histogram_count" => by_buckets(vector(arg(0)?, cx)?, cx, |_, buckets| window::histogram_count(buckets))?,
        "label_replace" => label_replace(&args, cx)?,
        "label_join" => label_join(&args, cx)?,
        _ => return Err(format!("the function {name} is not supported")),
    })
}

fn now(cx: &Context) -> Vec<f64> {
    cx.steps.iter().map(|t| t as f64 / 1000.0).collect()
}

fn by_step(mut rows: Vec<Row>, cx: &Context, f: impl Fn(usize, f64) -> f64) -> Result<Vec<Row>, Failed> {
    for row in &mut rows {
        cx.still_wanted()?;
        for (i, v) in row.values.iter_mut().enumerate().filter(|(_, v)| !is_absent(**v)) {
            *v = f(i, *v);
        }
        row.labels = row.labels.without_name();
    }
    merge(rows)
}

fn plain(name: &str) -> Option<fn(f64) -> f64> {
    Some(match name {
        "abs" => f64::abs,
        "ceil" => f64::ceil,
        "floor" => f64::floor,
        "exp" => f64::exp,
        "ln" => f64::ln,
        "log2" => f64::log2,
        "log10" => f64::log10,
        "sqrt" => f64::sqrt,
        "sgn" => |v| {
            if v > 0.0 {
                1.0
            } else if v < 0.0 {
                -1.0
            } else {
                v
            }
        },
        "sin" => f64::sin,
        "cos" => f64::cos,
        "tan" => f64::tan,
        "asin" => f64::asin,
        "acos" => f64::acos,
        "atan" => f64::atan,
        "sinh" => f64::sinh,
        "cosh" => f64::cosh,
        "tanh" => f64::tanh,
        "asinh" => f64::asinh,
        "acosh" => f64::acosh,
        "atanh" => f64::atanh,
        "deg" => f64::to_degrees,
        "rad" => f64::to_radians,
        _ => return None,
    })
}

/// These give samples as they are.
fn keeps_name(name: &str) -> bool {
    matches!(name, "first_over_time" | "last_over_time")
}

fn over_time(name: &str) -> Option<fn(&Window) -> Option<f64>> {
    Some(match name {
        "rate" => |w| window::extrapolated(w, true, true),
        "increase" => |w| window::extrapolated(w, true, false),
        "delta" => |w| window::extrapolated(w, false, false),
        "irate" => |w| window::instant(w, true),
        "idelta" => |w| window::instant(w, false),
        "deriv" => window::deriv,
        "resets" => |w| Some(window::resets(w)),
        "changes" => |w| Some(window::changes(w)),
        "sum_over_time" => |w| Some(window::sum(w.values.iter().copied())),
        "avg_over_time" => |w| Some(window::mean(w.values)),
        "min_over_time" => |w| Some(window::min(w.values)),
        "max_over_time" => |w| Some(window::max(w.values)),
        "count_over_time" => |w| Some(w.values.len() as f64),
        "first_over_time" => |w| w.values.first().copied(),
        "last_over_time" => |w| w.values.last().copied(),
        "present_over_time" => |_| Some(1.0),
        "stddev_over_time" => |w| Some(window::variance(w.values).sqrt()),
        "stdvar_over_time" => |w| Some(window::variance(w.values)),
        "mad_over_time" => |w| {
            let mut values = w.values.to_vec();
            let median = window::quantile(0.5, &mut values);
            values.iter_mut().for_each(|v| *v = (*v - median).abs());
            Some(window::quantile(0.5, &mut values))
        },
        _ => return None,
    })
}

/// What a calendar function takes out of a date in UTC.
fn calendar(name: &str) -> Option<fn(DateTime<Utc>) -> f64> {
    Some(match name {
        "minute" => |t| f64::from(t.minute()),
        "hour" => |t| f64::from(t.hour()),
        "day_of_week" => |t| f64::from(t.weekday().num_days_from_sunday()),
        "day_of_month" => |t| f64::from(t.day()),
        "day_of_year" => |t| f64::from(t.ordinal()),
        "days_in_month" => |t| f64::from(t.num_days_in_month()),
        "month" => |t| f64::from(t.month()),
        "year" => |t| f64::from(t.year()),
        _ => return None,
    })
}

/// The labels that a selector names with `=`: what `absent` answers with.
fn selector_labels(expr: &Expr) -> Labels {
    use promql_parser::label::MatchOp;
    let matchers = match expr {
        Expr::VectorSelector(vs) => &vs.matchers.matchers,
        Expr::MatrixSelector(ms) => &ms.vs.matchers.matchers,
        Expr::Paren(e) => return selector_labels(&e.expr),
        _ => return Labels::default(),
    };
    let mut pairs: Vec<(String, String)> = Vec::new();
    let mut named: Vec<&str> = Vec::new();
    for m in matchers.iter().filter(|m| m.name != NAME) {
        let repeated = named.contains(&m.name.as_str());
        named.push(&m.name);
        pairs.retain(|(n, _)| !(repeated && *n == m.name));
        if !repeated && matches!(m.op, MatchOp::Equal) {
            pairs.push((m.name.clone(), m.value.clone()));
        }
    }
    Labels::new(pairs)
}

/// One value per step of every classic histogram: its buckets are the series that differ in `le` only.
fn by_buckets(rows: Vec<Row>, cx: &Context, value: impl Fn(usize, &mut Vec<Bucket>) -> f64) -> Result<Value, Failed> {
    let dropped = ["le".to_string(), NAME.to_string()];
    let mut groups: HashMap<Labels, Vec<(f64, Vec<f64>)>> = HashMap::new();
    for row in rows {
        cx.still_wanted()?;
        // A series without a bound, or with one that is not a number, is not a bucket.
        let Ok(bound) = row.labels.get("le").parse::<f64>() else { continue };
        groups.entry(row.labels.drop(&dropped)).or_default().push((bound, row.values));
    }
    let steps = cx.steps.count();
    let mut watch = cx.watch();
    let mut buckets = Vec::new();
    let mut out: Vec<Row> = Vec::with_capacity(groups.len());
    for (labels, series) in groups {
        let mut values = Vec::with_capacity(steps);
        for i in 0..steps {
            watch.pass(series.len())?;
            buckets.clear();
            let there = series.iter().filter(|(_, v)| !is_absent(v[i]));
            buckets.extend(there.map(|(bound, v)| Bucket { bound: *bound, count: v[i] }));
            values.push(match buckets.is_empty() {
                true => ABSENT,
                false => value(i, &mut buckets),
            });
        }
        out.push(Row { labels, values });
    }
    out.sort_by(|a, b| a.labels.cmp(&b.labels));
    Ok(Value::Vector(out))
}

fn label_name(name: &str) -> Result<(), Failed> {
    let good = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if good { Ok(()) } else { Err(format!("{name:?} is not a valid label name")) }
}

/// Longest value that a query may give a label, as scraped labels have it by default, and longest replacement. Calls can be
/// nested, and each could otherwise multiply the length.
const MAX_LABEL_BYTES: usize = 4096;
const MAX_REPLACEMENT_BYTES: usize = 1024;

/// A row with a label changed. The new text counts against the room of the query.
fn with_label(row: Row, name: &str, value: &str, cx: &Context) -> Result<Row, Failed> {
    if value.len() > MAX_LABEL_BYTES {
        return Err(format!("the value of label {name:?} would be longer than {MAX_LABEL_BYTES} bytes"));
    }
    cx.room.take(1, value.len() / size_of::<f64>())?;
    Ok(Row { labels: row.labels.with(name, value), values: row.values })
}

fn label_replace(args: &[&Expr], cx: &Context) -> Result<Value, Failed> {
    let [rows, target, replacement, source, pattern] = args else {
        return Err("label_replace expects a vector and four strings".into());
    };
    let rows = vector(rows, cx)?;
    let (target, replacement) = (text_argument(target, cx)?, text_argument(replacement, cx)?);
    let (source, pattern) = (text_argument(source, cx)?, text_argument(pattern, cx)?);
    label_name(&target)?;
    if replacement.len() > MAX_REPLACEMENT_BYTES {
        return Err(format!("label_replace: the replacement is longer than {MAX_REPLACEMENT_BYTES} bytes"));
    }
    let regex = patterns::compile(&format!("^(?s:{pattern})$")).map_err(|e| format!("label_replace: {e}"))?;
    // `$1x` means group 1 in Go only up to the end of the word; Rust reads the same.
    let rows = rows.into_iter().map(|row| {
        cx.still_wanted()?;
        let mut value = String::new();
        match regex.captures(row.labels.get(&source)) {
            None => return Ok(row),
            Some(found) => found.expand(&replacement, &mut value),
        }
        with_label(row, &target, &value, cx)
    });
    Ok(Value::Vector(merge(rows.collect::<Result<_, _>>()?)?))
}

fn label_join(args: &[&Expr], cx: &Context) -> Result<Value, Failed> {
    let [rows, target, separator, sources @ ..] = args else {
        return Err("label_join expects a vector, a label and a separator".into());
    };
    let rows = vector(rows, cx)?;
    let (target, separator) = (text_argument(target, cx)?, text_argument(separator, cx)?);
    label_name(&target)?;
    let sources: Vec<String> = sources.iter().map(|s| text_argument(s, cx)).collect::<Result<_, _>>()?;
    let rows = rows.into_iter().map(|row| {
        cx.still_wanted()?;
        let mut value = String::new();
        for (n, source) in sources.iter().enumerate() {
            value.push_str(if n > 0 { &separator } else { "" });
            value.push_str(row.labels.get(source));
            if value.len() > MAX_LABEL_BYTES {
                break;
            }
        }
        with_label(row, &target, &value, cx)
    });
    Ok(Value::Vector(merge(rows.collect::<Result<_, _>>()?)?))
}
