//! Texts that are too long to be kept in memory, in files without a name: they go with whoever holds them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::disk::{shown, space};

/// Characters of each end of a long text that are in memory, too.
pub const END_CHARS: usize = 32_000;
/// Most bytes of all long texts of one process at a time.
pub const SPOOL_BYTES_MAX: u64 = 4 << 30;
/// Where they lie when nobody says.
const FOLDER: &str = "/var/tmp";

/// Where long texts are kept. Clones share it.
#[derive(Clone, Debug)]
pub struct Spool {
    place: Arc<Place>,
}

#[derive(Debug)]
struct Place {
    folder: PathBuf,
    /// What must stay free on the disk, in bytes.
    free_disk: u64,
    used: AtomicU64,
}

impl Spool {
    /// In this folder, as long as more than `free_disk` bytes are free on its disk. No file has a name there.
    pub fn new(folder: &Path, free_disk: u64) -> Self {
        let place = Place { folder: folder.to_owned(), free_disk, used: AtomicU64::new(0) };
        Self { place: Arc::new(place) }
    }

    /// Begins an empty text.
    pub(crate) async fn begin(&self) -> io::Result<Writing> {
        let place = Arc::clone(&self.place);
        let file = blocking(move || tempfile::tempfile_in(&place.folder)).await?;
        let kept = Arc::new(Kept { file, bytes: AtomicU64::new(0), place: Arc::clone(&self.place) });
        Ok(Writing { text: Spooled { kept, bytes: 0, chars: 0, head: String::new(), tail: String::new() } })
    }
}

impl Default for Spool {
    fn default() -> Self {
        Self::new(Path::new(FOLDER), 0)
    }
}

impl Place {
    /// Takes room for so many bytes, if there is any.
    fn take(&self, bytes: u64) -> io::Result<()> {
        let free = space(&self.folder)?.free;
        if free < self.free_disk.saturating_add(bytes) {
            let why = format!("only {} are free on the disk", shown(free));
            return Err(io::Error::new(io::ErrorKind::StorageFull, why));
        }
        if self.used.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > SPOOL_BYTES_MAX {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            let why = format!("the outputs of all calls that run take {}", shown(SPOOL_BYTES_MAX));
            return Err(io::Error::new(io::ErrorKind::StorageFull, why));
        }
        Ok(())
    }
}

/// A file without a name, and its part of what all of them may take.
#[derive(Debug)]
struct Kept {
    file: File,
    bytes: AtomicU64,
    place: Arc<Place>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.place.used.fetch_sub(self.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// A long text. Both ends of it are in memory, all of it is in a file.
#[derive(Clone, Debug)]
pub struct Spooled {
    kept: Arc<Kept>,
    bytes: u64,
    chars: u64,
    head: String,
    tail: String,
}

impl Spooled {
    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its length in characters.
    pub fn chars(&self) -> u64 {
        self.chars
    }

    /// Its first [`END_CHARS`] characters, or all of them.
    pub fn head(&self) -> &str {
        &self.head
    }

    /// Its last [`END_CHARS`] characters, or all of them.
    pub fn tail(&self) -> &str {
        &self.tail
    }

    /// The bytes from `at` on, at most `most`; fewer at the end alone.
    pub async fn read(&self, at: u64, most: usize) -> io::Result<Bytes> {
        let text = self.clone();
        blocking(move || text.read_blocking(at, most)).await
    }

    /// [`Spooled::read`] on a thread that may block.
    pub fn read_blocking(&self, at: u64, most: usize) -> io::Result<Bytes> {
        let left = usize::try_from(self.bytes.saturating_sub(at)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; left.min(most)];
        self.kept.file.read_exact_at(&mut bytes, at)?;
        Ok(bytes.into())
    }
}

impl From<Spooled> for Writing {
    /// Goes on with a text that nobody else has yet.
    fn from(text: Spooled) -> Self {
        Self { text }
    }
}

impl PartialEq for Spooled {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.kept, &other.kept)
    }
}

/// A text that still grows.
#[derive(Debug)]
pub(crate) struct Writing {
    text: Spooled,
}

impl Writing {
    /// Its length so far, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.text.bytes
    }

    /// Goes on with this. What does not fit as a whole is not in the text.
    pub(crate) async fn push(&mut self, text: Arc<str>) -> io::Result<()> {
        let (kept, at, bytes) = (Arc::clone(&self.text.kept), self.text.bytes, text.len() as u64);
        let text = blocking(move || {
            kept.place.take(bytes)?;
            kept.bytes.fetch_add(bytes, Ordering::Relaxed);
            kept.file.write_all_at(text.as_bytes(), at)?;
            Ok(text)
        });
        let text = text.await?;
        self.text.bytes += bytes;
        let missing = END_CHARS.saturating_sub(usize::try_from(self.text.chars).unwrap_or(usize::MAX));
        self.text.head.extend(text.chars().take(missing));
        self.text.chars += text.chars().count() as u64;
        self.text.tail.push_str(last_chars(&text, END_CHARS));
        let tail = last_chars(&self.text.tail, END_CHARS).len();
        self.text.tail.drain(..self.text.tail.len() - tail);
        Ok(())
    }

    /// The text, which does not change any more.
    pub(crate) fn end(self) -> Spooled {
        self.text
    }
}

/// The last `most` characters of a text, or all of it.
pub fn last_chars(text: &str, most: usize) -> &str {
    match most.checked_sub(1).and_then(|before| text.char_indices().nth_back(before)) {
        Some((at, _)) => &text[at..],
        None if most == 0 => "",
        None => text,
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_text_is_whole_in_its_file_and_has_its_ends_in_memory() {
        let spool = Spool::default();
        let mut writing = spool.begin().await.unwrap();
        let pieces = ["é".repeat(20_000), "middle".repeat(20_000), "ü".repeat(31_999), "z".to_owned()];
        for piece in &pieces {
            writing.push(piece.as_str().into()).await.unwrap();
        }
        let (whole, text) = (pieces.concat(), writing.end());
        assert_eq!(text.read(0, usize::MAX).await.unwrap(), whole.as_bytes());
        assert_eq!(text.read(text.bytes() - 1, 9).await.unwrap(), &b"z"[..]);
        assert!(text.head().chars().eq(whole.chars().take(END_CHARS)));
        assert_eq!(text.tail(), pieces[2..].concat());
        assert_eq!(text.chars(), whole.chars().count() as u64);
        assert_eq!(spool.place.used.load(Ordering::Relaxed), whole.len() as u64);
        drop(text);
        assert_eq!(spool.place.used.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn what_is_kept_free_of_the_disk_stays_free() {
        let spool = Spool::new(Path::new(FOLDER), u64::MAX);
        let full = spool.begin().await.unwrap().push("x".into()).await.unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    }
}
