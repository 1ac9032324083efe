//! Regular expressions of SQL are literals, and small when compiled. Arrow compiles a pattern for each row that has another one, and
//! keeps all of them until the batch is done. What was computed from a row can take 5 MB, 8192 times, and nothing counts that.

use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::{BinaryExpr, Expr, Operator};
use regex::{Error, RegexBuilder};

/// Memory that a compiled pattern may take. A pattern of Unicode words takes a megabyte soon.
const MAX_COMPILED_BYTES: usize = 8 << 20;
/// How much of one an error shows.
const MAX_SHOWN_CHARS: usize = 100;

/// Functions whose second argument is a pattern, and the place of their flags, which become a part of it.
const FUNCTIONS: &[(&str, usize)] =
    &[("regexp_count", 3), ("regexp_instr", 4), ("regexp_like", 2), ("regexp_match", 2), ("regexp_replace", 3)];

/// Refuses a pattern that is computed or too large.
pub fn check(expr: &Expr) -> Result<()> {
    match expr {
        Expr::ScalarFunction(call) => {
            let known = FUNCTIONS.iter().find(|(name, _)| *name == call.func.name());
            let (Some((name, flags)), Some(pattern)) = (known, call.args.get(1)) else { return Ok(()) };
            let flags = match call.args.get(*flags) {
                Some(flags) => literal(name, flags)?,
                None => None,
            };
            is_small(literal(name, pattern)?, flags)
        }
        Expr::BinaryExpr(BinaryExpr { op, right, .. }) => match op {
            Operator::RegexMatch | Operator::RegexNotMatch => is_small(literal(&op.to_string(), right)?, None),
            Operator::RegexIMatch | Operator::RegexNotIMatch => is_small(literal(&op.to_string(), right)?, Some("i")),
            _ => Ok(()),
        },
        Expr::SimilarTo(like) => is_small(literal("similar to", &like.pattern)?, None),
        _ => Ok(()),
    }
}

/// The text of a literal. `None` of one that is no text, such as null.
fn literal<'a>(of: &str, expr: &'a Expr) -> Result<Option<&'a str>> {
    match expr {
        Expr::Literal(value, _) => Ok(value.try_as_str().flatten()),
        Expr::Cast(cast) if cast.field.data_type().is_string() => literal(of, &cast.expr),
        _ => plan_err!(
            "the regular expression of `{of}` and its flags must be literals, such as 'err.*'; to compare with a value of the row, \
             use `=`, `like`, `strpos` or `starts_with`"
        ),
    }
}

fn is_small(pattern: Option<&str>, flags: Option<&str>) -> Result<()> {
    let Some(pattern) = pattern else { return Ok(()) };
    // `g` is no flag of the pattern itself.
    let flags = flags.unwrap_or_default().replace('g', "");
    let whole = if flags.is_empty() { pattern.to_string() } else { format!("(?{flags}){pattern}") };
    match RegexBuilder::new(&whole).size_limit(MAX_COMPILED_BYTES).build() {
        Err(Error::CompiledTooBig(_)) => {
            let shown: String = whole.chars().take(MAX_SHOWN_CHARS).collect();
            plan_err!(
                "the regular expression '{shown}' takes more than {MAX_COMPILED_BYTES} bytes when it is compiled; use smaller \
                 repetitions, or classes of ASCII such as [a-z] in place of \\w and \\pL"
            )
        }
        // What is no regular expression fails when it is used.
        _ => Ok(()),
    }
}
