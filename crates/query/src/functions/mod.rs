//! Functions that SQL has here beyond DataFusion's own. All of them are stateless and registered by [`register`], which
//! an executor in another process can call too. The one exception is `attr`, whose type follows the data: it is bound to
//! a query's snapshot by [`bind_attr`] and rewritten into one of the others before the query is optimised.
//!
//! | function | gives |
//! |---|---|
//! | `attr(col, 'key')` | the attribute, typed by what the store has seen under that key |
//! | `attr_str`, `attr_int`, `attr_num`, `attr_bool`, `attr_json` | the attribute as that type, else null |
//! | `attr_keys(col)` | list of keys |
//! | `merge_attrs(a, b)` | both maps as one; `b` wins |
//! | `trace_id('hex')`, `span_id('hex')` | an id from text of any length, mapped as on import |
//! | `hex(id)` | an id as text |
//!
//! `tokens` calls one more, which users do not: [`token_texts`] has the tokenizers of this process.
//!
//! Table functions come from the crates above, such as the answers about steps and runs: see [`TableFunction`].

mod attr;
mod attr_typed;
mod bounded;
mod ids;
mod lookup;
mod maps;
mod patterns;
mod replaced;
mod table;
mod token_texts;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::ScalarUDF;

pub use attr::{ATTRS_OF, AttrTypes};
pub use bounded::{Bounded, register_bounded};
pub use ids::IdText;
pub use maps::merge_attrs;
pub use replaced::{hashes_literal, is_replaced};
pub(crate) use table::register_table_functions;
pub use table::{Argument, TableFunction};
pub use token_texts::{TOKEN_TEXTS, token_texts};

/// Functions of DataFusion whose only purpose is to make a large value from a small one. Others that can do so are [`Bounded`].
const WITHHELD: &[&str] = &[
    "repeat",
    "lpad",
    "rpad",
    "array_repeat",
    "list_repeat",
    "array_resize",
    "list_resize",
    "range",
    "generate_series",
];

/// Registers every function, and takes away those that could be used to exhaust memory.
pub fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    for name in WITHHELD {
        registry.deregister_udf(name)?;
    }
    for function in attr_typed::all() {
        registry.register_udf(function)?;
    }
    for function in [merge_attrs(), maps::attr_keys(), ids::trace_id(), ids::span_id(), ids::hex(), is_replaced()] {
        registry.register_udf(function)?;
    }
    registry.register_udf(attr::unbound())?;
    registry.register_expr_planner(Arc::new(IdText))?;
    registry.register_function_rewrite(Arc::new(IdText))
}

/// Makes `attr` follow the types of one snapshot.
pub fn bind_attr(registry: &mut dyn FunctionRegistry, types: AttrTypes) -> Result<()> {
    registry.register_udf(attr::bound(types.clone()))?;
    registry.register_function_rewrite(Arc::new(attr::TypeAttr(types)))
}

fn udf(function: impl datafusion::logical_expr::ScalarUDFImpl + 'static) -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(function))
}
