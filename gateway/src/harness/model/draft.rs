//! A thought while it comes: pieces are put together, and told as they come.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::Instant;

use super::{Block, Delta, Emit, Opaque, Stop, Thinking, Thought, ToolInput, ToolUse, Usage};
use crate::clock;

/// A thought while it comes. Its parts are told apart by a number of the provider's, and stand in the order of these.
pub(super) struct Draft<'a> {
    out: &'a mut dyn Emit,
    asked: Instant,
    ttft: Option<Duration>,
    parts: BTreeMap<u64, Part>,
    /// Why it ended, once that is known.
    pub(super) stop: Option<Stop>,
    /// What it cost, as far as that is known.
    pub(super) usage: Usage,
}

enum Part {
    Text(String),
    Thinking { text: String, opaque: Option<Opaque> },
    Tool { id: String, name: String, arguments: Arguments },
}

/// Arguments as they come: as text in pieces, or whole.
enum Arguments {
    Text(String),
    Whole(Map<String, Value>),
}

impl<'a> Draft<'a> {
    pub(super) fn new(out: &'a mut dyn Emit) -> Self {
        Self {
            out,
            asked: Instant::now(),
            ttft: None,
            parts: BTreeMap::new(),
            stop: None,
            usage: Usage::default(),
        }
    }

    /// Text goes on.
    pub(super) fn text(&mut self, part: u64, piece: &str) {
        if piece.is_empty() {
            return;
        }
        if let Part::Text(text) = self.parts.entry(part).or_insert_with(|| Part::Text(String::new())) {
            text.push_str(piece);
            self.tell(Delta::Text(piece));
        }
    }

    /// Thinking goes on.
    pub(super) fn thinking(&mut self, part: u64, piece: &str) {
        let new = || Part::Thinking { text: String::new(), opaque: None };
        if let Part::Thinking { text, .. } = self.parts.entry(part).or_insert_with(new) {
            text.push_str(piece);
            if !piece.is_empty() {
                self.tell(Delta::Thinking(piece));
            }
        }
    }

    /// What proves a piece of thinking.
    pub(super) fn opaque(&mut self, part: u64, proof: Opaque) {
        let new = || Part::Thinking { text: String::new(), opaque: None };
        if let Part::Thinking { opaque, .. } = self.parts.entry(part).or_insert_with(new) {
            *opaque = Some(proof);
        }
    }

    /// A call begins. Without an id it gets one.
    pub(super) fn tool(&mut self, part: u64, id: Option<&str>, name: &str) {
        let id = id
            .filter(|id| !id.is_empty())
            .map_or_else(|| format!("call_{}", clock::id().simple()), str::to_owned);
        self.tell(Delta::ToolUse { id: &id, name });
        let arguments = Arguments::Text(String::new());
        self.parts.insert(part, Part::Tool { id, name: name.to_owned(), arguments });
    }

    /// Arguments of a call go on: as a piece of text, or whole as an object.
    pub(super) fn arguments(&mut self, part: u64, piece: &Value) {
        let Some(Part::Tool { arguments, .. }) = self.parts.get_mut(&part) else { return };
        match (piece, arguments) {
            (Value::String(piece), Arguments::Text(text)) => text.push_str(piece),
            (Value::String(piece), whole @ Arguments::Whole(_)) if !piece.is_empty() => {
                *whole = Arguments::Text(piece.clone());
            }
            (Value::Object(object), arguments) => *arguments = Arguments::Whole(object.clone()),
            _ => {}
        }
    }

    /// Whether there is such a part.
    pub(super) fn has(&self, part: u64) -> bool {
        self.parts.contains_key(&part)
    }

    /// Whether anything of a call's arguments came.
    pub(super) fn has_arguments(&self, part: u64) -> bool {
        match self.parts.get(&part) {
            Some(Part::Tool { arguments: Arguments::Text(text), .. }) => !text.is_empty(),
            Some(Part::Tool { arguments: Arguments::Whole(_), .. }) => true,
            Some(Part::Text(_) | Part::Thinking { .. }) | None => false,
        }
    }

    /// Whether a call with this id has begun, and as which part.
    pub(super) fn call(&self, wanted: &str) -> Option<u64> {
        let is = |part: &Part| matches!(part, Part::Tool { id, .. } if id == wanted);
        self.parts.iter().find(|(_, part)| is(part)).map(|(number, _)| *number)
    }

    /// The text of a part so far.
    pub(super) fn text_of(&self, part: u64) -> &str {
        match self.parts.get(&part) {
            Some(Part::Text(text) | Part::Thinking { text, .. }) => text,
            Some(Part::Tool { .. }) | None => "",
        }
    }

    /// The thought, which ended for this reason.
    pub(super) fn finish(self, stop: Stop) -> Thought {
        let ttft = self.ttft.unwrap_or_else(|| self.asked.elapsed());
        let blocks = self.parts.into_values().filter_map(Part::block).collect();
        let thought = Thought { blocks, stop, usage: self.usage, ttft };
        // What waits for results is a turn of tools, whatever a server calls it.
        let waits = thought.stop == Stop::EndTurn && thought.tool_uses().next().is_some();
        Thought { stop: if waits { Stop::ToolUse } else { thought.stop }, ..thought }
    }

    fn tell(&mut self, delta: Delta<'_>) {
        self.ttft.get_or_insert_with(|| self.asked.elapsed());
        self.out.emit(delta);
    }
}

impl Part {
    fn block(self) -> Option<Block> {
        match self {
            Self::Text(text) => (!text.is_empty()).then_some(Block::Text(text)),
            Self::Thinking { text, opaque: None } if text.is_empty() => None,
            Self::Thinking { text, opaque } => Some(Block::Thinking(Thinking { text, opaque })),
            Self::Tool { id, name, arguments } => {
                let input = match arguments {
                    Arguments::Whole(object) => ToolInput::Object(object),
                    Arguments::Text(text) => read(text),
                };
                Some(Block::ToolUse(ToolUse { id, name, input }))
            }
        }
    }
}

/// Arguments that a model wrote. Nothing at all means none.
fn read(text: String) -> ToolInput {
    if text.trim().is_empty() {
        return ToolInput::Object(Map::new());
    }
    match serde_json::from_str(&text) {
        Ok(Value::Object(object)) => ToolInput::Object(object),
        Ok(Value::Null) => ToolInput::Object(Map::new()),
        Ok(_) | Err(_) => ToolInput::Broken(text),
    }
}
