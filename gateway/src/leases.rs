//! Who holds which hand: provision on first use, replace what died, release what is idle, reap what a dead
//! process left.
//!
//! **Invariants:** nothing is provisioned before the first call that needs it, and once when many first calls
//! race. A hand's lease names this process and an epoch; whatever this process writes about the hand is fenced
//! by that epoch. Only what belongs to a dead process is reaped.

mod far;
mod instance;
mod moves;
pub mod node;
mod notes;
mod room;
mod settle;
mod state;
mod take;
mod waker;
mod work;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use hands::{HandError, Progress};
use instance::Slot;
pub use instance::{InUse, Instance};
pub use moves::{Move, Moved};
pub use state::Keeping;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::Principal;
use crate::database::{Database, DatabaseError};
use crate::hand::HandName;
use crate::leases::node::{NodeId, Nodes};
use crate::registry::{Registered, Registry, RegistryError};
use crate::session::{EventLog, LogError, SessionId};

/// What a lease on a hand is called in the database.
pub(crate) fn subject(session: SessionId, hand: &HandName) -> String {
    format!("hand/{session}/{hand}")
}

/// The hands that this process holds.
pub struct Leases {
    database: Database,
    log: Arc<dyn EventLog>,
    nodes: Arc<Nodes>,
    registry: Arc<Registry>,
    /// Where instances' work is kept: `{work}/{session}/{hand}`, unless a hand has moved.
    work: PathBuf,
    /// Held by whoever removes work: two would get into each other's way.
    removing: tokio::sync::Mutex<()>,
    instances_max: usize,
    slots: Mutex<HashMap<(SessionId, HandName), Arc<Slot>>>,
    /// Makings of instances. They go on when who asked has gone away, to leave nothing half done.
    making: TaskTracker,
    /// Fires when whatever is being made is of no use; then there is a new one.
    useless: Mutex<CancellationToken>,
}

/// Why there is no instance.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The principal has as many as it may, and calls run in all of them.
    #[error(
        "{limit} instances of hands are alive, the most that one principal may have (limits.instances), and calls run in all of them: wait for one of the calls, or cancel it"
    )]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// A call is running in it.
    #[error("a call is running in the hand {0}: wait for it, or cancel it")]
    Busy(HandName),
    /// A call of another living process is running in it.
    #[error("a call is running in the hand {0} on another gateway: wait for it, or cancel it")]
    Elsewhere(HandName),
    /// Another living process works on the session.
    #[error("another gateway works on the session: wait for it")]
    Woken,
    /// The session has none of it alive.
    #[error("the session has no live instance of the hand {0} on this gateway: there is nothing to move")]
    NothingToMove(HandName),
    /// The session that is to get it has one alive.
    #[error(
        "the session that is to get the hand {0} has a live instance of it: release that first, with hand_release or `manyhands hand release`"
    )]
    HasOne(HandName),
    /// From a session to itself.
    #[error("the session has the hand already: name another session")]
    SameSession,
    /// An MCP server.
    #[error(
        "the hand {0} is an MCP server, and can't be moved: what its server keeps, it keeps for the session that began it. Both sessions can call it, each with an instance of its own"
    )]
    Unmovable(HandName),
    /// It keeps no states.
    #[error("the hand {0} keeps no states by name: `manyhands hand show` says which can")]
    NoStates(HandName),
    /// A state's name is none.
    #[error("a state's name is 1 to 32 of a-z, 0-9 and '-', and does not begin with '-'")]
    BadState,
    /// Provisioning took longer than it may.
    #[error(
        "the hand {hand} was not there within {limit_s} s: look at the load of this machine, then try again"
    )]
    Slow {
        /// Which.
        hand: HandName,
        /// The limit, in seconds.
        limit_s: u64,
    },
    /// Who asked has gone away, or the gateway shuts down.
    #[error("nobody waits for the hand any more")]
    GivenUp,
    /// This process was counted dead and has no new name yet.
    #[error(
        "this gateway was silent for so long that it was counted dead, and is joining again: try again in a moment"
    )]
    Dead,
    /// Making an instance panicked.
    #[error("making an instance failed inside this program")]
    Panicked,
    /// The hand can't be provisioned.
    #[error(transparent)]
    Hand(#[from] HandError),
    /// There is no such hand.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The log refused.
    #[error(transparent)]
    Log(#[from] LogError),
    /// As many states are kept as may be.
    #[error(
        "this session keeps {limit} states of {hand}, the most that it may: keep this one under one of their names"
    )]
    TooManyStates {
        /// Of which hand.
        hand: HandName,
        /// The limit.
        limit: usize,
    },
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl Leases {
    /// Holds nothing yet.
    pub fn new(
        database: Database,
        log: Arc<dyn EventLog>,
        nodes: Arc<Nodes>,
        registry: Arc<Registry>,
        work: PathBuf,
        instances_max: usize,
    ) -> Self {
        Self {
            database,
            log,
            nodes,
            registry,
            work,
            removing: tokio::sync::Mutex::default(),
            instances_max,
            slots: Mutex::default(),
            making: TaskTracker::new(),
            useless: Mutex::default(),
        }
    }

    /// The live instance of `hand` for `session`, if there is one; provisions nothing.
    pub fn warm(&self, session: SessionId, hand: &Arc<Registered>) -> Option<InUse> {
        let slot = self.slot(session, &hand.name)?;
        slot.warm()
    }

    /// The live instance of `hand` for `session`, provisioned when there is none. What became of an earlier
    /// one is written to the log, and said in [`InUse::note`].
    ///
    /// `progress` hears how far that is, whoever had it begun. Dropping the future calls off what it provisions, and
    /// leaves nothing half done.
    pub async fn acquire(
        self: &Arc<Self>,
        session: SessionId,
        principal: &Principal,
        hand: &Arc<Registered>,
        progress: Arc<dyn Progress>,
    ) -> Result<InUse, LeaseError> {
        let useless = self.useless().child_token();
        let _given_up = useless.clone().drop_guard();
        let (leases, principal, hand) = (Arc::clone(self), principal.clone(), hand.clone());
        let making = self.making.spawn(async move {
            let (slot, replaced) = leases.slot_with_room(session, &principal, &hand).await?;
            if let Some(replaced) = replaced {
                // Of a hand by the same name that was removed while a call was about to use it.
                replaced.release_now(&leases).await?;
            }
            slot.acquire_and_tell(&leases, &useless, &*progress).await
        });
        making.await.unwrap_or(Err(LeaseError::Panicked))
    }

    /// Lets go of an instance that died under a call, or was fenced. Writes nothing to the log.
    pub async fn drop_lost(&self, in_use: &InUse) {
        in_use.slot.forget(self, &in_use.instance).await;
    }

    /// Releases the instance of `hand` for `session`, if this process holds one. Its work stays.
    pub async fn release(&self, session: SessionId, hand: &HandName) -> Result<bool, LeaseError> {
        let Some(slot) = self.slot(session, hand) else { return Ok(false) };
        slot.release(self, Duration::ZERO).await
    }

    /// Releases what nobody has used for as long as its hand says.
    pub async fn release_idle(&self) {
        for slot in self.all() {
            let idle = slot.hand.config.idle();
            match slot.release(self, idle).await {
                Ok(_) | Err(LeaseError::Busy(_)) => {}
                Err(error) => {
                    tracing::warn!(session.id = %slot.session, hand.name = %slot.hand.name, error = %error, "an idle instance could not be released");
                }
            }
        }
    }

    /// Releases everything, at shutdown.
    pub async fn release_all(&self) {
        self.make_useless();
        self.release_slots(|_| true).await;
    }

    /// Releases everything of a hand that is registered no more, and ends it. What another of the same name has stays.
    pub async fn release_of(&self, hand: &Arc<Registered>) {
        self.release_slots(|slot| Arc::ptr_eq(&slot.hand, hand)).await;
        hand.hand.shutdown().await;
    }

    async fn release_slots(&self, which: impl Fn(&Slot) -> bool) {
        let released = self.all().into_iter().filter(|slot| which(slot)).map(|slot| async move {
            if let Err(error) = slot.release_now(self).await {
                tracing::warn!(session.id = %slot.session, hand.name = %slot.hand.name, error = %error, "an instance could not be released");
            }
        });
        join_all(released).await;
    }

    /// Releases everything of `session`, before it is archived or deleted.
    pub async fn release_session(&self, session: SessionId) -> Result<(), LeaseError> {
        for slot in self.all().into_iter().filter(|slot| slot.session == session) {
            slot.release(self, Duration::ZERO).await?;
        }
        Ok(())
    }

    /// Ends everything that this process holds after it was counted dead, without a word to the log: others
    /// have written what there was to write.
    pub async fn abandon(&self) {
        self.make_useless();
        let slots: Vec<_> = self.slots().drain().map(|(_, slot)| slot).collect();
        join_all(slots.iter().map(|slot| slot.abandon())).await;
    }

    /// The hands that `session` has alive in this process.
    pub fn alive(&self, session: SessionId) -> Vec<HandName> {
        let slots = self.slots();
        let mut alive: Vec<_> = slots
            .iter()
            .filter(|((of, _), slot)| *of == session && slot.is_live())
            .map(|((_, hand), _)| hand.clone())
            .collect();
        alive.sort();
        alive
    }

    /// The processes that share the database.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    pub(crate) fn me(&self) -> NodeId {
        self.nodes.me()
    }

    fn all(&self) -> Vec<Arc<Slot>> {
        self.slots().values().cloned().collect()
    }

    fn slot(&self, session: SessionId, hand: &HandName) -> Option<Arc<Slot>> {
        self.slots().get(&(session, hand.clone())).cloned()
    }

    /// Calls off all makings of instances.
    fn make_useless(&self) {
        std::mem::take(&mut *self.useless()).cancel();
    }

    fn useless(&self) -> std::sync::MutexGuard<'_, CancellationToken> {
        self.useless.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slots(&self) -> std::sync::MutexGuard<'_, HashMap<(SessionId, HandName), Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
