//! The steps of one call: ask, provision, start, execute, settle.

use std::sync::Arc;
use std::time::Duration;

use hands::{Call, CallContext, Content, Ending, HandError, Outcome, Progress};
use jiff::SignedDuration;
use tokio::sync::broadcast;

use super::answer::{Replayed, Shaped, outcome_of, shape};
use super::{Answer, CallError, Inner, Running};
use crate::clock;
use crate::leases::{InUse, LeaseError};
use crate::session::{
    At, Body, CallKey, CallOutcome, EventId, EventLog as _, HandRef, LogError, NewEvent, Seq, Work,
};

/// How long the outcome of a re-sent call is replayed after it. (Design 2.2: 10 minutes.)
const RESEND_GUARD: SignedDuration = SignedDuration::from_mins(10);
/// How often a call that runs in another process is looked at.
const ELSEWHERE_POLL: Duration = Duration::from_millis(250);
/// How often a start is tried again when its lease changes hands.
const START_TRIES: usize = 3;
/// Waits between attempts to write an outcome. The asker hears of the failure after the first few.
const RECORD_RETRY: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(500), Duration::from_secs(2)];

/// A call that may touch its hand now.
struct Started {
    tool_use_id: EventId,
    in_use: InUse,
    note: Option<&'static str>,
}

/// A call on its way to the hand.
enum Start {
    Started(Box<Started>),
    /// It has its outcome already and never touched the hand.
    Refused(Answer),
}

struct Sink(broadcast::Sender<Arc<str>>);

impl Progress for Sink {
    fn output(&self, text: &str) {
        // Nobody listening is no error.
        let _ = self.0.send(Arc::from(text));
    }
}

impl Inner {
    /// Drives a call to its end and tells everybody who asked.
    pub(super) async fn drive(&self, running: &Running) {
        let end = self.run(running).await;
        if let Err(error) = &end {
            let ask = &running.ask;
            tracing::warn!(session.id = %ask.session, hand.name = %ask.hand.name, tool = ask.tool.name, error = %error, "a call has no answer");
        }
        running.ended.send_replace(Some(end.map(Arc::new)));
    }

    async fn run(&self, running: &Running) -> Result<Answer, CallError> {
        if let Some(answer) = self.earlier(running).await? {
            return Ok(answer);
        }
        let started = match self.start(running).await {
            Ok(Start::Started(started)) => started,
            Ok(Start::Refused(answer)) => return Ok(answer),
            // Another process took the same key between our look and our append.
            Err(CallError::Log(error)) if matches!(*error, LogError::KeyTaken) => {
                return self.earlier(running).await?.ok_or(CallError::Log(error));
            }
            Err(error) => return Err(error),
        };
        let call = Call { tool: running.ask.tool.name.clone(), arguments: running.ask.arguments.clone() };
        let context =
            CallContext { cancel: running.cancel.clone(), progress: Arc::new(Sink(running.output.clone())) };
        let hand = &running.ask.hand.hand;
        let end = hand.execute(&started.in_use.instance.handle, &call, context).await;
        self.settle(running, *started, end).await
    }

    /// The answer of the call that this one repeats, waited for when it still runs elsewhere.
    async fn earlier(&self, running: &Running) -> Result<Option<Answer>, CallError> {
        let ask = &running.ask;
        let Some(key) = &ask.key else { return Ok(None) };
        let Some(found) = self.sessions.call_by_key(ask.session, key).await? else { return Ok(None) };
        let asked = found.asked;
        let Some(Body::ToolUse { tool, hand, input, .. }) = asked.known() else { return Ok(None) };
        let same = tool == ask.tool.name && hand.name == ask.hand.name.as_str() && input == ask.arguments;
        match (key, same) {
            (CallKey::Forever(_), false) => return Err(CallError::KeyMismatch),
            (CallKey::Resend(_), false) => return Ok(None),
            (_, true) => {}
        }
        loop {
            if let Some(result) = self.sessions.outcome(ask.session, asked.id).await? {
                let stale = clock::now().duration_since(result.at) > RESEND_GUARD;
                return match key {
                    CallKey::Resend(_) if stale => Ok(None),
                    _ => Ok(Answer::replay(&result)),
                };
            }
            tokio::select! {
                () = tokio::time::sleep(ELSEWHERE_POLL) => {}
                () = running.cancel.cancelled() => return Err(CallError::Closing),
            }
        }
    }

    async fn start(&self, running: &Running) -> Result<Start, CallError> {
        let ask = &running.ask;
        self.sessions.check_room(&ask.principal).await?;
        let used = asked(running);
        let tool_use_id = used.id;
        if let Some(in_use) = self.leases.warm(ask.session, &ask.hand) {
            let events = [used.clone(), call_started(running, tool_use_id, &in_use)];
            let at = At::Held(vec![in_use.instance.held.clone()]);
            match self.sessions.log().append(ask.session, at, &events).await {
                Ok(_) => return Ok(Start::Started(Box::new(Started { tool_use_id, in_use, note: None }))),
                Err(LogError::Fenced(_)) => self.let_go(&in_use).await?,
                Err(error) => return Err(error.into()),
            }
        }
        self.sessions.log().append(ask.session, At::End, &[used]).await?;
        for _ in 0..START_TRIES {
            let acquired = tokio::select! {
                acquired = self.leases.acquire(ask.session, &ask.principal, &ask.hand) => acquired,
                () = running.cancel.cancelled() => {
                    let text = "Cancelled before it started: the call did not run.";
                    let outcome = Outcome { ending: Ending::Cancelled, content: vec![Content::Text(text.into())] };
                    return self.record(running, tool_use_id, outcome, None, None).await.map(Start::Refused);
                }
            };
            let (in_use, note) = match acquired {
                Ok(acquired) => acquired,
                Err(error) => {
                    let outcome = Outcome::error(format!("{error}. The call did not run."));
                    return self.record(running, tool_use_id, outcome, None, None).await.map(Start::Refused);
                }
            };
            let at = At::Held(vec![in_use.instance.held.clone()]);
            let event = call_started(running, tool_use_id, &in_use);
            match self.sessions.log().append(ask.session, at, &[event]).await {
                Ok(_) => return Ok(Start::Started(Box::new(Started { tool_use_id, in_use, note }))),
                Err(LogError::Fenced(_)) => self.let_go(&in_use).await?,
                Err(error) => return Err(error.into()),
            }
        }
        let outcome = Outcome::error("The hand is being taken over again and again. The call did not run.");
        self.record(running, tool_use_id, outcome, None, None).await.map(Start::Refused)
    }

    async fn let_go(&self, in_use: &InUse) -> Result<(), CallError> {
        self.leases.drop_lost(in_use).await.map_err(|error: LeaseError| CallError::Lease(Arc::new(error)))
    }

    async fn settle(
        &self,
        running: &Running,
        started: Started,
        end: Result<Outcome, HandError>,
    ) -> Result<Answer, CallError> {
        let Started { tool_use_id, in_use, note } = started;
        match end {
            Ok(outcome) => self.record(running, tool_use_id, outcome, note, None).await,
            Err(HandError::Lost { may_have_run, why }) => {
                let hand = in_use.instance.handle.instance.to_string();
                self.let_go(&in_use).await?;
                let text = lost_text(&why, if may_have_run { MAY_HAVE_RUN } else { DID_NOT_RUN });
                let lost = Body::HandLost {
                    hand: running.ask.hand.name.to_string(),
                    instance: hand,
                    work: Work::Kept,
                };
                let event = NewEvent::of(running.ask.by.clone(), &lost);
                self.record(running, tool_use_id, Outcome::error(text), note, Some(event)).await
            }
            Err(error) => {
                self.record(running, tool_use_id, Outcome::error(error.to_string()), note, None).await
            }
        }
    }

    /// Writes the outcome, with the death of the hand when that is what it is.
    async fn record(
        &self,
        running: &Running,
        tool_use_id: EventId,
        outcome: Outcome,
        note: Option<&str>,
        lost: Option<NewEvent>,
    ) -> Result<Answer, CallError> {
        let ask = &running.ask;
        let outcome_kind = if lost.is_some() { CallOutcome::Lost } else { outcome_of(outcome.ending) };
        let Shaped { shown, logged, stored } = shape(outcome, note);
        let output = match stored {
            None => None,
            Some(bytes) => {
                let stored = self.sessions.outputs().store(ask.session, &bytes).await;
                Some(stored.map_err(|error| CallError::Output(Arc::new(error)))?)
            }
        };
        let result = Body::ToolResult {
            tool_use_id,
            content: logged,
            output: output.clone(),
            is_error: outcome_kind != CallOutcome::Ok,
            outcome: outcome_kind,
        };
        let mut events = vec![NewEvent::of(ask.by.clone(), &result)];
        let others = i64::from(lost.is_some());
        events.extend(lost);
        let last = match self.append_outcome(running, &events).await {
            Ok(last) => last,
            Err(LogError::Settled) => return self.already_settled(running, tool_use_id).await,
            Err(error) => {
                let ending = if outcome_kind == CallOutcome::Ok { "as asked" } else { "with an error" };
                return Err(CallError::Unrecorded { ending, source: Arc::new(error) });
            }
        };
        Ok(Answer {
            session: ask.session,
            seq: Seq(last.0 - others),
            tool_use_id,
            content: shown,
            output,
            outcome: outcome_kind,
            replayed: Replayed::No,
        })
    }

    async fn append_outcome(&self, running: &Running, events: &[NewEvent]) -> Result<Seq, LogError> {
        for pause in RECORD_RETRY {
            match self.sessions.log().append(running.ask.session, At::End, events).await {
                Err(LogError::Database(error)) => {
                    tracing::warn!(session.id = %running.ask.session, error = %error, "an outcome could not be written yet");
                }
                done => return done,
            }
            tokio::time::sleep(pause).await;
        }
        self.sessions.log().append(running.ask.session, At::End, events).await
    }

    /// Somebody counted this process dead and settled the call: what stands in the log holds.
    async fn already_settled(&self, running: &Running, tool_use_id: EventId) -> Result<Answer, CallError> {
        tracing::warn!(session.id = %running.ask.session, tool_use.id = %tool_use_id, "a call was settled by another process: its outcome here is dropped");
        let result = self.sessions.outcome(running.ask.session, tool_use_id).await?;
        result.as_ref().and_then(Answer::replay).ok_or_else(|| LogError::Settled.into())
    }
}

const MAY_HAVE_RUN: &str = "The call may or may not have had its effect, and was not run again";
const DID_NOT_RUN: &str = "The call did not run";

fn lost_text(why: &str, ran: &str) -> String {
    format!(
        "The hand was lost: {why}. {ran}. The next call gets a fresh instance with the same /workspace; \
         background processes and files outside /workspace are gone."
    )
}

fn asked(running: &Running) -> NewEvent {
    let ask = &running.ask;
    let call_key = match &ask.key {
        Some(CallKey::Forever(key)) => Some(key.clone()),
        _ => None,
    };
    let body = Body::ToolUse {
        name: ask.hand.full_name(&ask.tool),
        input: ask.arguments.clone(),
        hand: HandRef { name: ask.hand.name.to_string(), kind: ask.hand.config.kind().to_owned() },
        tool: ask.tool.name.clone(),
        call_key,
    };
    NewEvent { key: ask.key.clone(), ..NewEvent::of(ask.by.clone(), &body) }
}

fn call_started(running: &Running, tool_use_id: EventId, in_use: &InUse) -> NewEvent {
    let instance = &in_use.instance;
    let body = Body::CallStarted {
        tool_use_id,
        hand: running.ask.hand.name.to_string(),
        instance: instance.handle.instance.to_string(),
        node: instance.node.to_string(),
        epoch: instance.held.epoch,
    };
    NewEvent::of(running.ask.by.clone(), &body)
}
