//! Following a log: everything once, in order, while others write.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures_util::StreamExt as _;
use gateway::database::{Database, Dialect};
use gateway::session::{At, Change, EventLog, LogError, Seq, SessionRef};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Store, by, on_both, owner, said, sessions};

on_both!(
    a_follower_sees_everything_once,
    a_follower_from_the_middle,
    a_follower_of_a_deleted_session_ends,
    topics_go_with_their_last_follower,
    changes_tell_of_appends_and_of_the_list,
    a_slow_subscriber_gets_the_last,
);

/// Longer than the poll of a follower whose signal got lost, times ten.
const PATIENCE: Duration = Duration::from_mins(1);

async fn a_follower_sees_everything_once(store: &Store) -> Result<()> {
    const WRITERS: usize = 16;
    const EACH: usize = 10;
    let id = store.session().await?.id;
    // Half of the writers, and one follower, are another process's on PostgreSQL.
    let other = match store.database.dialect() {
        Dialect::Postgres => sessions(&Database::open(store.config.clone()).await?),
        Dialect::Sqlite => store.sessions.clone(),
    };
    let mut followers = JoinSet::new();
    for log in [store.log.clone(), other.log().clone(), store.log.clone()] {
        followers.spawn(async move {
            let events = log.follow(id, Seq(0)).take(1 + WRITERS * EACH).collect::<Vec<_>>();
            timeout(PATIENCE, events).await
        });
    }
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let log = if writer % 2 == 0 { store.log.clone() } else { other.log().clone() };
        writers.spawn(async move {
            for n in 0..EACH {
                log.append(id, At::End, &[said(&n.to_string())]).await?;
            }
            Ok::<_, LogError>(())
        });
    }
    for written in writers.join_all().await {
        written?;
    }
    let whole = store.all(id).await?;
    for followed in followers.join_all().await {
        let followed = followed?.into_iter().collect::<Result<Vec<_>, _>>()?;
        ensure!(followed == whole, "a follower saw something else");
    }
    Ok(())
}

async fn a_follower_from_the_middle(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    store.log.append(id, At::End, &[said("2"), said("3"), said("4")]).await?;
    let mut follower = Box::pin(store.log.follow(id, Seq(2)));
    for place in 3..=4 {
        let event = timeout(PATIENCE, follower.next()).await?.context("it goes on")??;
        ensure!(event.seq == Seq(place));
    }
    ensure!(timeout(Duration::from_millis(200), follower.next()).await.is_err(), "nothing new yet");
    store.log.append(id, At::End, &[said("5")]).await?;
    let event = timeout(PATIENCE, follower.next()).await?.context("it goes on")??;
    ensure!(event.seq == Seq(5));
    Ok(())
}

async fn a_follower_of_a_deleted_session_ends(store: &Store) -> Result<()> {
    let session = store.session().await?;
    let mut follower = Box::pin(store.log.follow(session.id, Seq(1)));
    ensure!(timeout(Duration::from_millis(200), follower.next()).await.is_err());
    store.sessions.delete(&session).await?;
    let last = timeout(PATIENCE, follower.next()).await?.context("it says why")?;
    ensure!(matches!(last, Err(LogError::NoSession)), "{last:?}");
    ensure!(timeout(PATIENCE, follower.next()).await?.is_none());
    Ok(())
}

async fn topics_go_with_their_last_follower(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    ensure!(store.database.signals().topics() == 0);
    let (one, two) = (store.log.follow(id, Seq(0)), store.log.follow(id, Seq(0)));
    ensure!(store.database.signals().topics() == 1);
    drop(one);
    ensure!(store.database.signals().topics() == 1);
    drop(two);
    ensure!(store.database.signals().topics() == 0);
    Ok(())
}

async fn changes_tell_of_appends_and_of_the_list(store: &Store) -> Result<()> {
    let watched = store.session().await?;
    let not_watched = store.session().await?;
    let mut changes = store.sessions.changes(&owner());
    changes.watch(watched.id);
    store.log.append(not_watched.id, At::End, &[said("unheard")]).await?;
    store.log.append(watched.id, At::End, &[said("heard")]).await?;
    ensure!(timeout(PATIENCE, changes.next()).await?? == Change::Appended(watched.id, Seq(2)));

    let wanted: SessionRef = "made".parse()?;
    let made = store.sessions.open(&owner(), &wanted, &by()).await?;
    ensure!(next_of(&mut changes, Change::List).await?);
    store.sessions.archive(&made, &by(), At::End).await?;
    ensure!(next_of(&mut changes, Change::List).await?);
    store.sessions.delete(&watched).await?;
    let both = BTreeSet::from([
        format!("{:?}", timeout(PATIENCE, changes.next()).await??),
        format!("{:?}", timeout(PATIENCE, changes.next()).await??),
    ]);
    ensure!(both.contains(&format!("{:?}", Change::Deleted(watched.id))), "{both:?}");

    changes.unwatch(watched.id);
    changes.watch(not_watched.id);
    store.log.append(not_watched.id, At::End, &[said("heard")]).await?;
    ensure!(next_of(&mut changes, Change::Appended(not_watched.id, Seq(3))).await?);
    Ok(())
}

/// On PostgreSQL a change may be told twice: by this process and by the server.
async fn next_of(changes: &mut gateway::session::Changes, expected: Change) -> Result<bool> {
    loop {
        if timeout(PATIENCE, changes.next()).await?? == expected {
            return Ok(true);
        }
    }
}

/// Every connection to the server is lost, the one that tells of changes included.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_server_is_found_again() -> Result<()> {
    let store = Store::postgres().await?;
    let session = store.session().await?;
    let database = Database::open(store.config.clone()).await?;
    let other = sessions(&database);
    let mut changes = store.sessions.changes(&owner());
    changes.watch(session.id);
    let mut follower = Box::pin(store.log.follow(session.id, Seq(1)));
    ensure!(timeout(Duration::from_millis(1_500), follower.next()).await.is_err(), "nothing new yet");
    sqlx::query(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity
         where datname = current_database() and pid <> pg_backend_pid()",
    )
    .execute(database.reader())
    .await?;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    other.log().append(session.id, At::End, &[said("after")]).await?;
    ensure!(next_of(&mut changes, Change::Appended(session.id, Seq(2))).await?);
    let event = timeout(PATIENCE, follower.next()).await?.context("it goes on")??;
    ensure!(event.seq == Seq(2));
    store.log.append(session.id, At::End, &[said("and it writes")]).await?;
    Ok(())
}

async fn a_slow_subscriber_gets_the_last(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    let mut changes = store.sessions.changes(&owner());
    changes.watch(id);
    for n in 0..200 {
        store.log.append(id, At::End, &[said(&n.to_string())]).await?;
    }
    let mut told = 0;
    loop {
        told += 1;
        if timeout(PATIENCE, changes.next()).await?? == Change::Appended(id, Seq(201)) {
            break;
        }
    }
    ensure!(told <= 200, "changes that nobody took are kept one a session");
    Ok(())
}
