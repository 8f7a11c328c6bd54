//! What the daemon reads and writes of a workspace.
//!
//! It packs and unpacks archives for any container, and needs no program inside for it. For one that runs it would stop
//! everything else that it does for that container meanwhile, and refuse links that lead out of the workspace. So it does
//! so for another: one that has the same workspace, is never started, and goes when the copy is over.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::{ContainerCreateBody, HostConfig, Mount, MountType};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, DownloadFromContainerOptionsBuilder, UploadToContainerOptionsBuilder,
};
use futures_util::StreamExt;
use tokio::io::{AsyncRead, AsyncWriteExt, BufReader, DuplexStream};
use tokio::task::JoinHandle;
use tokio_util::io::{ReaderStream, StreamReader, SyncIoBridge};
use tokio_util::task::TaskTracker;

use super::engine::{root, status};
use super::entries::{Plan, rewrite};
use super::instance::{Instance, remove};
use crate::HandError;
use crate::sandbox::{CopyError, WORKSPACE};

/// The folder of the workspace in which copies and checkpoints are.
pub(super) const OURS: &str = ".manyhands";
/// How long the daemon may take for one archive.
pub(super) const TIMEOUT: Duration = Duration::from_hours(1);
/// Bytes between two of those who read, rewrite and write.
const PIPE: usize = 256 << 10;

/// Numbers windows, whose containers have names.
static WINDOWS: AtomicU64 = AtomicU64::new(0);

/// What is seen through a window.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shows {
    /// The workspace.
    All,
    /// The workspace, and nothing in the folder [`OURS`] of it.
    Work,
}

/// A container that never runs.
pub(super) struct Window {
    docker: Docker,
    /// Its id, until it is removed.
    container: Option<String>,
    tasks: TaskTracker,
}

impl Window {
    /// Makes one on the workspace of an instance.
    pub(super) async fn open(instance: &Instance, shows: Shows) -> Result<Self, HandError> {
        let mut body = instance.window.clone();
        if let (Shows::Work, Some(HostConfig { mounts: Some(mounts), .. })) = (shows, &mut body.host_config) {
            mounts.push(Mount {
                typ: Some(MountType::VOLUME),
                target: Some(format!("{WORKSPACE}/{OURS}")),
                ..Mount::default()
            });
        }
        let number = WINDOWS.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-window-{number}", instance.name);
        let (docker, tasks) = (instance.docker.clone(), instance.tasks.clone());
        // Whoever waits may go away, and then there is something to clear up.
        let made = instance.tasks.spawn(async move {
            let options = CreateContainerOptionsBuilder::new().name(&name).build();
            let container = docker.create_container(Some(options), body).await?.id;
            Ok::<_, Error>(Self { docker, container: Some(container), tasks })
        });
        match made.await {
            Ok(Ok(window)) => Ok(window),
            Ok(Err(error)) => Err(instance.engine.explain(&error).into()),
            Err(error) => Err(HandError::Io { doing: "making a container", source: error.into() }),
        }
    }

    /// Reads a file or folder as an archive whose paths begin with its name; `None` when there is none.
    pub(super) async fn read(
        &self,
        path: &str,
    ) -> Result<Option<impl AsyncRead + Send + Unpin + use<>>, CopyError> {
        let options = DownloadFromContainerOptionsBuilder::new().path(path).build();
        let docker = self.docker.clone().with_timeout(TIMEOUT);
        let mut pieces = Box::pin(docker.download_from_container(self.id(), Some(options)));
        let first = match pieces.next().await {
            Some(Err(error)) if status(&error) == Some(404) => return Ok(None),
            Some(Err(error)) => return Err(refused(&error)),
            first => first,
        };
        let pieces = futures_util::stream::iter(first).chain(pieces);
        Ok(Some(StreamReader::new(
            pieces.map(|piece| piece.map_err(|error| io::Error::other(root(&error)))).boxed(),
        )))
    }

    /// Unpacks an archive whose paths begin at the root.
    pub(super) async fn write(&self, archive: DuplexStream) -> Result<(), CopyError> {
        let options = UploadToContainerOptionsBuilder::new().path("/").build();
        let pieces = ReaderStream::with_capacity(archive, PIPE).filter_map(|piece| async { piece.ok() });
        // Its answer comes when all is unpacked.
        let docker = self.docker.clone().with_timeout(TIMEOUT);
        let written =
            docker.upload_to_container(self.id(), Some(options), bollard::body_stream(pieces)).await;
        written.map_err(|error| refused(&error))
    }

    /// Removes it and waits for that.
    pub(super) async fn close(mut self) {
        if let Some(container) = &self.container
            && remove(&self.docker, container).await.is_ok()
        {
            self.container = None;
        }
    }

    fn id(&self) -> &str {
        self.container.as_deref().unwrap_or_default()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(container) = self.container.take() {
            let docker = self.docker.clone();
            self.tasks.spawn(async move {
                if let Err(error) = remove(&docker, &container).await {
                    tracing::warn!(container, %error, "a container for copying could not be removed");
                }
            });
        }
    }
}

fn refused(error: &Error) -> CopyError {
    CopyError::Refused(match error {
        Error::DockerResponseServerError { message, .. } => {
            format!("The Docker daemon refuses to copy: {}.", message.trim().trim_end_matches('.'))
        }
        other => format!("The Docker daemon could not copy: {}.", root(other)),
    })
}

/// What a window's container is made with.
pub(super) fn body(like: &ContainerCreateBody, mount: Mount) -> ContainerCreateBody {
    ContainerCreateBody {
        image: like.image.clone(),
        labels: like.labels.clone(),
        // It needs one, and never runs it.
        entrypoint: Some(vec!["none".into()]),
        host_config: Some(HostConfig {
            mounts: Some(vec![mount]),
            network_mode: Some("none".into()),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    }
}

/// An archive that is being rewritten, on a thread of its own.
pub(super) struct Rewriting {
    /// Takes the old one. It is to be dropped at its end.
    pub(super) old: DuplexStream,
    /// Gives the new one.
    pub(super) new: DuplexStream,
    /// Says whether the old one was whole, and so the new one is.
    pub(super) whole: Whole,
}

/// Whether an archive was whole.
pub(super) struct Whole(JoinHandle<io::Result<()>>);

impl Whole {
    /// What was wrong with it, once it was read.
    pub(super) async fn check(self) -> Result<(), CopyError> {
        match self.0.await.unwrap_or_else(|error| Err(error.into())) {
            // Whoever took it did not take all: it is theirs to say why.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(CopyError::Refused(format!("The archive can't be used: {}.", root(&error))))
            }
            _ => Ok(()),
        }
    }
}

impl Rewriting {
    pub(super) fn begin(plan: Plan) -> Self {
        let (old, from) = tokio::io::duplex(PIPE);
        let (to, new) = tokio::io::duplex(PIPE);
        let rewriting = tokio::task::spawn_blocking(move || {
            let from = SyncIoBridge::new(BufReader::with_capacity(PIPE, from));
            rewrite(from, io::BufWriter::with_capacity(PIPE, SyncIoBridge::new(to)), &plan)
        });
        Self { old, new, whole: Whole(rewriting) }
    }
}

/// Gives all of `from` to `to` for as long as `taking` goes on, which takes what becomes of it.
pub(super) async fn while_given<T>(
    mut from: impl AsyncRead + Send + Unpin,
    mut to: DuplexStream,
    taking: impl Future<Output = T>,
) -> T {
    let giving = async {
        // What breaks off is too short, which is noticed where it is taken.
        if tokio::io::copy(&mut from, &mut to).await.is_ok() {
            let _ = to.shutdown().await;
        }
        drop(to);
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        biased;
        taken = taking => taken,
        never = giving => match never {},
    }
}

/// Where the daemon sees a path of the workspace, as archives name it.
pub(super) fn inside(path: &str) -> PathBuf {
    PathBuf::from(WORKSPACE.trim_start_matches('/')).join(path)
}
