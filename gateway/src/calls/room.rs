//! Whether a principal may store more, asked at most once a second.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::access::Principal;
use crate::session::{SessionError, Sessions};

/// How long an answer holds: what a principal stores is a sum over all its sessions.
const HOLDS: Duration = Duration::from_secs(1);
/// Principals whose answers are remembered before the old ones are thrown out.
const REMEMBERED_MAX: usize = 1_024;

/// Who had room, and when.
#[derive(Default)]
pub(super) struct Room(Mutex<HashMap<Principal, Instant>>);

impl Room {
    /// Refuses when the principal stores as much as it may (`limits.stored_bytes`), or the disk has no room.
    pub(super) async fn check(&self, sessions: &Sessions, principal: &Principal) -> Result<(), SessionError> {
        sessions.check_disk()?;
        if self.known().get(principal).is_some_and(|asked| asked.elapsed() < HOLDS) {
            return Ok(());
        }
        sessions.check_room(principal).await?;
        let mut known = self.known();
        if known.len() >= REMEMBERED_MAX {
            known.retain(|_, asked| asked.elapsed() < HOLDS);
        }
        known.insert(principal.clone(), Instant::now());
        Ok(())
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<Principal, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
