//! Requests to MCP servers that are no calls of tools, and calls of hands that keep no log: they run as calls do, apart
//! from any connection, and nothing of them is written.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use hands::mcp::{Caller, Reply, Request, RpcError};
use hands::{Call, CallContext, Ending, HandError, Outcome};

use super::answer::{Answer, Replayed, Shaped, outcome_of, shape};
use super::line::HandsEnd;
use super::permission::{denied, permitted};
use super::run::lost_text;
use super::{CallError, Calls, Inner, Line, Running, Ticket};
use crate::access::Principal;
use crate::error;
use crate::hand::Permission;
use crate::leases::InUse;
use crate::registry::Registered;
use crate::session::{CallOutcome, EventId, Seq, SessionId};

/// JSON-RPC: something failed on this side.
const INTERNAL_ERROR: i64 = -32603;

/// A request that is passed on to an MCP server.
#[derive(Clone)]
pub struct Relay {
    /// On whose behalf.
    pub principal: Principal,
    /// For which session, which is the principal's.
    pub session: SessionId,
    /// To which hand.
    pub hand: Arc<Registered>,
    /// What the hand may know of who asks.
    pub caller: Arc<Caller>,
    /// The request.
    pub request: Request,
}

impl Calls {
    /// Begins to pass a request on. Its answer has a [`Reply`]; what goes wrong on the way is one, too.
    pub fn relay(&self, relay: Relay) -> Result<Ticket, CallError> {
        let mut table = self.0.table();
        self.0.enter(&mut table, &relay.principal)?;
        let line = Arc::new(Line::new(self.0.closing.child_token()));
        let ticket = Ticket::join(&line);
        let calls = self.clone();
        self.0.tasks.spawn(async move {
            let end = AssertUnwindSafe(calls.0.pass_on(&relay, &line)).catch_unwind().await;
            line.tell(end.unwrap_or(Err(CallError::Panicked)));
            calls.0.table().one_less(&relay.principal);
        });
        Ok(ticket)
    }
}

impl Inner {
    async fn pass_on(&self, relay: &Relay, line: &Arc<Line>) -> Result<Answer, CallError> {
        let failed = |why: String| Reply::Error(RpcError { code: INTERNAL_ERROR, message: why, data: None });
        let in_use = match self.hand_for(relay.session, &relay.principal, &relay.hand, line).await? {
            Ok(in_use) => in_use,
            Err(why) => return Ok(unlogged(relay.session, failed(why))),
        };
        let Some(face) = relay.hand.hand.mcp() else {
            return Ok(unlogged(
                relay.session,
                failed(format!("the hand {} is no MCP server", relay.hand.name)),
            ));
        };
        let context = self.context(line, &relay.caller);
        let reply = match face.request(&in_use.instance.handle, relay.request.clone(), context).await {
            Ok(reply) => reply,
            Err(error) => {
                if let HandError::Lost { .. } = &error {
                    self.leases.drop_lost(&in_use).await;
                }
                failed(error.to_string())
            }
        };
        Ok(unlogged(relay.session, reply))
    }

    /// An instance to use, or the sentence that says why there is none.
    async fn hand_for(
        &self,
        session: SessionId,
        principal: &Principal,
        hand: &Arc<Registered>,
        line: &Arc<Line>,
    ) -> Result<Result<InUse, String>, CallError> {
        if let Some(in_use) = self.leases.warm(session, hand) {
            return Ok(Ok(in_use));
        }
        let acquired = tokio::select! {
            acquired = self.leases.acquire(session, principal, hand, Arc::new(HandsEnd(line.clone()))) => acquired,
            () = line.cancel.cancelled() => return Err(CallError::Cancelled),
        };
        Ok(acquired.map_err(|error| error::say(&error)))
    }

    /// A call of a hand that keeps no log.
    pub(super) async fn unlogged(&self, running: &Running) -> Result<Answer, CallError> {
        let ask = &running.ask;
        // One that asks a person first can't do without the log.
        if permitted(running) != Permission::Allow {
            let mut answer = ended(ask.session, Outcome::error(denied(running)), None);
            answer.outcome = CallOutcome::Denied;
            return Ok(answer);
        }
        let in_use = match self.hand_for(ask.session, &ask.principal, &ask.hand, &running.line).await? {
            Ok(in_use) => in_use,
            Err(why) => {
                return Ok(ended(ask.session, Outcome::error(format!("{why}. The call did not run.")), None));
            }
        };
        let call = Call { tool: ask.tool.name.clone(), arguments: ask.arguments.clone() };
        let context = self.context(&running.line, &ask.caller);
        let outcome = match ask.hand.hand.execute(&in_use.instance.handle, &call, context).await {
            Ok(outcome) => outcome,
            Err(error) => {
                let Some(text) = lost_text(&ask.hand, &error) else {
                    let outcome = Outcome { ending: Ending::Error, ..Outcome::error(error.to_string()) };
                    return Ok(ended(ask.session, outcome, in_use.note()));
                };
                self.leases.drop_lost(&in_use).await;
                let mut answer = ended(ask.session, Outcome::error(text), None);
                answer.outcome = CallOutcome::Lost;
                return Ok(answer);
            }
        };
        Ok(ended(ask.session, outcome, in_use.note()))
    }
}

impl Inner {
    /// What surrounds a call whose askers are at the other end of `line`.
    pub(super) fn context(&self, line: &Arc<Line>, caller: &Arc<Caller>) -> CallContext {
        let (end, cancel) = (Arc::new(HandsEnd(line.clone())), line.cancel.clone());
        CallContext {
            cancel,
            progress: end.clone(),
            caller: caller.clone(),
            ask: end,
            spool: self.spool.clone(),
        }
    }
}

fn ended(session: SessionId, outcome: Outcome, note: Option<&str>) -> Answer {
    let kind = outcome_of(outcome.ending);
    let Shaped { shown, reply, .. } = shape(outcome, note);
    Answer { content: shown, reply, outcome: kind, ..nowhere(session) }
}

fn unlogged(session: SessionId, reply: Reply) -> Answer {
    let outcome = match &reply {
        Reply::Result(_) => CallOutcome::Ok,
        Reply::Error(_) => CallOutcome::Error,
    };
    Answer { reply: Some(reply), outcome, ..nowhere(session) }
}

/// An answer that stands in no log.
fn nowhere(session: SessionId) -> Answer {
    Answer {
        session,
        seq: Seq(0),
        tool_use_id: EventId::new(),
        content: Vec::new(),
        reply: None,
        output: None,
        outcome: CallOutcome::Ok,
        replayed: Replayed::No,
    }
}
