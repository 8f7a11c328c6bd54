//! The persisted vocabulary. A variant, once released, never changes; it may gain optional fields.
//!
//! **Invariant:** what was written is read back whole. An [`Event`] keeps its fields as they are stored,
//! those that this version does not know included; [`Event::known`] is a typed view of them.

mod parts;

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::clock;
pub use parts::*;

/// Names a session: `sesn_` and 32 hex digits. Sorts by time of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub Uuid);

/// Names an event: `sevt_` and 32 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId(pub Uuid);

/// The text is not an id of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an id of this kind")]
pub struct BadId;

macro_rules! prefixed_id {
    ($type:ident, $prefix:literal) => {
        impl $type {
            /// A new one.
            pub fn new() -> Self {
                Self(clock::id())
            }
        }

        impl Default for $type {
            fn default() -> Self {
                Self::new()
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0.simple())
            }
        }

        impl FromStr for $type {
            type Err = BadId;

            fn from_str(text: &str) -> Result<Self, BadId> {
                let hex = text.strip_prefix($prefix).filter(|hex| hex.len() == 32).ok_or(BadId)?;
                Uuid::try_parse(hex).map(Self).map_err(|_| BadId)
            }
        }

        impl Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
prefixed_id!(SessionId, "sesn_");
prefixed_id!(EventId, "sevt_");

/// A place in a session's log. The first event is 1; 0 is before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub i64);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who wrote an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct By {
    /// On whose behalf.
    pub principal: String,
    /// With which program, as it calls itself: `name/version`. Proves nothing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub client: Option<String>,
    /// Through which face.
    pub via: Via,
}

/// A face of the gateway, or the gateway itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// An MCP client.
    Mcp,
    /// The command line.
    Cli,
    /// The built-in loop.
    Loop,
    /// The gateway on its own account: settling, reaping, releasing.
    Gateway,
}

/// Something that happened in a session, as it stands in the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its name.
    pub id: EventId,
    /// Its place.
    pub seq: Seq,
    /// Its session.
    pub session: SessionId,
    /// When it was appended.
    pub at: Timestamp,
    /// By whom.
    pub by: By,
    /// Everything else, `type` included, as written.
    pub fields: Map<String, Value>,
    /// What a provider alone understands of it. No face shows it.
    pub private: Option<Private>,
}

impl Event {
    /// Its `type`.
    pub fn kind(&self) -> &str {
        self.fields.get("type").and_then(Value::as_str).unwrap_or_default()
    }

    /// The typed view, when this version knows the type.
    pub fn known(&self) -> Option<Body> {
        serde_json::from_value(Value::Object(self.fields.clone())).ok()
    }

    /// The event as every face shows it (design section 3).
    pub fn to_json(&self) -> Value {
        let mut shown = self.fields.clone();
        shown.insert("id".into(), self.id.to_string().into());
        shown.insert("seq".into(), self.seq.0.into());
        shown.insert("session".into(), self.session.to_string().into());
        shown.insert("at".into(), format!("{:.6}", self.at).into());
        shown.insert("by".into(), serde_json::to_value(&self.by).unwrap_or_default());
        Value::Object(shown)
    }
}

/// An event that is yet to be appended. Its id is chosen here, so that what belongs to it can name it.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    /// Its name.
    pub id: EventId,
    /// By whom.
    pub by: By,
    /// Its fields, `type` included.
    pub fields: Map<String, Value>,
    /// How a repeated call finds it; `agent.tool_use` alone has one.
    pub key: Option<CallKey>,
    /// What a provider alone understands of it. No face shows it.
    pub private: Option<Private>,
}

/// How a repeated call is recognised, within its session (design 2.2).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CallKey {
    /// `manyhands/callKey`, with its principal: unique as long as the log. The database holds it.
    Forever(String),
    /// `claudecode/toolUseId`, with its principal: a re-send guard, not unique.
    Resend(String),
}

impl NewEvent {
    /// An event of a known type.
    ///
    /// # Panics
    /// Never: a body is plain data and always an object.
    pub fn of(by: By, body: &Body) -> Self {
        let Ok(Value::Object(fields)) = serde_json::to_value(body) else {
            unreachable!("a body is an object of plain data")
        };
        Self { id: EventId::new(), by, fields, key: None, private: None }
    }

    /// Its `type`.
    pub fn kind(&self) -> &str {
        self.fields.get("type").and_then(Value::as_str).unwrap_or_default()
    }
}

/// The types this version writes and understands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum Body {
    /// The session exists from here on.
    #[serde(rename = "session.created")]
    SessionCreated {
        /// The name it was made under, when it has one.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        name: Option<String>,
    },
    /// Something about the session itself changed, such as its being archived.
    #[serde(rename = "session.updated")]
    SessionUpdated {
        /// `active` or `archived`.
        status: String,
        /// The model that the built-in loop asks from here on, when that is what changed.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        model: Option<String>,
    },
    /// The built-in loop works on the session.
    #[serde(rename = "session.status_running")]
    StatusRunning {},
    /// The built-in loop stopped on the way and goes on by itself.
    #[serde(rename = "session.status_rescheduled")]
    StatusRescheduled {},
    /// The built-in loop has nothing to do until somebody says something.
    #[serde(rename = "session.status_idle")]
    StatusIdle {
        /// Why it stopped.
        stop_reason: StopReason,
    },
    /// The built-in loop never works on the session again.
    #[serde(rename = "session.status_terminated")]
    StatusTerminated {},
    /// Something went wrong outside any call, most often with the model.
    #[serde(rename = "session.error")]
    SessionError {
        /// What.
        error: ErrorSaid,
        /// What becomes of it.
        retry_status: RetryStatus,
    },
    /// A model is asked.
    #[serde(rename = "span.model_request_start")]
    ModelRequestStart {
        /// The last event that it is told of.
        through: Seq,
        /// Which model.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        model: Option<String>,
        /// What for, when it is not for the next thought.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        purpose: Option<Purpose>,
    },
    /// A model has answered, or failed.
    #[serde(rename = "span.model_request_end")]
    ModelRequestEnd {
        /// The `span.model_request_start`.
        model_request_start_id: EventId,
        /// What it cost.
        model_usage: ModelUsage,
        /// From asking to the first piece of the answer, in milliseconds, when one came.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        ttft_ms: Option<u64>,
        /// Whether there is no answer, or only part of one.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        is_error: bool,
        /// Why the answer ended, when there is one.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        stop: Option<ModelStop>,
    },
    /// A person said something.
    #[serde(rename = "user.message")]
    UserMessage {
        /// Content blocks, or a string.
        content: Value,
    },
    /// A person wants the brain to stop.
    #[serde(rename = "user.interrupt")]
    UserInterrupt {},
    /// A person said whether a call may run.
    #[serde(rename = "user.tool_confirmation")]
    ToolConfirmation {
        /// The `agent.tool_use`.
        tool_use_id: EventId,
        /// What they said.
        result: Confirmation,
        /// Why not, for the brain.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        deny_message: Option<String>,
    },
    /// A brain thought before it spoke.
    #[serde(rename = "agent.thinking")]
    AgentThinking {
        /// What, as far as its provider shows it: content blocks.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        content: Option<Value>,
    },
    /// What a brain is told from here on begins with a summary. What that stands for is still in the log.
    #[serde(rename = "agent.thread_context_compacted")]
    ContextCompacted {
        /// The last event that the summary stands for.
        through: Seq,
        /// The summary.
        summary: String,
    },
    /// A brain said something.
    #[serde(rename = "agent.message")]
    AgentMessage {
        /// Content blocks, or a string.
        content: Value,
    },
    /// A brain asked for a call. The event's own id is the `tool_use_id` of what follows.
    #[serde(rename = "agent.tool_use")]
    ToolUse {
        /// The tool as the brain called it: `hand__tool`.
        name: String,
        /// Its arguments.
        input: Map<String, Value>,
        /// Which hand.
        hand: HandRef,
        /// The tool's own name within the hand.
        tool: String,
        /// The caller's key, when it gave one that lasts.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        call_key: Option<String>,
        /// What the policy says of it, when it was asked.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        evaluated_permission: Option<Permission>,
    },
    /// A call is about to touch its hand. Durable before it does; at most one a call.
    #[serde(rename = "hand.call_started")]
    CallStarted {
        /// The `agent.tool_use`.
        tool_use_id: EventId,
        /// The hand's name.
        hand: String,
        /// The instance.
        instance: String,
        /// The process that runs it.
        node: String,
        /// Epoch of the hand's lease.
        epoch: i64,
        /// Epoch of the session's lease, when the built-in loop started it.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        waker: Option<i64>,
    },
    /// A call came back, or is known never to. At most one a call.
    #[serde(rename = "agent.tool_result")]
    ToolResult {
        /// The `agent.tool_use`.
        tool_use_id: EventId,
        /// Content blocks as MCP has them: at most 48 000 characters of text, but for the result of an MCP server.
        content: Vec<Value>,
        /// The complete output, when `content` is only its head and tail, or says only that there is one.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        output: Option<OutputRef>,
        /// What an MCP server answered beside `content`.
        #[serde(flatten)]
        rest: Box<ResultRest>,
        /// Whether the tool says that it failed, or has no outcome.
        is_error: bool,
        /// How it ended.
        outcome: CallOutcome,
    },
    /// An instance is ready.
    #[serde(rename = "hand.provisioned")]
    HandProvisioned {
        /// The hand's name.
        hand: String,
        /// The instance.
        instance: String,
        /// The process that holds it.
        node: String,
    },
    /// An instance died or was lost sight of.
    #[serde(rename = "hand.lost")]
    HandLost {
        /// The hand's name.
        hand: String,
        /// The instance.
        instance: String,
        /// What became of its work.
        work: Work,
    },
    /// An instance was ended because nobody needed it. Its work stays.
    #[serde(rename = "hand.released")]
    HandReleased {
        /// The hand's name.
        hand: String,
        /// The instance.
        instance: String,
    },
    /// A live instance went from one session to another, with its work. Both logs have it.
    #[serde(rename = "hand.moved")]
    HandMoved {
        /// The hand's name.
        hand: String,
        /// The instance.
        instance: String,
        /// The process that holds it.
        node: String,
        /// The session that had it.
        from: String,
        /// The session that has it.
        to: String,
    },
    /// The state of an instance was kept.
    #[serde(rename = "hand.checkpointed")]
    HandCheckpointed {
        /// The hand's name.
        hand: String,
        /// The instance.
        instance: String,
        /// What the state is called.
        name: String,
    },
    /// The state of an instance was brought back.
    #[serde(rename = "hand.restored")]
    HandRestored {
        /// The hand's name.
        hand: String,
        /// The instance.
        instance: String,
        /// What the state is called.
        name: String,
    },
}
