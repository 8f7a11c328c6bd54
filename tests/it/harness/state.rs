//! What is kept of a state beside its log is a cache and nothing else.

use anyhow::{Result, ensure};
use gateway::session::{Seq, SessionId, State};
use serde_json::json;

use crate::log::{Store, on_both, said};

on_both!(a_kept_state_saves_reading_and_nothing_else);

async fn replaced(
    store: &Store,
    id: SessionId,
    seq: i64,
    event: &str,
    format: i64,
    body: &str,
) -> Result<()> {
    let (event, body) = (event.to_owned(), body.to_owned());
    store
        .database
        .write(move |connection| {
            Box::pin(async move {
                sqlx::query(
                    "update snapshot set seq = $2, event = $3, format = $4, body = $5 where session = $1",
                )
                .bind(id.to_string())
                .bind(seq)
                .bind(event)
                .bind(format)
                .bind(body)
                .execute(connection)
                .await?;
                Ok::<_, gateway::database::DatabaseError>(())
            })
        })
        .await?;
    Ok(())
}

async fn a_kept_state_saves_reading_and_nothing_else(store: &Store) -> Result<()> {
    use gateway::session::{At, EventLog, STATE_FORMAT as OURS};

    let id = store.session().await?.id;
    for n in 0..5 {
        store.log.append(id, At::End, &[said(&n.to_string())]).await?;
    }
    let fresh = store.sessions.state(id).await?;
    ensure!(fresh.seq == Seq(6) && fresh.told.len() == 5, "{fresh:?}");
    ensure!(store.sessions.kept_state(&store.log, id).await? == State::default(), "nothing was kept yet");
    store.sessions.keep_state(id, &fresh).await?;
    ensure!(store.sessions.kept_state(&store.log, id).await? == fresh);
    store.log.append(id, At::End, &[said("more")]).await?;
    let grown = store.sessions.state(id).await?;
    ensure!(grown.told.len() == 6 && grown.seq == Seq(7));

    // Of another log, ahead of this one, of another form, of no form.
    let body = serde_json::to_string(&fresh)?;
    let own = fresh.last.map(|last| last.to_string()).unwrap_or_default();
    let other = "sevt_0197c0de000070008000000000000001";
    for (seq, event, format, body) in [
        (6, other, OURS, body.as_str()),
        (99, own.as_str(), OURS, &body),
        (5, own.as_str(), OURS, &body),
        (6, own.as_str(), OURS + 1, &body),
        (6, own.as_str(), OURS - 1, &body),
        (6, own.as_str(), OURS, "{}"),
        (6, own.as_str(), OURS, "nonsense"),
    ] {
        replaced(store, id, seq, event, format, body).await?;
        ensure!(
            store.sessions.kept_state(&store.log, id).await? == State::default(),
            "{seq} {event} {format} {body}"
        );
        ensure!(store.sessions.state(id).await? == grown);
    }
    // It goes with its session, and none is kept for one that is gone.
    let session = store.sessions.of_anybody(id).await?;
    store.sessions.delete(&session).await?;
    store.sessions.keep_state(id, &grown).await?;
    let left: i64 =
        sqlx::query_scalar("select count(*) from snapshot").fetch_one(store.database.reader()).await?;
    ensure!(left == 0, "{}", json!(left));
    Ok(())
}
