//! A lease that was taken over writes nothing any more.

use std::time::Duration;

use anyhow::{Result, ensure};
use gateway::database::{Database, DatabaseError};
use gateway::session::{At, EventLog, Held, LogError, SessionId};

use super::{Store, ensure_holds, ensure_refused, on_both, said};

on_both!(what_is_not_held_is_fenced, every_named_lease_counts, a_take_over_that_races_fences);

fn of_session(id: SessionId, epoch: i64) -> Held {
    Held { subject: format!("session/{id}"), epoch }
}

fn of_hand(id: SessionId, epoch: i64) -> Held {
    Held { subject: format!("hand/{id}/sandbox"), epoch }
}

async fn take(database: &Database, subject: &str) -> Result<i64, DatabaseError> {
    let subject = subject.to_owned();
    database
        .write(move |connection| {
            Box::pin(async move {
                let epoch = sqlx::query_scalar(
                    "insert into lease (subject, node, epoch) values ($1, 'node', 1)
                     on conflict (subject) do update set epoch = lease.epoch + 1 returning epoch",
                )
                .bind(subject)
                .fetch_one(connection)
                .await?;
                Ok(epoch)
            })
        })
        .await
}

pub(super) async fn what_is_not_held_is_fenced(store: &Store) -> Result<()> {
    for lease in [of_session, of_hand] {
        let id = store.session().await?.id;
        let held = |epoch| At::Held(vec![lease(id, epoch)]);
        let refused = store.log.append(id, held(1), &[said("never held")]).await;
        ensure_refused(&refused, |error| matches!(error, LogError::Fenced(_)))?;
        take(&store.database, &lease(id, 0).subject).await?;
        let mine = said("mine");
        store.log.append(id, held(1), std::slice::from_ref(&mine)).await?;
        take(&store.database, &lease(id, 0).subject).await?;
        let refused = store.log.append(id, held(1), &[said("taken over")]).await;
        ensure_refused(&refused, |error| matches!(error, LogError::Fenced(_)))?;
        let theirs = said("theirs");
        store.log.append(id, held(2), std::slice::from_ref(&theirs)).await?;
        ensure_holds(store, id, &[mine.id, theirs.id]).await?;
    }
    Ok(())
}

async fn every_named_lease_counts(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    let (session, hand) = (of_session(id, 1), of_hand(id, 1));
    take(&store.database, &session.subject).await?;
    take(&store.database, &hand.subject).await?;
    let both = At::Held(vec![session.clone(), hand.clone()]);
    let mine = said("mine");
    store.log.append(id, both.clone(), std::slice::from_ref(&mine)).await?;
    take(&store.database, &hand.subject).await?;
    let refused = store.log.append(id, both, &[said("taken over")]).await;
    ensure!(matches!(&refused, Err(LogError::Fenced(subject)) if *subject == hand.subject), "{refused:?}");
    ensure_holds(store, id, &[mine.id]).await
}

/// While a take-over is not yet committed, an append that names the lease can't be: it waits, and is fenced.
pub(super) async fn a_take_over_that_races_fences(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    let lease = of_session(id, 1);
    take(&store.database, &lease.subject).await?;
    let (tell, told) = tokio::sync::watch::channel(());
    let subject = lease.subject.clone();
    let slow = store.database.write(move |connection| {
        Box::pin(async move {
            sqlx::query("update lease set epoch = epoch + 1 where subject = $1")
                .bind(subject)
                .execute(connection)
                .await?;
            tell.send(()).ok();
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok::<_, DatabaseError>(())
        })
    });
    let append = async {
        let mut told = told;
        told.changed().await.ok();
        store.log.append(id, At::Held(vec![lease]), &[said("too late")]).await
    };
    let (taken, refused) = tokio::join!(slow, append);
    taken?;
    ensure_refused(&refused, |error| matches!(error, LogError::Fenced(_)))?;
    ensure_holds(store, id, &[]).await
}
