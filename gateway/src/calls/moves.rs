//! Moving a hand, which waits for no call, or ends those that run in it.

use std::time::Duration;

use futures_util::future::join_all;

use super::{Calls, News, Ticket};
use crate::hand::HandName;
use crate::leases::{LeaseError, Move, Moved};
use crate::session::SessionId;

/// How long cancelled calls may take to end. A call that ignores everything takes the five seconds after which its whole
/// instance is ended.
const CANCEL_MAX: Duration = Duration::from_secs(15);
/// How often calls are cancelled that began while others ended.
const CANCEL_TRIES: usize = 3;

/// What becomes of calls that run in a hand that is to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Running {
    /// They are in the way.
    Stay,
    /// They are cancelled.
    Cancelled,
}

impl Calls {
    /// Moves the live instance of a hand from one session to another of the same principal.
    pub async fn move_hand(&self, moving: &Move, running: Running) -> Result<Moved, LeaseError> {
        let mut moved = self.0.leases.hand_over(&self.0.sessions, moving).await;
        for _ in 0..CANCEL_TRIES {
            if running == Running::Stay || !matches!(moved, Err(LeaseError::Busy(_))) {
                return moved;
            }
            let ends = self.cancel(moving.from.id, &moving.hand.name).into_iter().map(ended);
            if tokio::time::timeout(CANCEL_MAX, join_all(ends)).await.is_err() {
                return moved;
            }
            moved = self.0.leases.hand_over(&self.0.sessions, moving).await;
        }
        moved
    }

    /// Cancels what runs in the hand of a session.
    fn cancel(&self, session: SessionId, hand: &HandName) -> Vec<Ticket> {
        let table = self.0.table();
        let of = table.running.iter().filter(|one| one.ask.session == session && one.ask.hand.name == *hand);
        of.map(|one| {
            one.line.cancel.cancel();
            Ticket::join(&one.line)
        })
        .collect()
    }
}

async fn ended(mut ticket: Ticket) {
    while !matches!(ticket.next().await, News::Ended(_)) {}
}
