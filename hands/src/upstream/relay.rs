//! One request with all that surrounds it: progress, messages, questions, cancellation, deadline, and what follows when
//! the connection breaks.

mod questions;
mod round;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderValue;
use serde_json::Value;
use tokio::time::Sleep;

use self::round::{Round, Turn};
use super::connection::Connection;
use super::http::{ParamHeader, with_params};
use super::lists;
use super::servers::{Link, Servers};
use super::wire::{Base, Era, Failure, Meta, Outgoing, Params, internal};
use super::{Protocol, Shared};
use crate::mcp::{Object, Reply, RpcError, Unasked};
use crate::{CallContext, HandError, Handle};

/// How often a stateless server may ask in one call.
const ROUNDS_MAX: usize = 16;
/// The error of a server whose headers are to say something else than we said.
const HEADER_MISMATCH: i64 = -32020;
/// The error of a server that does not speak a version.
const UNSUPPORTED_VERSION: i64 = -32022;
/// The extension by which a server may answer with a task.
const TASKS: &str = "io.modelcontextprotocol/tasks";

/// How a request ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// With an answer.
    Reply(Reply),
    /// Nobody wants the answer any more; the server was told.
    Cancelled,
    /// It took too long; the server was told.
    TimedOut,
}

/// A request to be relayed.
pub(super) struct Relay<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) servers: &'a Servers,
    pub(super) handle: &'a Handle,
    pub(super) method: &'a str,
    pub(super) base: Base<'a>,
    pub(super) context: &'a CallContext,
}

impl Relay<'_> {
    /// Relays it. What certainly did not run may be sent once more.
    pub(super) async fn run(&self, link: &Link) -> Result<Ended, HandError> {
        let deadline = tokio::time::sleep(self.shared.config.call_max);
        tokio::pin!(deadline);
        let cancelled = self.context.cancel.cancelled();
        tokio::pin!(cancelled);
        let mut again = true;
        loop {
            let connecting = link.connection(self.servers, &self.handle.instance);
            let connection = tokio::select! {
                biased;
                () = &mut cancelled => return Ok(Ended::Cancelled),
                () = &mut deadline => return Ok(Ended::TimedOut),
                connection = connecting => connection?,
            };
            let asked = AtomicBool::new(false);
            match self.rounds(&connection, cancelled.as_mut(), deadline.as_mut(), &asked).await {
                Err(failure) if self.is_of_before(&connection, &failure) => {
                    connection.end(&failure.to_string());
                    if connection.era() == Era::Modern {
                        self.shared.remember(None);
                    }
                    if !std::mem::take(&mut again) || asked.load(Ordering::Relaxed) {
                        return Err(self.shared.error(&failure));
                    }
                }
                Ok(Ended::Reply(Reply::Error(error)))
                    if self.is_misunderstood(&connection, &error) && std::mem::take(&mut again) =>
                {
                    if connection.era() == Era::Modern {
                        // The tool wants other arguments in headers than when it was listed.
                        let _ = lists::relist(&connection).await;
                    } else {
                        connection.end("it speaks another version now");
                        self.shared.remember(None);
                    }
                }
                Ok(ended) => {
                    if self.shared.catalogue().down.is_some() {
                        self.shared.reached();
                    }
                    return Ok(ended);
                }
                Err(failure) => return self.failed(&connection, &failure),
            }
        }
    }

    /// Whether a request failed, and certainly did not run, because the server is not the one that we began with: its
    /// session is gone, or it does not speak 2026-07-28 any more.
    fn is_of_before(&self, connection: &Connection, failure: &Failure) -> bool {
        match failure {
            Failure::SessionGone => true,
            Failure::Refused { status: 400 | 404 | 405 | 406 | 415, .. } => {
                !connection.is_process()
                    && connection.era() == Era::Modern
                    && self.shared.config.protocol == Protocol::Auto
            }
            _ => false,
        }
    }

    /// Whether an error means that nothing ran because we said it in the wrong way.
    fn is_misunderstood(&self, connection: &Connection, error: &RpcError) -> bool {
        let modern = connection.era() == Era::Modern;
        let call = matches!(self.base, Base::Call { .. });
        !connection.is_process()
            && match error.code {
                HEADER_MISMATCH => call || !modern,
                UNSUPPORTED_VERSION => !modern,
                _ => false,
            }
    }

    fn failed(&self, connection: &Connection, failure: &Failure) -> Result<Ended, HandError> {
        let said = |error: RpcError| Ok(Ended::Reply(Reply::Error(error)));
        match failure {
            Failure::TooLarge | Failure::Nonsense(_) => {
                said(internal(format!("{}: {failure}", self.shared.whom())))
            }
            Failure::Unreached(why) if connection.is_process() => Err(HandError::Lost {
                may_have_run: false,
                why: format!("{} is gone: {why}", self.shared.whom()),
            }),
            Failure::Unreached(why) => {
                self.shared.unreached(why);
                Err(self.shared.error(failure))
            }
            _ => Err(self.shared.error(failure)),
        }
    }

    /// Asks, and answers what is asked back, until there is an end. `asked` is set once a question was answered: from
    /// then on nothing may be sent from the beginning again.
    async fn rounds(
        &self,
        connection: &Arc<Connection>,
        mut cancelled: Pin<&mut impl Future<Output = ()>>,
        mut deadline: Pin<&mut Sleep>,
        asked: &AtomicBool,
    ) -> Result<Ended, Failure> {
        let caller = &self.context.caller;
        if let Some(level) = &caller.log_level {
            tokio::select! {
                biased;
                () = cancelled.as_mut() => return Ok(Ended::Cancelled),
                () = deadline.as_mut() => return Ok(Ended::TimedOut),
                () = connection.want_level(level) => {}
            }
        }
        let params = self.param_headers(connection);
        let modern = connection.era() == Era::Modern;
        let mut answers: Option<(Object, Option<Value>)> = None;
        let mut progress = f64::NEG_INFINITY;
        for _ in 0..ROUNDS_MAX {
            let id = connection.id();
            let meta = Meta {
                caller: Some(&caller.meta),
                capabilities: Some(&caller.capabilities),
                log_level: caller.log_level.as_deref(),
                progress: Some(id),
            };
            let round = answers.as_ref().map(|(responses, state)| (responses, state.as_ref()));
            let outgoing = Outgoing { method: self.method, params: Params { base: self.base, round, meta } };
            let mut round = Round { relay: self, connection, id, progress: &mut progress };
            let turn = round.run(&outgoing, &params, cancelled.as_mut(), deadline.as_mut()).await?;
            let mut result = match turn {
                Turn::Cancelled => return Ok(Ended::Cancelled),
                Turn::TimedOut => return Ok(Ended::TimedOut),
                Turn::Answer(Err(error)) => return Ok(Ended::Reply(Reply::Error(error))),
                Turn::Answer(Ok(result)) => result,
            };
            if !modern || !asks_for_input(&result) {
                return Ok(Ended::Reply(self.judge(result, connection.era())));
            }
            asked.store(true, Ordering::Relaxed);
            match self.put(&mut result, cancelled.as_mut(), deadline.as_mut()).await {
                Ok(answered) => answers = Some(answered),
                Err(ended) => return Ok(ended),
            }
        }
        let why = format!("the server asked {ROUNDS_MAX} times in one call, which is the limit");
        Ok(Ended::Reply(Reply::Error(internal(why))))
    }

    /// Puts the questions in a result to whoever called. The answers, with the state that goes back with them; or how the
    /// call ends without any.
    async fn put(
        &self,
        result: &mut Object,
        cancelled: Pin<&mut impl Future<Output = ()>>,
        deadline: Pin<&mut Sleep>,
    ) -> Result<(Object, Option<Value>), Ended> {
        let state = result.remove("requestState");
        let questions = match result.remove("inputRequests") {
            Some(Value::Object(questions)) => questions,
            _ => Object::new(),
        };
        let responses = tokio::select! {
            biased;
            () = cancelled => return Err(Ended::Cancelled),
            () = deadline => return Err(Ended::TimedOut),
            responses = self.context.ask.ask(questions) => responses,
        };
        match responses {
            Ok(responses) => Ok((responses, state)),
            Err(Unasked::GivenUp) => Err(Ended::Cancelled),
            Err(Unasked::Refused(error)) => Err(Ended::Reply(Reply::Error(error))),
            Err(Unasked::Incapable(what)) => {
                let why = format!("the server asks for {what}, which the client did not declare");
                Err(Ended::Reply(Reply::Error(internal(why))))
            }
        }
    }

    /// What a result is to the caller that asks for nothing.
    fn judge(&self, result: Object, era: Era) -> Reply {
        if era == Era::Modern {
            match result.get("resultType").and_then(Value::as_str).unwrap_or("complete") {
                "complete" => {}
                "task" if self.may_be_task() => {}
                "task" => {
                    return Reply::Error(internal(
                        "the server answered with a task, which the client can't follow",
                    ));
                }
                other => {
                    let why = format!("the server answered with the unknown resultType {other:?}");
                    return Reply::Error(internal(why));
                }
            }
        }
        Reply::Result(Arc::new(result))
    }

    fn param_headers(&self, connection: &Connection) -> Vec<(ParamHeader, HeaderValue)> {
        let Base::Call { name, arguments } = self.base else { return Vec::new() };
        if connection.is_process() || connection.era() == Era::Legacy {
            return Vec::new();
        }
        self.shared.params().get(name).map(|headers| with_params(headers, arguments)).unwrap_or_default()
    }

    fn may_be_task(&self) -> bool {
        self.context.caller.capabilities.get("extensions").is_some_and(|all| all.get(TASKS).is_some())
    }
}

/// Whether a result of the stateless era is a question (2026-07-28, basic/patterns/mrtr).
fn asks_for_input(result: &Object) -> bool {
    result.get("resultType").and_then(Value::as_str) == Some("input_required")
}
