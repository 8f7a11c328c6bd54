//! One exchange of a relayed request, up to its answer.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::HeaderValue;
use tokio::time::Sleep;

use super::Relay;
use super::questions::answer_question;
use crate::mcp::{Notice, Object, RpcError};
use crate::upstream::connection::{Connection, is_question, severity};
use crate::upstream::http::ParamHeader;
use crate::upstream::wire::{Era, Event, Failure, Incoming, METHOD_NOT_FOUND, Outgoing};

/// How many questions of a server may wait for their answers at a time, in one call.
const QUESTIONS_MAX: usize = 16;

/// How it ended.
pub(super) enum Turn {
    Answer(Result<Object, RpcError>),
    Cancelled,
    TimedOut,
}

pub(super) struct Round<'a, 'r> {
    pub(super) relay: &'a Relay<'r>,
    pub(super) connection: &'a Arc<Connection>,
    /// The id of the request, and the token of its progress.
    pub(super) id: u64,
    /// How far it has come.
    pub(super) progress: &'a mut f64,
}

impl Round<'_, '_> {
    pub(super) async fn run(
        &mut self,
        outgoing: &Outgoing<'_>,
        params: &[(ParamHeader, HeaderValue)],
        mut cancelled: Pin<&mut impl Future<Output = ()>>,
        mut deadline: Pin<&mut Sleep>,
    ) -> Result<Turn, Failure> {
        let opening = self.connection.open(self.id, outgoing, Some(&self.relay.handle.instance), params);
        let mut exchange = tokio::select! {
            biased;
            () = cancelled.as_mut() => return Ok(self.give_up(Turn::Cancelled).await),
            () = deadline.as_mut() => return Ok(self.give_up(Turn::TimedOut).await),
            exchange = opening => exchange?,
        };
        let mut asked = FuturesUnordered::new();
        loop {
            let event = tokio::select! {
                biased;
                () = cancelled.as_mut() => return Ok(self.give_up(Turn::Cancelled).await),
                () = deadline.as_mut() => return Ok(self.give_up(Turn::TimedOut).await),
                Some(()) = asked.next(), if !asked.is_empty() => continue,
                event = exchange.next() => event?,
            };
            match event {
                Event::Answer(answer) => return Ok(Turn::Answer(answer)),
                Event::Notification { method, params } => self.news(&method, params),
                Event::Question { method, .. } if self.connection.era() == Era::Modern => {
                    // It must not (2026-07-28, basic), and there is no way to answer.
                    tracing::debug!(
                        hand.name = self.connection.hand(),
                        method,
                        "a stateless server asked: dropped"
                    );
                }
                Event::Question { id, method, params } => {
                    if is_question(&method) && asked.len() < QUESTIONS_MAX {
                        let (connection, ask) = (self.connection, &self.relay.context.ask);
                        asked.push(async move {
                            let reply = answer_question(&**ask, &method, params).await;
                            connection.respond(&id, &reply).await;
                        });
                    } else if is_question(&method) {
                        let message = format!("more than {QUESTIONS_MAX} questions at a time");
                        let reply = Err(RpcError { code: METHOD_NOT_FOUND, message, data: None });
                        self.connection.respond(&id, &reply).await;
                    } else {
                        self.connection.answer_alone(id, &method);
                    }
                }
            }
        }
    }

    async fn give_up(&self, turn: Turn) -> Turn {
        let reason = if matches!(turn, Turn::TimedOut) { "it took too long" } else { "the caller gave up" };
        self.connection.forget(self.id, reason).await;
        turn
    }

    fn news(&mut self, method: &str, mut params: Object) {
        let sink = &self.relay.context.progress;
        match method {
            "notifications/progress" => {
                let mine = params.remove("progressToken").is_some_and(|token| token == self.id);
                let come = params.get("progress").and_then(serde_json::Value::as_f64);
                if let Some(come) = come.filter(|come| mine && *come > *self.progress) {
                    *self.progress = come;
                    sink.notice(Notice::Progress(params));
                }
            }
            "notifications/message" => {
                let wanted = self.relay.context.caller.log_level.as_deref().and_then(severity);
                let level = params.get("level").and_then(serde_json::Value::as_str).and_then(severity);
                if let (Some(wanted), Some(level)) = (wanted, level)
                    && level >= wanted
                {
                    sink.notice(Notice::Log(params));
                }
            }
            // What belongs to the whole server may come on any stream.
            _ => {
                let method = method.to_owned();
                self.connection.take(Incoming::Notification { method, params });
            }
        }
    }
}
