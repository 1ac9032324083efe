//! Sizes that several sides must agree on. A limit that only one place knows stays in that place.

/// One conversation: its messages and metadata as JSON. The same wherever it comes from (the Python package, OTLP, span
/// events, dumps) and for what is indexed of it, so that what one side takes no other refuses. A conversation travels in
/// one message, and messages are limited to [`MESSAGE_BYTES`]: half of that leaves room for its neighbours.
pub const CONVERSATION_BYTES: usize = 32 << 20;

/// One image or other file, decoded. It travels in one message too.
pub const MEDIA_BYTES: usize = 32 << 20;

/// One OTLP message after decompression, unless the server is configured otherwise.
pub const MESSAGE_BYTES: usize = 64 << 20;

/// A run's id: it names a folder on disk.
pub const RUN_ID_BYTES: usize = 256;

/// The highest trace level. 0 is off.
pub const TRACE_LEVEL: u8 = 3;
