//! The image: there, pulled, or imported from a tar.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::CreateImageInfo;
use bollard::query_parameters::CreateImageOptionsBuilder;
use bytes::Bytes;
use futures_util::StreamExt;
use rustix::fs::OFlags;
use tokio_util::io::ReaderStream;

use super::engine::{Lack, root, status};
use super::{Image, Shared};
use crate::{HandError, canonical};

/// The name of imported images, whose tags say of what.
const IMPORTED: &str = "manyhands-rootfs";

/// Bytes of a header of a tar, and where its sum is.
const BLOCK: usize = 512;
const SUM: std::ops::Range<usize> = 148..156;
/// How a tar begins that is compressed as daemons take it: by gzip, bzip2, xz or zstd.
const COMPRESSED: [&[u8]; 4] = [b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"];
/// What to do about a file that is no image.
const OTHER_TAR: &str = "make it a tar of a root file system, such as docker export prints";

/// The name by which the daemon knows the image, which it has from now on.
pub(super) async fn ensure(shared: &Shared, docker: &Docker) -> Result<String, HandError> {
    let image = &shared.config.image;
    let name = name(image)?;
    let _looking = shared.image.lock().await;
    match docker.inspect_image(&name).await {
        Ok(_) => return Ok(name),
        Err(error) if status(&error) == Some(404) => {}
        Err(error) => return Err(shared.engine.explain(&error).into()),
    }
    let made = match image {
        Image::Named(_) => pull(shared, docker, &name).await,
        Image::Rootfs(tar) => import(shared, docker, &name, tar).await,
    };
    shared.news.send_replace(None);
    made?;
    Ok(name)
}

/// What the daemon calls it.
pub(super) fn name(image: &Image) -> Result<String, Lack> {
    match image {
        Image::Named(name) if name.contains('@') => Ok(name.clone()),
        // A colon behind the last slash is a tag; one before it is a port.
        Image::Named(name) if name.rsplit('/').next().is_some_and(|last| last.contains(':')) => {
            Ok(name.clone())
        }
        Image::Named(name) => Ok(format!("{name}:latest")),
        Image::Rootfs(tar) => {
            let file = canonical::open(tar, OFlags::PATH).map(File::from).and_then(|file| file.metadata());
            let file = file.map_err(|error| no_tar(tar, &error))?;
            let mut hasher = DefaultHasher::new();
            (tar, file.len(), file.mtime(), file.mtime_nsec()).hash(&mut hasher);
            Ok(format!("{IMPORTED}:{:016x}", hasher.finish()))
        }
    }
}

fn no_tar(tar: &Path, error: &io::Error) -> Lack {
    let why = format!("{}, the root file system of this hand, can't be read ({error})", tar.display());
    Lack { why, remedy: "make it, or add the hand again with another".into() }
}

/// Whether it looks like a tar, compressed or not, before a daemon is asked to take it for one.
pub(super) fn check(tar: &Path) -> Result<(), Lack> {
    let mut begin = Vec::new();
    let read = canonical::open_file(tar).and_then(|file| file.take(BLOCK as u64).read_to_end(&mut begin));
    read.map_err(|error| no_tar(tar, &error))?;
    if COMPRESSED.iter().any(|magic| begin.starts_with(magic)) || is_header(&begin) {
        return Ok(());
    }
    let why = format!("{}, the root file system of this hand, is no tar archive", tar.display());
    Err(Lack { why, remedy: OTHER_TAR.into() })
}

/// A header of a tar has its own sum in it, counted with blanks in its place.
fn is_header(begin: &[u8]) -> bool {
    let Some(block) = begin.first_chunk::<BLOCK>() else { return false };
    let mut counted = *block;
    counted[SUM].fill(b' ');
    let sum: u32 = counted.into_iter().map(u32::from).sum();
    tar::Header::from_byte_slice(block).cksum().is_ok_and(|said| said == sum)
}

async fn pull(shared: &Shared, docker: &Docker, name: &str) -> Result<(), Lack> {
    let options = CreateImageOptionsBuilder::new().from_image(name).build();
    let mut pulling = std::pin::pin!(docker.create_image(Some(options), None, None));
    let mut layers = HashMap::new();
    shared.news.send_replace(Some(format!("Pulling image {name}")));
    tracing::info!(image = name, "pulling");
    while let Some(step) = pulling.next().await {
        let step = step.map_err(|error| no_image(name, &said(&error)))?;
        if let Some(error) = step.error_detail.as_ref().and_then(|error| error.message.as_deref()) {
            return Err(no_image(name, error));
        }
        if let Some(news) = progress(name, step, &mut layers) {
            shared.news.send_replace(Some(news));
        }
    }
    tracing::info!(image = name, "pulled");
    Ok(())
}

/// How much of all layers known so far has come.
fn progress(name: &str, step: CreateImageInfo, layers: &mut HashMap<String, (u64, u64)>) -> Option<String> {
    let detail = step.progress_detail?;
    let number = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
    if step.status.as_deref() != Some("Downloading") {
        return None;
    }
    layers.insert(step.id?, (number(detail.current)?, number(detail.total)?));
    let (come, all) = layers.values().fold((0, 0), |sum, layer| (sum.0 + layer.0, sum.1 + layer.1));
    // As Docker counts them, in one unit.
    let (unit, bytes) = if all < 1_000_000 { ("kB", 1_000) } else { ("MB", 1_000_000) };
    Some(format!("Pulling image {name}: {} of {} {unit}", come / bytes, all / bytes))
}

/// An error of what has to do with images, in the words of whoever found it.
pub(super) fn said(error: &Error) -> String {
    match error {
        Error::DockerResponseServerError { message, .. } => message.clone(),
        Error::DockerStreamError { error } => error.clone(),
        other => root(other),
    }
}

/// The image is not there, nor to be had.
pub(super) fn no_image(name: &str, error: &str) -> Lack {
    Lack {
        why: format!("the image {name} is not there and can't be pulled ({})", error.trim()),
        remedy: format!("see whether docker pull {name} works, or name another image for the hand"),
    }
}

async fn import(shared: &Shared, docker: &Docker, name: &str, tar: &Path) -> Result<(), Lack> {
    check(tar)?;
    let file =
        canonical::open_file(tar).map(tokio::fs::File::from_std).map_err(|error| no_tar(tar, &error))?;
    let (repository, tag) = name.split_once(':').unwrap_or((name, "latest"));
    let options = CreateImageOptionsBuilder::new().from_src("-").repo(repository).tag(tag).build();
    // What can't be read any more ends the stream, and the daemon finds the tar too short.
    let bytes = ReaderStream::with_capacity(file, 256 << 10).take_while(|piece| {
        let fine = piece.is_ok();
        async move { fine }
    });
    let body = bollard::body_stream(bytes.filter_map(|piece: io::Result<Bytes>| async { piece.ok() }));
    shared.news.send_replace(Some(format!("Importing the image of {}", tar.display())));
    let mut importing = std::pin::pin!(docker.create_image(Some(options), Some(body), None));
    while let Some(step) = importing.next().await {
        let error = match step {
            Ok(step) => step.error_detail.and_then(|error| error.message),
            Err(error) => Some(said(&error)),
        };
        if let Some(error) = error {
            return Err(Lack {
                why: format!("{} can't be imported as an image ({})", tar.display(), error.trim()),
                remedy: OTHER_TAR.into(),
            });
        }
    }
    Ok(())
}
