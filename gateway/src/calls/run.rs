//! The steps of one call: ask, provision, start, execute, settle.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use hands::{Call, Ending, HandError, Outcome};
use jiff::SignedDuration;
use tokio::time::Instant;

use super::line::HandsEnd;
use super::permission::{Cleared, USED_UP, evaluated, permitted};
use super::record::{Ended, may_pass};
use super::{Answer, Ask, CallError, Inner, ROOM_MAX, ROOM_POLL, Running};
use crate::clock;
use crate::error;
use crate::hand::{Logged, Permission};
use crate::leases::{InUse, LeaseError};
use crate::registry::Registered;
use crate::session::{At, Body, CallKey, CallOutcome, EventId, HandRef, LogError, NewEvent, Yes};

/// How long the outcome of a re-sent call is replayed after it. (Design 2.2: 10 minutes.)
const RESEND_GUARD: SignedDuration = SignedDuration::from_mins(10);
/// How often a call that runs in another process is looked at.
const ELSEWHERE_POLL: Duration = Duration::from_millis(250);
/// How often a start is tried again when its lease changes hands.
const START_TRIES: usize = 3;
/// How often it is asked whether a start stands in the log whose writing failed.
const UNSURE_POLL: Duration = Duration::from_secs(1);

/// A call that may touch its hand now.
struct Started {
    tool_use_id: EventId,
    in_use: InUse,
}

/// A call on its way to the hand.
enum Start {
    Started(Box<Started>),
    /// It has its outcome already and never touched the hand.
    Refused(Answer),
}

impl Inner {
    /// Drives a call to its end and tells everybody who asked, whatever happens to it.
    pub(super) async fn drive(&self, running: &Running) {
        let mut end = AssertUnwindSafe(self.run(running)).catch_unwind().await;
        if let (Err(_), Some(tool_use_id)) = (&end, running.tool_use_id.get()) {
            let ended = Ended::unseen(*tool_use_id, CallOutcome::Unknown, PANICKED, None);
            end = AssertUnwindSafe(self.record(running, ended)).catch_unwind().await;
        }
        let end = end.unwrap_or(Err(CallError::Panicked));
        if let Err(error) = &end {
            let ask = &running.ask;
            tracing::warn!(session.id = %ask.session, hand.name = %ask.hand.name, tool = ask.tool.name, error = %error, "a call has no answer");
        }
        running.line.tell(end);
    }

    async fn run(&self, running: &Running) -> Result<Answer, CallError> {
        // The loop knows nothing but the log: its own calls are in there, whatever the hand.
        if running.ask.hand.config.logged() == Logged::No && running.ask.turn.is_none() {
            return self.unlogged(running).await;
        }
        if let Some(answer) = self.earlier(running).await? {
            return Ok(answer);
        }
        self.room.check(&self.sessions, &running.ask.principal).await?;
        let tool_use = running.ask.turn.is_none().then(|| asked(running));
        let tool_use_id = match (&tool_use, &running.ask.turn) {
            (Some(tool_use), _) => *running.tool_use_id.get_or_init(|| tool_use.id),
            (None, Some(turn)) => turn.tool_use_id,
            (None, None) => return Err(CallError::Panicked),
        };
        let started = match self.start(running, tool_use_id, tool_use).await {
            Ok(Start::Started(started)) => started,
            Ok(Start::Refused(answer)) => return Ok(answer),
            Err(CallError::Log(error)) => return self.not_started(running, tool_use_id, error).await,
            Err(error) => return Err(error),
        };
        let end = AssertUnwindSafe(self.execute(running, &started.in_use)).catch_unwind().await;
        self.settle(running, *started, end.ok()).await
    }

    async fn execute(&self, running: &Running, in_use: &InUse) -> Result<Outcome, HandError> {
        let call = Call { tool: running.ask.tool.name.clone(), arguments: running.ask.arguments.clone() };
        let context = self.context(&running.line, &running.ask.caller);
        running.ask.hand.hand.execute(&in_use.instance.handle, &call, context).await
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
                    _ => self.replay(&result).await,
                };
            }
            tokio::select! {
                () = tokio::time::sleep(ELSEWHERE_POLL) => {}
                () = running.line.cancel.cancelled() => return Err(CallError::Closing),
            }
        }
    }

    /// `tool_use` is none when it stands in the log already.
    async fn start(
        &self,
        running: &Running,
        tool_use_id: EventId,
        tool_use: Option<NewEvent>,
    ) -> Result<Start, CallError> {
        let ask = &running.ask;
        let permission = permission(running);
        if permission == Permission::Allow
            && let Some(in_use) = self.leases.warm(ask.session, &ask.hand)
        {
            let start = call_started(running, tool_use_id, &in_use, None)?;
            let events: Vec<NewEvent> = tool_use.iter().cloned().chain([start]).collect();
            match self.log.append(ask.session, held(running, &in_use), &events).await {
                Ok(_) => return Ok(Start::Started(Box::new(Started { tool_use_id, in_use }))),
                Err(error) => self.fenced(running, &in_use, error).await?,
            }
        }
        if let Some(tool_use) = tool_use {
            self.log.append(ask.session, At::End, &[tool_use]).await?;
        }
        let cleared = tokio::select! {
            biased;
            () = running.line.cancel.cancelled() => return self.given_up(running, tool_use_id).await,
            cleared = self.cleared(running, tool_use_id, permission) => cleared,
        };
        match cleared {
            Ok(Cleared::Yes(yes)) => self.start_cleared(running, tool_use_id, yes).await,
            Ok(Cleared::No(why)) => self.deny(running, tool_use_id, why).await,
            Err(error) => self.refuse(running, tool_use_id, Outcome::error(error.to_string())).await,
        }
    }

    /// Starts a call that stands in the log and may run.
    async fn start_cleared(
        &self,
        running: &Running,
        tool_use_id: EventId,
        yes: Option<Yes>,
    ) -> Result<Start, CallError> {
        let ask = &running.ask;
        for _ in 0..START_TRIES {
            let progress = Arc::new(HandsEnd(running.line.clone()));
            let acquired = tokio::select! {
                acquired = self.acquire(ask, progress) => acquired,
                () = running.line.cancel.cancelled() => return self.given_up(running, tool_use_id).await,
            };
            let in_use = match acquired {
                Ok(acquired) => acquired,
                Err(error) => {
                    let outcome = Outcome::error(format!("{}. The call did not run.", error::say(&error)));
                    return self.refuse(running, tool_use_id, outcome).await;
                }
            };
            let event = call_started(running, tool_use_id, &in_use, yes)?;
            match self.log.append(ask.session, held(running, &in_use), &[event]).await {
                Ok(_) => return Ok(Start::Started(Box::new(Started { tool_use_id, in_use }))),
                Err(LogError::KeyTaken) if yes.is_some() => {
                    return self.deny(running, tool_use_id, USED_UP.to_owned()).await;
                }
                Err(error) => self.fenced(running, &in_use, error).await?,
            }
        }
        let outcome = Outcome::error("The hand is being taken over again and again. The call did not run.");
        self.refuse(running, tool_use_id, outcome).await
    }

    /// An instance of the hand. The loop waits for room among the principal's others; a client is told at once, and asks
    /// again.
    async fn acquire(&self, ask: &Ask, progress: Arc<HandsEnd>) -> Result<InUse, LeaseError> {
        let start = Instant::now();
        loop {
            match self.leases.acquire(ask.session, &ask.principal, &ask.hand, progress.clone()).await {
                Err(LeaseError::TooMany { .. }) if ask.turn.is_some() && start.elapsed() < ROOM_MAX => {}
                acquired => return acquired,
            }
            tokio::time::sleep(ROOM_POLL).await;
        }
    }

    /// Lets go of a hand that was taken over, so that another can be had. A session that was taken over is another's.
    async fn fenced(&self, running: &Running, in_use: &InUse, error: LogError) -> Result<(), CallError> {
        match &error {
            // Another call has found it dead between our look and our append.
            LogError::InstanceGone => {
                self.leases.drop_lost(in_use).await;
                Ok(())
            }
            LogError::Fenced(subject)
                if running.ask.turn.as_ref().is_none_or(|turn| turn.waker.subject != *subject) =>
            {
                self.leases.drop_lost(in_use).await;
                Ok(())
            }
            _ => Err(error.into()),
        }
    }

    /// Whoever asked gave up before the start. What the loop asked for may still be made by another waker.
    async fn given_up(&self, running: &Running, tool_use_id: EventId) -> Result<Start, CallError> {
        if running.ask.turn.is_some() {
            return Err(CallError::Cancelled);
        }
        let text = "Cancelled before it started: the call did not run.";
        self.refuse(running, tool_use_id, Outcome::ended(Ending::Cancelled, text)).await
    }

    /// The call may not run.
    async fn deny(&self, running: &Running, tool_use_id: EventId, why: String) -> Result<Start, CallError> {
        let ended = Ended::unseen(tool_use_id, CallOutcome::Denied, why, None);
        self.record(running, ended).await.map(Start::Refused)
    }

    async fn refuse(
        &self,
        running: &Running,
        tool_use_id: EventId,
        outcome: Outcome,
    ) -> Result<Start, CallError> {
        self.record(running, Ended::of(tool_use_id, outcome, None)).await.map(Start::Refused)
    }

    /// The log refused the start, so that the hand was not touched.
    async fn not_started(
        &self,
        running: &Running,
        tool_use_id: EventId,
        error: Arc<LogError>,
    ) -> Result<Answer, CallError> {
        match &*error {
            // Another process took the same key between our look and our append.
            LogError::KeyTaken => self.earlier(running).await?.ok_or(CallError::Log(error)),
            // This process was counted dead in between.
            LogError::Settled => self.settled_before(running, tool_use_id).await,
            _ if may_pass(&error) => {
                running.line.tell(Err(CallError::Log(error.clone())));
                self.settle_unsure(running, tool_use_id).await;
                Err(CallError::Log(error))
            }
            _ => Err(CallError::Log(error)),
        }
    }

    /// An append that failed may stand in the log all the same, or part of the call did before it. Then the call gets
    /// its outcome as soon as the database answers.
    async fn settle_unsure(&self, running: &Running, tool_use_id: EventId) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(UNSURE_POLL) => {}
                () = self.closing.cancelled() => return,
            }
            let Ok(open) = self.sessions.is_open(running.ask.session, tool_use_id).await else { continue };
            if open {
                let text = "The log could not be written before the call started. The call did not run.";
                let ended = Ended::unseen(tool_use_id, CallOutcome::Cancelled, text, None);
                // It tells its own failure.
                let _ = self.record(running, ended).await;
            }
            return;
        }
    }

    /// `end` is none when this program failed under the call.
    async fn settle(
        &self,
        running: &Running,
        started: Started,
        end: Option<Result<Outcome, HandError>>,
    ) -> Result<Answer, CallError> {
        let Started { tool_use_id, in_use } = started;
        let ended = match end {
            Some(Ok(outcome)) => Ended::of(tool_use_id, outcome, Some(in_use)),
            Some(Err(error)) => {
                let Some(text) = lost_text(&running.ask.hand, &error) else {
                    let ended = Ended::of(tool_use_id, Outcome::error(error.to_string()), Some(in_use));
                    return self.record(running, ended).await;
                };
                let dead = in_use.again();
                let ended = Ended::unseen(tool_use_id, CallOutcome::Lost, text, Some(in_use));
                let end = self.record(running, ended).await;
                // After the log has it: until then the row tells the next start what to write.
                self.leases.drop_lost(&dead).await;
                return end;
            }
            None => Ended::unseen(tool_use_id, CallOutcome::Unknown, PANICKED, Some(in_use)),
        };
        self.record(running, ended).await
    }
}

const MAY_HAVE_RUN: &str = "The call may or may not have had its effect, and was not run again";
const DID_NOT_RUN: &str = "The call did not run";
const PANICKED: &str = "The gateway failed inside while it ran this call. Nobody can tell whether it had its effect: \
     it was not run again. Look before you repeat it.";

/// What is told of a call whose hand was lost. None for every other error.
pub(super) fn lost_text(hand: &Registered, error: &HandError) -> Option<String> {
    let HandError::Lost { may_have_run, why } = error else { return None };
    let ran = if *may_have_run { MAY_HAVE_RUN } else { DID_NOT_RUN };
    Some(format!("The hand was lost: {why}. {ran}. {}", hand.config.loss()))
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
        evaluated_permission: evaluated(&ask.hand, &ask.tool.name),
    };
    NewEvent { key: ask.key.clone(), ..NewEvent::of(ask.by.clone(), &body) }
}

/// What the hand permits of the call. Of its own calls the loop has asked that already, and the log has it.
fn permission(running: &Running) -> Permission {
    match running.ask.turn {
        Some(_) => Permission::Allow,
        None => permitted(running),
    }
}

/// What must still be ours for a call to start.
fn held(running: &Running, in_use: &InUse) -> At {
    let waker = running.ask.turn.as_ref().map(|turn| turn.waker.clone());
    At::Held(waker.into_iter().chain([in_use.instance.held.clone()]).collect())
}

/// A call of the loop that was called off does not start: a later waker may make it.
fn call_started(
    running: &Running,
    tool_use_id: EventId,
    in_use: &InUse,
    yes: Option<Yes>,
) -> Result<NewEvent, CallError> {
    let turn = running.ask.turn.as_ref();
    if turn.is_some() && running.line.cancel.is_cancelled() {
        return Err(CallError::Cancelled);
    }
    let instance = &in_use.instance;
    let body = Body::CallStarted {
        tool_use_id,
        hand: running.ask.hand.name.to_string(),
        instance: instance.handle.instance.to_string(),
        node: instance.node.to_string(),
        epoch: instance.held.epoch,
        waker: turn.map(|turn| turn.waker.epoch),
    };
    Ok(NewEvent { key: yes.map(Yes::key), ..NewEvent::of(running.ask.by.clone(), &body) })
}
