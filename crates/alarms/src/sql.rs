//! Conditions in SQL: each row that a query returns is an alarm.

use std::collections::BTreeMap;

use rollscope_query::Engine;
use rollscope_query::columns::{float_column, text_column};
use rollscope_query::promql::Labels;

use crate::alarm::Seen;
use crate::config::SqlAlarm;
use crate::template::{Template, is_label_name};

/// The column that is no label.
const VALUE: &str = "value";

/// Asks a condition. More rows than `most` are an error.
pub async fn ask(engine: &Engine, alarm: &SqlAlarm, most: usize) -> Result<Vec<Seen>, String> {
    let running = engine.sql_rows(&alarm.query, most + 1).await.map_err(|e| e.message)?;
    let (batches, _) = running.collect().await.map_err(|e| e.message)?;
    let summary = Template::parse(&alarm.summary)?;
    let mut found = Vec::new();
    for batch in batches {
        let schema = batch.schema();
        let mut texts = Vec::new();
        let mut values = vec![Some(1.0); batch.num_rows()];
        for field in schema.fields() {
            let name = field.name();
            if name == VALUE {
                values = float_column(&batch, name).map_err(|_| format!("the column `{VALUE}` must be a number"))?;
                continue;
            }
            if !is_label_name(name) {
                return Err(format!(
                    "the column {name:?} is no name of a label; write `as name` with letters, digits and _"
                ));
            }
            texts.push((
                name.clone(),
                text_column(&batch, name).map_err(|e| format!("the column `{name}` is no text: {e}; cast it"))?,
            ));
        }
        for row in 0..batch.num_rows() {
            let pairs = texts.iter().filter_map(|(name, column)| Some((name.clone(), column[row].clone()?)));
            let mut labels = Labels::new(pairs);
            for (name, text) in &alarm.labels {
                labels = labels.with(name, text);
            }
            let value = values[row].unwrap_or(f64::NAN);
            let mut annotations = BTreeMap::new();
            if !alarm.summary.is_empty() {
                annotations.insert("summary".to_string(), summary.expand(&labels, value)?);
            }
            let labels = labels.with("alertname", &alarm.name);
            found.push(Seen { labels, annotations, value, place: String::new() });
        }
    }
    match found.len() > most {
        true => Err(format!("the query returned more than {most} rows (max_alarms); each row is an alarm")),
        false => Ok(found),
    }
}
