//! Deleting a session: first it is marked, and with that gone for everybody; then its rows go in small batches
//! between other people's writes; its own row goes last. What a crash interrupts, the next start finishes.

use std::sync::Arc;

use super::sql;
use super::{Seq, SessionError, SessionId, SessionInfo, Sessions, list_topic, refuse_while_running};
use crate::database::{self, Database, DatabaseError};

/// Rows of events that go in one transaction.
const EVENTS_AT_ONCE: i64 = 500;
/// Bytes of events after which no more go in one transaction: others' appends wait for it.
const BYTES_AT_ONCE: i64 = 8 << 20;
/// Chunks of outputs, of 256 KiB each, that go in one transaction.
const CHUNKS_AT_ONCE: i64 = 16;

impl Sessions {
    /// Deletes a session with its events and outputs. Not while a call of it is open. Its name is free at once.
    pub async fn delete(&self, session: &SessionInfo) -> Result<(), SessionError> {
        self.mark_deleting(session).await?;
        Ok(remove(&self.database, session.id).await?)
    }

    /// Finishes the deletions that an earlier process began. Returns how many there were.
    pub async fn finish_deletions(&self) -> Result<usize, SessionError> {
        let begun: Vec<String> = sqlx::query_scalar("select id from session where status = 'deleting'")
            .fetch_all(self.database.reader())
            .await
            .map_err(DatabaseError::from)?;
        let begun: Vec<SessionId> = begun.iter().filter_map(|id| id.parse().ok()).collect();
        for id in &begun {
            remove(&self.database, *id).await?;
        }
        Ok(begun.len())
    }

    async fn mark_deleting(&self, session: &SessionInfo) -> Result<(), SessionError> {
        let (id, list) = (session.id, list_topic(&session.principal));
        let dialect = self.database.dialect();
        let signals = Arc::clone(self.database.signals());
        let told = list.clone();
        let marking = self.database.write_then(
            move |connection| {
                Box::pin(async move {
                    let marked = sqlx::query(
                        "update session set status = 'deleting', name = null
                         where id = $1 and status <> 'deleting' returning last_seq",
                    )
                    .bind(id.to_string())
                    .fetch_optional(&mut *connection)
                    .await
                    .map_err(DatabaseError::from)?;
                    let Some(row) = marked else { return Err(SessionError::NoSession) };
                    refuse_while_running(connection, id).await?;
                    let end = super::column::<i64>(&row, "last_seq")?;
                    for (topic, reached) in [(sql::topic(id), end), (told, 0)] {
                        let notified = database::notify(connection, dialect, &topic, reached).await;
                        notified.map_err(DatabaseError::from)?;
                    }
                    Ok(Seq(end))
                })
            },
            move |end: &Seq| {
                sql::publish(&signals, id, *end);
                signals.publish(&list, 0);
            },
        );
        marking.await.map(|_| ())
    }
}

/// Removes what a marked session left, its row last.
async fn remove(database: &Database, id: SessionId) -> Result<(), DatabaseError> {
    let events = "delete from event where session = $1 and seq in
        (select seq from (select seq, size, sum(size) over (order by seq) as upto from
            (select seq, size from event where session = $1 order by seq limit $2) first) few
         where upto - size < $3)";
    let outputs = "delete from output where session = $1 and (id, n) in
        (select id, n from output where session = $1 order by id, n limit $2)";
    let batches: [(_, &[i64]); 2] =
        [(events, &[EVENTS_AT_ONCE, BYTES_AT_ONCE]), (outputs, &[CHUNKS_AT_ONCE])];
    for (text, at_once) in batches {
        while remove_batch(database, id, text, at_once).await? > 0 {}
    }
    let removed = database
        .write(move |connection| {
            Box::pin(async move {
                // What was stored while the batches went, goes with the row.
                for text in [
                    "delete from output where session = $1",
                    "delete from open_call where session = $1",
                    "delete from snapshot where session = $1",
                    "delete from awake where session = $1",
                    "delete from lease where subject = 'session/' || $1 or subject like 'hand/' || $1 || '/%'",
                    "delete from session where id = $1 and status = 'deleting'",
                ] {
                    sqlx::query(text).bind(id.to_string()).execute(&mut *connection).await?;
                }
                Ok::<_, DatabaseError>(())
            })
        })
        .await;
    database.freed();
    removed
}

async fn remove_batch(
    database: &Database,
    id: SessionId,
    text: &'static str,
    at_once: &'static [i64],
) -> Result<u64, DatabaseError> {
    database
        .write(move |connection| {
            Box::pin(async move {
                let query = sqlx::query(text).bind(id.to_string());
                let query = at_once.iter().fold(query, |query, at_once| query.bind(*at_once));
                Ok::<_, DatabaseError>(query.execute(connection).await?.rows_affected())
            })
        })
        .await
}
