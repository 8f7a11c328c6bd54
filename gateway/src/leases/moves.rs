//! A live instance goes from one session to another, with its state and its work.
//!
//! **Invariants:** the lease that the former holder's calls carry is worth nothing from the moment on in which both logs say
//! that the instance has moved. Whoever has it, has its work: the folder stays where it is, and the database says whose it
//! is now.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::instance::{Instance, Slot};
use super::take::{Handover, hand_over};
use super::{LeaseError, Leases, subject};
use crate::access::Principal;
use crate::registry::Registered;
use crate::session::{Body, By, Held, NewEvent, SessionId, SessionInfo, Sessions};

/// What is to move, and where to. The sessions are of one principal, which asked for both.
#[derive(Clone)]
pub struct Move {
    /// Who has it.
    pub from: SessionInfo,
    /// Who gets it.
    pub to: SessionInfo,
    /// Which hand.
    pub hand: Arc<Registered>,
    /// Who says so.
    pub by: By,
}

/// What has moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The instance.
    pub instance: String,
    /// Where earlier work of the receiving session's own stays, out of its sight until the hand moves on.
    pub kept_aside: Option<PathBuf>,
}

impl Leases {
    /// Moves the live instance of a hand. Busy while a call runs in it.
    pub async fn hand_over(&self, sessions: &Sessions, moving: &Move) -> Result<Moved, LeaseError> {
        let Move { from, to, hand, .. } = moving;
        let name = &hand.name;
        if !hand.config.movable() {
            return Err(LeaseError::Unmovable(name.clone()));
        }
        if from.id == to.id {
            return Err(LeaseError::SameSession);
        }
        let nothing = || LeaseError::NothingToMove(name.clone());
        let slot =
            self.slot(from.id, name).filter(|slot| Arc::ptr_eq(&slot.hand, hand)).ok_or_else(nothing)?;
        let place = self.place(to.id, &to.principal, hand)?;
        let busy = |_| LeaseError::Busy(name.clone());
        let (mut given, mut taken) =
            (slot.state.try_lock().map_err(busy)?, place.state.try_lock().map_err(busy)?);
        if slot.running.load(Ordering::SeqCst) > 0 {
            return Err(LeaseError::Busy(name.clone()));
        }
        let instance = given.as_ref().filter(|there| hand.hand.alive(&there.handle)).cloned();
        let instance = instance.ok_or_else(nothing)?;
        if taken.is_some() {
            return Err(LeaseError::HasOne(name.clone()));
        }
        let kept_aside = self.kept_aside(to.id, name).await?;
        let epoch = self.write_move(sessions, moving, &instance).await?;
        let held = Held { subject: subject(to.id, name), epoch };
        *taken = Some(Instance { held, ..instance.clone() });
        *given = None;
        slot.live.store(false, Ordering::SeqCst);
        place.live.store(true, Ordering::SeqCst);
        place.touch();
        let instance = instance.handle.instance.to_string();
        tracing::info!(hand.name = %name, instance, from = %from.id, to = %to.id, "a hand has moved");
        Ok(Moved { instance, kept_aside })
    }

    async fn write_move(
        &self,
        sessions: &Sessions,
        moving: &Move,
        instance: &Instance,
    ) -> Result<i64, LeaseError> {
        let Move { from, to, hand, by } = moving;
        let body = Body::HandMoved {
            hand: hand.name.to_string(),
            instance: instance.handle.instance.to_string(),
            node: instance.node.to_string(),
            from: from.id.to_string(),
            to: to.id.to_string(),
        };
        let event = || NewEvent::of(by.clone(), &body);
        let handover = Handover {
            held: instance.held.clone(),
            subject: subject(to.id, &hand.name),
            node: instance.node.to_string(),
            instance: instance.handle.instance.to_string(),
            from: from.id.to_string(),
            to: to.id.to_string(),
            hand: hand.name.clone(),
            home: self.nodes.home().to_owned(),
            folder: self.folder(from.id, &hand.name).await?,
        };
        sessions
            .append_both([(from.id, event()), (to.id, event())], move |connection| {
                Box::pin(hand_over(connection, handover))
            })
            .await
    }

    /// The slot that gets it. It takes the room that the other one leaves.
    fn place(
        &self,
        session: SessionId,
        principal: &Principal,
        hand: &Arc<Registered>,
    ) -> Result<Arc<Slot>, LeaseError> {
        let mut slots = self.slots();
        let key = (session, hand.name.clone());
        match slots.get(&key) {
            Some(slot) if Arc::ptr_eq(&slot.hand, hand) => Ok(slot.clone()),
            Some(slot) if slot.is_live() => Err(LeaseError::HasOne(hand.name.clone())),
            _ => {
                let slot = Arc::new(Slot::new(session, principal.clone(), hand.clone()));
                slots.insert(key, slot.clone());
                Ok(slot)
            }
        }
    }
}
