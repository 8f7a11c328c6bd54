//! Which session a name stands for, remembered as long as nothing about the principal's sessions changes: a call needs
//! no look into the database for it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;

use crate::access::Principal;
use crate::session::{
    By, Changes, SessionError, SessionId, SessionInfo, SessionRef, SessionStatus, Sessions,
};

/// Principals whose sessions are remembered before all are forgotten.
const PRINCIPALS_MAX: usize = 1_024;
/// Sessions that are remembered of one principal before all are forgotten.
const SESSIONS_MAX: usize = 1_024;

/// The sessions that are known to be active.
#[derive(Default)]
pub(super) struct Known(Mutex<HashMap<Principal, Mine>>);

struct Mine {
    changes: Changes,
    /// How often they were forgotten.
    forgotten: u64,
    sessions: HashMap<SessionRef, SessionId>,
}

/// What a look found.
enum Look {
    Known(SessionId),
    /// Not known, with how often they had been forgotten by then.
    Unknown(u64),
}

impl Known {
    /// The session, made when there is none of its name, and whether it can be written to. One that has just been archived
    /// or deleted in another process may be taken for active: then its log refuses.
    pub(super) async fn open(
        &self,
        sessions: &Sessions,
        principal: &Principal,
        wanted: &SessionRef,
        by: impl FnOnce() -> By,
    ) -> Result<(SessionId, SessionStatus), SessionError> {
        let forgotten = match self.look(sessions, principal, wanted) {
            Look::Known(id) => return Ok((id, SessionStatus::Active)),
            Look::Unknown(forgotten) => forgotten,
        };
        let SessionInfo { id, status, .. } = sessions.open(principal, wanted, &by()).await?;
        if status == SessionStatus::Active {
            self.learn(principal, wanted, id, forgotten);
        }
        Ok((id, status))
    }

    fn look(&self, sessions: &Sessions, principal: &Principal, wanted: &SessionRef) -> Look {
        let mut known = self.lock();
        if known.len() >= PRINCIPALS_MAX && !known.contains_key(principal) {
            known.clear();
        }
        let mine = known.entry(principal.clone()).or_insert_with(|| Mine {
            changes: sessions.changes(principal),
            forgotten: 0,
            sessions: HashMap::new(),
        });
        mine.catch_up();
        match mine.sessions.get(wanted) {
            Some(id) => Look::Known(*id),
            None => Look::Unknown(mine.forgotten),
        }
    }

    /// Remembers what was found, unless something has changed since it was looked for.
    fn learn(&self, principal: &Principal, wanted: &SessionRef, id: SessionId, forgotten: u64) {
        let mut known = self.lock();
        let Some(mine) = known.get_mut(principal) else { return };
        mine.catch_up();
        if mine.forgotten != forgotten {
            return;
        }
        if mine.sessions.len() >= SESSIONS_MAX {
            mine.sessions.clear();
        }
        mine.sessions.insert(wanted.clone(), id);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Principal, Mine>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mine {
    /// Forgets everything when anything has changed: a session was made, archived or deleted.
    fn catch_up(&mut self) {
        while self.changes.next().now_or_never().is_some() {
            self.sessions.clear();
            self.forgotten += 1;
        }
    }
}
