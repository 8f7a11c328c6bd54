//! What changed, for a face that tells its clients: sessions that grew, and a principal's list of sessions.

use std::collections::HashMap;

use super::sql::topic;
use super::{Seq, SessionError, SessionId, Sessions, list_topic};
use crate::access::Principal;
use crate::database::{Database, DatabaseError, Subscription};

/// Something changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A session was appended to, and ends here, or further on by now.
    Appended(SessionId, Seq),
    /// A session is gone.
    Deleted(SessionId),
    /// A session of the principal was made, archived or deleted.
    List,
}

/// Waits for changes. Changes that nobody has taken yet are kept one a session: a slow taker misses places, but
/// never the last.
#[derive(Debug)]
pub struct Changes {
    database: Database,
    subscription: Subscription,
    list: String,
    watched: HashMap<String, SessionId>,
    /// Taken, and not yet looked at to the end.
    pending: Option<SessionId>,
}

impl Sessions {
    /// Changes of `principal`'s list of sessions, and of the sessions that are then [`Changes::watch`]ed.
    pub fn changes(&self, principal: &Principal) -> Changes {
        let mut subscription = self.database.signals().subscribe();
        let list = list_topic(principal);
        subscription.add(&list);
        Changes {
            database: self.database.clone(),
            subscription,
            list,
            watched: HashMap::new(),
            pending: None,
        }
    }
}

impl Changes {
    /// Waits for this session too, from now on. Whose it is was asked by whoever found it.
    pub fn watch(&mut self, id: SessionId) {
        self.subscription.add(&topic(id));
        self.watched.insert(topic(id), id);
    }

    /// No longer waits for this session.
    pub fn unwatch(&mut self, id: SessionId) {
        self.subscription.remove(&topic(id));
        self.watched.remove(&topic(id));
    }

    /// No longer waits for sessions other than these.
    pub fn keep(&mut self, ids: &[SessionId]) {
        let others: Vec<_> = self.watched.values().filter(|id| !ids.contains(id)).copied().collect();
        for id in others {
            self.unwatch(id);
        }
    }

    /// How many sessions it waits for.
    pub fn watched(&self) -> usize {
        self.watched.len()
    }

    /// The next change. Neither dropping the wait nor an error loses it: the next wait looks again.
    pub async fn next(&mut self) -> Result<Change, SessionError> {
        loop {
            if let Some(id) = self.pending {
                let change = self.reached(id).await?;
                self.pending = None;
                return Ok(change);
            }
            let (changed, _) = self.subscription.changed().await;
            if *changed == *self.list {
                return Ok(Change::List);
            }
            self.pending = self.watched.get(&*changed).copied();
        }
    }

    async fn reached(&self, id: SessionId) -> Result<Change, SessionError> {
        let last: Option<i64> =
            sqlx::query_scalar("select last_seq from session where id = $1 and status <> 'deleting'")
                .bind(id.to_string())
                .fetch_optional(self.database.reader())
                .await
                .map_err(DatabaseError::from)?;
        Ok(last.map_or(Change::Deleted(id), |last| Change::Appended(id, Seq(last))))
    }
}
