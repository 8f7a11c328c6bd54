//! Calls that wait for their client to come back with answers (2026-07-28, basic/patterns/mrtr).
//!
//! The call goes on where it is; a client that comes back brings a sealed state that names it. **Invariant:** a state is
//! worth something once, for the principal and the very request that it was given for, and for a limited time; else
//! nothing runs. A call whose client does not come back is cancelled. A state names the process that holds its call, so
//! that another one, to which a client comes back with it, says whose it is instead of running anything.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hands::mcp::{Object, Unasked};
use jiff::SignedDuration;
use rmcp::ErrorData;
use serde_json::Value;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use super::super::service::Asked;
use super::{Subject, digest};
use crate::access::Principal;
use crate::calls::{Question, Ticket};
use crate::clock;
use crate::error;
use crate::seal::Purpose;
use crate::serve::Gateway;

/// How long a call waits for its client.
const WAITS: Duration = Duration::from_mins(10);
/// Calls of one principal that wait; one more, and the oldest is given up.
const WAITING_MAX: usize = 64;

/// Said of a state that is worth nothing.
const BAD: &str = "requestState is not one that was given for this request, or it was used, or is too old: send the \
     request without it to begin anew";
/// Said of one whose call another process holds.
const ELSEWHERE: &str = "this request goes on with a call that was begun on another gateway on the same database, and only \
     that one can go on with it. Nothing was sent to the server, and the call was not run again: send this request, as it \
     is, to the gateway that gave this requestState. Whatever spreads clients over gateways must keep each with one";
/// Said of one whose process is gone.
const GONE: &str = "the gateway that this call waited on is gone, and the call ended with it. It was not run again: the \
     session's events say what became of it; send the request without requestState to begin anew";
/// Bytes of an id.
const ID_BYTES: usize = 16;
/// Bytes of a digest.
const DIGEST_BYTES: usize = 32;

/// What a client brings back, sealed.
struct State {
    id: Uuid,
    /// The digest of what the call is about.
    about: [u8; DIGEST_BYTES],
    /// The process that holds it.
    held_by: String,
}

impl State {
    fn body(&self) -> Vec<u8> {
        [&self.id.as_bytes()[..], &self.about, self.held_by.as_bytes()].concat()
    }

    fn read(body: &[u8]) -> Option<Self> {
        let (id, rest) = body.split_first_chunk::<ID_BYTES>()?;
        let (about, held_by) = rest.split_first_chunk::<DIGEST_BYTES>()?;
        let held_by = String::from_utf8(held_by.to_vec()).ok()?;
        Some(Self { id: Uuid::from_bytes(*id), about: *about, held_by })
    }
}

/// The calls that wait.
pub(in crate::mcp) struct Parked(Mutex<Table>);

struct Table {
    waits: Duration,
    calls: HashMap<Uuid, Call>,
}

impl Default for Parked {
    fn default() -> Self {
        Self(Mutex::new(Table { waits: WAITS, calls: HashMap::new() }))
    }
}

struct Call {
    principal: Principal,
    ticket: Ticket,
    question: Question,
    /// Ends whoever waits for its time to be over.
    _taken: DropGuard,
}

/// What came back.
pub(in crate::mcp) enum Retried {
    /// The question is answered: the call goes on.
    Answered(Ticket),
    /// Some answers are missing: the question is put again.
    Again(Ticket, Question),
}

impl Parked {
    /// Leaves a call waiting. The result tells its client what is asked.
    pub(super) fn park(
        &self,
        gateway: &Gateway,
        asked: &Asked<'_>,
        subject: &Subject,
        ticket: Ticket,
        question: Question,
    ) -> Object {
        // The id sorts by time.
        let id = clock::id();
        let questions = question.asked.clone();
        let (principal, about) = (asked.view.principal.clone(), digest(subject));
        let mut table = self.table();
        let (waits, taken) = (table.waits, CancellationToken::new());
        let mut waiting: Vec<_> =
            table.calls.iter().filter(|(_, call)| call.principal == principal).map(|(id, _)| *id).collect();
        waiting.sort_unstable();
        let given_up = waiting.first().filter(|_| waiting.len() >= WAITING_MAX);
        let given_up = given_up.and_then(|oldest| table.calls.remove(oldest));
        let (owner, guard) = (principal.clone(), taken.clone().drop_guard());
        table.calls.insert(id, Call { principal: owner, ticket, question, _taken: guard });
        drop(table);
        // Not under the lock: it cancels the call.
        drop(given_up);
        let (bridge, closing) = (gateway.mcp.clone(), gateway.closing.clone());
        gateway.tasks.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(waits) => {}
                () = closing.cancelled() => {}
                () = taken.cancelled() => return,
            }
            // With it goes the interest in the call.
            bridge.parked.take(&id);
        });
        let until = clock::now() + SignedDuration::try_from(waits).unwrap_or(SignedDuration::from_mins(10));
        let state = State { id, about, held_by: gateway.node() }.body();
        let state = gateway.sealer.seal(Purpose::RequestState, &principal, until, &state);
        let mut result = Object::new();
        result.insert("resultType".to_owned(), "input_required".into());
        if !questions.is_empty() {
            result.insert("inputRequests".to_owned(), Value::Object(questions));
        }
        result.insert("requestState".to_owned(), state.into());
        result
    }

    /// The call that a request goes on with, if it is such a request.
    pub(in crate::mcp) async fn retried(
        &self,
        gateway: &Gateway,
        asked: &Asked<'_>,
        subject: &Subject,
    ) -> Result<Option<Retried>, ErrorData> {
        let Some(state) = asked.params.get("requestState") else { return Ok(None) };
        let bad = || ErrorData::invalid_params(BAD, None);
        let principal = &asked.view.principal;
        let opened =
            gateway.sealer.open(Purpose::RequestState, principal, state.as_str().unwrap_or_default());
        let state = opened.ok().and_then(|body| State::read(&body)).ok_or_else(bad)?;
        if state.about != digest(subject) {
            return Err(bad());
        }
        let Some(Call { ticket, question, .. }) = self.table().calls.remove(&state.id) else {
            if state.held_by == gateway.node() {
                return Err(bad());
            }
            let lives = gateway.lives(&state.held_by).await.map_err(|error| error::rpc(&error))?;
            return Err(ErrorData::invalid_params(if lives { ELSEWHERE } else { GONE }, None));
        };
        let answers = asked.params.get("inputResponses").and_then(Value::as_object);
        // What nobody asked for is left out.
        let answers: Object =
            question.asked.keys().filter_map(|key| Some((key.clone(), answers?.get(key)?.clone()))).collect();
        if answers.len() < question.asked.len() && question.is_open() {
            return Ok(Some(Retried::Again(ticket, question)));
        }
        question.answer(Ok(answers));
        Ok(Some(Retried::Answered(ticket)))
    }

    /// The question that a call waits with which `ticket` has joined.
    pub(super) fn joined(&self, principal: &Principal, ticket: &Ticket) -> Option<Question> {
        let mut table = self.table();
        let same = |call: &Call| call.principal == *principal && call.ticket.is_of(ticket);
        let id = table.calls.iter().find(|(_, call)| same(call)).map(|(id, _)| *id)?;
        table.calls.remove(&id).map(|call| call.question)
    }

    pub(super) fn wait(&self, time: Duration) {
        self.table().waits = time;
    }

    pub(super) fn len(&self) -> usize {
        self.table().calls.len()
    }

    fn take(&self, id: &Uuid) {
        let call = self.table().calls.remove(id);
        // Not under the lock: it cancels the call.
        if let Some(call) = call {
            call.question.answer(Err(Unasked::GivenUp));
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
