//! What two logs say at once.

use std::sync::Arc;

use super::{At, LogError, NewEvent, Seq, SessionId, Sessions, sql};
use crate::database::{self, Connection, DatabaseError, Dialect};

impl Sessions {
    /// Appends an event to each of two logs, after `before` and in the same transaction: all of it is there, or nothing.
    /// Asks nobody whose they are, and counts no bytes.
    pub async fn append_both<F, T, E>(&self, parts: [(SessionId, NewEvent); 2], before: F) -> Result<T, E>
    where
        F: for<'c> FnOnce(&'c mut Connection) -> database::Work<'c, T, E> + Clone + Send + 'static,
        T: Send + 'static,
        E: std::error::Error + From<DatabaseError> + From<LogError> + Send + 'static,
    {
        let mut parts = parts;
        // In one order everywhere, so that nobody waits in a circle.
        parts.sort_by_key(|(session, _)| *session);
        let [first, second] = parts;
        let batch = |(session, event): &(SessionId, NewEvent)| {
            self.log.batch(*session, At::End, std::slice::from_ref(event)).map(Arc::new)
        };
        let (one, other) = (batch(&first)?, batch(&second)?);
        let turns = match self.database.dialect() {
            Dialect::Sqlite => None,
            Dialect::Postgres => {
                Some((self.log.turns.wait(first.0).await, self.log.turns.wait(second.0).await))
            }
        };
        let signals = Arc::clone(self.database.signals());
        let ids = (first.0, second.0);
        let done = self
            .database
            .write_then(
                move |connection| {
                    Box::pin(async move {
                        let done = before(connection).await?;
                        let ends =
                            (one.append(&mut *connection).await?, other.append(&mut *connection).await?);
                        Ok::<_, E>((done, ends))
                    })
                },
                move |(_, ends): &(T, (Seq, Seq))| {
                    sql::publish(&signals, ids.0, ends.0);
                    sql::publish(&signals, ids.1, ends.1);
                },
            )
            .await?;
        drop(turns);
        Ok(done.0)
    }
}
