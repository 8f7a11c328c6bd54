//! What a model is told: a pure function of what follows from the log, and of a policy. The log keeps everything.
//!
//! **Invariants:** no call is told without a result; no policy drops a call that is open; what a request was told is the
//! beginning of what the next one is told, until results are trimmed (in strides, so seldom) or the context is compacted.

use serde_json::{Map, Value};

use super::model::{
    Block, Breakpoint, Message, Opaque, Role, Seen, Thinking, ToolInput, ToolResult, ToolUse, Transcript,
};
use super::picture;
use crate::session::{Seq, State, Told, What};

/// What a model is told of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How results of calls are told.
    pub results: Results,
    /// From how many tokens on the context is compacted. None: when the model says that it was told too much.
    pub compact_at: Option<u64>,
}

/// How results of calls are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Results {
    /// As they are.
    Full,
    /// The older ones by their beginning. They stay readable in the log.
    Trimmed {
        /// How many of the latest are told as they are. Up to twice as many, because trimming moves in strides of it.
        whole: usize,
        /// How many characters of an older one are told.
        chars: usize,
    },
}

impl Default for Policy {
    fn default() -> Self {
        Self { results: Results::Trimmed { whole: 24, chars: 1_000 }, compact_at: Some(120_000) }
    }
}

/// The result of a call that has none yet.
const NO_RESULT: &str = "[no result yet: the call is still open]";
/// What a person said who said nothing.
const NOTHING_SAID: &str = "[an empty message]";
/// What stands before a summary.
const SUMMARY: &str = "This conversation is older than what you see of it. A summary of what came before";

/// What the model is told of `state`.
pub fn transcript(state: &State, policy: Policy, system: String) -> Transcript {
    let told: Vec<&Told> = state.told_to_model().collect();
    let results = told.iter().filter(|told| matches!(told.what, What::Result { .. })).count();
    let mut builder = Builder { trimmed: trimmed(results, policy.results), ..Builder::default() };
    for told in &told {
        builder.add(told);
    }
    builder.close();
    let mut messages = builder.messages;
    picture::fewer(&mut messages);
    mark(&mut messages);
    Transcript { system, messages }
}

/// Whether the context is to be compacted before the model is asked again.
pub fn wants_compaction(state: &State, policy: Policy) -> bool {
    let large = policy.compact_at.is_some_and(|limit| state.context_tokens >= limit);
    (large || state.too_long) && state.told_to_model().any(|told| !matches!(told.what, What::Summary { .. }))
}

/// What was told up to `through`, as a text of at most so many characters. None: there is nothing that a summary could
/// replace.
pub fn text(state: &State, through: Seq, chars: usize) -> Option<String> {
    let mut told = state.told_to_model().filter(|told| told.seq <= through);
    let any = told.any(|told| !matches!(told.what, What::Summary { .. }));
    any.then(|| lines(state, through, chars))
}

fn lines(state: &State, through: Seq, chars: usize) -> String {
    let told = state.told_to_model().filter(|told| told.seq <= through);
    let lines = told.map(|told| line(&told.what)).filter(|line| !line.is_empty());
    let text: String = lines.map(|line| format!("{line}\n\n")).collect();
    let total = text.chars().count();
    if total <= chars {
        return text;
    }
    let half = chars / 2;
    let head: String = text.chars().take(half).collect();
    let tail: String = text.chars().skip(total - half).collect();
    format!("{head}\n[… {} characters left out …]\n{tail}", total - 2 * half)
}

/// Most characters of a handover: what MCP clients show of one text.
const HANDOVER_CHARS: usize = 40_000;

/// What another brain needs to go on with a session: what was said and done, and what is still open.
pub fn handover(state: &State, session: &str) -> String {
    let mut said = format!(
        "This session was worked on before. Its log ends at event {}; session_events, or the resource \
         session://{session}/events, reads all of it. What follows is what was said and done.\n\n",
        state.seq
    );
    said += &lines(state, state.seq, HANDOVER_CHARS);
    for call in &state.calls {
        let stands = if call.started.is_some() {
            "was begun, and has no outcome yet: do not repeat it before you have looked what it did"
        } else {
            "was asked for, and has not begun"
        };
        said += &format!("[the call {} of {} {stands}]\n", call.id, call.name);
    }
    said
}

/// A piece as a line of a text. A result by its beginning.
fn line(what: &What) -> String {
    const RESULT_CHARS: usize = 4_000;
    match what {
        What::Summary { text, .. } => format!("[{SUMMARY}:] {text}"),
        What::Said { content } => format!("PERSON: {}", text_of(content)),
        What::Answered { content } => format!("AGENT: {}", text_of(content)),
        What::Thought { .. } | What::Paused => String::new(),
        What::Called { name, input, .. } => format!("CALL {name} {}", Value::Object(input.clone())),
        What::Result { content, structured, is_error, .. } => {
            let mut text: String = content
                .iter()
                .filter_map(seen)
                .map(|seen| match seen {
                    Seen::Text(text) => text,
                    Seen::Image(_) => "[an image]".to_owned(),
                })
                .collect();
            if text.is_empty() {
                text = structured.as_ref().map(Value::to_string).unwrap_or_default();
            }
            let text: String = text.chars().take(RESULT_CHARS).collect();
            format!("{}: {text}", if *is_error { "FAILED" } else { "RESULT" })
        }
    }
}

/// How many of the oldest results are told by their beginning, and how many characters of them.
fn trimmed(results: usize, how: Results) -> Option<(usize, usize)> {
    let Results::Trimmed { whole, chars } = how else { return None };
    let strides = results.saturating_sub(whole).checked_div(whole.max(1))?;
    Some((strides * whole.max(1), chars))
}

/// The end, and the end of the request before: what one request writes to the provider's cache, the next one reads.
fn mark(messages: &mut [Message]) {
    if let Some(last) = messages.last_mut() {
        last.breakpoint = Some(Breakpoint);
    }
    let answer = messages.iter().rposition(|message| message.role == Role::Assistant).unwrap_or(0);
    let before = messages[..answer].iter().rposition(|message| message.role == Role::User);
    if let Some(before) = before {
        messages[before].breakpoint = Some(Breakpoint);
    }
}

#[derive(Default)]
struct Builder {
    messages: Vec<Message>,
    /// Calls that have no result yet.
    open: Vec<String>,
    trimmed: Option<(usize, usize)>,
    results: usize,
    /// The message before is complete.
    ended: bool,
}

impl Builder {
    fn add(&mut self, told: &Told) {
        match &told.what {
            What::Summary { text, through } => {
                let text = format!("[{SUMMARY}, up to event {through} of the session's log:]\n\n{text}");
                self.put(Role::User, vec![Block::Text(text)]);
                self.ended = true;
            }
            What::Said { content } => {
                self.close();
                self.ended = true;
                let said = blocks(content);
                let blank = |block: &Block| matches!(block, Block::Text(text) if text.trim().is_empty());
                let nothing = said.iter().all(blank);
                // It waits for an answer, and no provider takes it.
                self.put(Role::User, if nothing { vec![Block::text(NOTHING_SAID)] } else { said });
            }
            What::Paused => self.ended = true,
            What::Answered { content } => {
                // A provider takes no empty text.
                let text = blocks(content).into_iter().filter(|block| matches!(block, Block::Text(_)));
                self.put(Role::Assistant, text.collect());
            }
            What::Thought { content, private } => {
                let text = content.as_ref().map(text_of).unwrap_or_default();
                let opaque = private.clone().and_then(|value| serde_json::from_value::<Opaque>(value).ok());
                self.put(Role::Assistant, vec![Block::Thinking(Thinking { text, opaque })]);
            }
            What::Called { id, name, input, .. } => {
                let (id, input) = (id.to_string(), ToolInput::Object(input.clone()));
                let tool_use = ToolUse { id: id.clone(), name: name.clone(), input };
                self.put(Role::Assistant, vec![Block::ToolUse(tool_use)]);
                self.open.push(id);
            }
            What::Result { id, content, structured, is_error, .. } => {
                let id = id.to_string();
                let Some(place) = self.open.iter().position(|open| *open == id) else { return };
                self.open.remove(place);
                let content = self.seen(content, structured.as_ref(), told);
                let result = ToolResult { tool_use_id: id, content, is_error: *is_error };
                self.put(Role::User, vec![Block::ToolResult(result)]);
            }
        }
    }

    /// Calls that have no result are told that they have none.
    fn close(&mut self) {
        for id in std::mem::take(&mut self.open) {
            let content = vec![Seen::Text(NO_RESULT.to_owned())];
            let result = ToolResult { tool_use_id: id, content, is_error: true };
            self.put(Role::User, vec![Block::ToolResult(result)]);
        }
    }

    fn put(&mut self, role: Role, blocks: Vec<Block>) {
        if blocks.is_empty() {
            return;
        }
        if role == Role::Assistant && self.messages.last().is_some_and(|last| last.role == Role::User) {
            self.close();
        }
        match self.messages.last_mut() {
            Some(last) if last.role == role && !self.ended => last.blocks.extend(blocks),
            _ => self.messages.push(Message { role, blocks, breakpoint: None }),
        }
        self.ended = false;
    }

    fn seen(&mut self, content: &[Value], structured: Option<&Value>, told: &Told) -> Vec<Seen> {
        self.results += 1;
        let mut seen: Vec<Seen> = content.iter().filter_map(seen).collect();
        if let (true, Some(structured)) = (seen.is_empty(), structured) {
            seen.push(Seen::Text(structured.to_string()));
        }
        if let What::Result { output: Some(output), .. } = &told.what {
            let bytes = output.bytes;
            seen.push(Seen::Text(format!("[all of it, {bytes} bytes, is stored beside event {}]", told.seq)));
        }
        match self.trimmed {
            Some((older, chars)) if self.results <= older => trim(seen, chars, told),
            _ => seen,
        }
    }
}

/// The beginning of a result, and where the rest is.
fn trim(seen: Vec<Seen>, chars: usize, told: &Told) -> Vec<Seen> {
    let size = |seen: &Seen| match seen {
        Seen::Text(text) => text.chars().count(),
        Seen::Image(_) => usize::MAX / 2,
    };
    if seen.iter().map(size).fold(0, usize::saturating_add) <= chars {
        return seen;
    }
    let mut left = chars;
    let mut kept: Vec<Seen> = Vec::new();
    for seen in seen {
        if let Seen::Text(text) = seen {
            let head: String = text.chars().take(left).collect();
            left -= head.chars().count().min(left);
            if !head.is_empty() {
                kept.push(Seen::Text(head));
            }
        }
    }
    kept.push(Seen::Text(format!(
        "[the rest of this older result is in event {} of the session's log]",
        told.seq
    )));
    kept
}

/// A content block of a result, as a model sees it.
fn seen(block: &Value) -> Option<Seen> {
    let text = |key: &str| block.get(key).and_then(Value::as_str);
    match text("type")? {
        "text" => Some(Seen::Text(text("text")?.to_owned())),
        "image" => Some(picture::seen(block)),
        // A link, an embedded resource, a sound: as it stands.
        _ => Some(Seen::Text(block.to_string())),
    }
}

/// Content blocks, or a string, as blocks of a message.
fn blocks(content: &Value) -> Vec<Block> {
    let of = |block: &Value| match block {
        Value::String(text) if !text.is_empty() => Some(Block::text(text.clone())),
        Value::Object(object) => of_object(block, object),
        _ => None,
    };
    match content {
        Value::Array(blocks) => blocks.iter().filter_map(of).collect(),
        single => of(single).into_iter().collect(),
    }
}

fn of_object(block: &Value, object: &Map<String, Value>) -> Option<Block> {
    match object.get("type").and_then(Value::as_str) {
        Some("text") => {
            let text = object.get("text").and_then(Value::as_str)?;
            (!text.is_empty()).then(|| Block::text(text))
        }
        Some("image") => Some(match picture::seen(block) {
            Seen::Image(image) => Block::Image(image),
            Seen::Text(text) => Block::Text(text),
        }),
        _ => Some(Block::Text(block.to_string())),
    }
}

fn text_of(content: &Value) -> String {
    let text = |block: Block| match block {
        Block::Text(text) => Some(text),
        _ => None,
    };
    blocks(content).into_iter().filter_map(text).collect()
}
