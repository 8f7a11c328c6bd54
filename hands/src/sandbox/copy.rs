//! Copying files and folders between this machine and a sandbox, as one tar stream.
//!
//! Inside, `tar` runs as any other command. On this machine [`pack`] and [`unpack`] run as the person
//! who copies. What comes out of a sandbox is hostile: [`unpack`] makes a fresh tree with nothing in it
//! but folders, files and, last of all, links, so that nothing is ever written through a link.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tar::{Archive, Builder, Entry, EntryType, HeaderMode};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{Sandbox, WORKSPACE};
use crate::posix::{Command, Ended, Flow, Input, Program, Shell, Sink, Stop, Stream, Streams};
use crate::{Files, HandError, Handle};

/// How long a copy may take.
const TIMEOUT: Duration = Duration::from_hours(1);
/// How long whoever receives may take for one piece.
const STUCK: Duration = Duration::from_mins(1);
/// Most files, folders and links of one copy out of a sandbox.
const MOST_ENTRIES: usize = 1_000_000;
/// How whatever copies in begins: makes room in `$3` for what comes, and the folder `$1`, and refuses a `$2` that is
/// there already.
const FRESH: &str = r#"
set -e
mkdir -p -- "$1"
if [ -e "$1/$2" ] || [ -L "$1/$2" ]; then
    echo "$2 exists already; name something new" >&2
    exit 1
fi
rm -rf -- "$3"
mkdir -p -- "$3""#;
/// Unpacks `content` of the stream as `$2` in the folder `$1`, by way of `$3`.
const COPY_IN: &str = r#"
tar -x -f - -C "$3" --no-same-owner
mv -T -- "$3/content" "$1/$2"
rmdir -- "$3""#;
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
    ) -> Result<(), CopyError> {
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
    format!("{FRESH}{rest}")
}

/// The name of what lies beside the target of a copy until it is complete: two at once have places of their own.
pub(crate) fn beside() -> String {
    static COPIES: AtomicU64 = AtomicU64::new(0);
    format!(".manyhands-copy-{}", COPIES.fetch_add(1, Ordering::Relaxed))
}

/// Removes what a copy that broke off has left.
pub(crate) async fn clear(shell: &dyn Shell, paths: &[&str]) {
    let argv = ["rm", "-rf", "--"].iter().chain(paths).map(|word| (*word).to_owned()).collect();
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
    let mut sink = ToNobody { error: Vec::new() };
    let ended = run_to(shell, argv, input, cancel, &mut sink).await?;
    ended.map_err(|code| refused(code, &sink.error))
}

/// [`Files::copy_out`] by way of anything that can run `tar` and has a `/workspace`; at most `most` bytes.
pub(crate) async fn copy_out(
    shell: &dyn Shell,
    from: &str,
    most: u64,
    archive: &mut (dyn AsyncWrite + Send + Unpin),
    moved: &(dyn Fn(u64) + Send + Sync),
    cancel: &CancellationToken,
) -> Result<(), CopyError> {
    let (folder, name) = place(from)?;
    let argv = ["sh", "-c", COPY_OUT, "sh", &folder, &name].map(str::to_owned);
    let mut sink = Printed { to: ToArchive { archive, moved, bytes: 0, most }, error: Vec::new() };
    let input = Input::Bytes(Bytes::new());
    let ended = run_to(shell, argv.to_vec(), input, cancel, &mut sink).await?;
    ended.map_err(|code| refused(code, &sink.error))
}

/// Runs a program; the inner error is its exit code.
async fn run_to(
    shell: &dyn Shell,
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
    match shell.run(command, cancel, sink).await?.ended {
        Ended::Exit(0) => Ok(Ok(())),
        Ended::Exit(code) => Ok(Err(code)),
        Ended::Signal(signal) => refuse(format!("The copy was ended by signal {signal}.")),
        Ended::NotStarted { doing, error } => refuse(format!("Can't {doing}: {error}.")),
        Ended::Stopped(stop) => Err(stopped(stop)),
    }
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

/// Writes a file or folder of this machine as a stream for [`Files::copy_in`]. Links stay links.
pub fn pack(source: &Path, to: impl Write) -> Result<(), CopyError> {
    let local = |source_error| CopyError::Local { path: source.to_owned(), source: source_error };
    let mut builder = Builder::new(to);
    builder.follow_symlinks(false);
    builder.mode(HeaderMode::Complete);
    let kind = fs::symlink_metadata(source).map_err(local)?.file_type();
    if kind.is_dir() {
        builder.append_dir_all("content", source).map_err(local)?;
    } else {
        builder.append_path_with_name(source, "content").map_err(local)?;
    }
    builder.into_inner().and_then(|mut to| to.flush()).map_err(local)
}

/// Makes `to` of a stream from [`Files::copy_out`]. `to` must not exist.
pub fn unpack(archive: impl Read, to: &Path) -> Result<(), CopyError> {
    let local = |path: &Path| {
        let path = path.to_owned();
        move |source| CopyError::Local { path, source }
    };
    if fs::symlink_metadata(to).is_ok() {
        return Err(CopyError::Refused(format!("{} exists already; name something new.", to.display())));
    }
    let mut archive = Archive::new(archive);
    let mut links = Vec::new();
    let mut modes = Vec::new();
    for (number, entry) in archive.entries().map_err(local(to))?.enumerate() {
        let mut entry = entry.map_err(local(to))?;
        if number >= MOST_ENTRIES {
            return Err(CopyError::Refused(format!("It holds more than {MOST_ENTRIES} files.")));
        }
        let path = inside(to, &entry.path().map_err(local(to))?)?;
        let mode = entry.header().mode().map_err(local(&path))? & 0o777;
        match entry.header().entry_type() {
            EntryType::Directory => {
                DirBuilder::new().mode(0o700).create(&path).map_err(local(&path))?;
                modes.push((path, mode));
            }
            EntryType::Regular | EntryType::Continuous => {
                let mut file = new_file(&path, mode).map_err(local(&path))?;
                io::copy(&mut entry, &mut file).map_err(local(&path))?;
            }
            EntryType::Symlink => {
                let target = entry.link_name().map_err(local(&path))?.map(std::borrow::Cow::into_owned);
                links.push((path, target.unwrap_or_default()));
            }
            EntryType::Link if is_same(to, &entry, &path) => {}
            // Devices, pipes: nothing that a sandbox has to give.
            _ => tracing::warn!(path = %path.display(), "left out: neither file, folder nor link"),
        }
    }
    for (path, target) in links {
        symlink(target, &path).map_err(local(&path))?;
    }
    // Folders that may not be written come last, the deepest first.
    for (path, mode) in modes.into_iter().rev() {
        fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(local(&path))?;
    }
    Ok(())
}

/// Makes another name for a file that was unpacked before, if the entry is one. There are no links yet to be led astray by.
fn is_same(to: &Path, entry: &Entry<'_, impl Read>, path: &Path) -> bool {
    let Ok(Some(target)) = entry.link_name() else { return false };
    let Ok(target) = inside(to, &target) else { return false };
    let is_file = fs::symlink_metadata(&target).is_ok_and(|found| found.is_file());
    is_file && (fs::hard_link(&target, path).is_ok() || fs::copy(&target, path).is_ok())
}

/// Never an existing file, so never through a link.
fn new_file(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}

/// Where an entry goes: its first component is what was copied, the rest lies below.
fn inside(to: &Path, entry: &Path) -> Result<PathBuf, CopyError> {
    let mut parts = entry.components().filter(|part| *part != Component::CurDir);
    let mut path = to.to_owned();
    let first = parts.next();
    for part in first.into_iter().chain(parts).skip(1) {
        path.push(part);
    }
    let safe = entry.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if safe && first.is_some() {
        Ok(path)
    } else {
        Err(CopyError::Refused(format!(
            "The sandbox sent {}, which is no path below what was asked for.",
            entry.display()
        )))
    }
}
