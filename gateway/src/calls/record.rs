//! Writing an outcome, whatever it takes.
//!
//! **Invariant:** an outcome is not lost while this process lives. When it can't be written soon, whoever asked hears
//! so, and the writing goes on; when the process ends before, the next start settles the call.

use std::sync::Arc;
use std::time::Duration;

use hands::Outcome;
use hands::mcp::Reply;
use serde_json::Value;

use super::answer::{Replayed, Shaped, Stored, Whole, outcome_of, shape, text_block};
use super::{Answer, CallError, Inner, Running};
use crate::database::DatabaseError;
use crate::leases::InUse;
use crate::session::{
    At, Body, CallOutcome, Event, EventId, LogError, NewEvent, OUTPUT_CHUNK_BYTES, OutputError, OutputRef,
    ResultRest, Seq, SessionError, Work,
};

/// Waits between the attempts that whoever asked waits for.
const RETRY: [Duration; 3] = [Duration::from_millis(100), Duration::from_millis(500), Duration::from_secs(2)];
/// The longest wait between two further attempts. The first is the last of [`RETRY`], doubled.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// After how many bytes of an output it is asked again whether its principal may store more: some chunks.
const ROOM_ASKED_BYTES: u64 = 16 * OUTPUT_CHUNK_BYTES as u64;

/// How a call ended.
pub(super) struct Ended {
    pub(super) tool_use_id: EventId,
    pub(super) kind: CallOutcome,
    pub(super) outcome: Outcome,
    /// What the call ran in, when it came so far.
    pub(super) in_use: Option<InUse>,
}

impl Ended {
    /// An end that the hand saw, or that came before it.
    pub(super) fn of(tool_use_id: EventId, outcome: Outcome, in_use: Option<InUse>) -> Self {
        Self { tool_use_id, kind: outcome_of(outcome.ending), outcome, in_use }
    }

    /// Nobody saw the end.
    pub(super) fn unseen(
        tool_use_id: EventId,
        kind: CallOutcome,
        text: impl Into<String>,
        in_use: Option<InUse>,
    ) -> Self {
        Self { tool_use_id, kind, outcome: Outcome::error(text), in_use }
    }
}

/// An outcome on its way into the log.
struct Record {
    tool_use_id: EventId,
    id: EventId,
    kind: CallOutcome,
    shown: Vec<Value>,
    logged: Vec<Value>,
    reply: Option<Reply>,
    rest: Box<ResultRest>,
    /// To be stored before the event.
    stored: Option<Stored>,
    output: Option<OutputRef>,
    /// The death of the hand, when that is what ended the call and nobody has written it yet.
    lost: Option<NewEvent>,
}

impl Inner {
    /// Writes the outcome, with the death of the hand when that is what it is.
    pub(super) async fn record(&self, running: &Running, ended: Ended) -> Result<Answer, CallError> {
        let Ended { tool_use_id, kind, outcome, mut in_use } = ended;
        let lost = in_use.as_ref().filter(|_| kind == CallOutcome::Lost).map(|in_use| {
            let hand = running.ask.hand.name.to_string();
            let instance = in_use.instance.handle.instance.to_string();
            NewEvent::of(running.ask.by.clone(), &Body::HandLost { hand, instance, work: Work::Kept })
        });
        let shaped = shape(outcome, in_use.as_ref().and_then(InUse::note));
        let mut record = Record::new(tool_use_id, kind, shaped, lost);
        let mut pauses = RETRY.into_iter();
        let mut pause = Duration::ZERO;
        loop {
            let error = match self.write(running, &mut record).await {
                Ok(answer) => return Ok(answer),
                Err(CallError::Log(error)) => error,
                Err(error) => return Err(error),
            };
            let ending = if kind == CallOutcome::Ok { "as asked" } else { "with an error" };
            let unrecorded = CallError::Unrecorded { ending, source: error.clone() };
            if !may_pass(&error) {
                return Err(unrecorded);
            }
            tracing::warn!(session.id = %running.ask.session, tool_use.id = %tool_use_id, error = %error, "an outcome could not be written yet");
            pause = pauses.next().unwrap_or_else(|| {
                // Its hand need not wait with it.
                in_use = None;
                running.line.tell(Err(unrecorded.clone()));
                (pause * 2).min(RETRY_MAX)
            });
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.closing.cancelled() => return Err(unrecorded),
            }
        }
    }

    /// One attempt.
    async fn write(&self, running: &Running, record: &mut Record) -> Result<Answer, CallError> {
        let session = running.ask.session;
        if let Some(Stored { whole, holds }) = record.stored.clone() {
            match self.store(running, &whole).await {
                Ok(output) => record.output = Some(OutputRef { holds, ..output }),
                Err(OutputError::Database(error)) if !error.is_full() => {
                    return Err(LogError::Database(error).into());
                }
                // The outcome is worth more than all of its output.
                Err(error) => {
                    let note = text_block(&format!("[the complete output could not be stored: {error}]"));
                    record.logged.push(note.clone());
                    if record.reply.is_none() {
                        record.shown.push(note);
                    }
                }
            }
            record.stored = None;
        }
        let mut result = NewEvent::of(
            running.ask.by.clone(),
            &Body::ToolResult {
                tool_use_id: record.tool_use_id,
                content: record.logged.clone(),
                output: record.output.clone(),
                rest: record.rest.clone(),
                is_error: record.kind != CallOutcome::Ok,
                outcome: record.kind,
            },
        );
        // Every attempt writes the same event: one that was written and not answered is recognised.
        result.id = record.id;
        let mut events = vec![result];
        events.extend(record.lost.clone());
        let last = match self.log.append(session, At::End, &events).await {
            Ok(last) => last,
            Err(LogError::InstanceGone) => {
                // Another call of the same hand has said so.
                events.truncate(1);
                record.lost = None;
                match self.log.append(session, At::End, &events).await {
                    Ok(last) => last,
                    Err(LogError::Settled) => return self.settled(running, record).await,
                    Err(error) => return Err(error.into()),
                }
            }
            Err(LogError::Settled) => return self.settled(running, record).await,
            Err(error) => return Err(error.into()),
        };
        let behind = i64::from(record.lost.is_some());
        Ok(record.answer(running, Seq(last.0 - behind)))
    }

    /// Stores an output as far as there is room: all of it, or nothing.
    async fn store(&self, running: &Running, whole: &Whole) -> Result<OutputRef, OutputError> {
        let mut writer = self.sessions.outputs().writer(running.ask.session);
        let mut at = 0;
        let stored = loop {
            // Others' outputs grow meanwhile.
            if at % ROOM_ASKED_BYTES == 0
                && let Err(error) = self.sessions.check_room(&running.ask.principal).await
            {
                break Err(no_room(error));
            }
            let piece = match whole.read(at, OUTPUT_CHUNK_BYTES).await {
                Ok(piece) if piece.is_empty() => break Ok(()),
                Ok(piece) => piece,
                Err(error) => break Err(error.into()),
            };
            at += piece.len() as u64;
            if let Err(error) = writer.write(&piece).await {
                break Err(error);
            }
        };
        match stored {
            Ok(()) => writer.finish().await,
            Err(error) => {
                writer.abandon().await;
                Err(error)
            }
        }
    }

    /// The log has an outcome of this call: that of an attempt of ours that was written and not answered, or that of a
    /// process that counted this one dead.
    async fn settled(&self, running: &Running, record: &Record) -> Result<Answer, CallError> {
        let session = running.ask.session;
        let result = self.sessions.outcome(session, record.tool_use_id).await?;
        let result = result.ok_or(LogError::Settled)?;
        if result.id == record.id {
            return Ok(record.answer(running, result.seq));
        }
        tracing::warn!(session.id = %session, tool_use.id = %record.tool_use_id, "a call was settled by another process: its outcome here is dropped");
        self.replay(&result).await?.ok_or_else(|| LogError::Settled.into())
    }

    /// The answer that an `agent.tool_result` stands for, with what of it is stored beside the log.
    pub(super) async fn replay(&self, event: &Event) -> Result<Option<Answer>, CallError> {
        let Some(output) = Answer::needs(event) else { return Ok(Answer::replay(event, None)) };
        match self.sessions.outputs().read(event.session, &output, 0..output.bytes).await {
            Ok(bytes) => Ok(Answer::replay(event, Some(&bytes))),
            Err(OutputError::Database(error)) => Err(SessionError::Database(error).into()),
            Err(
                OutputError::TooLarge
                | OutputError::NoRoom { .. }
                | OutputError::NoSession
                | OutputError::NoOutput
                | OutputError::Unreadable(_),
            ) => Ok(None),
        }
    }

    /// The answer of a call that another process settled before it started here.
    pub(super) async fn settled_before(
        &self,
        running: &Running,
        tool_use_id: EventId,
    ) -> Result<Answer, CallError> {
        let result = self.sessions.outcome(running.ask.session, tool_use_id).await?;
        let result = result.ok_or(LogError::Settled)?;
        self.replay(&result).await?.ok_or_else(|| LogError::Settled.into())
    }
}

impl Record {
    fn new(tool_use_id: EventId, kind: CallOutcome, shaped: Shaped, lost: Option<NewEvent>) -> Self {
        let Shaped { shown, logged, reply, rest, stored } = shaped;
        let id = EventId::new();
        Self { tool_use_id, id, kind, shown, logged, reply, rest, stored, output: None, lost }
    }

    fn answer(&self, running: &Running, seq: Seq) -> Answer {
        Answer {
            session: running.ask.session,
            seq,
            tool_use_id: self.tool_use_id,
            content: self.shown.clone(),
            reply: self.reply.clone(),
            // Whoever has the reply has all of it.
            output: self.output.clone().filter(|_| self.reply.is_none()),
            outcome: self.kind,
            replayed: Replayed::No,
        }
    }
}

/// Why an output is not stored for want of room.
fn no_room(error: SessionError) -> OutputError {
    match error {
        SessionError::TooManyBytes { limit } => OutputError::NoRoom { limit },
        SessionError::Database(error) => error.into(),
        _ => OutputError::NoSession,
    }
}

/// Whether trying again may help.
pub(super) fn may_pass(error: &Arc<LogError>) -> bool {
    match &**error {
        LogError::Database(error) => !matches!(error, DatabaseError::Closed),
        _ => false,
    }
}
