//! Copying files and folders between this machine and a sandbox, as one tar stream.
//!
//! Inside, `tar` runs as any other command. On this machine [`super::pack`] and [`super::Landing`] run as the person who
//! copies.

use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{Sandbox, WORKSPACE};
use crate::posix::given::{Failed, Given};
use crate::posix::{Command, Ended, Flow, Input, Program, Shell, Sink, Stop, Stream, Streams};
use crate::{Files, HandError, Handle};

/// How long a copy may take.
const TIMEOUT: Duration = Duration::from_hours(1);
/// How long whoever receives may take for one piece.
const STUCK: Duration = Duration::from_mins(1);
/// Functions of a shell for folders that may not be written to, whoever owns them: such a one can neither be moved to
/// another folder nor emptied as it is. Nothing is done through a link.
pub(crate) const FOLDERS: &str = r#"
move() { # $1 becomes $2, with its mode
    mode=
    if [ -d "$1" ] && [ ! -L "$1" ] && [ ! -w "$1" ]; then
        mode=$(stat -c %a -- "$1")
        chmod u+w -- "$1"
    fi
    mv -f -T -- "$1" "$2" || {
        [ -z "$mode" ] || chmod "$mode" -- "$1"
        return 1
    }
    [ -z "$mode" ] || chmod "$mode" -- "$2"
}
wipe() { # nothing is left of these
    rm -rf -- "$@" 2> /dev/null || {
        find "$@" -type d -exec chmod u+rwx {} ';' 2> /dev/null || true
        rm -rf -- "$@"
    }
}
"#;
/// How whatever copies in begins: makes room in `$3` for what comes, and the folder `$1`, and refuses a `$2` that is
/// there already.
const FRESH: &str = r#"
set -e
mkdir -p -- "$1"
if [ -e "$1/$2" ] || [ -L "$1/$2" ]; then
    echo "$2 exists already; name something new" >&2
    exit 1
fi
wipe "$3"
mkdir -p -- "$3""#;
/// Unpacks `content` of the stream as `$2` in the folder `$1`, by way of `$3`.
const COPY_IN: &str = r#"
tar -x -f - -C "$3" --no-same-owner
move "$3/content" "$1/$2"
rmdir -- "$3""#;
/// Refuses a `$1` that is neither a file nor a folder, and prints a line for each of those in it that no copy has. It looks
/// no deeper than a copy may be: a path of so many names has more bytes than one of a copy.
const LOOK: &str = r#"
if [ -e "$1" ] && [ ! -L "$1" ] && [ ! -f "$1" ] && [ ! -d "$1" ]; then
    echo "$1 is neither a file nor a folder" >&2
    exit 1
fi
find "$1" -maxdepth 2048 ! -type f ! -type d ! -type l -exec sh -c 'for one; do echo; done' sh {} + \
    2> /dev/null || true"#;
/// Packs `$2` of the folder `$1`.
const COPY_OUT: &str = r#"exec tar -c -f - -C "$1" -- "$2""#;
/// Most bytes kept of why `tar` failed.
const MOST_ERROR: usize = 2048;

/// Why a copy failed. Nothing of it stays.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// It can't be done, as the sentence says.
    #[error("{0}")]
    Refused(String),
    /// The hand failed.
    #[error(transparent)]
    Hand(#[from] HandError),
    /// This machine's side failed.
    #[error("{}: {source}", path.display())]
    Local {
        /// What it was about.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

#[async_trait]
impl Files for Sandbox {
    async fn copy_in(
        &self,
        handle: &Handle,
        to: &str,
        archive: Box<dyn AsyncRead + Send + Unpin>,
        cancel: &CancellationToken,
    ) -> Result<(), CopyError> {
        copy_in(&*self.instances.get(handle).await?, to, archive, cancel).await
    }

    async fn copy_out(
        &self,
        handle: &Handle,
        from: &str,
        archive: &mut (dyn AsyncWrite + Send + Unpin),
        moved: &(dyn Fn(u64) + Send + Sync),
        cancel: &CancellationToken,
    ) -> Result<u64, CopyError> {
        let most = self.config.limits.workspace.saturating_mul(2);
        copy_out(&*self.instances.get(handle).await?, from, most, archive, moved, cancel).await
    }
}

/// [`Files::copy_in`] by way of anything that can run `tar` and has a `/workspace`.
pub(crate) async fn copy_in(
    shell: &dyn Shell,
    to: &str,
    archive: Box<dyn AsyncRead + Send + Unpin>,
    cancel: &CancellationToken,
) -> Result<(), CopyError> {
    let (folder, name) = place(to)?;
    // Beside the target first, so that what breaks off leaves nothing.
    let beside = format!("{folder}/{}", beside());
    let argv = ["sh", "-c", &fresh(COPY_IN), "sh", &folder, &name, &beside].map(str::to_owned).to_vec();
    let copied = run(shell, argv, Input::Stream(archive), cancel).await;
    if copied.is_err() {
        clear(shell, &[&beside]).await;
    }
    copied
}

/// A script that puts something where nothing is: `rest` has its arguments from [`FRESH`].
pub(crate) fn fresh(rest: &str) -> String {
    format!("{FOLDERS}{FRESH}{rest}")
}

/// The name of what lies beside the target of a copy until it is complete: two at once have places of their own.
pub(crate) fn beside() -> String {
    static COPIES: AtomicU64 = AtomicU64::new(0);
    format!(".manyhands-copy-{}", COPIES.fetch_add(1, Ordering::Relaxed))
}

/// Removes what a copy that broke off has left.
pub(crate) async fn clear(shell: &dyn Shell, paths: &[&str]) {
    let script = format!("{FOLDERS}wipe \"$@\"");
    let argv = ["sh", "-c", &script, "sh"].iter().chain(paths).map(|word| (*word).to_owned()).collect();
    // Where it fails, the hand is gone or full of what its owner may clear.
    let _ = run(shell, argv, Input::Bytes(Bytes::new()), &CancellationToken::new()).await;
}

/// Runs a program of a copy that prints nothing but why it failed.
pub(crate) async fn run(
    shell: &dyn Shell,
    argv: Vec<String>,
    input: Input,
    cancel: &CancellationToken,
) -> Result<(), CopyError> {
    lines(shell, argv, input, cancel).await.map(|_| ())
}

/// Runs a program of a copy to its end, and counts the lines that it prints.
async fn lines(
    shell: &dyn Shell,
    argv: Vec<String>,
    input: Input,
    cancel: &CancellationToken,
) -> Result<u64, CopyError> {
    let mut sink = Lines { count: 0, error: Vec::new() };
    let ended = run_to(shell, argv, input, cancel, &mut sink).await?;
    ended.map_err(|code| refused(code, &sink.error))?;
    Ok(sink.count)
}

/// [`Files::copy_out`] by way of anything that can run `tar` and has a `/workspace`; at most `most` bytes.
pub(crate) async fn copy_out(
    shell: &dyn Shell,
    from: &str,
    most: u64,
    archive: &mut (dyn AsyncWrite + Send + Unpin),
    moved: &(dyn Fn(u64) + Send + Sync),
    cancel: &CancellationToken,
) -> Result<u64, CopyError> {
    let (folder, name) = place(from)?;
    let left_out = look(shell, &format!("{folder}/{name}"), cancel).await?;
    let argv = ["sh", "-c", COPY_OUT, "sh", &folder, &name].map(str::to_owned);
    let mut sink = Printed { to: ToArchive { archive, moved, bytes: 0, most }, error: Vec::new() };
    let input = Input::Bytes(Bytes::new());
    let ended = run_to(shell, argv.to_vec(), input, cancel, &mut sink).await?;
    ended.map_err(|code| refused(code, &sink.error))?;
    Ok(left_out)
}

/// How many pipes, sockets and devices there are in what is to be copied out, of which a copy has none. It must not be one.
pub(crate) async fn look(
    shell: &dyn Shell,
    path: &str,
    cancel: &CancellationToken,
) -> Result<u64, CopyError> {
    let argv = ["sh", "-c", LOOK, "sh", path].map(str::to_owned).to_vec();
    lines(shell, argv, Input::Bytes(Bytes::new()), cancel).await
}

/// Runs a program; the inner error is its exit code.
async fn run_to(
    shell: &dyn Shell,
    argv: Vec<String>,
    input: Input,
    cancel: &CancellationToken,
    sink: &mut dyn Sink,
) -> Result<Result<(), i32>, CopyError> {
    let end = cancel.child_token();
    let (input, failed) = match input {
        Input::Stream(from) => {
            let (given, failed) = Given::new(from, end.clone());
            (Input::Stream(Box::new(given)), Some(failed))
        }
        bytes @ Input::Bytes(_) => (bytes, None),
    };
    let streams = Streams::Separate;
    let command = Command { program: Program::Argv(argv), cwd: None, input, streams, timeout: TIMEOUT };
    let refuse = |why: String| Err(CopyError::Refused(why));
    let ended = shell.run(command, &end, sink).await?.ended;
    if let (Ended::Stopped(_), Some(error)) = (&ended, failed.and_then(Failed::take)) {
        return Err(broke_off(&error));
    }
    match ended {
        Ended::Exit(0) => Ok(Ok(())),
        Ended::Exit(code) => Ok(Err(code)),
        Ended::Signal(signal) => refuse(format!("The copy was ended by signal {signal}.")),
        Ended::NotStarted { doing, error } => refuse(format!("Can't {doing}: {error}.")),
        Ended::Stopped(stop) => Err(stopped(stop)),
    }
}

/// What was to be copied did not come to its end.
pub(crate) fn broke_off(error: &io::Error) -> CopyError {
    CopyError::Refused(format!("What was to be copied broke off: {error}."))
}

/// Somebody wanted a copy to end.
pub(crate) fn stopped(stop: Stop) -> CopyError {
    CopyError::Refused(match stop {
        Stop::Timeout => format!("The copy took more than {} s.", TIMEOUT.as_secs()),
        Stop::Limit(why) => format!("The copy was ended: {why}."),
        Stop::Cancelled | Stop::Enough => "The copy was cancelled.".into(),
    })
}

fn refused(code: i32, error: &[u8]) -> CopyError {
    let error = String::from_utf8_lossy(error);
    let why = error.lines().next().unwrap_or_default();
    let why = ["tar: ", "mkdir: ", "mv: "].iter().find_map(|of| why.strip_prefix(of)).unwrap_or(why);
    CopyError::Refused(if why.is_empty() {
        format!("The copy failed with exit code {code}.")
    } else {
        format!("{why}.")
    })
}

/// The folder and the name of a path in the sandbox.
pub(crate) fn place(path: &str) -> Result<(String, String), CopyError> {
    let whole = Path::new(WORKSPACE).join(path.trim_start_matches("./"));
    let whole = if path == "." { PathBuf::from(WORKSPACE) } else { whole };
    let parts = (whole.parent().and_then(Path::to_str), whole.file_name().and_then(|name| name.to_str()));
    match parts {
        (Some(folder), Some(name)) if !whole.components().any(|part| part == Component::ParentDir) => {
            Ok((folder.to_owned(), name.to_owned()))
        }
        _ => Err(CopyError::Refused(format!("{path} must name a file or folder, without `..`."))),
    }
}

/// Counts lines.
struct Lines {
    count: u64,
    error: Vec<u8>,
}

#[async_trait]
impl Sink for Lines {
    async fn take(&mut self, stream: Stream, bytes: &[u8]) -> Flow {
        keep(&mut self.error, stream, bytes);
        if stream == Stream::Output {
            self.count += bytes.split(|byte| *byte == b'\n').count() as u64 - 1;
        }
        Flow::Continue
    }
}

/// Gives an archive to whoever receives it.
pub(crate) struct ToArchive<'a> {
    pub(crate) archive: &'a mut (dyn AsyncWrite + Send + Unpin),
    pub(crate) moved: &'a (dyn Fn(u64) + Send + Sync),
    pub(crate) bytes: u64,
    /// Most bytes of it.
    pub(crate) most: u64,
}

impl ToArchive<'_> {
    pub(crate) async fn give(&mut self, bytes: &[u8]) -> Flow {
        self.bytes += bytes.len() as u64;
        if self.bytes > self.most {
            return Flow::Stop(Stop::Limit("it is larger than a work folder may be".into()));
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

/// Gives what is printed, and keeps why it failed.
struct Printed<'a> {
    to: ToArchive<'a>,
    error: Vec<u8>,
}

#[async_trait]
impl Sink for Printed<'_> {
    async fn take(&mut self, stream: Stream, bytes: &[u8]) -> Flow {
        keep(&mut self.error, stream, bytes);
        if stream == Stream::Output { self.to.give(bytes).await } else { Flow::Continue }
    }
}

fn keep(error: &mut Vec<u8>, stream: Stream, bytes: &[u8]) {
    if stream == Stream::Error {
        error.extend(bytes.iter().take(MOST_ERROR - error.len().min(MOST_ERROR)));
    }
}
