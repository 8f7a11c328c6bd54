//! What follows from a log, for the built-in loop. Pure: no clock, no I/O, and it can't fail.
//!
//! **Invariants:** the same events give the same state, in one piece or in many; what is told to a model stands in
//! [`State::told`] in the order in which it can be told: calls, then all of their results, then what people said
//! meanwhile. A call of the loop stays in [`State::calls`] until it has its outcome, whatever else is forgotten.

mod apply;
mod told;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Confirmation, Event, EventId, ModelStop, ModelUsage, Permission, Purpose, Seq, StopReason};
pub use apply::TOO_LONG;
pub use told::{Told, What};

/// The form of a kept [`State`]. One of another form is built anew.
pub const STATE_FORMAT: i64 = 3;

/// A session as its log tells it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The last event taken in.
    pub seq: Seq,
    /// Its name.
    pub last: Option<EventId>,
    /// The model that the session asks for, when it does.
    pub model: Option<String>,
    /// What the loop said last of itself.
    pub status: Status,
    /// Where it said so.
    pub status_at: Seq,
    /// Where it last said that it has nothing to do.
    pub rested: Seq,
    /// What a model can be told, from the last summary on.
    pub told: Vec<Told>,
    /// What a model can be told once it has answered, and its calls have their results.
    pub(super) later: Vec<Told>,
    /// Calls of the loop without an outcome, in the order in which they were asked for.
    pub calls: Vec<AskedCall>,
    /// Calls of other brains without an outcome.
    pub(super) others: Vec<OthersCall>,
    /// The model request that was begun last and has no end.
    pub request: Option<OpenRequest>,
    /// The last event that a model has answered.
    pub answered: Seq,
    /// The last event that wants an answer of a model.
    pub news: Seq,
    /// The last word of a person that lets the loop go on.
    pub said: Seq,
    /// The last interruption.
    pub interrupted: Seq,
    /// Why the last answer ended.
    pub stop: Option<ModelStop>,
    /// Model requests that failed one after the other.
    pub failures: Failures,
    /// Where a model was given up.
    pub gave_up: Seq,
    /// The last error that was not a call's.
    pub error: Option<String>,
    /// What was spent since a person last said something.
    pub spent: Spent,
    /// Tokens of all model requests that were ever made.
    pub usage: ModelUsage,
    /// Tokens that the model was told last, and its answer.
    pub context_tokens: u64,
    /// The model says that it was told too much.
    pub too_long: bool,
}

/// What the loop said last of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Status {
    /// Nothing: it never worked on the session.
    #[default]
    New,
    /// It works.
    Running,
    /// It stopped on the way, and goes on by itself.
    Rescheduled,
    /// It has nothing to do.
    Idle {
        /// Why.
        stop_reason: StopReason,
    },
    /// It never works on the session again.
    Terminated,
}

/// A call that the loop is to make, or has begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AskedCall {
    /// Its `agent.tool_use`.
    pub id: EventId,
    /// The tool's full name.
    pub name: String,
    /// Its arguments.
    pub input: Map<String, Value>,
    /// What the policy said of it.
    pub permission: Option<Permission>,
    /// What a person said of it.
    pub confirmation: Option<Confirmation>,
    /// Why they said no.
    pub deny_message: Option<String>,
    /// Who began it: the world may have changed already.
    pub started: Option<CallStart>,
}

/// Who began a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallStart {
    /// The process.
    pub node: String,
    /// The epoch of its lease on the session.
    pub waker: Option<i64>,
}

/// A call of another brain that has no outcome yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct OthersCall {
    id: EventId,
    name: String,
    input: Map<String, Value>,
}

/// A model request that has no end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenRequest {
    /// Its `span.model_request_start`.
    pub id: EventId,
    /// The last event that the model is told of.
    pub through: Seq,
    /// What for.
    pub purpose: Option<Purpose>,
}

/// Model requests that failed one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures {
    /// How many.
    pub count: u32,
    /// Not before this is the next one.
    pub again_at: Option<Timestamp>,
    /// Why the last one failed, when there is a next one.
    pub why: Option<String>,
}

/// A pause before a model is asked again, as it is told.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Wait<'a> {
    /// When it is asked again.
    pub until: Timestamp,
    /// Why it could not answer.
    pub why: &'a str,
}

/// What was spent since a person last said something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// Model requests.
    pub requests: u64,
    /// Tokens of all of them.
    pub usage: ModelUsage,
    /// Since when.
    pub since: Option<Timestamp>,
}

impl State {
    /// Takes in events that come right behind those taken in so far. What was taken in already is skipped.
    pub fn replay(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            if event.seq <= self.seq {
                continue;
            }
            self.seq = event.seq;
            self.last = Some(event.id);
            self.apply(&event);
        }
    }

    /// Whether the model was given up, and nobody has said anything since.
    pub fn has_given_up(&self) -> bool {
        self.gave_up > self.said
    }

    /// The last event that a summary stands for, when there is one.
    pub fn summarized(&self) -> Option<Seq> {
        match self.told.first()?.what {
            What::Summary { through, .. } => Some(through),
            _ => None,
        }
    }

    /// All that a model can be told now, in order.
    pub fn told_to_model(&self) -> impl Iterator<Item = &Told> {
        // While calls are open, what people say waits for their results.
        self.told.iter().chain(self.later.iter().filter(|_| self.calls.is_empty()))
    }

    /// Whether a model has something to answer.
    pub fn wants_answer(&self) -> bool {
        self.news > self.answered || self.stop == Some(ModelStop::Pause)
    }

    /// Until when the loop waits before it asks a model again, and why, if that is what it does.
    pub fn waits(&self, now: Timestamp) -> Option<Wait<'_>> {
        let asks = self.calls.is_empty() && self.wants_answer();
        let rests = self.has_given_up() || self.is_interrupted() || self.is_resting();
        let until = self.failures.again_at.filter(|until| *until > now)?;
        (asks && !rests).then(|| Wait { until, why: self.failures.why.as_deref().unwrap_or_default() })
    }

    /// Whether a person stopped the loop, and it has not said yet that it rests: what they say meanwhile is what it goes
    /// on with, and allows nothing that they stopped. What has never worked is stopped until a person says something.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted > self.said || (self.status != Status::New && self.interrupted > self.rested)
    }

    /// Whether there is anything that an interruption would stop.
    pub fn can_be_stopped(&self) -> bool {
        match self.status {
            Status::Terminated => false,
            Status::New => !self.calls.is_empty() || self.wants_answer(),
            _ => !self.calls.is_empty() || !self.is_resting(),
        }
    }

    /// Whether the loop has begun to work and has yet to say that it rests.
    pub fn is_at_work(&self) -> bool {
        self.status != Status::New && self.can_be_stopped()
    }

    /// Whether the loop said that it has nothing to do, and nobody has said anything since.
    pub fn is_resting(&self) -> bool {
        match self.status {
            // What was said behind an interruption was not answered by stopping.
            Status::Idle { stop_reason: StopReason::Interrupted } => {
                self.said < self.interrupted && self.interrupted < self.status_at
            }
            Status::Idle { .. } => self.said < self.status_at && self.interrupted < self.status_at,
            Status::Terminated => true,
            Status::New | Status::Running | Status::Rescheduled => false,
        }
    }
}

impl AskedCall {
    /// Whether a person has still to say whether it may run.
    pub fn waits_for_a_word(&self) -> bool {
        self.permission.is_some_and(Permission::asks) && self.confirmation.is_none()
    }

    /// Whether somebody who may said no.
    pub fn is_denied(&self) -> bool {
        self.permission == Some(Permission::Deny) || self.confirmation == Some(Confirmation::Deny)
    }
}
