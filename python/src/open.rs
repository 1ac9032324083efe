//! Spans that have not ended. The background thread reports those that run for long, so it has to find them: each is known by
//! a pointer, from its start until it ends or its memory goes.

use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;

use crate::core::{Core, Queue, generation};

/// More open spans than this are not reported while they are open.
const MAX_OPEN: usize = 1 << 20;
const NO_SLOT: u32 = u32::MAX;

/// A span that has not ended yet, as the background thread sees it. Nothing of it changes once it is in the slab.
pub trait OpenSpan {
    fn start_ns(&self) -> u64;
    /// Whether it has been sent as open.
    fn reported(&self) -> &AtomicBool;
    fn write_open(&self, out: &mut Vec<u8>);
}

/// Where the open spans are.
#[derive(Default)]
pub struct Slab {
    slots: Vec<Option<NonNull<dyn OpenSpan>>>,
    free: Vec<u32>,
}

// SAFETY: the slab is behind the lock of the queue. The pointers are followed only under it, and a span takes its own out,
// under the same lock, before its memory goes.
unsafe impl Send for Slab {}

impl Slab {
    /// # Safety
    /// The span stays where it is, and its memory alive, until its slot is removed.
    #[inline]
    unsafe fn insert(&mut self, span: NonNull<impl OpenSpan + 'static>) -> u32 {
        let span = Some(span as NonNull<dyn OpenSpan>);
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = span;
                slot
            }
            None if self.slots.len() < MAX_OPEN => {
                self.slots.push(span);
                self.slots.len() as u32 - 1
            }
            None => NO_SLOT,
        }
    }

    #[inline]
    fn remove(&mut self, slot: u32) {
        if slot != NO_SLOT {
            self.slots[slot as usize] = None;
            self.free.push(slot);
        }
    }

    /// How many slots there are, free ones too.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn get(&self, slot: usize) -> Option<&dyn OpenSpan> {
        // SAFETY: what is in the slab is alive, and cannot leave it while the slab is borrowed.
        self.slots.get(slot).copied().flatten().map(|span| unsafe { span.as_ref() })
    }
}

/// A span's place among the open ones.
pub struct Place {
    core: &'static Core,
    slot: u32,
}

impl Place {
    /// For a span that does not know its address yet.
    pub fn none(core: &'static Core) -> Place {
        Place { core, slot: NO_SLOT }
    }

    /// # Safety
    /// The span stays where it is, and its memory alive, until [`Place::end`] or [`Place::leave`].
    #[inline]
    pub unsafe fn take(core: &'static Core, span: NonNull<impl OpenSpan + 'static>) -> Place {
        // SAFETY: the caller's promise is the same.
        let slot = unsafe { core.queue().open.insert(span) };
        // The first span of a process may never end: it is reported all the same.
        if !core.started() {
            core.nudge();
        }
        Place { core, slot }
    }

    /// Whether the span was started in this process: one that crossed a fork is its parent's to end.
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.core.generation == generation()
    }

    /// The span leaves, and under the same lock `record` writes it as ended. Does neither for a span of before a fork.
    #[inline]
    pub fn end(&mut self, record: impl FnOnce(&Core, &mut Queue)) {
        if self.is_ours() {
            let mut queue = self.core.queue();
            queue.open.remove(self.slot);
            record(self.core, &mut queue);
        }
        self.slot = NO_SLOT;
    }

    /// The span goes without having ended.
    #[inline]
    pub fn leave(&mut self) {
        if self.slot != NO_SLOT {
            self.end(|_, _| {});
        }
    }
}

/// An open span in memory of its own.
pub struct Opened<T: OpenSpan + 'static> {
    /// From a box. Not the box itself: moving that would end what the slab's pointer may do.
    span: NonNull<T>,
    place: Place,
}

// SAFETY: it owns the span, as a box does.
unsafe impl<T: OpenSpan + Send + Sync> Send for Opened<T> {}
// SAFETY: as above.
unsafe impl<T: OpenSpan + Send + Sync> Sync for Opened<T> {}

impl<T: OpenSpan> Opened<T> {
    pub fn start(core: &'static Core, span: T) -> Opened<T> {
        let span = NonNull::from(Box::leak(Box::new(span)));
        // SAFETY: it is freed in `drop`, after it has left.
        Opened { span, place: unsafe { Place::take(core, span) } }
    }

    /// Writes it as ended; see [`Place::end`].
    pub fn end(&mut self, record: impl FnOnce(&T, &Core, &mut Queue)) {
        // SAFETY: it lives as long as this does, and is only ever read.
        let span = unsafe { self.span.as_ref() };
        self.place.end(|core, queue| record(span, core, queue));
    }
}

impl<T: OpenSpan> std::ops::Deref for Opened<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: as in `end`.
        unsafe { self.span.as_ref() }
    }
}

impl<T: OpenSpan> Drop for Opened<T> {
    fn drop(&mut self) {
        self.place.leave();
        // SAFETY: made from a box, and nothing points to it any more.
        drop(unsafe { Box::from_raw(self.span.as_ptr()) });
    }
}
