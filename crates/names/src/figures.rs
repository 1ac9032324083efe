//! Definitions of figures that several sides compute.

/// Share of a step's samples that have ended when its tail begins. The tail lasts until the last sample ends.
pub const TAIL_BEGINS: f64 = 0.9;
