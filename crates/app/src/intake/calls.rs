//! Model calls in log events, which become rows of `conversations`: an instrumentation sends the messages of a call as
//! records of their own, in as many requests as it likes, so each is joined with what is stored of its call.

use std::time::Duration;

use rollscope_formats::conversations::events::{Calls, Finished};
use rollscope_model::Table;
use rollscope_query::Engine;
use rollscope_store::Store;

use crate::conversations::lift;
use crate::problem::Problem;
use crate::query::{collect, sql_text, text_column};
use crate::work::work;

/// Ids looked up by one query.
const LOOKED_UP: usize = 500;

pub struct ModelCalls {
    store: Store,
    engine: Engine,
    /// One at a time, so that two requests with messages of one call do not overwrite each other's.
    joining: tokio::sync::Mutex<()>,
}

/// What became of the records.
pub struct Kept {
    pub accepted: u64,
    pub rejected: u64,
    pub reasons: Vec<String>,
}

impl ModelCalls {
    pub fn new(store: Store, engine: Engine) -> Self {
        ModelCalls { store, engine, joining: tokio::sync::Mutex::new(()) }
    }

    pub async fn keep(&self, mut calls: Calls) -> Result<Kept, Problem> {
        // Before they are compared with what is stored: there the images are out already.
        let (mut calls, images) = work(move || {
            let images: Vec<Vec<u8>> = calls.messages_mut().flat_map(lift::message).collect();
            (calls, images)
        })
        .await?;
        for image in images {
            self.store.media_put(image).await?;
        }
        let _turn = self.joining.lock().await;
        self.join(&mut calls).await.map_err(|problem| {
            let detail = format!("cannot look up what is stored of the model calls: {problem}");
            Problem::unavailable(detail, Duration::from_secs(1))
        })?;
        let Finished { batch, rejected, reasons } = calls.finish();
        let accepted = match batch {
            Some(batch) => self.store.append(Table::Conversations, batch).await?.accepted,
            None => 0,
        };
        Ok(Kept { accepted, rejected, reasons })
    }

    async fn join(&self, calls: &mut Calls) -> Result<(), Problem> {
        let ids: Vec<String> = calls.ids().map(sql_text).collect();
        for ids in ids.chunks(LOOKED_UP) {
            let sql = format!("select id, messages, metadata from conversations where id in ({})", ids.join(", "));
            for batch in &collect(&self.engine, &sql).await? {
                let columns = ["id", "messages", "metadata"].map(|name| text_column(batch, name));
                let [ids, messages, metadata] = columns;
                for ((id, messages), metadata) in ids?.into_iter().zip(messages?).zip(metadata?) {
                    if let (Some(id), Some(messages)) = (id, messages) {
                        calls.join(&id, &messages, metadata.as_deref());
                    }
                }
            }
        }
        Ok(())
    }
}
