//! `spans` as users see it: the stored columns and two that are computed from them on demand. A view, so that
//! filters and projections go through it, and unused columns cost nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::common::Result;
use datafusion::common::metadata::FieldMetadata;
use datafusion::datasource::{ViewTable, provider_as_source};
use datafusion::logical_expr::{Expr, LogicalPlanBuilder, col};
use rollscope_model::Table;

use crate::functions::{ATTRS_OF, merge_attrs};

/// The view over the stored `spans`.
pub fn spans_view(stored: Arc<dyn TableProvider>) -> Result<ViewTable> {
    let mut columns: Vec<Expr> = stored.schema().fields().iter().map(|f| col(f.name())).collect();
    let duration = col("end_ns") - col("start_ns");
    let attrs = merge_attrs().call(vec![col("start_attrs"), col("end_attrs")]);
    columns.push(
        duration.alias_with_metadata("duration_ns", metadata("end_ns - start_ns; null while the span is open", None)),
    );
    columns.push(attrs.alias_with_metadata(
        "attrs",
        metadata(
            "all attributes: start_attrs and end_attrs together; use attr(attrs, 'key')",
            Some("spans.start_attrs spans.end_attrs"),
        ),
    ));
    let plan =
        LogicalPlanBuilder::scan(Table::Spans.name(), provider_as_source(stored), None)?.project(columns)?.build()?;
    Ok(ViewTable::new(plan, None))
}

fn metadata(doc: &str, attrs_of: Option<&str>) -> Option<FieldMetadata> {
    let mut entries = BTreeMap::from([("doc".to_string(), doc.to_string())]);
    if let Some(origin) = attrs_of {
        entries.insert(ATTRS_OF.to_string(), origin.to_string());
    }
    Some(FieldMetadata::from(entries))
}
