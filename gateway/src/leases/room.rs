//! Room for one more instance: what one principal may have alive at a time, and what goes when that is not enough.
//!
//! Only what takes up room of this machine counts: a connection to a server elsewhere, or to one that many sessions
//! share, costs next to nothing.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::instance::Slot;
use super::{LeaseError, Leases};
use crate::access::Principal;
use crate::hand::Weight;
use crate::registry::Registered;
use crate::session::SessionId;

/// How often room is looked for while others are faster.
const LOOKS_MAX: usize = 64;

/// What came of making room.
enum Room {
    Made,
    /// Instances were idle, and each was released for somebody else, or a call came to it.
    TakenByOthers,
    /// No instance is idle.
    None,
}

impl Leases {
    /// The slot of a hand in a session, and the one that was in its place. When the principal has as many instances as
    /// it may, the one that no call has used for longest is released for it.
    pub(super) async fn slot_with_room(
        &self,
        session: SessionId,
        principal: &Principal,
        hand: &Arc<Registered>,
    ) -> Result<(Arc<Slot>, Option<Arc<Slot>>), LeaseError> {
        for _ in 0..LOOKS_MAX {
            match self.slot_or_new(session, principal, hand) {
                Err(LeaseError::TooMany { limit }) => match self.release_longest_idle(principal).await {
                    Room::Made => {}
                    Room::TakenByOthers => tokio::task::yield_now().await,
                    Room::None => return Err(LeaseError::TooMany { limit }),
                },
                found => return found,
            }
        }
        self.slot_or_new(session, principal, hand)
    }

    async fn release_longest_idle(&self, principal: &Principal) -> Room {
        // A slot counts for as long as somebody holds it: here only the one that is being released.
        let mut idle: Vec<(Duration, Weak<Slot>)> = self
            .all()
            .iter()
            .filter(|slot| takes_room(slot) && slot.principal == *principal)
            .filter_map(|slot| Some((slot.idle()?, Arc::downgrade(slot))))
            .collect();
        idle.sort_by_key(|(idle, _)| std::cmp::Reverse(*idle));
        let none = if idle.is_empty() { Room::None } else { Room::TakenByOthers };
        for (_, slot) in idle {
            let Some(slot) = slot.upgrade() else { continue };
            match slot.release(self, Duration::ZERO).await {
                Ok(true) => {
                    tracing::info!(session.id = %slot.session, hand.name = %slot.hand.name, "an idle instance makes room for another");
                    return Room::Made;
                }
                // A call came, or somebody else was faster.
                Ok(false) | Err(LeaseError::Busy(_)) => {}
                Err(error) => {
                    tracing::warn!(session.id = %slot.session, hand.name = %slot.hand.name, error = %error, "an idle instance could not be released");
                }
            }
        }
        none
    }

    /// The slot, and the one that was in its place.
    fn slot_or_new(
        &self,
        session: SessionId,
        principal: &Principal,
        hand: &Arc<Registered>,
    ) -> Result<(Arc<Slot>, Option<Arc<Slot>>), LeaseError> {
        let mut slots = self.slots();
        // A slot that holds nothing and that nobody waits for is only memory.
        slots.retain(|_, slot| slot.is_live() || Arc::strong_count(slot) > 1);
        let key = (session, hand.name.clone());
        if let Some(slot) = slots.get(&key).filter(|slot| Arc::ptr_eq(&slot.hand, hand)) {
            return Ok((slot.clone(), None));
        }
        if hand.config.weight() == Weight::Own {
            let others = slots
                .iter()
                .filter(|(other, slot)| **other != key && slot.principal == *principal && takes_room(slot));
            if others.count() >= self.instances_max {
                return Err(LeaseError::TooMany { limit: self.instances_max });
            }
        }
        let slot = Arc::new(Slot::new(session, principal.clone(), hand.clone()));
        let replaced = slots.insert(key, slot.clone());
        Ok((slot, replaced))
    }
}

fn takes_room(slot: &Slot) -> bool {
    slot.hand.config.weight() == Weight::Own
}
