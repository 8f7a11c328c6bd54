//! Sessions in which the built-in loop has something to do: an index of the log, kept by its appends, so that nobody
//! looks through all sessions for the few that are not asleep.

use super::row::{NewRow, Wakes};
use super::{Seq, SessionError, SessionId, SessionInfo, Sessions, info};
use crate::database::{DatabaseError, Statement, Subscription};

/// What the signal is called that a session has woken.
pub(super) const TOPIC: &str = "awake";
/// Most sessions that one look finds.
const LOOK_MAX: i64 = 256;

/// For the script of an append. `place` is where session `$1` then ends.
pub(super) fn put(session: &str, place: &str, rows: &[NewRow]) -> Statement {
    let in_any_case = i64::from(rows.iter().any(|row| row.wakes == Wakes::Loop));
    let text = format!(
        "insert into awake (session, seq) select cast($1 as text), {place}
         where cast($2 as bigint) = 1
             or exists (select 1 from event where session = $1 and type = 'session.status_running')
         on conflict (session) do update set seq = excluded.seq"
    );
    Statement::new(text).bind(session).bind(in_any_case)
}

impl Sessions {
    /// Sessions that are awake and that no living process works on, but perhaps `me`: at most 256 behind one, by their ids.
    pub async fn awake(&self, me: &str, behind: Option<SessionId>) -> Result<Vec<SessionId>, SessionError> {
        let awake: Vec<String> = sqlx::query_scalar(
            "select a.session from awake a
             join session s on s.id = a.session and s.status = 'active'
             left join lease l on l.subject = 'session/' || a.session
             where a.session > $2
                 and (l.node is null or l.node = $1 or l.node not in (select id from node where status = 'alive'))
             order by a.session limit $3",
        )
        .bind(me.to_owned())
        .bind(behind.map(|id| id.to_string()).unwrap_or_default())
        .bind(LOOK_MAX)
        .fetch_all(self.database.reader())
        .await
        .map_err(DatabaseError::from)?;
        Ok(awake.iter().filter_map(|id| id.parse().ok()).collect())
    }

    /// Nothing up to `through` gives the loop anything to do any more.
    pub async fn fell_asleep(&self, id: SessionId, through: Seq) -> Result<(), SessionError> {
        self.database
            .write(move |connection| {
                Box::pin(async move {
                    sqlx::query("delete from awake where session = $1 and seq <= $2")
                        .bind(id.to_string())
                        .bind(through.0)
                        .execute(connection)
                        .await?;
                    Ok::<_, DatabaseError>(())
                })
            })
            .await?;
        Ok(())
    }

    /// Fires whenever a session may have woken.
    pub fn wakings(&self) -> Subscription {
        let mut subscription = self.database.signals().subscribe();
        subscription.add(TOPIC);
        subscription
    }

    /// A session, whoever's: for the gateway's own work on it, never for an asker.
    pub async fn of_anybody(&self, id: SessionId) -> Result<SessionInfo, SessionError> {
        let row = sqlx::query("select * from session where id = $1 and status <> 'deleting'")
            .bind(id.to_string())
            .fetch_optional(self.database.reader())
            .await
            .map_err(DatabaseError::from)?;
        row.as_ref().map_or(Err(SessionError::NoSession), |row| Ok(info(row)?))
    }
}
