// Limits and definitions that several sides share, from crates/names; made by a test of crates/model. Stale: UPDATE=1 cargo test --workspace.

/** Messages and metadata of one conversation, as JSON. */
export const CONVERSATION_BYTES = 33554432;

/** One image or other file. */
export const MEDIA_BYTES = 33554432;

/** One OTLP message after decompression, by default. */
export const MESSAGE_BYTES = 67108864;

/** A run's id. */
export const RUN_ID_BYTES = 256;

/** The highest trace level; 0 is off. */
export const TRACE_LEVEL = 3;

/** Share of a step's samples that have ended when its tail begins. */
export const TAIL_BEGINS = 0.9;
