//! Copying files and folders in and out of anything that can run `tar`, as one stream.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{Line, Remote, WORKSPACE};
use crate::posix::{Command, Ended, Flow, Input, Program, Sink, Stop, Stream, Streams};
use crate::sandbox::CopyError;

/// How long a copy may take.
const TIMEOUT: Duration = Duration::from_hours(1);
/// How long whoever receives may take for one piece.
const STUCK: Duration = Duration::from_mins(1);
/// Most bytes of one copy out of a host.
const MOST: u64 = 4 << 30;
/// Most bytes kept of why `tar` failed.
const MOST_ERROR: usize = 2048;
/// Unpacks `content` of the stream as `$2` in the folder `$1`, by way of `$3`. Refuses what exists.
const COPY_IN: &str = r#"
set -e
mkdir -p -- "$1"
if [ -e "$1/$2" ] || [ -L "$1/$2" ]; then
    echo "$2 exists already; name something new" >&2
    exit 1
fi
rm -rf -- "$3"
mkdir -- "$3"
tar -x -o -f - -C "$3"
mv -- "$3/content" "$1/$2"
rmdir -- "$3""#;
/// Packs `$2` in the folder `$1`. What is linked twice is there twice, where `tar` can do that.
const COPY_OUT: &str = r#"
case $(tar --version 2>/dev/null) in
    *GNU*) set -- "$1" "$2" --hard-dereference ;;
esac
exec tar -c -f - ${3:+"$3"} -C "$1" -- "$2""#;
/// Numbers copies, so that two at once have places of their own.
static COPIES: AtomicU64 = AtomicU64::new(0);

impl Remote {
    /// See [`crate::Files::copy_in`]. `line`: one of its own where a slow receiver would hold up other calls.
    pub(crate) async fn copy_in(
        &self,
        line: &Arc<dyn Line>,
        to: &str,
        archive: Box<dyn AsyncRead + Send + Unpin>,
        cancel: &CancellationToken,
    ) -> Result<(), CopyError> {
        let (folder, name) = place(&self.folder, to)?;
        // Beside the target first, so that what breaks off leaves nothing.
        let number = COPIES.fetch_add(1, Ordering::Relaxed);
        let beside = format!("{folder}/.manyhands-copy-{}-{number}", self.id);
        let argv = ["sh", "-c", COPY_IN, "sh", &folder, &name, &beside].map(str::to_owned).to_vec();
        let mut sink = ToNobody { error: Vec::new() };
        let copied = match self.tar(line, argv, Input::Stream(archive), cancel, &mut sink).await {
            Ok(ended) => ended.map_err(|code| refused(code, &sink.error)),
            Err(error) => Err(error),
        };
        if copied.is_err() {
            let argv = ["rm", "-rf", "--", &beside].map(str::to_owned).to_vec();
            let input = Input::Bytes(Bytes::new());
            // Where it fails, the line is gone; what it leaves has a name that says what it is.
            let _ = self.tar(line, argv, input, &CancellationToken::new(), &mut sink).await;
        }
        copied
    }

    /// See [`crate::Files::copy_out`].
    pub(crate) async fn copy_out(
        &self,
        line: &Arc<dyn Line>,
        from: &str,
        archive: &mut (dyn AsyncWrite + Send + Unpin),
        moved: &(dyn Fn(u64) + Send + Sync),
        cancel: &CancellationToken,
    ) -> Result<(), CopyError> {
        let (folder, name) = place(&self.folder, from)?;
        let argv = ["sh", "-c", COPY_OUT, "sh", &folder, &name].map(str::to_owned).to_vec();
        let mut sink = ToArchive { archive, moved, bytes: 0, error: Vec::new() };
        let ended = self.tar(line, argv, Input::Bytes(Bytes::new()), cancel, &mut sink).await?;
        ended.map_err(|code| refused(code, &sink.error))
    }

    /// Runs `tar`; the inner error is its exit code.
    async fn tar(
        &self,
        line: &Arc<dyn Line>,
        argv: Vec<String>,
        input: Input,
        cancel: &CancellationToken,
        sink: &mut dyn Sink,
    ) -> Result<Result<(), i32>, CopyError> {
        let command = Command {
            program: Program::Argv(argv),
            cwd: None,
            input,
            streams: Streams::Separate,
            timeout: TIMEOUT,
        };
        let refuse = |why: String| Err(CopyError::Refused(why));
        match self.run_by(line, command, cancel, sink).await?.ended {
            Ended::Exit(0) => Ok(Ok(())),
            Ended::Exit(code) => Ok(Err(code)),
            Ended::Signal(signal) => refuse(format!("The copy was ended by signal {signal}.")),
            Ended::NotStarted { doing, error } => refuse(format!("Can't {doing}: {error}.")),
            Ended::Stopped(Stop::Timeout) => {
                refuse(format!("The copy took more than {} s.", TIMEOUT.as_secs()))
            }
            Ended::Stopped(Stop::Limit(why)) => refuse(format!("The copy was ended: {why}.")),
            Ended::Stopped(Stop::Cancelled | Stop::Enough) => refuse("The copy was cancelled.".into()),
        }
    }
}

fn refused(code: i32, error: &[u8]) -> CopyError {
    let error = String::from_utf8_lossy(error);
    let why = error.lines().next().unwrap_or_default();
    let why = ["tar: ", "mkdir: ", "mv: "].iter().find_map(|of| why.strip_prefix(of)).unwrap_or(why);
    CopyError::Refused(if why.is_empty() {
        format!("tar failed with exit code {code}.")
    } else {
        format!("{why}.")
    })
}

/// The folder and the name of a path there.
fn place(workspace: &str, path: &str) -> Result<(String, String), CopyError> {
    let below = match path.strip_prefix(WORKSPACE) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest.trim_start_matches('/'),
        _ => path.trim_start_matches("./"),
    };
    let whole =
        if matches!(below, "" | ".") { PathBuf::from(workspace) } else { Path::new(workspace).join(below) };
    let parts = (whole.parent().and_then(Path::to_str), whole.file_name().and_then(|name| name.to_str()));
    match parts {
        (Some(folder), Some(name)) if !whole.components().any(|part| part == Component::ParentDir) => {
            Ok((folder.to_owned(), name.to_owned()))
        }
        _ => Err(CopyError::Refused(format!("{path} must name a file or folder, without `..`."))),
    }
}

struct ToNobody {
    error: Vec<u8>,
}

#[async_trait]
impl Sink for ToNobody {
    async fn take(&mut self, stream: Stream, bytes: &[u8]) -> Flow {
        keep(&mut self.error, stream, bytes);
        Flow::Continue
    }
}

struct ToArchive<'a> {
    archive: &'a mut (dyn AsyncWrite + Send + Unpin),
    moved: &'a (dyn Fn(u64) + Send + Sync),
    bytes: u64,
    error: Vec<u8>,
}

#[async_trait]
impl Sink for ToArchive<'_> {
    async fn take(&mut self, stream: Stream, bytes: &[u8]) -> Flow {
        if stream == Stream::Error {
            keep(&mut self.error, stream, bytes);
            return Flow::Continue;
        }
        self.bytes += bytes.len() as u64;
        if self.bytes > MOST {
            return Flow::Stop(Stop::Limit("it is larger than 4 GiB".into()));
        }
        match timeout(STUCK, self.archive.write_all(bytes)).await {
            Ok(Ok(())) => {
                (self.moved)(self.bytes);
                Flow::Continue
            }
            Ok(Err(_)) | Err(_) => Flow::Stop(Stop::Cancelled),
        }
    }
}

fn keep(error: &mut Vec<u8>, stream: Stream, bytes: &[u8]) {
    if stream == Stream::Error {
        error.extend(bytes.iter().take(MOST_ERROR - error.len().min(MOST_ERROR)));
    }
}
