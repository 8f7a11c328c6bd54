//! Input that may break off.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::sync::CancellationToken;

/// Gives what comes from somewhere for as long as it comes. Where it breaks off, nothing more is said, least of all that
/// this was all: whoever runs the command that takes it is told to end that.
pub(crate) struct Given {
    from: Box<dyn AsyncRead + Send + Unpin>,
    failed: Arc<Mutex<Option<io::Error>>>,
    end: CancellationToken,
}

/// Why an input broke off, if it did.
pub(crate) struct Failed(Arc<Mutex<Option<io::Error>>>);

impl Failed {
    pub(crate) fn take(self) -> Option<io::Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Given {
    /// `end` fires when `from` fails.
    pub(crate) fn new(from: Box<dyn AsyncRead + Send + Unpin>, end: CancellationToken) -> (Self, Failed) {
        let failed = Arc::default();
        (Self { from, failed: Arc::clone(&failed), end }, Failed(failed))
    }
}

impl AsyncRead for Given {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.end.is_cancelled() {
            return Poll::Pending;
        }
        if let Err(error) = ready!(Pin::new(&mut self.from).poll_read(context, to)) {
            *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            self.end.cancel();
            // Whoever waits is woken by that.
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}
