//! One call of one tool, from asking to its outcome, at most once.
//!
//! **Invariant:** `agent.tool_use` says that it was asked for; `hand.call_started` is durable before the hand
//! is touched; `agent.tool_result` follows. A call runs on a task of this process and not of its connection, so
//! a client that goes away loses no outcome. Knows nothing of MCP.

mod answer;
mod line;
mod moves;
mod permission;
mod record;
mod relay;
mod room;
mod run;
mod shown;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

pub use answer::{Answer, Replayed};
use hands::mcp::Caller;
use hands::{Spool, Tool};
use line::Line;
pub use line::{News, Question, Ticket};
pub use moves::Running as RunningCalls;
pub use permission::evaluated;
pub use relay::Relay;
use serde_json::{Map, Value};
pub use shown::{Shown, shown};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::Principal;
use crate::leases::Leases;
use crate::registry::Registered;
use crate::session::{By, CallKey, EventId, EventLog, Held, LogError, SessionError, SessionId, Sessions};
use room::Room;

/// How often a call of the loop is tried again that the principal's other calls leave no room for.
pub const ROOM_POLL: Duration = Duration::from_millis(250);
/// How long it waits for room.
pub const ROOM_MAX: Duration = Duration::from_mins(5);

/// What a brain asks for.
#[derive(Clone)]
pub struct Ask {
    /// Who asks, as the log has it.
    pub by: By,
    /// On whose behalf.
    pub principal: Principal,
    /// In which session, which is the principal's.
    pub session: SessionId,
    /// Of which hand.
    pub hand: Arc<Registered>,
    /// Which tool of it.
    pub tool: Arc<Tool>,
    /// With which arguments.
    pub arguments: Map<String, Value>,
    /// How a repeat is recognised.
    pub key: Option<CallKey>,
    /// What the hand may know of who asks.
    pub caller: Arc<Caller>,
    /// Where it stands in the log already, when it is the built-in loop that asks.
    pub turn: Option<Turn>,
}

/// A call of the built-in loop, whose `agent.tool_use` was written with what its model said.
#[derive(Clone, Debug)]
pub struct Turn {
    /// That `agent.tool_use`.
    pub tool_use_id: EventId,
    /// The waker's claim on the session. Who has lost it starts nothing.
    pub waker: Held,
}

/// Why a call has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// The principal runs as many as it may.
    #[error(
        "{limit} calls are running, the most that one principal may have (limits.running_calls): wait for one to end, or cancel one"
    )]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// The key belongs to another call.
    #[error(
        "this call key was used for another tool or other arguments: a repeat must be the same call, a new call needs a new key"
    )]
    KeyMismatch,
    /// Whoever asked gave up.
    #[error("nobody waits for this call any more")]
    Cancelled,
    /// The gateway is shutting down.
    #[error("the gateway is shutting down: the call did not run")]
    Closing,
    /// The log refused, and the call did not run.
    #[error("{0}: the call did not run")]
    Log(Arc<LogError>),
    /// The call ran, and the log does not have its outcome yet.
    #[error("the call ended ({ending}), but its outcome could not be written to the log: {source}")]
    Unrecorded {
        /// How it ended.
        ending: &'static str,
        /// Why it is not written.
        source: Arc<LogError>,
    },
    /// The session refused, and the call did not run.
    #[error("{0}: the call did not run")]
    Session(Arc<SessionError>),
    /// This program failed under the call.
    #[error(
        "the gateway failed inside while it handled the call: look at the session's events before you repeat it"
    )]
    Panicked,
}

impl From<LogError> for CallError {
    fn from(error: LogError) -> Self {
        Self::Log(Arc::new(error))
    }
}

impl From<SessionError> for CallError {
    fn from(error: SessionError) -> Self {
        Self::Session(Arc::new(error))
    }
}

/// The calls that run in this process.
#[derive(Clone)]
pub struct Calls(Arc<Inner>);

struct Inner {
    sessions: Arc<Sessions>,
    log: Arc<dyn EventLog>,
    leases: Arc<Leases>,
    running_max: usize,
    spool: Spool,
    room: Room,
    table: Mutex<Table>,
    tasks: TaskTracker,
    closing: CancellationToken,
}

#[derive(Default)]
struct Table {
    by_key: HashMap<(SessionId, CallKey), Arc<Running>>,
    by_principal: HashMap<Principal, usize>,
    running: Vec<Arc<Running>>,
}

struct Running {
    ask: Ask,
    /// Its `agent.tool_use`, once it may stand in the log.
    tool_use_id: OnceLock<EventId>,
    line: Arc<Line>,
}

impl Calls {
    /// No calls yet, to be written to `log`, which is that of `sessions`. Long outputs wait in `spool` until they are
    /// stored. `closing` cancels what still runs.
    pub fn new(
        sessions: Arc<Sessions>,
        log: Arc<dyn EventLog>,
        leases: Arc<Leases>,
        running_max: usize,
        spool: Spool,
        closing: CancellationToken,
    ) -> Self {
        Self(Arc::new(Inner {
            sessions,
            log,
            leases,
            running_max,
            spool,
            room: Room::default(),
            table: Mutex::default(),
            tasks: TaskTracker::new(),
            closing,
        }))
    }

    /// Begins a call, or joins the one that it repeats.
    pub fn begin(&self, ask: Ask) -> Result<Ticket, CallError> {
        let key = ask.key.clone().map(|key| (ask.session, key));
        let mut table = self.0.table();
        if let Some(running) = key.as_ref().and_then(|key| table.by_key.get(key)) {
            let same = running.ask.tool.name == ask.tool.name
                && running.ask.hand.name == ask.hand.name
                && running.ask.arguments == ask.arguments;
            match ask.key {
                _ if same => return Ok(Ticket::join(&running.line)),
                Some(CallKey::Forever(_)) => return Err(CallError::KeyMismatch),
                _ => {}
            }
        }
        self.0.enter(&mut table, &ask.principal)?;
        let line = Arc::new(Line::new(self.0.closing.child_token()));
        let tool_use_id = ask.turn.as_ref().map_or_else(OnceLock::new, |turn| turn.tool_use_id.into());
        let running = Arc::new(Running { ask, tool_use_id, line });
        if let Some(key) = &key {
            table.by_key.insert(key.clone(), running.clone());
        }
        table.running.push(running.clone());
        let ticket = Ticket::join(&running.line);
        let calls = self.clone();
        // Still under the lock, so that `drained` has either refused this call or waits for it.
        self.0.tasks.spawn(async move {
            calls.0.drive(&running).await;
            calls.0.leave(&running, key.as_ref());
        });
        Ok(ticket)
    }

    /// How many calls run here.
    pub fn running(&self) -> usize {
        self.0.tasks.len()
    }

    /// The calls of a session that run here and stand in the log.
    pub fn running_in(&self, session: SessionId) -> BTreeSet<EventId> {
        let table = self.0.table();
        let of = table.running.iter().filter(|running| running.ask.session == session);
        of.filter_map(|running| running.tool_use_id.get().copied()).collect()
    }

    /// Takes no more calls, and waits until none runs. Fire `closing` to hurry them.
    pub async fn drained(&self) {
        {
            let _table = self.0.table();
            self.0.tasks.close();
        }
        self.0.tasks.wait().await;
    }
}

impl Inner {
    /// Counts one more call of the principal, when it may have one.
    fn enter(&self, table: &mut Table, principal: &Principal) -> Result<(), CallError> {
        if self.tasks.is_closed() {
            return Err(CallError::Closing);
        }
        let count = table.by_principal.entry(principal.clone()).or_default();
        if *count >= self.running_max {
            return Err(CallError::TooMany { limit: self.running_max });
        }
        *count += 1;
        Ok(())
    }

    fn leave(&self, running: &Arc<Running>, key: Option<&(SessionId, CallKey)>) {
        let mut table = self.table();
        if let Some(key) = key
            && table.by_key.get(key).is_some_and(|known| Arc::ptr_eq(known, running))
        {
            table.by_key.remove(key);
        }
        table.running.retain(|other| !Arc::ptr_eq(other, running));
        table.one_less(&running.ask.principal);
    }

    fn table(&self) -> std::sync::MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn one_less(&mut self, principal: &Principal) {
        if let Some(count) = self.by_principal.get_mut(principal) {
            *count -= 1;
            if *count == 0 {
                self.by_principal.remove(principal);
            }
        }
    }
}
