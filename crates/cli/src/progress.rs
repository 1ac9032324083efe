//! Progress bars, on a terminal only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over bytes that another thread counts.
pub fn bytes(what: &str, total: u64, done: Arc<AtomicU64>) -> Bar {
    let style = ProgressStyle::with_template("{msg} {bar:32} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    Bar::start(what, total, style.unwrap_or_else(|_| ProgressStyle::default_bar()), move || {
        done.load(Ordering::Relaxed)
    })
}

pub struct Bar {
    bar: ProgressBar,
    stop: Arc<std::sync::atomic::AtomicBool>,
}

impl Bar {
    fn start(what: &str, total: u64, style: ProgressStyle, done: impl Fn() -> u64 + Send + 'static) -> Bar {
        // indicatif draws on standard error, and nothing at all if that is not a terminal.
        let bar = ProgressBar::new(total.max(1)).with_style(style).with_message(what.to_string());
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (drawn, ended) = (bar.clone(), stop.clone());
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                drawn.set_position(done());
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        Bar { bar, stop }
    }

    /// A bar over any count; shown only when the work takes longer than a moment.
    pub fn over(what: &str, total: u64, done: impl Fn() -> u64 + Send + 'static) -> Bar {
        let style = ProgressStyle::with_template("{msg} {bar:32} {human_pos}/{human_len} {eta}");
        Bar::start(what, total, style.unwrap_or_else(|_| ProgressStyle::default_bar()), done)
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.bar.finish_and_clear();
    }
}

/// Something is going on, and for how long.
pub struct Spinner(ProgressBar);

impl Spinner {
    pub fn start(what: &str) -> Spinner {
        let bar = ProgressBar::new_spinner().with_message(what.to_string());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Spinner(bar)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
