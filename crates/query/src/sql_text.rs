//! Texts and ids in SQL that we write.

use rollscope_model::TraceId;

/// `'text'`, quotes doubled: the only way text of a caller gets into SQL that we write.
pub fn sql_text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Trace ids, separated by commas.
pub fn sql_trace_ids<'a>(ids: impl IntoIterator<Item = &'a TraceId>) -> String {
    let texts: Vec<String> = ids.into_iter().map(|id| format!("trace_id('{}')", hex::encode(id))).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::sql_text;

    #[test]
    fn quotes_cannot_end_a_text() {
        assert_eq!(sql_text("it's"), "'it''s'");
        assert_eq!(sql_text("x'; drop table spans --"), "'x''; drop table spans --'");
    }
}
