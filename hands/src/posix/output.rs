//! Collecting what a command prints, as text.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;

use super::{Flow, Sink, Stop, Stream};
use crate::spool::{Spool, Spooled, Writing};
use crate::{Content, Progress};

/// What is kept of each end of an output that went beyond its limit, in bytes.
const KEPT_END: usize = 1024 * 1024;
/// Most bytes of an output that wait in memory.
const MEMORY_MAX: usize = 256 * 1024;

/// Turns bytes into text as they come, tells progress and keeps the text: a long one on the disk.
pub(super) struct Text {
    /// All of it, or what is not on the disk yet.
    waiting: String,
    /// The beginning of a character that the last bytes broke off in.
    broken: Vec<u8>,
    /// Whether a byte was not UTF-8.
    replaced: Replaced,
    most: usize,
    progress: Option<Arc<dyn Progress>>,
    spool: Spool,
    /// What is on the disk, once there is too much for memory.
    long: Option<Writing>,
    /// Whether it ends with the end of a line, or has not begun.
    at_line: AtLine,
    /// Why it can't be kept on.
    failed: Option<io::Error>,
}

/// Whether something was shown as a replacement character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replaced {
    Nothing,
    Some,
}

/// Where in a line a text ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtLine {
    Begin,
    Within,
}

impl Text {
    /// Ends the command when there is more than `most` bytes of text.
    pub(super) fn new(most: usize, spool: Spool, progress: Option<Arc<dyn Progress>>) -> Self {
        Self {
            waiting: String::new(),
            broken: Vec::new(),
            replaced: Replaced::Nothing,
            most,
            progress,
            spool,
            long: None,
            at_line: AtLine::Begin,
            failed: None,
        }
    }

    /// Its length so far, in bytes.
    pub(super) fn len(&self) -> usize {
        let stored = self.long.as_ref().map_or(0, Writing::bytes);
        usize::try_from(stored).unwrap_or(usize::MAX).saturating_add(self.waiting.len())
    }

    /// No more bytes come. Whether the text stands for other bytes in places.
    pub(super) fn end(&mut self) -> Replaced {
        if !self.broken.is_empty() {
            self.broken.clear();
            self.show(char::REPLACEMENT_CHARACTER.encode_utf8(&mut [0; 4]));
            self.replaced = Replaced::Some;
        }
        self.replaced
    }

    /// Keeps no more than both ends of a text that went beyond its limit. What is added later comes behind them.
    pub(super) async fn cut(&mut self) {
        if self.len() > self.most && self.len() > 2 * KEPT_END {
            let cut = self.cut_middle().await;
            self.failed = self.failed.take().or(cut.err());
        }
    }

    /// Adds a sentence of ours, on a line of its own.
    pub(super) fn note(&mut self, sentence: &str) {
        if self.at_line == AtLine::Within {
            self.show("\n");
        }
        for part in ["[", sentence, "]"] {
            self.show(part);
        }
    }

    /// The whole text.
    pub(super) async fn content(mut self) -> Content {
        if self.long.is_none() {
            return Content::Text(self.waiting);
        }
        let why = match self.flush().await {
            Ok(()) => self.failed,
            Err(error) => Some(error),
        };
        let Some(long) = self.long else { return Content::Text(self.waiting) };
        let long = long.end();
        match why {
            None => Content::Long(long),
            // All that came until then waits.
            Some(_) if long.bytes() == 0 => Content::Text(self.waiting),
            // What could not be kept still waits, with what was added to it.
            Some(why) => Content::Text(format!(
                "{}\n[… what came here could not be kept: {why} …]\n{}",
                long.head(),
                self.waiting
            )),
        }
    }

    fn show(&mut self, text: &str) {
        self.waiting.push_str(text);
        if let Some(last) = text.bytes().last() {
            self.at_line = if last == b'\n' { AtLine::Begin } else { AtLine::Within };
        }
    }

    fn decode(&mut self, bytes: &[u8]) {
        let joined;
        let bytes = if self.broken.is_empty() {
            bytes
        } else {
            joined = [std::mem::take(&mut self.broken).as_slice(), bytes].concat();
            &joined
        };
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.show(chunk.valid());
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            if chunks.peek().is_none() && may_go_on(invalid) {
                self.broken = invalid.to_vec();
            } else {
                self.show(char::REPLACEMENT_CHARACTER.encode_utf8(&mut [0; 4]));
                self.replaced = Replaced::Some;
            }
        }
    }

    /// Brings what waits to the disk.
    async fn flush(&mut self) -> io::Result<()> {
        let long = match &mut self.long {
            Some(long) => long,
            none => none.insert(self.spool.begin().await?),
        };
        let text: Arc<str> = std::mem::take(&mut self.waiting).into();
        let pushed = long.push(Arc::clone(&text)).await;
        if pushed.is_err() {
            self.waiting = text.to_string();
        }
        pushed
    }

    async fn cut_middle(&mut self) -> io::Result<()> {
        self.flush().await?;
        let Some(long) = self.long.take() else { return Ok(()) };
        let whole = long.end();
        let ends = self.ends(&whole).await;
        let (kept, cut) = match ends {
            Ok(ends) => (ends, Ok(())),
            Err(error) => (whole.into(), Err(error)),
        };
        self.long = Some(kept);
        cut
    }

    /// Both ends of a text, as a text of its own.
    async fn ends(&self, whole: &Spooled) -> io::Result<Writing> {
        let tail_at = whole.bytes() - KEPT_END as u64;
        let (head, tail) = (whole.read(0, KEPT_END).await?, whole.read(tail_at, KEPT_END).await?);
        // Both ends may fall into a character.
        let head = head.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        let begin = tail.iter().position(|byte| !matches!(byte, 0x80..0xc0)).unwrap_or(tail.len());
        let tail = String::from_utf8_lossy(&tail[begin..]);
        let left_out = whole.bytes() - head.len() as u64 - tail.len() as u64;
        let note =
            format!("\n[… {} left out …]\n", super::size(usize::try_from(left_out).unwrap_or(usize::MAX)));
        let mut ends = self.spool.begin().await?;
        for part in [head, &note, &tail] {
            ends.push(part.into()).await?;
        }
        Ok(ends)
    }
}

#[async_trait]
impl Sink for Text {
    async fn take(&mut self, _: Stream, bytes: &[u8]) -> Flow {
        if self.len() > self.most || self.failed.is_some() {
            // What still comes while the command is being ended.
            return Flow::Continue;
        }
        let before = self.waiting.len();
        self.decode(bytes);
        if let Some(progress) = &self.progress
            && self.waiting.len() > before
        {
            progress.output(&self.waiting[before..]);
        }
        if self.waiting.len() > MEMORY_MAX
            && let Err(error) = self.flush().await
        {
            let why = format!("what it prints can't be kept ({error})");
            self.failed = Some(error);
            return Flow::Stop(Stop::Limit(why));
        }
        if self.len() > self.most {
            let most = super::size(self.most);
            return Flow::Stop(Stop::Limit(format!("it printed more than {most}; print less, or to a file")));
        }
        Flow::Continue
    }
}

/// Whether these bytes are the beginning of a character that more bytes could complete.
fn may_go_on(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}
