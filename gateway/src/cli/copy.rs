//! `manyhands hand cp`: files and folders in and out of a hand's `/workspace`.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use axum::body::Body;
use clap::Args;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use hands::sandbox::{CopyError, Landing, pack};
use http::{Method, Request, header};
use http_body_util::BodyExt as _;
use tokio::io::{AsyncWriteExt as _, DuplexStream};
use tokio_util::io::{ReaderStream, SyncIoBridge};

use super::control::{Owner, encoded, refusal};
use super::terminal::{self, Meanwhile, note, say};
use super::{Output, Setting};
use crate::hand::{HandConfig, canonical_path};
use crate::serve::control::{ERROR_TRAILER, LEFT_OUT_TRAILER};

/// Bytes between the archive and the socket.
const PIPE_BYTES: usize = 256 << 10;

#[derive(Args)]
pub(super) struct Options {
    /// From: a path here, or HAND:PATH. A PATH that does not begin with / is below the hand's /workspace
    source: String,
    /// To: a path here, or HAND:PATH. It must not exist yet, and is to be where the hand may write
    target: String,
    /// The session whose hand it is
    #[arg(long, value_name = "SESSION", default_value = "default")]
    session: String,
}

/// What was copied.
struct Copied {
    bytes: u64,
    /// Pipes, sockets and devices, of which there are no copies.
    left_out: u64,
}

/// A place in a hand.
struct There<'a> {
    hand: &'a str,
    path: &'a str,
}

/// `HAND:PATH`. A path that begins with `/`, `.` or `~` is always one of this machine.
fn there(text: &str) -> Option<There<'_>> {
    let (hand, path) = text.split_once(':')?;
    hand.parse::<crate::hand::HandName>().is_ok().then_some(There { hand, path })
}

pub(super) async fn run(setting: &Setting, owner: &mut Owner, options: &Options) -> anyhow::Result<()> {
    let copied = match (there(&options.source), there(&options.target)) {
        (None, Some(target)) => {
            let source = without_links(owner, &options.source).await?;
            copy_in(owner, &source, &target, &options.session).await?
        }
        (Some(source), None) => {
            let target = without_links(owner, &options.target).await?;
            copy_out(owner, &source, &target, &options.session).await?
        }
        _ => bail!("one of the two must be HAND:PATH and the other a path of this machine"),
    };
    match setting.output {
        Output::Json => {
            terminal::json(serde_json::json!({"archive_bytes": copied.bytes, "left_out": copied.left_out}))?;
        }
        Output::Text => say(format_args!("copied {} to {}", options.source, options.target))?,
    }
    if copied.left_out > 0 {
        note(format_args!(
            "left out what is neither a file nor a folder (pipes, sockets, devices): {}",
            copied.left_out
        ));
    }
    Ok(())
}

fn path_of(place: &There<'_>, session: &str) -> String {
    format!("/hands/{}/files?session={}&path={}", encoded(place.hand), encoded(session), encoded(place.path))
}

/// A path that a person typed, with no link on the way to its last name. Links of theirs are followed now and never again;
/// one in a folder that a hand may write to is an error, for an agent may have made it.
async fn without_links(owner: &mut Owner, typed: &str) -> anyhow::Result<PathBuf> {
    let hands = owner.ask(Method::GET, "/hands", None).await?;
    let hands = hands.as_array().into_iter().flatten();
    let configs = hands.filter_map(|hand| serde_json::from_value::<HandConfig>(hand["config"].clone()).ok());
    let writable: Vec<PathBuf> = configs.flat_map(|config| config.writable()).collect();
    let whole = std::env::current_dir()?.join(typed);
    Ok(match (whole.parent(), whole.file_name()) {
        (Some(folder), Some(name)) => canonical_path(folder, &writable)?.join(name),
        _ => canonical_path(&whole, &writable)?,
    })
}

async fn copy_in(
    owner: &mut Owner,
    source: &Path,
    target: &There<'_>,
    session: &str,
) -> anyhow::Result<Copied> {
    std::fs::symlink_metadata(source).with_context(|| format!("{} can't be read", source.display()))?;
    let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
    let source = source.to_owned();
    let packed = tokio::task::spawn_blocking(move || {
        let mut pipe = SyncIoBridge::new(ours);
        let left_out = pack(&source, &mut pipe)?;
        pipe.shutdown().map_err(|source_error| CopyError::Local { path: source, source: source_error })?;
        Ok::<_, CopyError>(left_out)
    });
    let mut progress = Progress::new();
    let counted = progress.counter();
    let (tell, told) = tokio::sync::oneshot::channel();
    // What could not be read breaks the stream off: one that merely ended would pass for a whole one.
    let end = stream::once(async move {
        let packed = packed.await.map_err(anyhow::Error::from).and_then(|packed| Ok(packed?));
        let broken = packed.is_err().then(|| Err(io::Error::from(io::ErrorKind::UnexpectedEof)));
        let _ = tell.send(packed);
        broken
    });
    let data = ReaderStream::new(theirs)
        .inspect_ok(move |bytes| counted.add(bytes.len()))
        .chain(end.filter_map(std::future::ready));
    let request = Request::builder()
        .method(Method::PUT)
        .uri(path_of(target, session))
        .header(header::HOST, "manyhands")
        .body(Body::from_stream(data))?;
    let answered = answer(owner, request).await;
    let read = progress.done();
    match (answered, told.await) {
        // Who refuses, stops reading, and then nothing more can be packed: the refusal is the reason.
        (Err(refused), Ok(Err(error))) if broke_off(&error) => Err(refused),
        (_, Ok(Err(error))) => Err(error),
        (answered, packed) => {
            answered?;
            Ok(Copied { bytes: read, left_out: packed.ok().and_then(Result::ok).unwrap_or_default() })
        }
    }
}

fn broke_off(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}

async fn answer(owner: &mut Owner, request: Request<Body>) -> anyhow::Result<()> {
    let response = owner.request(request).await?;
    let status = response.status();
    let bytes = response.into_body().collect().await?.to_bytes();
    if !status.is_success() {
        bail!("{}", refusal(&bytes));
    }
    Ok(())
}

/// Unpacks beside the target first, so that what broke off leaves nothing behind.
async fn copy_out(
    owner: &mut Owner,
    source: &There<'_>,
    target: &Path,
    session: &str,
) -> anyhow::Result<Copied> {
    let mut landing = Landing::beside(target)?;
    let response = owner.send(Method::GET, &path_of(source, session), None).await?;
    let status = response.status();
    let body = response.into_body();
    if !status.is_success() {
        bail!("{}", refusal(&body.collect().await?.to_bytes()));
    }
    let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
    let unpacking = tokio::task::spawn_blocking(move || {
        let unpacked = landing.unpack(SyncIoBridge::new(theirs));
        (landing, unpacked)
    });
    let mut progress = Progress::new();
    let received = receive(body, ours, &progress.counter()).await;
    // Even where the rest failed: what was unpacked is to be removed before this ends.
    let (landing, unpacked) = unpacking.await?;
    let left_out = received?;
    unpacked?;
    landing.keep()?;
    Ok(Copied { bytes: progress.done(), left_out })
}

/// Gives what comes to who unpacks it: how many were left out. Ends early when nothing more is taken.
async fn receive(mut body: Body, mut to: DuplexStream, counter: &Counter) -> anyhow::Result<u64> {
    let mut left_out = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.context("the copy broke off")?;
        match frame.into_data() {
            Ok(data) => {
                counter.add(data.len());
                if to.write_all(&data).await.is_err() {
                    break;
                }
            }
            Err(frame) => {
                let trailers = frame.into_trailers().unwrap_or_default();
                if let Some(sentence) = trailers.get(ERROR_TRAILER) {
                    bail!("{}", sentence.to_str().unwrap_or("the copy broke off"));
                }
                let said = trailers.get(LEFT_OUT_TRAILER).and_then(|said| said.to_str().ok());
                left_out = said.and_then(|said| said.parse().ok()).unwrap_or_default();
            }
        }
    }
    Ok(left_out)
}

/// Says on a terminal how far it has come.
struct Progress(std::sync::Arc<Counter>);

struct Counter {
    bytes: std::sync::atomic::AtomicU64,
    meanwhile: Meanwhile,
}

/// How much more is copied before it is said again, in bytes.
const SAID_EVERY: u64 = 8 << 20;

impl Progress {
    fn new() -> Self {
        Self(std::sync::Arc::new(Counter { bytes: 0.into(), meanwhile: Meanwhile::new() }))
    }

    fn counter(&self) -> std::sync::Arc<Counter> {
        self.0.clone()
    }

    fn done(&mut self) -> u64 {
        self.0.meanwhile.end();
        self.0.bytes.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl Counter {
    fn add(&self, bytes: usize) {
        let more = bytes as u64;
        let before = self.bytes.fetch_add(more, std::sync::atomic::Ordering::Relaxed);
        if (before + more) / SAID_EVERY != before / SAID_EVERY {
            self.meanwhile.say(format_args!("{} MiB", (before + more) >> 20));
        }
    }
}
