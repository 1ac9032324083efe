//! What an input may cost. A parser may take memory and time in proportion to its input, and not more.

use std::fmt;
use std::time::{Duration, Instant};

use crate::Target;
use crate::heap::peak_of;
use crate::pump::{Dice, pump};

/// Heap per byte of input. The densest rows come from protobuf: a metric point of about 12 bytes becomes a row of ten columns in
/// builders that double, which are then finished into arrays beside them.
pub const HEAP_PER_BYTE: usize = 400;
/// Heap of an empty input: buffers of readers (1 MiB for files), the first capacities of builders for up to forty columns.
pub const HEAP_FIXED: usize = 4 << 20;
/// Time per byte and of an empty input, with counters in the code and dependencies that are not optimised.
pub const TIME_PER_BYTE: Duration = Duration::from_micros(10);
pub const TIME_FIXED: Duration = Duration::from_millis(20);

/// Heap and time beyond the input's share.
fn fixed(target: &Target) -> (usize, Duration) {
    match target.name {
        // The automata of words that may have typos: 0.05 MB and 0.1 ms (of an optimised build) per byte, of which a search may have 48.
        "search" => (8 << 20, Duration::from_millis(200)),
        // Values of a pickle may be shared, and are written wherever they occur: 32 MiB for the smallest file (`limits.rs`), and builders
        // for all tables.
        "torch" | "dumps" => (8 << 20, Duration::from_secs(2)),
        _ => (HEAP_FIXED, TIME_FIXED),
    }
}

/// One input of so many is also made long, to see how the cost grows.
const PUMP_EVERY: u64 = 512;
/// Lengths that are compared. Going from one to the next multiplies linear time by 4 and quadratic time by 16.
const SHORT: usize = 16 << 10;
const LONG: usize = 4 * SHORT;
const LONGER: usize = 4 * LONG;
/// What counts as more than linear, and what is too short to be told from noise.
const GROWTH: u32 = 8;
const NOISE: Duration = Duration::from_millis(2);

/// Why an input fails.
#[derive(Debug)]
pub enum Excess {
    Heap { bytes: usize, len: usize },
    Time { took: Duration, len: usize },
    Growth { short: Duration, long: Duration, longer: Duration, input: Vec<u8> },
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Excess::Heap { bytes, len } => write!(f, "{bytes} bytes of heap for {len} bytes of input"),
            Excess::Time { took, len } => write!(f, "{took:?} of CPU time for {len} bytes of input"),
            Excess::Growth { short, long, longer, .. } => {
                write!(f, "more than linear: {short:?}, {long:?} and {longer:?} for {SHORT}, {LONG} and {LONGER} bytes")
            }
        }
    }
}

/// What the inputs of a target cost.
#[derive(Default)]
pub struct Costs {
    pub inputs: u64,
    pub slowest: Duration,
    /// Most heap of one input.
    pub heap: usize,
    /// Most heap of one input that was made long, per byte.
    pub long_heap_per_byte: usize,
}

impl Costs {
    /// Runs an input. An error says what it cost too much of.
    pub fn run(&mut self, target: &Target, data: &[u8]) -> Result<(), Excess> {
        self.inputs += 1;
        let start = Instant::now();
        let bytes = heap(target, data)?;
        let took = start.elapsed();
        self.heap = self.heap.max(bytes);
        self.slowest = self.slowest.max(took);
        let bound = fixed(target).1 + TIME_PER_BYTE * data.len() as u32;
        // By the clock it may be the machine that is busy. By CPU time, three times in a row, it is the input.
        if took > bound {
            let took = least_cpu(target, data);
            if took > bound {
                return Err(Excess::Time { took, len: data.len() });
            }
        }
        if self.inputs.is_multiple_of(PUMP_EVERY) {
            self.grow(target, data)?;
        }
        Ok(())
    }

    /// Repeats a part of the input until it is long, and again until it is four times as long.
    fn grow(&mut self, target: &Target, data: &[u8]) -> Result<(), Excess> {
        let seed = self.inputs;
        let of = |len| pump(data, len, target.shape, &mut Dice::new(seed));
        let (Some(short), Some(long)) = (of(SHORT), of(LONG)) else { return Ok(()) };
        let short_took = cpu(|| (target.run)(&short));
        let mut bytes = Ok(0);
        let long_took = cpu(|| bytes = heap(target, &long));
        self.long_heap_per_byte = self.long_heap_per_byte.max(bytes? / long.len());
        if long_took < NOISE || long_took < short_took * (GROWTH - 2) {
            return Ok(());
        }
        let Some(longer) = of(LONGER) else { return Ok(()) };
        let [short, long, took] = [&short, &long, &longer].map(|data| least_cpu(target, data));
        match long > short * GROWTH && took > long * GROWTH {
            true => Err(Excess::Growth { short, long, longer: took, input: longer }),
            false => Ok(()),
        }
    }
}

/// Runs an input and returns the heap that it took.
pub fn heap(target: &Target, data: &[u8]) -> Result<usize, Excess> {
    let peak = || peak_of(|| (target.run)(data));
    let bound = fixed(target).0 + HEAP_PER_BYTE * data.len();
    let mut bytes = peak();
    if bytes > bound {
        // What is made once, on first use, is not the cost of an input.
        bytes = peak();
    }
    match bytes > bound {
        true => Err(Excess::Heap { bytes, len: data.len() }),
        false => Ok(bytes),
    }
}

/// The least CPU time of three runs: the others were disturbed.
fn least_cpu(target: &Target, data: &[u8]) -> Duration {
    (0..3).map(|_| cpu(|| (target.run)(data))).min().unwrap_or_default()
}

fn cpu(run: impl FnOnce()) -> Duration {
    let now = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: it fills in the time.
        unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let start = now();
    run();
    now().saturating_sub(start)
}
