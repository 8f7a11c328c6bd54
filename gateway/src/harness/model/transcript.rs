//! What was said so far, as every provider can be told.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What was said so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    /// What stands before everything. Empty: nothing.
    pub system: String,
    /// What was said, oldest first. Neighbours of one role are sent as one message where a provider wants turns to
    /// alternate.
    pub messages: Vec<Message>,
}

/// One thing that was said. A whole thought of a model is one message, however many blocks it has.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// By whom.
    pub role: Role,
    /// What.
    pub blocks: Vec<Block>,
    /// Whether the stable beginning ends with it.
    pub breakpoint: Option<Breakpoint>,
}

impl Message {
    /// From the user, not marked as stable.
    pub fn user(blocks: Vec<Block>) -> Self {
        Self { role: Role::User, blocks, breakpoint: None }
    }

    /// From the assistant, not marked as stable.
    pub fn assistant(blocks: Vec<Block>) -> Self {
        Self { role: Role::Assistant, blocks, breakpoint: None }
    }
}

/// Everything up to here will stand unchanged at the beginning of later requests: a provider that caches prefixes may
/// cache this one. It takes the last three of them; the system text and the tools count as stable in any case.
///
/// Mark the last message of the transcript and the last one of the request before: then each request reads from the
/// cache what the one before has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breakpoint;

/// Who said something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A person, or the tools that answer.
    User,
    /// The model.
    Assistant,
}

/// A piece of a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// Text.
    Text(String),
    /// An image, from the user.
    Image(Image),
    /// What the model thought before it spoke.
    Thinking(Thinking),
    /// A call that the model asks for.
    ToolUse(ToolUse),
    /// What came of a call, from the user.
    ToolResult(ToolResult),
}

impl Block {
    /// Text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }
}

/// An image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Its media type, such as `image/png`.
    pub media_type: String,
    /// Its bytes in base64.
    pub data: String,
}

/// What the model thought before it spoke.
#[derive(Clone, Debug, PartialEq)]
pub struct Thinking {
    /// As far as the provider shows it. May be empty.
    pub text: String,
    /// What proves it to the provider. Thinking without it is not sent back: no provider takes it.
    pub opaque: Option<Opaque>,
}

/// What one provider alone understands. For a private column of the log, through [`Serialize`]; `Debug` shows its
/// provider only.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Opaque {
    /// Who understands it. Another provider leaves it out.
    pub provider: String,
    /// What it says.
    pub value: Value,
}

impl fmt::Debug for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opaque({})", self.provider)
    }
}

/// A call that the model asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolUse {
    /// Unique within the transcript: the provider's own, or the log's, as `[a-zA-Z0-9_-]+`.
    pub id: String,
    /// The tool's full name. It may be one that does not exist.
    pub name: String,
    /// The arguments.
    pub input: ToolInput,
}

/// The arguments of a call, as the model wrote them.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolInput {
    /// An object, as yet unchecked.
    Object(Map<String, Value>),
    /// What is no JSON object. Such a call is not run: its result is an error that says so.
    Broken(String),
}

/// Under which name broken arguments stand where only an object can.
const BROKEN: &str = "not_json";

impl ToolInput {
    /// As an object, for the log and for providers that take nothing else: broken ones are the text at `not_json`.
    pub fn to_object(&self) -> Map<String, Value> {
        match self {
            Self::Object(object) => object.clone(),
            Self::Broken(text) => Map::from_iter([(BROKEN.to_owned(), Value::from(text.as_str()))]),
        }
    }
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolResult {
    /// Which one.
    pub tool_use_id: String,
    /// What there is to see.
    pub content: Vec<Seen>,
    /// Whether the tool says that it failed, or has no outcome.
    pub is_error: bool,
}

/// A piece of what came of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Text.
    Text(String),
    /// An image.
    Image(Image),
}
