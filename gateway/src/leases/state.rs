//! The state of an instance, kept by name and brought back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hands::NoProgress;

use super::{LeaseError, Leases};
use crate::registry::Registered;
use crate::session::{At, Body, By, NewEvent, SLICE_EVENTS_MAX, Seq, SessionInfo, Slice};

/// Most states of one hand that a session keeps by name: each takes as much of a disk as the work that it keeps.
const STATES_MAX: usize = 16;
/// How long keeping a state or bringing it back may take.
const STATE_MAX: Duration = Duration::from_mins(10);

/// What is done with a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeping {
    /// It is kept.
    Checkpoint,
    /// It is brought back.
    Restore,
}

/// Whether the text can name a state: `[a-z0-9][a-z0-9-]{0,31}`.
fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=32).contains(&name.len()) && !name.starts_with('-') && name.chars().all(plain)
}

impl Leases {
    /// Keeps the state of the session's instance as `name`, or brings it back, and says so in the log. Provisions an
    /// instance when there is none. Busy while a call runs in it.
    ///
    /// To be called on a task of its own: half of it is worth nothing.
    pub async fn keep(
        self: &Arc<Self>,
        session: &SessionInfo,
        hand: &Arc<Registered>,
        name: &str,
        by: &By,
        keeping: Keeping,
    ) -> Result<(), LeaseError> {
        if !is_name(name) {
            return Err(LeaseError::BadState);
        }
        let Some(states) = hand.hand.checkpoints() else {
            return Err(LeaseError::NoStates(hand.name.clone()));
        };
        if keeping == Keeping::Checkpoint {
            self.database.check_disk()?;
            self.check_states(session, hand, name).await?;
        }
        let in_use = self.acquire(session.id, &session.principal, hand, Arc::new(NoProgress)).await?;
        if in_use.slot.running.load(Ordering::SeqCst) > 1 {
            return Err(LeaseError::Busy(hand.name.clone()));
        }
        let handle = &in_use.instance.handle;
        let work = async {
            match keeping {
                Keeping::Checkpoint => states.checkpoint(handle, name).await,
                Keeping::Restore => states.restore(handle, name).await,
            }
        };
        let limit_s = STATE_MAX.as_secs();
        let done = tokio::time::timeout(STATE_MAX, work).await;
        done.map_err(|_| LeaseError::Slow { hand: hand.name.clone(), limit_s })??;
        let (hand, instance, name) = (hand.name.to_string(), handle.instance.to_string(), name.to_owned());
        let body = match keeping {
            Keeping::Checkpoint => Body::HandCheckpointed { hand, instance, name },
            Keeping::Restore => Body::HandRestored { hand, instance, name },
        };
        let at = At::Held(vec![in_use.instance.held.clone()]);
        self.log.append(session.id, at, &[NewEvent::of(by.clone(), &body)]).await?;
        Ok(())
    }

    /// Refuses one name too many for the states of a session's hand, as its log has them.
    async fn check_states(
        &self,
        session: &SessionInfo,
        hand: &Registered,
        name: &str,
    ) -> Result<(), LeaseError> {
        let (mut names, mut after) = (BTreeSet::new(), Seq(0));
        loop {
            let types = vec!["hand.checkpointed".to_owned()];
            let slice =
                Slice { after: Some(after), limit: Some(SLICE_EVENTS_MAX), types, ..Slice::default() };
            let events = self.log.read(session.id, slice).await?;
            let Some(last) = events.last() else { break };
            after = last.seq;
            names.extend(events.iter().filter_map(|event| match event.known()? {
                Body::HandCheckpointed { hand: of, name, .. } if of == hand.name.as_str() => Some(name),
                _ => None,
            }));
        }
        if names.len() >= STATES_MAX && !names.contains(name) {
            return Err(LeaseError::TooManyStates { hand: hand.name.clone(), limit: STATES_MAX });
        }
        Ok(())
    }
}
