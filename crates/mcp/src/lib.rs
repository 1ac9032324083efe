//! What assistants can ask, over the Model Context Protocol. The only crate that knows it.
//!
//! [`tools::TOOLS`] is the list of tools. Each asks a [`desk::Desk`] what the HTTP API asks, with the same parameters, and writes a short
//! text ([`text`]) that ends in a link to the page ([`link`]). [`prompts`] has questions that need several tools, [`schema`] the tables for
//! SQL. [`handler`] speaks the protocol over what it is given: the server gives it its store (`/mcp`), `rollscope mcp` a folder,
//! or a server to pass everything on to.

mod desk;
mod handler;
mod link;
mod prompts;
mod schema;
mod text;
mod tools;

pub use desk::{Desk, Folder, Source};
pub use handler::{Assistant, HttpService, PassOn, http_service, serve_stdio};
pub use link::Page;
