//! libFuzzer over one of the targets, which `ROLLSCOPE_FUZZ` names: see `run.py`.
#![no_main]

use std::cell::RefCell;
use std::sync::OnceLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use rollscope_fuzz::oracle::{Costs, Excess};
use rollscope_fuzz::pump::Dice;
use rollscope_fuzz::{Target, find, pickle};

static TARGET: OnceLock<&Target> = OnceLock::new();

thread_local! {
    static COSTS: RefCell<Costs> = RefCell::default();
}

fuzz_target!(
    init: {
        let name = std::env::var("ROLLSCOPE_FUZZ").unwrap_or_default();
        let target = find(&name).unwrap_or_else(|| panic!("ROLLSCOPE_FUZZ names no target: {name:?}"));
        expect_panics_that_are_caught();
        // What is made once is not the cost of an input.
        (target.run)(b"");
        TARGET.get_or_init(|| target);
        // SAFETY: it only prints.
        unsafe { libc::atexit(report) };
    },
    |data: &[u8]| {
        let ran = COSTS.with_borrow_mut(|costs| costs.run(TARGET.get().expect("it is set first"), data));
        if let Err(excess) = ran {
            report();
            if let Excess::Growth { input, .. } = &excess {
                let path = std::env::temp_dir().join("rollscope-fuzz-growth");
                std::fs::write(&path, input).expect("a temporary file");
                eprintln!("the long input is in {}", path.display());
            }
            panic!("{excess}");
        }
    }
);

// Pickles are mutated as bytes, or made from a grammar.
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let is_torch = TARGET.get().is_some_and(|target| target.name == "torch");
    let mut dice = Dice::new(seed.into());
    if !is_torch || !dice.one_in(2) {
        return fuzzer_mutate(data, size, max_size);
    }
    let made = pickle::make(&mut dice, max_size);
    data[..made.len()].copy_from_slice(&made);
    made.len()
});

/// Reading PromQL and the log catches those of the parsers that it calls. libFuzzer's hook would end the process before.
fn expect_panics_that_are_caught() {
    let abort = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let trace = std::backtrace::Backtrace::force_capture().to_string();
        let is_theirs = ["promql_parser::", "arrow_ipc::"].iter().any(|parser| trace.contains(parser));
        if !is_theirs {
            abort(info);
        }
    }));
}

/// One line for `run.py`.
extern "C" fn report() {
    COSTS.with_borrow(|costs| {
        eprintln!(
            "costs: inputs={} slowest_us={} heap={} long_heap_per_byte={}",
            costs.inputs,
            costs.slowest.as_micros(),
            costs.heap,
            costs.long_heap_per_byte
        );
    });
}
