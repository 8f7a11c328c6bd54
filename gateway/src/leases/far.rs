//! Work that hands keep elsewhere than on this machine. A row of `far_work` says where there is some, from before it is made
//! until it is removed: what can't be removed now, because its host does not answer, is tried again with the next sweep
//! and the next start.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use sqlx::Row as _;

use super::{LeaseError, Leases};
use crate::database::DatabaseError;
use crate::hand::HandName;
use crate::session::SessionId;

/// How long the removal of one hand's work may take.
const REMOVE_MAX: Duration = Duration::from_mins(3);

/// Work of a session's hand.
struct Far {
    folder: String,
    hand: String,
}

/// Whether it has been removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    Done,
    Later,
}

impl Leases {
    /// Notes that a hand is about to keep work elsewhere for a session.
    pub(super) async fn note_far_work(
        &self,
        session: SessionId,
        hand: &HandName,
        folder: &str,
    ) -> Result<(), DatabaseError> {
        let (home, folder) = (self.nodes.home().to_owned(), folder.to_owned());
        let (session, hand) = (session.to_string(), hand.to_string());
        self.database
            .write(move |connection| {
                Box::pin(async move {
                    sqlx::query(
                        "insert into far_work (home, folder, session, hand) values ($1, $2, $3, $4)
                         on conflict (home, folder) do update set session = excluded.session",
                    )
                    .bind(home)
                    .bind(folder)
                    .bind(session)
                    .bind(hand)
                    .execute(connection)
                    .await?;
                    Ok::<_, DatabaseError>(())
                })
            })
            .await
    }

    /// Removes what the hands of a session that is gone keep elsewhere, as far as that can be done now.
    pub(super) async fn remove_far_work(&self, session: SessionId) -> Result<(), DatabaseError> {
        let rows = sqlx::query("select folder, hand from far_work where home = $1 and session = $2")
            .bind(self.nodes.home().to_owned())
            .bind(session.to_string())
            .fetch_all(self.database.reader())
            .await?;
        for row in rows {
            self.remove_far(Far { folder: row.try_get("folder")?, hand: row.try_get("hand")? }).await?;
        }
        Ok(())
    }

    /// The hands whose work elsewhere for this session is not removed yet.
    pub async fn far_work_left(&self, session: SessionId) -> Result<Vec<String>, DatabaseError> {
        let hands = sqlx::query_scalar(
            "select distinct hand from far_work where home = $1 and session = $2 order by hand",
        );
        let hands = hands.bind(self.nodes.home().to_owned()).bind(session.to_string());
        Ok(hands.fetch_all(self.database.reader()).await?)
    }

    /// Removes what the hands of all sessions keep elsewhere that are deleted, or were archived before `older_than`. A hand that does not answer is
    /// asked once.
    pub async fn sweep_far_work(&self, older_than: Timestamp) -> Result<(), DatabaseError> {
        let rows = sqlx::query(
            "select f.folder, f.hand, s.status, s.updated_at from far_work f
             left join session s on s.id = f.session where f.home = $1",
        )
        .bind(self.nodes.home().to_owned())
        .fetch_all(self.database.reader())
        .await?;
        let mut silent = BTreeSet::new();
        for row in rows {
            let hand: String = row.try_get("hand")?;
            let goes = match row.try_get::<Option<String>, _>("status")?.as_deref() {
                None | Some("deleting") => true,
                Some("archived") => row
                    .try_get::<String, _>("updated_at")?
                    .parse()
                    .is_ok_and(|archived: Timestamp| archived < older_than),
                Some(_) => false,
            };
            if goes && !silent.contains(&hand) {
                let far = Far { folder: row.try_get("folder")?, hand: hand.clone() };
                if self.remove_far(far).await? == Removal::Later {
                    silent.insert(hand);
                }
            }
        }
        Ok(())
    }

    async fn remove_far(&self, far: Far) -> Result<Removal, DatabaseError> {
        let Far { folder, hand } = far;
        let removed = match self.registry.get(&hand) {
            // It may be registered again.
            Err(error) => Err(LeaseError::from(error)),
            Ok(registered) => match registered.hand.far_work() {
                None => Ok(()),
                Some(work) => {
                    let limit_s = REMOVE_MAX.as_secs();
                    tokio::time::timeout(REMOVE_MAX, work.remove(&self.work.join(&folder)))
                        .await
                        .map_err(|_| LeaseError::Slow { hand: registered.name.clone(), limit_s })
                        .and_then(|removed| Ok(removed?))
                }
            },
        };
        if let Err(error) = removed {
            tracing::warn!(hand.name = hand, folder, error = %error, "a session's work elsewhere could not be removed, and is tried again later");
            return Ok(Removal::Later);
        }
        let home = self.nodes.home().to_owned();
        self.database
            .write(move |connection| {
                Box::pin(async move {
                    sqlx::query("delete from far_work where home = $1 and folder = $2")
                        .bind(home)
                        .bind(folder)
                        .execute(connection)
                        .await?;
                    Ok::<_, DatabaseError>(Removal::Done)
                })
            })
            .await
    }
}
