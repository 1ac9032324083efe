//! Text in SQL that we write.

/// `'text'`, quotes doubled: the only way text of a caller gets into SQL that we write.
pub fn sql_text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
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
