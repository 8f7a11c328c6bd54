//! What a call gave, in the two shapes it has: in the log, and towards whoever asked.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hands::mcp::{Object, Reply, RpcError};
use hands::{Content, END_CHARS, Ending, Outcome, Spooled, last_chars};
use serde_json::{Value, json};

use crate::session::{Body, CallOutcome, Event, EventId, Holds, OutputRef, ResultRest, Seq, SessionId};

/// Most characters of text that an answer shows. The rest is stored beside the log.
pub(super) const SHOWN_CHARS_MAX: usize = 48_000;
/// How many of them come from the beginning of a longer text.
const HEAD_CHARS: usize = 32_000;
/// Room for the sentence between head and tail, for a note in front of them and for the link behind.
const MARK_CHARS: usize = 1_000;
/// How many come from the end.
const TAIL_CHARS: usize = SHOWN_CHARS_MAX - HEAD_CHARS - MARK_CHARS;
// A long text has as much of its ends in memory.
const _: () = assert!(HEAD_CHARS <= END_CHARS && TAIL_CHARS <= END_CHARS);
/// Largest image in an event, in bytes. A larger one is stored beside the log.
const INLINE_IMAGE_MAX: usize = 600 << 10;
/// Largest result of an MCP server in an event, in bytes of JSON. A larger one is stored beside the log.
const INLINE_RESULT_MAX: usize = 256 << 10;

/// What a call gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// In which session.
    pub session: SessionId,
    /// The place of its `agent.tool_result`; 0 when its hand keeps no log.
    pub seq: Seq,
    /// The `agent.tool_use`.
    pub tool_use_id: EventId,
    /// Content blocks as MCP has them; none when there is a reply.
    pub content: Vec<Value>,
    /// What an MCP server answered, whole.
    pub reply: Option<Reply>,
    /// The complete output, when `content` is only part of it.
    pub output: Option<OutputRef>,
    /// How it ended.
    pub outcome: CallOutcome,
    /// Whether this outcome is that of an earlier, identical call.
    pub replayed: Replayed,
}

/// Whether an answer was given before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// It is the outcome of this call.
    No,
    /// It is the outcome of the call that this one repeats.
    Yes,
}

impl Answer {
    /// The answer that an `agent.tool_result` stands for. `stored` is the output that it names, when that is a whole
    /// result ([`Answer::needs`]).
    pub fn replay(event: &Event, stored: Option<&[u8]>) -> Option<Self> {
        let Some(Body::ToolResult { tool_use_id, content, output, rest, outcome, .. }) = event.known() else {
            return None;
        };
        let reply = match stored {
            Some(stored) => Some(Reply::Result(serde_json::from_slice(stored).ok()?)),
            None => said(&content, *rest),
        };
        let content = if reply.is_some() { Vec::new() } else { content };
        // Nobody but the gateway reads a stored result: the client has it whole.
        let output = output.filter(|_| reply.is_none());
        let (session, seq) = (event.session, event.seq);
        Some(Self { session, seq, tool_use_id, content, reply, output, outcome, replayed: Replayed::Yes })
    }

    /// The stored output without which an event can't be replayed.
    pub fn needs(event: &Event) -> Option<OutputRef> {
        match event.known() {
            Some(Body::ToolResult { output: Some(output), .. }) if output.holds == Some(Holds::Result) => {
                Some(output)
            }
            _ => None,
        }
    }

    /// What there is to see of it, as content blocks.
    pub fn blocks(&self) -> Vec<Value> {
        match &self.reply {
            None => self.content.clone(),
            Some(Reply::Result(result)) => {
                result.get("content").and_then(Value::as_array).cloned().unwrap_or_default()
            }
            Some(Reply::Error(error)) => vec![text_block(&error.message)],
        }
    }

    /// Whether the asker should take it as a failure.
    pub fn is_error(&self) -> bool {
        self.outcome != CallOutcome::Ok
    }

    /// Where the complete output can be read.
    pub fn output_uri(&self) -> Option<String> {
        self.output.as_ref().map(|_| format!("session://{}/outputs/{}", self.session, self.seq))
    }
}

/// The reply that stands in an event, if it is one.
fn said(content: &[Value], rest: ResultRest) -> Option<Reply> {
    if let Some(error) = rest.error {
        return serde_json::from_value::<RpcError>(error).ok().map(Reply::Error);
    }
    let mut result = rest.more?;
    // The result of a call that became a task has none.
    if !content.is_empty() || result.get("resultType").is_none_or(|kind| kind == "complete") {
        result.insert("content".to_owned(), content.into());
    }
    if let Some(structured) = rest.structured {
        result.insert("structuredContent".to_owned(), structured);
    }
    Some(Reply::Result(result.into()))
}

/// An outcome as it goes into the log, and what is stored beside it.
pub(super) struct Shaped {
    /// Blocks for the asker.
    pub(super) shown: Vec<Value>,
    /// Blocks for the log: the same, but for what is too large for it.
    pub(super) logged: Vec<Value>,
    /// What an MCP server answered, for the asker.
    pub(super) reply: Option<Reply>,
    /// What of it is not in `logged`, for the log.
    pub(super) rest: Box<ResultRest>,
    /// What to store beside the log.
    pub(super) stored: Option<Stored>,
}

/// What is stored beside the log.
#[derive(Clone)]
pub(super) struct Stored {
    pub(super) whole: Whole,
    pub(super) holds: Option<Holds>,
}

/// All of something large.
#[derive(Clone)]
pub(super) enum Whole {
    Bytes(Bytes),
    /// On the disk, while its call ends.
    Spooled(Spooled),
}

impl Whole {
    /// The bytes from `at` on, at most `most`; none behind its end.
    pub(super) async fn read(&self, at: u64, most: usize) -> std::io::Result<Bytes> {
        match self {
            Self::Bytes(bytes) => {
                let at = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                Ok(bytes.slice(at..bytes.len().min(at.saturating_add(most))))
            }
            Self::Spooled(text) => text.read(at, most).await,
        }
    }
}

impl From<Bytes> for Stored {
    fn from(bytes: Bytes) -> Self {
        Self { whole: Whole::Bytes(bytes), holds: None }
    }
}

impl From<Spooled> for Stored {
    fn from(text: Spooled) -> Self {
        Self { whole: Whole::Spooled(text), holds: None }
    }
}

/// Shapes `outcome`, with a `note` in front of it when there is one.
pub(super) fn shape(outcome: Outcome, note: Option<&str>) -> Shaped {
    let mut shaped =
        Shaped { shown: Vec::new(), logged: Vec::new(), reply: None, rest: Box::default(), stored: None };
    match outcome.reply {
        None => {}
        Some(Reply::Result(result)) => {
            shaped.result(match note {
                None => result,
                Some(note) => noted(&result, note).into(),
            });
            return shaped;
        }
        Some(Reply::Error(error)) => {
            shaped.error(error);
            return shaped;
        }
    }
    if let Some(note) = note {
        shaped.both(text_block(note));
    }
    for content in outcome.content {
        match content {
            Content::Text(text) => match cut(&text) {
                None => shaped.both(text_block(&text)),
                Some(short) => {
                    shaped.both(text_block(&short));
                    shaped.stored = Some(Bytes::from(text).into());
                }
            },
            Content::Long(text) => {
                shaped.both(text_block(&both_ends(text.head(), text.tail(), text.chars())));
                shaped.stored = Some(text.into());
            }
            Content::Image { data, mime } => shaped.image(data, mime),
        }
    }
    shaped
}

impl Shaped {
    fn both(&mut self, block: Value) {
        self.logged.push(block.clone());
        self.shown.push(block);
    }

    fn image(&mut self, data: Bytes, mime: &str) {
        let block = json!({"type": "image", "data": BASE64_STANDARD.encode(&data), "mimeType": mime});
        if data.len() <= INLINE_IMAGE_MAX {
            return self.both(block);
        }
        self.shown.push(block);
        self.logged
            .push(text_block(&format!("[{mime}, {} bytes, stored as this event's output]", data.len())));
        self.stored = Some(data.into());
    }
}

impl Shaped {
    fn result(&mut self, result: Arc<Object>) {
        // What is written can be read: it is plain JSON.
        let whole = serde_json::to_vec(&*result).unwrap_or_default();
        if whole.len() > INLINE_RESULT_MAX {
            let note = format!("[a result of {} bytes, stored as this event's output]", whole.len());
            self.logged.push(text_block(&note));
            self.stored = Some(Stored { whole: Whole::Bytes(whole.into()), holds: Some(Holds::Result) });
        } else {
            let mut more = (*result).clone();
            match more.remove("content") {
                Some(Value::Array(blocks)) => self.logged = blocks,
                Some(other) => drop(more.insert("content".to_owned(), other)),
                None => {}
            }
            self.rest.structured = more.remove("structuredContent");
            self.rest.more = Some(more);
        }
        self.reply = Some(Reply::Result(result));
    }

    fn error(&mut self, error: RpcError) {
        self.logged.push(text_block(&error.message));
        let logged = serde_json::to_value(&error).unwrap_or_default();
        let size = logged.to_string().len();
        self.rest.error = Some(if size > INLINE_RESULT_MAX {
            let message = format!("[an error of {size} bytes, too large for the log]");
            json!({"code": error.code, "message": message})
        } else {
            logged
        });
        self.reply = Some(Reply::Error(error));
    }
}

/// A result with a block in front of its content.
fn noted(result: &Object, note: &str) -> Object {
    let mut result = result.clone();
    if let Some(Value::Array(blocks)) = result.get_mut("content") {
        blocks.insert(0, text_block(note));
    }
    result
}

/// A text content block.
pub(super) fn text_block(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// Head and tail of a text that is too long to show, with a sentence between them.
fn cut(text: &str) -> Option<String> {
    // A text of no more bytes than that has no more characters.
    if text.len() <= SHOWN_CHARS_MAX {
        return None;
    }
    let total = text.chars().count();
    if total <= SHOWN_CHARS_MAX {
        return None;
    }
    Some(both_ends(text, text, total as u64))
}

/// The ends of a text of `total` characters, of which `head` and `tail` are enough, with a sentence between them.
fn both_ends(head: &str, tail: &str, total: u64) -> String {
    let head: String = head.chars().take(HEAD_CHARS).collect();
    let tail = last_chars(tail, TAIL_CHARS);
    let left_out = total - (HEAD_CHARS + TAIL_CHARS) as u64;
    format!("{head}\n[… {left_out} of {total} characters left out here; all of it is stored …]\n{tail}")
}

/// How a hand's ending stands in the log.
pub(super) fn outcome_of(ending: Ending) -> CallOutcome {
    match ending {
        Ending::Ok => CallOutcome::Ok,
        Ending::Error => CallOutcome::Error,
        Ending::Cancelled => CallOutcome::Cancelled,
        Ending::Timeout => CallOutcome::Timeout,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_to_the_limit_and_keeps_both_ends() {
        let text = format!("begin{}end", "é".repeat(100_000));
        let short = cut(&text).unwrap();
        assert!(short.chars().count() <= SHOWN_CHARS_MAX, "{}", short.chars().count());
        assert!(short.starts_with("begin") && short.ends_with("end"));
        assert!(short.contains("of 100008 characters left out"), "{}", &short[64_000..64_400]);
        assert_eq!(cut(&"x".repeat(SHOWN_CHARS_MAX)), None);
        assert_eq!(cut(&"é".repeat(SHOWN_CHARS_MAX)), None);
    }
}
