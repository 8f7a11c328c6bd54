//! One at a time per session, before anybody asks the database.
//!
//! On PostgreSQL the appends to one session wait for each other on the lock of its row, each with a connection of
//! the pool. A busy session would take them all; so its appends wait here, and cost it one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

use super::SessionId;

/// Who is next, by session. A session is in it only while somebody appends to it.
#[derive(Debug, Default)]
pub(super) struct Turns {
    sessions: Mutex<HashMap<SessionId, Arc<tokio::sync::Mutex<()>>>>,
}

/// One's turn, until it is dropped.
pub(super) struct Turn {
    turns: Arc<Turns>,
    id: SessionId,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits for one's turn.
    pub(super) async fn wait(self: &Arc<Self>, id: SessionId) -> Turn {
        // Made before the wait, so that a wait that is given up tidies up as well.
        let mut turn = Turn { turns: Arc::clone(self), id, guard: None };
        let queue = Arc::clone(self.sessions().entry(id).or_default());
        turn.guard = Some(queue.lock_owned().await);
        turn
    }

    fn sessions(&self) -> std::sync::MutexGuard<'_, HashMap<SessionId, Arc<tokio::sync::Mutex<()>>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut sessions = self.turns.sessions();
        self.guard = None;
        if sessions.get(&self.id).is_some_and(|queue| Arc::strong_count(queue) == 1) {
            sessions.remove(&self.id);
        }
    }
}
