//! Sending a channel its scripts and its input, while something else is done.

use std::io;
use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt;

use super::Writer;
use crate::posix::Input;

/// Bytes of input that are sent at once.
const CHUNK: usize = 32 * 1024;

/// The input of a channel. The writer is kept to the end: some lines know but one end for both directions.
pub(super) enum Feed {
    Going(Pin<Box<dyn Future<Output = Box<dyn Writer>> + Send>>),
    Idle(Box<dyn Writer>),
    /// Somebody else has it.
    Over,
}

impl Feed {
    /// Sends a script, after which more comes.
    pub(super) fn script(mut to: Box<dyn Writer>, script: Bytes) -> Self {
        Self::Going(Box::pin(async move {
            // A host that takes no more tells why on the other side.
            let _ = to.send(script).await;
            to
        }))
    }

    /// Sends a script and all of the input.
    pub(super) fn all(mut to: Box<dyn Writer>, script: Bytes, input: Input) -> Self {
        Self::Going(Box::pin(async move {
            let _ = send(&mut *to, script, input).await;
            to
        }))
    }

    /// The writer, when nothing is being sent.
    pub(super) fn idle(&mut self) -> Option<Box<dyn Writer>> {
        match std::mem::replace(self, Self::Over) {
            Self::Idle(writer) => Some(writer),
            other => {
                *self = other;
                None
            }
        }
    }

    /// Waits until all is sent; for ever when it is already.
    pub(super) async fn done(&mut self) {
        match self {
            Self::Going(sending) => {
                let writer = sending.await;
                *self = Self::Idle(writer);
            }
            Self::Idle(_) | Self::Over => std::future::pending().await,
        }
    }
}

async fn send(to: &mut dyn Writer, script: Bytes, input: Input) -> io::Result<()> {
    to.send(script).await?;
    match input {
        Input::Bytes(mut bytes) => {
            while !bytes.is_empty() {
                to.send(bytes.split_to(bytes.len().min(CHUNK))).await?;
            }
        }
        Input::Stream(mut from) => loop {
            let mut chunk = BytesMut::with_capacity(CHUNK);
            if from.read_buf(&mut chunk).await? == 0 {
                break;
            }
            to.send(chunk.freeze()).await?;
        },
    }
    to.finish().await
}
