//! One waker at its work: look, decide, do, again.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::{Harness, Runners, Step, WakeError, next};
use crate::session::{
    AskedCall, At, Body, By, CallOutcome, Changes, EventId, Held, LogError, NewEvent, SLICE_EVENTS_MAX, Seq,
    SessionInfo, Slice, State, Status, StopReason, Via,
};

/// How often a waker that waits looks for itself.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The outcome of a call whose waker is gone.
const UNKNOWN: &str = "The process that ran this call is gone. The call was started, and nobody can tell whether it had \
     its effect: it was not run again. Look before you repeat it.";
/// The outcome of a call that a person did not want any more.
const STOPPED: &str = "A person stopped you before this call began. The call did not run.";
/// The outcome of a call whose answer was refused.
const REFUSED: &str = "The model, or its provider, ended this answer with a refusal. The call did not run.";
/// The outcome of a call that was not allowed.
const DENIED: &str = "This call was not allowed, and did not run";

pub(super) struct Waker<'a> {
    pub(super) harness: &'a Harness,
    pub(super) session: SessionInfo,
    /// The lease on the session.
    pub(super) held: Held,
    pub(super) state: State,
    pub(super) cancel: CancellationToken,
    /// Tells that the log has grown.
    changes: Mutex<Changes>,
}

impl<'a> Waker<'a> {
    pub(super) async fn new(
        harness: &'a Harness,
        session: SessionInfo,
        held: Held,
        cancel: CancellationToken,
    ) -> Result<Self, WakeError> {
        // Before the first read, so that no append after it is missed.
        let mut changes = harness.sessions.changes(&session.principal);
        changes.watch(session.id);
        let state = harness.sessions.kept_state(&*harness.log, session.id).await?;
        Ok(Self { harness, session, held, state, cancel, changes: Mutex::new(changes) })
    }

    pub(super) async fn run(mut self) -> Result<(), WakeError> {
        loop {
            self.catch_up().await?;
            if self.cancel.is_cancelled() {
                return Ok(());
            }
            let runners = self.runners().await?;
            match next(&self.state, &runners) {
                Step::Wait if self.state.calls.iter().any(|call| call.started.is_some()) => {
                    self.changed(LOOK_EVERY).await?;
                }
                Step::Wait => return self.fall_asleep().await,
                Step::Think => self.think().await?,
                Step::Call(calls) => self.call(&calls).await?,
                Step::Settle(calls) => self.settle(&calls).await?,
                Step::Refuse(calls) => self.refuse(&calls).await?,
                Step::Rest(reason) => self.rest(reason).await?,
            }
        }
    }

    async fn catch_up(&mut self) -> Result<(), LogError> {
        let summarized = self.state.summarized();
        self.read().await?;
        if self.state.summarized() > summarized {
            self.keep().await;
        }
        Ok(())
    }

    async fn read(&mut self) -> Result<(), LogError> {
        loop {
            let behind =
                Slice { after: Some(self.state.seq), limit: Some(SLICE_EVENTS_MAX), ..Slice::default() };
            let events = self.harness.log.read(self.session.id, behind).await?;
            if events.is_empty() {
                return Ok(());
            }
            self.state.replay(events);
        }
    }

    /// Asks nobody as long as nothing runs.
    async fn runners(&self) -> Result<Runners, WakeError> {
        let waker = self.held.epoch;
        if self.state.calls.iter().all(|call| call.started.is_none()) {
            return Ok(Runners { waker, ..Runners::default() });
        }
        // What runs is asked before who lives: a process that ends in between has told its outcomes.
        let running = self.harness.calls.running_in(self.session.id);
        let alive: BTreeSet<String> = self.harness.leases.nodes().alive().await?;
        Ok(Runners { here: self.harness.leases.me().0, running, alive, waker })
    }

    /// Nothing in the log gives this waker anything to do.
    async fn fall_asleep(&self) -> Result<(), WakeError> {
        if self.state.status != Status::New {
            self.keep().await;
        }
        Ok(self.harness.sessions.fell_asleep(self.session.id, self.state.seq).await?)
    }

    /// Keeps what was learned. Without it the next waker reads more.
    pub(super) async fn keep(&self) {
        if let Err(error) = self.harness.sessions.keep_state(self.session.id, &self.state).await {
            tracing::warn!(session.id = %self.session.id, error = %error, "a session's state could not be kept");
        }
    }

    /// Nobody can tell whether these calls ran, so nobody runs them again: the model is told.
    async fn settle(&self, calls: &[&AskedCall]) -> Result<(), WakeError> {
        for call in calls {
            self.outcome(call.id, CallOutcome::Unknown, UNKNOWN).await?;
        }
        Ok(())
    }

    async fn refuse(&self, calls: &[&AskedCall]) -> Result<(), WakeError> {
        for call in calls {
            match (call.is_denied(), &call.deny_message) {
                (false, _) if self.state.is_interrupted() => {
                    self.outcome(call.id, CallOutcome::Cancelled, STOPPED).await?;
                }
                (false, _) => self.outcome(call.id, CallOutcome::Denied, REFUSED).await?,
                (true, None) => self.outcome(call.id, CallOutcome::Denied, &format!("{DENIED}.")).await?,
                (true, Some(why)) => {
                    self.outcome(call.id, CallOutcome::Denied, &format!("{DENIED}: {why}")).await?;
                }
            }
        }
        Ok(())
    }

    /// Writes the outcome of a call that this waker did not make, unless it has one.
    pub(super) async fn outcome(
        &self,
        call: EventId,
        outcome: CallOutcome,
        text: &str,
    ) -> Result<(), WakeError> {
        match self.append(&[self.event(&result(call, outcome, text))]).await {
            Ok(_) | Err(LogError::Settled) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Says that there is nothing to do, if nobody has said anything meanwhile.
    pub(super) async fn rest(&self, stop_reason: StopReason) -> Result<(), WakeError> {
        let idle = self.event(&Body::StatusIdle { stop_reason });
        self.append_here(&[idle]).await.map(drop)
    }

    pub(super) fn event(&self, body: &Body) -> NewEvent {
        let principal = self.session.principal.to_string();
        NewEvent::of(By { principal, client: None, via: Via::Loop }, body)
    }

    /// Appends as long as nobody has taken over.
    pub(super) async fn append(&self, events: &[NewEvent]) -> Result<Seq, LogError> {
        self.harness.log.append(self.session.id, At::Held(vec![self.held.clone()]), events).await
    }

    /// The same, if the log ends where this waker thinks. None: it has moved on.
    pub(super) async fn append_here(&self, events: &[NewEvent]) -> Result<Option<Seq>, WakeError> {
        let at = At::HeldAfter(vec![self.held.clone()], self.state.seq);
        match self.harness.log.append(self.session.id, at, events).await {
            Ok(last) => Ok(Some(last)),
            Err(LogError::Conflict) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the log grows, at most so long.
    pub(super) async fn changed(&self, most: Duration) -> Result<(), WakeError> {
        let mut changes = self.changes.lock().await;
        tokio::select! {
            changed = changes.next() => changed.map(drop).map_err(WakeError::from),
            () = tokio::time::sleep(most) => Ok(()),
            () = self.cancel.cancelled() => Ok(()),
        }
    }

    /// Waits until a person says stop.
    pub(super) async fn stopped(&self) -> Result<(), WakeError> {
        let types = vec!["user.interrupt".to_owned()];
        loop {
            let slice = Slice {
                after: Some(self.state.seq),
                limit: Some(1),
                types: types.clone(),
                ..Slice::default()
            };
            if !self.harness.log.read(self.session.id, slice).await?.is_empty() {
                return Ok(());
            }
            let mut changes = self.changes.lock().await;
            tokio::select! {
                changed = changes.next() => drop(changed?),
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }
}

/// The outcome of a call that no hand has seen.
pub(super) fn result(tool_use_id: EventId, outcome: CallOutcome, text: &str) -> Body {
    Body::ToolResult {
        tool_use_id,
        content: vec![text_block(text)],
        output: None,
        rest: Box::default(),
        is_error: outcome != CallOutcome::Ok,
        outcome,
    }
}

/// A text content block.
pub(super) fn text_block(text: &str) -> Value {
    json!({"type": "text", "text": text})
}
