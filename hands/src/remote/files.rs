//! Copying in and out of instances that are reached by lines.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::{Line, Remote};
use crate::instances::Instances;
use crate::posix::{Command, Report, Shell, Sink};
use crate::sandbox::CopyError;
use crate::sandbox::copy::{copy_in, copy_out};
use crate::{Files, HandError, Handle};

/// Most bytes of one copy out of a host.
const MOST_COPIED: u64 = 4 << 30;

/// A kind of hand whose instances are reached by lines.
#[async_trait]
pub(crate) trait Reached: Send + Sync {
    /// Its instances.
    fn instances(&self) -> &Instances<Remote>;

    /// A line of its own for one copy, where a slow one would hold up what goes over the instance's.
    async fn line_for_a_copy(&self) -> Result<Option<Arc<dyn Line>>, HandError>;
}

#[async_trait]
impl<T: Reached> Files for T {
    async fn copy_in(
        &self,
        handle: &Handle,
        to: &str,
        archive: Box<dyn AsyncRead + Send + Unpin>,
        cancel: &CancellationToken,
    ) -> Result<(), CopyError> {
        let remote = self.instances().get(handle).await?;
        let line = self.line_for_a_copy().await?;
        let by = By { remote: &remote, line: line.as_ref().unwrap_or(&remote.line) };
        let copied = copy_in(&by, &remote.place(to), archive, cancel).await;
        close(line).await;
        copied
    }

    async fn copy_out(
        &self,
        handle: &Handle,
        from: &str,
        archive: &mut (dyn AsyncWrite + Send + Unpin),
        moved: &(dyn Fn(u64) + Send + Sync),
        cancel: &CancellationToken,
    ) -> Result<u64, CopyError> {
        let remote = self.instances().get(handle).await?;
        let line = self.line_for_a_copy().await?;
        let by = By { remote: &remote, line: line.as_ref().unwrap_or(&remote.line) };
        let copied = copy_out(&by, &remote.place(from), MOST_COPIED, archive, moved, cancel).await;
        close(line).await;
        copied
    }
}

async fn close(line: Option<Arc<dyn Line>>) {
    if let Some(line) = line {
        line.close().await;
    }
}

/// An instance by way of a line to its host.
struct By<'a> {
    remote: &'a Remote,
    line: &'a Arc<dyn Line>,
}

#[async_trait]
impl Shell for By<'_> {
    async fn run(
        &self,
        command: Command,
        cancel: &CancellationToken,
        sink: &mut dyn Sink,
    ) -> Result<Report, HandError> {
        self.remote.run_by(self.line, command, cancel, sink).await
    }
}
