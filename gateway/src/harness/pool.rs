//! The wakers of this process: whoever is awake and in nobody's hands is worked on.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Harness, Scope, WakeError, wake};
use crate::error::chain;
use crate::leases::LeaseError;
use crate::session::{SessionError, SessionId};

/// Most sessions that this process works on at the same time.
const WAKERS_MAX: usize = 64;
/// How often it is looked for sessions whose process has died: within a second after it counts as dead.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a session is left alone whose waker failed. Doubled with each further failure.
const PAUSE: Duration = Duration::from_millis(250);
/// At most.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// How a wake ended.
enum End {
    Well,
    /// Somebody else works on it.
    Elsewhere,
    Badly,
}

struct Pool {
    harness: Arc<Harness>,
    scope: Scope,
    closing: CancellationToken,
    tasks: TaskTracker,
    ended: mpsc::UnboundedSender<(SessionId, End)>,
    /// Sessions that are being worked on.
    awake: usize,
    /// Sessions that are left alone for a while: how often they failed, and until when.
    failed: HashMap<SessionId, (u32, Instant)>,
}

/// Works on whatever is awake within the scope until `closing` fires, and then until what runs has ended.
pub async fn pool(harness: Arc<Harness>, scope: Scope, closing: CancellationToken) {
    let mut wakings = harness.sessions.wakings();
    let (ended, mut ends) = mpsc::unbounded_channel();
    let (tasks, failed) = (TaskTracker::new(), HashMap::new());
    let mut pool = Pool { harness, scope, closing: closing.clone(), tasks, ended, awake: 0, failed };
    loop {
        pool.look().await;
        tokio::select! {
            () = closing.cancelled() => break,
            _ = wakings.changed() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
            Some((id, end)) = ends.recv() => pool.took_its_end(id, &end),
        }
        while let Ok((id, end)) = ends.try_recv() {
            pool.took_its_end(id, &end);
        }
    }
    pool.tasks.close();
    pool.tasks.wait().await;
}

impl Pool {
    async fn look(&mut self) {
        if self.awake >= WAKERS_MAX {
            return;
        }
        let awake = match self.within_scope().await {
            Ok(awake) => awake,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "it could not be seen which sessions are awake");
                return;
            }
        };
        for id in awake {
            let left_alone = self.failed.get(&id).is_some_and(|(_, until)| *until > Instant::now());
            if self.awake < WAKERS_MAX && !left_alone && !self.harness.is_waking(id) {
                self.wake(id);
            }
        }
    }

    /// Sessions of this process's scope that are awake.
    async fn within_scope(&self) -> Result<Vec<SessionId>, SessionError> {
        let (harness, me) = (&self.harness, self.harness.leases.me());
        if self.scope == Scope::All {
            return harness.sessions.awake(&me.0, None).await;
        }
        let (mut found, mut behind) = (Vec::new(), None);
        // Idle commands ask nothing.
        while !harness.spoken().is_empty() {
            let page = harness.sessions.awake(&me.0, behind).await?;
            let Some(last) = page.last() else { break };
            behind = Some(*last);
            found.extend(page.into_iter().filter(|id| harness.has_taken_on(*id)));
        }
        Ok(found)
    }

    fn wake(&mut self, id: SessionId) {
        self.awake += 1;
        let (harness, closing, ended) = (self.harness.clone(), self.closing.clone(), self.ended.clone());
        self.tasks.spawn(async move {
            let done = AssertUnwindSafe(wake(&harness, id, closing)).catch_unwind().await;
            let end = match done {
                Ok(Ok(())) => End::Well,
                Ok(Err(WakeError::Busy | WakeError::Lease(LeaseError::Woken | LeaseError::Dead))) => {
                    End::Elsewhere
                }
                Ok(Err(error)) => {
                    tracing::warn!(session.id = %id, error = %chain(&error), "the work on a session stopped, and is tried again");
                    End::Badly
                }
                Err(_) => End::Badly,
            };
            // The pool outlives its wakers.
            let _ = ended.send((id, end));
        });
    }

    fn took_its_end(&mut self, id: SessionId, end: &End) {
        self.awake -= 1;
        let failures = self.failed.get(&id).map_or(0, |(failures, _)| *failures);
        match end {
            End::Well => drop(self.failed.remove(&id)),
            End::Elsewhere => drop(self.failed.insert(id, (failures, Instant::now() + PAUSE))),
            End::Badly => {
                let pause = PAUSE.saturating_mul(2_u32.saturating_pow(failures)).min(PAUSE_MAX);
                self.failed.insert(id, (failures.saturating_add(1), Instant::now() + pause));
            }
        }
    }
}
