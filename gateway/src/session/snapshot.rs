//! What follows from a log, kept beside it: a cache, never a source.
//!
//! **Invariant:** a snapshot that is missing, foreign, of another format or ahead of the log changes nothing but the time
//! that reading takes.

use super::row::column;
use super::{EventLog, STATE_FORMAT, Seq, SessionError, SessionId, Sessions, Slice, State};
use crate::database::DatabaseError;

/// Largest snapshot that is kept, in bytes. A larger one would cost more than it saves.
const SNAPSHOT_BYTES_MAX: usize = 16 << 20;

impl Sessions {
    /// What follows from a session's log, up to its end at the time of asking.
    pub async fn state(&self, id: SessionId) -> Result<State, SessionError> {
        let mut state = self.kept_state(&self.log, id).await?;
        catch_up(&self.log, id, &mut state).await?;
        Ok(state)
    }

    /// What follows from the beginning of a session's log, as it was kept; from nothing when there is nothing of use.
    pub async fn kept_state(&self, log: &dyn EventLog, id: SessionId) -> Result<State, SessionError> {
        let row = sqlx::query("select seq, event, body from snapshot where session = $1 and format = $2")
            .bind(id.to_string())
            .bind(STATE_FORMAT)
            .fetch_optional(self.database.reader())
            .await
            .map_err(DatabaseError::from)?;
        let Some(row) = row else { return Ok(State::default()) };
        let (seq, event): (i64, String) = (column(&row, "seq")?, column(&row, "event")?);
        let Ok(kept) = serde_json::from_str::<State>(&column::<String>(&row, "body")?) else {
            return Ok(State::default());
        };
        let at = Slice { after: Some(Seq(seq.saturating_sub(1))), limit: Some(1), ..Slice::default() };
        let there = log.read(id, at).await?;
        let same = there.first().is_some_and(|there| there.seq.0 == seq && there.id.to_string() == event);
        Ok(if same && kept.seq == Seq(seq) { kept } else { State::default() })
    }

    /// Keeps a state for the next time.
    pub async fn keep_state(&self, id: SessionId, state: &State) -> Result<(), SessionError> {
        let (Some(last), Ok(body)) = (state.last, serde_json::to_string(state)) else { return Ok(()) };
        if body.len() > SNAPSHOT_BYTES_MAX {
            return Ok(());
        }
        let seq = state.seq.0;
        self.database
            .write(move |connection| {
                Box::pin(async move {
                    // Not beside a session that has been deleted meanwhile.
                    sqlx::query(
                        "insert into snapshot (session, seq, event, format, body)
                         select id, cast($2 as bigint), cast($3 as text), cast($4 as bigint), cast($5 as text)
                         from session where id = $1 and status = 'active'
                         on conflict (session) do update set seq = excluded.seq, event = excluded.event,
                             format = excluded.format, body = excluded.body",
                    )
                    .bind(id.to_string())
                    .bind(seq)
                    .bind(last.to_string())
                    .bind(STATE_FORMAT)
                    .bind(body)
                    .execute(connection)
                    .await?;
                    Ok::<_, DatabaseError>(())
                })
            })
            .await?;
        Ok(())
    }
}

/// Takes in what has been appended since.
pub(super) async fn catch_up(
    log: &dyn EventLog,
    id: SessionId,
    state: &mut State,
) -> Result<(), super::LogError> {
    loop {
        let behind =
            Slice { after: Some(state.seq), limit: Some(super::SLICE_EVENTS_MAX), ..Slice::default() };
        let events = log.read(id, behind).await?;
        if events.is_empty() {
            return Ok(());
        }
        state.replay(events);
    }
}
