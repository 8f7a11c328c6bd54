//! Who works on a session: one at a time, over all processes.
//!
//! **Invariant:** whoever takes the lease on a session raises its epoch, and whatever the one before still wants to
//! write of it is refused. It is taken from the dead, from nobody and from this very process, never from another that
//! lives.

use sqlx::Row as _;

use super::{LeaseError, Leases};
use crate::database::DatabaseError;
use crate::session::{Held, SessionId};

impl Leases {
    /// Takes the lease on a session.
    pub async fn take_session(&self, session: SessionId) -> Result<Held, LeaseError> {
        let (subject, me) = (format!("session/{session}"), self.me().to_string());
        let key = subject.clone();
        let epoch = self
            .database
            .write(move |connection| {
                Box::pin(async move {
                    let mine = sqlx::query("select 1 from node where id = $1 and status = 'alive'")
                        .bind(me.clone())
                        .fetch_optional(&mut *connection)
                        .await
                        .map_err(DatabaseError::from)?;
                    if mine.is_none() {
                        return Err(LeaseError::Dead);
                    }
                    let row = sqlx::query(
                        "insert into lease (subject, node, epoch) values ($1, $2, 1)
                         on conflict (subject) do update set node = excluded.node, epoch = lease.epoch + 1
                         where lease.node = excluded.node
                             or lease.node not in (select id from node where status = 'alive')
                         returning epoch",
                    )
                    .bind(key)
                    .bind(me)
                    .fetch_optional(connection)
                    .await
                    .map_err(DatabaseError::from)?;
                    let Some(row) = row else { return Err(LeaseError::Woken) };
                    Ok(row.try_get::<i64, _>("epoch").map_err(DatabaseError::from)?)
                })
            })
            .await?;
        Ok(Held { subject, epoch })
    }

    /// Lets go of a session, so that anybody may work on it at once.
    pub async fn free_session(&self, held: Held) -> Result<(), LeaseError> {
        self.database
            .write(move |connection| {
                Box::pin(async move {
                    sqlx::query("update lease set node = '' where subject = $1 and epoch = $2")
                        .bind(held.subject)
                        .bind(held.epoch)
                        .execute(connection)
                        .await?;
                    Ok::<_, DatabaseError>(())
                })
            })
            .await?;
        Ok(())
    }
}
