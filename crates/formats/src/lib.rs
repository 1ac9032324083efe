//! Bytes to [`RecordBatch`](arrow::array::RecordBatch)es and back, pure: nothing here opens a socket or a store.
//!
//! [`import`] turns what other systems write into batches of our tables; [`export`] turns batches into what other
//! systems read. [`dumps`] reads what people have at hand when a run hangs. Each has one explicit list: adding a format means adding a file and a line in that list.

mod any_value;
pub mod call_tokens;
pub mod conversation;
pub mod conversations;
pub mod dumps;
pub mod export;
pub mod import;
mod json;
#[doc(hidden)]
pub mod testing;
pub mod tokens;
