//! Who holds a connection to a worker. A connection is a stranger until a request on it had the key. Strangers are closed after a while,
//! and the oldest of them when there are many, so that they keep out nobody who has the key.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::{self, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

/// How long a stranger may stay.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most strangers at a time.
const MOST: usize = 64;

/// What is known of one connection. Requests carry it as an extension.
#[derive(Debug, Default)]
pub struct Visitor {
    known: AtomicBool,
    leave: CancellationToken,
}

impl Visitor {
    /// A request had the key: the connection may stay.
    pub fn know(&self) {
        self.known.store(true, Relaxed);
    }

    fn is_known(&self) -> bool {
        self.known.load(Relaxed)
    }

    fn send_away(&self) {
        if !self.is_known() {
            self.leave.cancel();
        }
    }
}

/// Connections as they come.
pub fn visitors(listener: TcpListener) -> impl Stream<Item = io::Result<Guarded>> {
    let strangers: Arc<Strangers> = Arc::default();
    stream::unfold(listener, move |listener| {
        let strangers = strangers.clone();
        async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let _ = stream.set_nodelay(true);
                        return Some((Ok(Guarded::new(stream, strangers.admit())), listener));
                    }
                    Err(error) => {
                        // Out of file descriptors, most likely: others must end before the next can come.
                        tracing::warn!(%error, "cannot accept a connection of another node");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        }
    })
}

/// The oldest comes first.
#[derive(Debug, Default)]
struct Strangers(Mutex<VecDeque<Arc<Visitor>>>);

impl Strangers {
    fn admit(&self) -> Arc<Visitor> {
        let visitor: Arc<Visitor> = Arc::default();
        let mut strangers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Ours is the only reference to one that has ended.
        strangers.retain(|other| !other.is_known() && Arc::strong_count(other) > 1);
        if strangers.len() >= MOST
            && let Some(oldest) = strangers.pop_front()
        {
            oldest.send_away();
        }
        strangers.push_back(visitor.clone());
        let late = Arc::downgrade(&visitor);
        tokio::spawn(async move {
            tokio::time::sleep(PATIENCE).await;
            if let Some(visitor) = late.upgrade() {
                visitor.send_away();
            }
        });
        visitor
    }
}

/// A connection that ends when its visitor is sent away.
pub struct Guarded {
    stream: TcpStream,
    visitor: Arc<Visitor>,
    leaving: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Guarded {
    fn new(stream: TcpStream, visitor: Arc<Visitor>) -> Guarded {
        let leaving = Box::pin(visitor.leave.clone().cancelled_owned());
        Guarded { stream, visitor, leaving }
    }
}

impl Connected for Guarded {
    type ConnectInfo = Arc<Visitor>;

    fn connect_info(&self) -> Arc<Visitor> {
        self.visitor.clone()
    }
}

impl AsyncRead for Guarded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.visitor.is_known() && self.leaving.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
