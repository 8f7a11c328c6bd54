//! Which hand a call goes to, and how it gets there: through the room of calls, which is the only way.

use std::sync::Arc;

use futures_util::future::join_all;
use hands::{Effects, Tool};
use tokio_util::sync::CancellationToken;

use super::model::ToolDefinition;
use super::voice::Said;
use super::waker::Waker;
use super::{Harness, WakeError, recall};
use crate::calls::{Ask, CallError, News, ROOM_MAX, ROOM_POLL, Ticket, Turn, evaluated};
use crate::error;
use crate::registry::Registered;
use crate::session::{AskedCall, By, CallOutcome, HandRef, LogError, Permission, SessionError, Via};

/// Most calls of one turn that run at the same time.
const PARALLEL_MAX: usize = 8;
/// Most tools that a model is told of.
const TOOLS_MAX: usize = 512;

/// Where a call goes.
pub(super) enum Route {
    /// To a hand.
    Hand(Arc<Registered>, Arc<Tool>),
    /// To the session's own log.
    Recall,
    /// There is no such tool.
    Nowhere,
}

impl Route {
    /// As the log names it.
    pub(super) fn named(&self, full: &str) -> (HandRef, String) {
        let (name, kind, tool) = match self {
            Self::Hand(hand, tool) => (hand.name.as_str(), hand.config.kind(), tool.name.as_str()),
            Self::Recall => ("session", "session", full),
            Self::Nowhere => ("", "none", full),
        };
        (HandRef { name: name.to_owned(), kind: kind.to_owned() }, tool.to_owned())
    }

    /// What the hand permits. The session's own log is the brain's to read.
    pub(super) fn permission(&self) -> Option<Permission> {
        match self {
            Self::Hand(hand, tool) => evaluated(hand, &tool.name),
            Self::Recall | Self::Nowhere => None,
        }
    }

    /// Whether it may run beside others.
    fn is_read_only(&self) -> bool {
        match self {
            Self::Hand(_, tool) => tool.effects == Effects::ReadOnly,
            Self::Recall => true,
            Self::Nowhere => false,
        }
    }
}

/// Whether there is no room for what is new, and all else goes on.
pub(super) fn is_no_room(error: &SessionError) -> bool {
    match error {
        SessionError::TooManyBytes { .. } => true,
        SessionError::Database(error) => error.is_full(),
        _ => false,
    }
}

impl Harness {
    pub(super) fn route(&self, name: &str) -> Route {
        if name == recall::NAME {
            return Route::Recall;
        }
        self.registry.resolve(name).map_or(Route::Nowhere, |(hand, tool)| Route::Hand(hand, tool))
    }

    /// What a model may call, always in the same order.
    pub(super) fn definitions(&self) -> Vec<ToolDefinition> {
        let of_hand = |hand: Arc<Registered>| {
            let tools = hand.tools();
            let define = |tool: &Arc<Tool>| ToolDefinition {
                name: hand.full_name(tool),
                description: tool.description.clone(),
                input_schema: (*tool.input_schema).clone(),
            };
            tools.iter().map(define).collect::<Vec<_>>()
        };
        let hands = self.registry.list().into_iter().flat_map(of_hand);
        [recall::definition()].into_iter().chain(hands).take(TOOLS_MAX).collect()
    }
}

impl Waker<'_> {
    /// Makes the first of the calls, or as many of the first ones as change nothing.
    pub(super) async fn call(&self, ready: &[&AskedCall]) -> Result<(), WakeError> {
        let routes: Vec<Route> = ready.iter().map(|call| self.harness.route(&call.name)).collect();
        let quiet = routes.iter().take_while(|route| route.is_read_only()).count();
        let stop = CancellationToken::new();
        let calls = ready.iter().zip(routes).take(quiet.clamp(1, PARALLEL_MAX));
        let calls = join_all(calls.map(|(call, route)| self.one(call, route, &stop)));
        tokio::pin!(calls);
        let ends = tokio::select! {
            ends = &mut calls => ends,
            stopped = self.stopped() => {
                // Each call is told, and its end is still waited for. That a log can't be read stops nothing.
                if stopped.is_ok() {
                    stop.cancel();
                }
                calls.await
            }
        };
        ends.into_iter().collect()
    }

    async fn one(&self, call: &AskedCall, route: Route, stop: &CancellationToken) -> Result<(), WakeError> {
        let (hand, tool) = match route {
            Route::Hand(hand, tool) => (hand, tool),
            Route::Recall => return self.recall(call).await,
            Route::Nowhere => {
                let text = format!("The tool {} is not there any more. The call did not run.", call.name);
                return self.outcome(call.id, CallOutcome::Error, &text).await;
            }
        };
        let ask = Ask {
            by: By { principal: self.session.principal.to_string(), client: None, via: Via::Loop },
            principal: self.session.principal.clone(),
            session: self.session.id,
            hand,
            tool,
            arguments: call.input.clone(),
            key: None,
            caller: Arc::default(),
            turn: Some(Turn { tool_use_id: call.id, waker: self.held.clone() }),
        };
        let end = match self.ticket(ask, stop).await {
            Ok(Some(ticket)) => self.hear(ticket, stop).await,
            Ok(None) => return Ok(()),
            Err(error) => Err(error),
        };
        match end {
            Ok(()) => Ok(()),
            // It was called off before it started, and is the next waker's, or refused by this one.
            Err(CallError::Cancelled) => Ok(()),
            // Its outcome, or that nobody knows it, is in the log or comes.
            Err(CallError::Panicked) => Ok(()),
            Err(CallError::Log(fenced)) if matches!(*fenced, LogError::Fenced(_)) => {
                Err(CallError::Log(fenced).into())
            }
            Err(CallError::Session(refused)) if is_no_room(&refused) => {
                self.outcome(call.id, CallOutcome::Error, &error::say(&CallError::Session(refused))).await
            }
            Err(error @ CallError::TooMany { .. }) => {
                let text = format!("{}. The call did not run.", error::say(&error));
                self.outcome(call.id, CallOutcome::Error, &text).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Begins a call as soon as there is room for it. None: a person, or the end of this process, was faster.
    async fn ticket(&self, ask: Ask, stop: &CancellationToken) -> Result<Option<Ticket>, CallError> {
        let start = tokio::time::Instant::now();
        loop {
            match self.harness.calls.begin(ask.clone()) {
                Err(CallError::TooMany { .. }) if start.elapsed() < ROOM_MAX => {}
                begun => return begun.map(Some),
            }
            tokio::select! {
                () = tokio::time::sleep(ROOM_POLL) => {}
                () = stop.cancelled() => return Ok(None),
                () = self.cancel.cancelled() => return Ok(None),
            }
        }
    }

    /// Waits for a call's end, whatever happens to this waker meanwhile.
    async fn hear(&self, mut ticket: Ticket, stop: &CancellationToken) -> Result<(), CallError> {
        let mut told = false;
        loop {
            let news = tokio::select! {
                news = ticket.next() => news,
                () = stop.cancelled(), if !told => {
                    ticket.cancel();
                    told = true;
                    continue;
                }
            };
            let say = |text| self.harness.voices.say(self.session.id, self.state.seq, Said::Output(text));
            match news {
                News::Output(text) => say(text),
                News::Step(what) => say(format!("({what})\n").into()),
                News::Ended(end) => return end.map(drop),
                // There is nobody to ask: whoever asks is told so.
                News::Question(question) => question.answer(Err(hands::mcp::Unasked::GivenUp)),
                News::Notice(_) => {}
            }
        }
    }
}
