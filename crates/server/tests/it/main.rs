//! The server as its clients see it: real sockets, a real store, the official OTLP clients.

mod harness;

mod access;
mod api;
mod bad_input;
mod lifecycle;
mod otlp;
mod records;
mod sdk;
