//! What a dead process left behind: its calls get their outcome, its instances end.
//!
//! **Invariant:** a call that was started is never run again. When nobody can tell whether it ran, its outcome
//! says so. All of this may be done by several processes at once, and again after a crash: the database accepts
//! one outcome a call.

use std::collections::BTreeMap;
use std::time::Duration;

use hands::{Hand, HandError, InstanceId};
use sqlx::Row as _;

use super::take::{delete_row, fence};
use super::{LeaseError, Leases};
use crate::database::DatabaseError;
use crate::session::{At, Body, By, CallOutcome, EventId, LogError, NewEvent, SessionId, Via, Work};

/// How long ending what one hand left behind may take.
const REAP_MAX: Duration = Duration::from_secs(20);
/// The outcome of a call whose process died under it.
const UNKNOWN: &str = "The gateway process that ran this call is gone. The call was started, and nobody can tell \
     whether it had its effect: it was not run again. Look before you repeat it.";
/// The outcome of a call whose process died before it.
const NEVER_RAN: &str =
    "The gateway process that took this call is gone. The call did not run: you may repeat it.";

struct Open {
    session: String,
    principal: String,
    tool_use_id: String,
    started: bool,
}

impl Leases {
    /// Settles the open calls of every process that is not alive.
    pub async fn settle(&self) -> Result<(), LeaseError> {
        for open in self.abandoned_calls().await? {
            let (Ok(session), Ok(tool_use_id)) = (open.session.parse(), open.tool_use_id.parse()) else {
                tracing::error!(session.id = open.session, "an open call has an id that can't be read");
                continue;
            };
            let how = if open.started {
                (UNKNOWN, CallOutcome::Unknown)
            } else {
                (NEVER_RAN, CallOutcome::Cancelled)
            };
            let event = NewEvent::of(gateway(&open.principal), &outcome(tool_use_id, how));
            match self.log.append(session, At::End, &[event]).await {
                Ok(_) => {}
                // Settled by somebody else, or nothing can be written there any more.
                Err(LogError::Settled | LogError::NoSession | LogError::Archived) => {
                    self.drop_open(&open).await?;
                }
                Err(error @ LogError::Database(_)) => return Err(error.into()),
                // One session that can't be written to is in the way of no other.
                Err(error) => {
                    tracing::error!(session.id = %session, error = %error, "a dead process's call could not be settled");
                }
            }
        }
        Ok(())
    }

    /// Ends the instances that earlier starts of this data directory left on this machine, and writes that
    /// those of other dead processes are out of reach.
    pub async fn reap(&self) -> Result<(), LeaseError> {
        let mut ours: BTreeMap<(String, String), Vec<InstanceId>> = BTreeMap::new();
        for row in self.orphans().await? {
            let (id, hand): (String, String) = (column(&row, "id")?, column(&row, "hand")?);
            let (session, home): (String, String) = (column(&row, "session")?, column(&row, "home")?);
            let lost: i64 = column(&row, "lost")?;
            let here = home == self.nodes.home();
            if lost == 0 {
                fence(self, format!("hand/{session}/{hand}"), column(&row, "node")?).await?;
                let principal: String = column(&row, "principal")?;
                self.write_lost(
                    &session,
                    &principal,
                    hand.clone(),
                    &id,
                    if here { Work::Kept } else { Work::Gone },
                )
                .await?;
            }
            if here {
                ours.entry((column(&row, "kind")?, hand)).or_default().push(InstanceId(id));
            }
        }
        for ((kind, name), instances) in ours {
            if let Some(hand) = self.registry.reaper(&kind, &name)
                && let Err(error) = reaped(&*hand, &instances).await
            {
                // They are dead to the log, and are tried again: a process that can't be ended keeps nobody from work.
                tracing::error!(kind, error = %error, "instances of an earlier start could not be ended");
                continue;
            }
            for id in instances {
                delete_row(self, &id).await?;
            }
        }
        Ok(())
    }

    /// Ends the servers that dead processes left on this machine and that belong to no instance alone: those that many
    /// share, and those that were only looked at.
    pub async fn reap_shared(&self) {
        if let Some(hand) = self.registry.reaper("mcp", "")
            && let Err(error) = hand.reap(&[]).await
        {
            tracing::error!(error = %error, "servers of an earlier start could not be ended");
        }
    }

    async fn abandoned_calls(&self) -> Result<Vec<Open>, DatabaseError> {
        let rows = sqlx::query(
            "select c.session, c.tool_use_id, c.started, s.principal from open_call c
             join session s on s.id = c.session
             where c.node not in (select id from node where status = 'alive')
             order by c.session, c.tool_use_id",
        )
        .fetch_all(self.database.reader())
        .await?;
        rows.iter()
            .map(|row| {
                Ok(Open {
                    session: column(row, "session")?,
                    principal: column(row, "principal")?,
                    tool_use_id: column(row, "tool_use_id")?,
                    started: column::<i64>(row, "started")? != 0,
                })
            })
            .collect()
    }

    async fn orphans(&self) -> Result<Vec<sqlx::any::AnyRow>, DatabaseError> {
        let rows = sqlx::query(
            "select i.id, i.session, i.hand, i.kind, i.lost, i.node, n.home, coalesce(s.principal, '') as principal
             from instance i join node n on n.id = i.node left join session s on s.id = i.session
             where n.status <> 'alive' and (i.lost = 0 or n.home = $1)
             order by i.session, i.hand",
        )
        .bind(self.nodes.home().to_owned())
        .fetch_all(self.database.reader())
        .await?;
        Ok(rows)
    }

    async fn write_lost(
        &self,
        session: &str,
        principal: &str,
        hand: String,
        id: &str,
        work: Work,
    ) -> Result<(), LeaseError> {
        let Ok(session) = session.parse::<SessionId>() else { return self.mark_lost(id).await };
        let event = NewEvent::of(gateway(principal), &Body::HandLost { hand, instance: id.to_owned(), work });
        match self.log.append(session, At::End, &[event]).await {
            // The log marks the row in the same transaction.
            Ok(_) | Err(LogError::InstanceGone) => Ok(()),
            Err(LogError::NoSession | LogError::Archived) => self.mark_lost(id).await,
            Err(error) => Err(error.into()),
        }
    }

    /// For what no log can be told.
    async fn mark_lost(&self, id: &str) -> Result<(), LeaseError> {
        let id = id.to_owned();
        self.database
            .write(move |connection| {
                Box::pin(async move {
                    sqlx::query("update instance set lost = 1 where id = $1")
                        .bind(id)
                        .execute(&mut *connection)
                        .await?;
                    Ok::<_, DatabaseError>(())
                })
            })
            .await?;
        Ok(())
    }

    async fn drop_open(&self, open: &Open) -> Result<(), DatabaseError> {
        let (session, tool_use_id) = (open.session.clone(), open.tool_use_id.clone());
        self.database
            .write(move |connection| {
                Box::pin(async move {
                    sqlx::query("delete from open_call where session = $1 and tool_use_id = $2")
                        .bind(session)
                        .bind(tool_use_id)
                        .execute(&mut *connection)
                        .await?;
                    Ok::<_, DatabaseError>(())
                })
            })
            .await
    }
}

/// A machine that does not answer keeps nobody from starting.
async fn reaped(hand: &dyn Hand, instances: &[InstanceId]) -> Result<(), HandError> {
    tokio::time::timeout(REAP_MAX, hand.reap(instances)).await.unwrap_or_else(|_| {
        Err(HandError::Io {
            doing: "ending what an earlier start left",
            source: std::io::ErrorKind::TimedOut.into(),
        })
    })
}

fn outcome(tool_use_id: EventId, (text, outcome): (&str, CallOutcome)) -> Body {
    Body::ToolResult {
        tool_use_id,
        content: vec![serde_json::json!({"type": "text", "text": text})],
        output: None,
        rest: Box::default(),
        is_error: true,
        outcome,
    }
}

fn gateway(principal: &str) -> By {
    By { principal: principal.to_owned(), client: None, via: Via::Gateway }
}

fn column<'r, T>(row: &'r sqlx::any::AnyRow, name: &str) -> Result<T, DatabaseError>
where
    T: sqlx::Decode<'r, sqlx::Any> + sqlx::Type<sqlx::Any>,
{
    Ok(row.try_get(name)?)
}
