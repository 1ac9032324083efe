//! State that belongs to a Python object and is only touched with Python's lock held, and never while Python code can run:
//! then that lock is all the locking there is to do. Pythons without a global lock get a lock of our own.

#[cfg(Py_GIL_DISABLED)]
pub use guarded::Held;
#[cfg(not(Py_GIL_DISABLED))]
pub use plain::Held;

#[cfg(not(Py_GIL_DISABLED))]
mod plain {
    use std::cell::UnsafeCell;

    pub struct Held<T>(UnsafeCell<T>);

    // SAFETY: every access is made with Python's lock held.
    unsafe impl<T: Send> Sync for Held<T> {}

    impl<T> Held<T> {
        pub fn new(value: T) -> Self {
            Held(UnsafeCell::new(value))
        }

        /// Runs `work` on the state. It must not run Python code, which includes making or dropping Python objects.
        #[inline(always)]
        pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
            // SAFETY: Python's lock is held, and `work` does not let go of it or come back here.
            work(unsafe { &mut *self.0.get() })
        }

        pub fn get_mut(&mut self) -> &mut T {
            self.0.get_mut()
        }
    }
}

#[cfg(Py_GIL_DISABLED)]
mod guarded {
    use std::sync::{Mutex, PoisonError};

    pub struct Held<T>(Mutex<T>);

    impl<T> Held<T> {
        pub fn new(value: T) -> Self {
            Held(Mutex::new(value))
        }

        pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
            work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
        }

        pub fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
