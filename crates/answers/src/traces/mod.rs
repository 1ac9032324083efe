//! Traces as wholes: finding them ([`find`]), one of them laid out for a waterfall ([`view`]), and what belongs together although
//! no context was sent ([`requests`]).

pub mod find;
pub mod requests;
pub mod view;
