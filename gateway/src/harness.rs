//! The loop: calls a model, routes its tool calls, and writes everything that happens into the session's log.
//!
//! **Invariants:** it holds nothing that the log does not. Killing it at any await and calling [`wake`] again, here or in
//! any other process, goes on with the session. What was begun is never begun again. Who was taken over can write
//! nothing: every append of the loop compares its lease on the session.

mod ask;
mod budget;
mod chooser;
mod compact;
pub mod context;
pub mod model;
mod picture;
mod pool;
mod recall;
mod route;
mod step;
mod voice;
mod waker;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

pub use budget::{Backoff, Budget, Prices};
pub use chooser::chooser;
pub use pool::pool;
pub use step::{Runners, Step, next};
pub use voice::{Piece, Said, Voices};
use waker::Waker;

use crate::calls::{CallError, Calls};
use crate::database::DatabaseError;
use crate::harness::context::Policy;
use crate::harness::model::{Model, Settings};
use crate::leases::{LeaseError, Leases};
use crate::registry::Registry;
use crate::session::{EventLog, LogError, SessionError, SessionId, Sessions};

/// A model, and how it is asked.
#[derive(Clone)]
pub struct Brain {
    /// What it is called in the log and in `--model`: `PROVIDER/MODEL`.
    pub name: String,
    /// The model.
    pub model: Arc<dyn Model>,
    /// How it is asked.
    pub settings: Settings,
}

/// There is no brain to ask.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoBrain(pub String);

/// Finds the brain that a session asks for by name, or the one that the gateway is set up with.
pub type Chooser = Box<dyn Fn(Option<&str>) -> Result<Brain, NoBrain> + Send + Sync>;

/// How the loop goes about its work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Manner {
    /// What a model is told.
    pub policy: Policy,
    /// How much may be spent before a person says something.
    pub budget: Budget,
    /// How a model that fails is asked again.
    pub backoff: Backoff,
}

/// What the loop needs.
pub struct Harness {
    sessions: Arc<Sessions>,
    log: Arc<dyn EventLog>,
    leases: Arc<Leases>,
    registry: Arc<Registry>,
    calls: Calls,
    chooser: Chooser,
    manner: Manner,
    voices: Voices,
    /// Sessions that this process works on.
    waking: Mutex<HashSet<SessionId>>,
    /// Sessions in which somebody has spoken to the loop through this process.
    spoken: Mutex<HashSet<SessionId>>,
}

/// Which sessions the loop of a process goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All in which there is something to do: a gateway.
    All,
    /// Those in which somebody speaks to it through this process: a command that owns the data for a while. What others
    /// left is not its business.
    Spoken,
}

/// Why a wake ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum WakeError {
    /// This process works on the session already.
    #[error("this gateway works on the session already")]
    Busy,
    /// Another process works on it, or the lease can't be had.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The log failed, or another waker has taken over.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A call has no outcome yet.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The session can't be had.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl Harness {
    /// A loop over these rooms, which writes to `log`: that of `sessions`.
    pub fn new(
        sessions: Arc<Sessions>,
        log: Arc<dyn EventLog>,
        leases: Arc<Leases>,
        registry: Arc<Registry>,
        calls: Calls,
        chooser: Chooser,
        manner: Manner,
    ) -> Self {
        let (voices, waking, spoken) = (Voices::default(), Mutex::default(), Mutex::default());
        Self { sessions, log, leases, registry, calls, chooser, manner, voices, waking, spoken }
    }

    /// The brain of that name, or the one that the gateway is set up with.
    pub fn brain(&self, name: Option<&str>) -> Result<Brain, NoBrain> {
        (self.chooser)(name)
    }

    /// What is said in sessions that this process works on, as it is said.
    pub fn voices(&self) -> &Voices {
        &self.voices
    }

    /// Whether this process works on the session.
    pub fn is_waking(&self, id: SessionId) -> bool {
        self.waking().contains(&id)
    }

    /// Has the pool of this process go on with the session, whatever its scope.
    pub fn take_on(&self, id: SessionId) {
        self.spoken().insert(id);
    }

    /// Whether somebody has spoken to the loop in this session through this process.
    pub fn has_taken_on(&self, id: SessionId) -> bool {
        self.spoken().contains(&id)
    }

    fn spoken(&self) -> std::sync::MutexGuard<'_, HashSet<SessionId>> {
        self.spoken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waking(&self) -> std::sync::MutexGuard<'_, HashSet<SessionId>> {
        self.waking.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Goes on with the session until it is somebody else's turn, or until `cancel` fires: then a call that runs is still
/// waited for, and a model that answers is not.
pub async fn wake(harness: &Harness, id: SessionId, cancel: CancellationToken) -> Result<(), WakeError> {
    let _here = Here::enter(harness, id).ok_or(WakeError::Busy)?;
    let session = harness.sessions.of_anybody(id).await?;
    let held = harness.leases.take_session(id).await?;
    let done = match Waker::new(harness, session, held.clone(), cancel).await {
        Ok(waker) => waker.run().await,
        Err(error) => Err(error),
    };
    // Whoever comes next need not wait for this process to end. If that fails, it waits.
    if let Err(error) = harness.leases.free_session(held).await {
        tracing::warn!(session.id = %id, error = %error, "the lease on a session could not be let go");
    }
    done
}

/// One waker of a session in this process.
struct Here<'a>(&'a Harness, SessionId);

impl<'a> Here<'a> {
    fn enter(harness: &'a Harness, id: SessionId) -> Option<Self> {
        harness.waking().insert(id).then(|| Self(harness, id))
    }
}

impl Drop for Here<'_> {
    fn drop(&mut self) {
        self.0.waking().remove(&self.1);
    }
}
