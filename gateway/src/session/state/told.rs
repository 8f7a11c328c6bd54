//! What a model can be told of a log.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::session::{EventId, OutputRef, Seq};

/// A piece of what a model can be told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// Where it stands in the log.
    pub seq: Seq,
    /// What it is.
    pub what: What,
}

/// What a piece is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum What {
    /// What stands for everything before.
    Summary {
        /// Its text.
        text: String,
        /// The last event that it stands for.
        through: Seq,
    },
    /// A person said something.
    Said {
        /// Content blocks, or a string.
        content: Value,
    },
    /// A brain said something.
    Answered {
        /// Content blocks, or a string.
        content: Value,
    },
    /// The model's answer ends here, and it goes on with another one.
    Paused,
    /// The loop's model thought.
    Thought {
        /// As far as its provider shows it: content blocks.
        content: Option<Value>,
        /// What proves it to the provider.
        private: Option<Value>,
    },
    /// A brain asked for a call.
    Called {
        /// Its `agent.tool_use`.
        id: EventId,
        /// The tool's full name.
        name: String,
        /// Its arguments.
        input: Map<String, Value>,
        /// What the provider alone understands of it.
        private: Option<Value>,
    },
    /// What came of a call.
    Result {
        /// The call's `agent.tool_use`.
        id: EventId,
        /// Content blocks as MCP has them.
        content: Vec<Value>,
        /// Structured content, when there is nothing else to see.
        structured: Option<Value>,
        /// The complete output, when `content` is not.
        output: Option<OutputRef>,
        /// Whether it failed, or has no outcome.
        is_error: bool,
    },
}
