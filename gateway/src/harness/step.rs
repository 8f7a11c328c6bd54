//! What to do next. Pure, so that every case is a row of a table in a test.

use std::collections::BTreeSet;

use crate::session::{AskedCall, CallStart, EventId, ModelStop, State, Status, StopReason};

/// The next thing that a session needs.
#[derive(Debug, PartialEq)]
pub enum Step<'a> {
    /// Nothing, until somebody says something or a call that runs comes back.
    Wait,
    /// An answer of the model.
    Think,
    /// These calls, in this order, each announced in the log before it is made.
    Call(Vec<&'a AskedCall>),
    /// A word in the log on calls that were begun by somebody who is gone: they are not made again.
    Settle(Vec<&'a AskedCall>),
    /// A word in the log on calls that were not begun and are not to be.
    Refuse(Vec<&'a AskedCall>),
    /// A word in the log that there is nothing to do, and why.
    Rest(StopReason),
}

/// Who may be running calls, read once per step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Runners {
    /// This process.
    pub here: String,
    /// Calls of the session that this process runs.
    pub running: BTreeSet<EventId>,
    /// The processes that are alive.
    pub alive: BTreeSet<String>,
    /// The epoch of this waker's lease on the session.
    pub waker: i64,
}

impl Runners {
    /// Whether whoever began the call can still bring its outcome.
    fn runs(&self, call: EventId, start: &CallStart) -> bool {
        if self.running.contains(&call) {
            return true;
        }
        // This process knows what it runs. Of another one, only a waker that was not taken over can be at work.
        start.node != self.here
            && self.alive.contains(&start.node)
            && start.waker.is_none_or(|waker| waker >= self.waker)
    }
}

/// The next thing that `state` needs.
pub fn next<'a>(state: &'a State, runners: &Runners) -> Step<'a> {
    if state.status == Status::Terminated {
        return Step::Wait;
    }
    let which = |wanted: &dyn Fn(&AskedCall) -> bool| -> Vec<&'a AskedCall> {
        state.calls.iter().filter(|call| wanted(call)).collect()
    };
    let gone = which(&|call| call.started.as_ref().is_some_and(|start| !runners.runs(call.id, start)));
    if !gone.is_empty() {
        return Step::Settle(gone);
    }
    let interrupted = state.is_interrupted();
    // What a refused answer asks for is part of what is refused.
    let left = interrupted || state.stop == Some(ModelStop::Refusal);
    let refused = which(&|call| call.started.is_none() && (left || call.is_denied()));
    if !refused.is_empty() {
        return Step::Refuse(refused);
    }
    if state.is_resting() {
        return Step::Wait;
    }
    let ready = which(&|call| call.started.is_none() && !call.waits_for_a_word());
    if !ready.is_empty() {
        return Step::Call(ready);
    }
    if !state.calls.is_empty() {
        let waiting = which(&|call| call.started.is_none());
        // What runs comes back first.
        if waiting.len() < state.calls.len() {
            return Step::Wait;
        }
        return Step::Rest(StopReason::RequiresAction {
            event_ids: waiting.iter().map(|call| call.id).collect(),
        });
    }
    if interrupted {
        // What another brain was told is none of the loop's business; what it was asked itself, it says that it leaves.
        let was_asked = state.status != Status::New || state.wants_answer();
        return if was_asked { Step::Rest(StopReason::Interrupted) } else { Step::Wait };
    }
    if state.wants_answer() {
        let given_up = state.has_given_up();
        return if given_up { Step::Rest(StopReason::RetriesExhausted) } else { Step::Think };
    }
    if state.status == Status::New { Step::Wait } else { Step::Rest(reason(state.stop)) }
}

fn reason(stop: Option<ModelStop>) -> StopReason {
    match stop {
        Some(ModelStop::MaxTokens | ModelStop::ContextFull) => StopReason::MaxTokens,
        Some(ModelStop::Refusal) => StopReason::Refusal,
        Some(ModelStop::EndTurn | ModelStop::ToolUse | ModelStop::Pause) | None => StopReason::EndTurn,
    }
}
