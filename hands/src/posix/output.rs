//! Collecting what a command prints, as text.

use std::sync::Arc;

use super::{Flow, Sink, Stop, Stream};
use crate::Progress;

/// What is kept of each end of an output that went beyond its limit, in bytes.
const KEPT_END: usize = 1024 * 1024;

/// Turns bytes into text as they come, tells progress and keeps the text.
pub(super) struct Text {
    text: String,
    /// The beginning of a character that the last bytes broke off in.
    broken: Vec<u8>,
    /// Whether a byte was not UTF-8.
    replaced: Replaced,
    most: usize,
    progress: Option<Arc<dyn Progress>>,
}

/// Whether something was shown as a replacement character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replaced {
    Nothing,
    Some,
}

impl Text {
    /// Ends the command when there is more than `most` bytes of text.
    pub(super) fn new(most: usize, progress: Option<Arc<dyn Progress>>) -> Self {
        Self { text: String::new(), broken: Vec::new(), replaced: Replaced::Nothing, most, progress }
    }

    /// All of the text, and whether it stands for other bytes in places.
    pub(super) fn finish(mut self) -> (String, Replaced) {
        if !self.broken.is_empty() {
            self.text.push(char::REPLACEMENT_CHARACTER);
            self.replaced = Replaced::Some;
        }
        if self.text.len() > self.most {
            cut_middle(&mut self.text);
        }
        (self.text, self.replaced)
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
            self.text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            if chunks.peek().is_none() && may_go_on(invalid) {
                self.broken = invalid.to_vec();
            } else {
                self.text.push(char::REPLACEMENT_CHARACTER);
                self.replaced = Replaced::Some;
            }
        }
    }
}

impl Sink for Text {
    fn take(&mut self, _: Stream, bytes: &[u8]) -> Flow {
        if self.text.len() > self.most {
            // What still comes while the command is being ended.
            return Flow::Continue;
        }
        let before = self.text.len();
        self.decode(bytes);
        if let Some(progress) = &self.progress
            && self.text.len() > before
        {
            progress.output(&self.text[before..]);
        }
        if self.text.len() > self.most {
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

/// Keeps head and tail.
fn cut_middle(text: &mut String) {
    if text.len() <= 2 * KEPT_END {
        return;
    }
    let head = text.floor_char_boundary(KEPT_END);
    let tail = text.ceil_char_boundary(text.len() - KEPT_END);
    let note = format!("\n[… {} left out …]\n", super::size(tail - head));
    text.replace_range(head..tail, &note);
    text.shrink_to_fit();
}
