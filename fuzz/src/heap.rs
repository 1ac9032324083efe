//! An allocator that knows how much is in use and how much was at most.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn took(bytes: usize) {
    let used = USED.fetch_add(bytes, Relaxed) + bytes;
    if used > PEAK.load(Relaxed) {
        PEAK.fetch_max(used, Relaxed);
    }
}

// SAFETY: everything is done by the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Old and new exist side by side while a large block moves, but the system mostly remaps it.
        match size.checked_sub(layout.size()) {
            Some(more) => took(more),
            None => {
                USED.fetch_sub(layout.size() - size, Relaxed);
            }
        }
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Runs something and returns how many bytes of heap it had at most, beyond those that were in use before.
pub fn peak_of(run: impl FnOnce()) -> usize {
    let before = USED.load(Relaxed);
    PEAK.store(before, Relaxed);
    run();
    PEAK.load(Relaxed).saturating_sub(before)
}
