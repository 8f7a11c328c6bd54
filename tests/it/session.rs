//! Sessions: whose they are, how they are named, how they end, and what they store.

mod outputs;

use anyhow::{Result, ensure};
use gateway::access::Principal;
use gateway::session::{
    At, BadName, Body, By, EventLog, Listing, LogError, Seq, SessionError, SessionId, SessionLimits,
    SessionName, SessionRef, SessionStatus, Sessions, Slice, Via,
};
use tokio::task::JoinSet;

use crate::log::{NODE, Store, by, ended, on_both, owner, said, started, used};

on_both!(
    the_first_to_open_a_name_makes_the_session,
    racing_openers_get_the_same_session,
    somebody_elses_is_none,
    a_name_is_taken_once,
    listing_is_newest_first_and_pages,
    limits_are_held,
    nothing_ends_while_a_call_runs,
    deleting_removes_everything,
    a_crashed_deletion_is_finished,
    an_event_by_its_place,
);

fn somebody_else() -> (Principal, By) {
    let principal = Principal("local:mallory".into());
    let by = By { principal: principal.0.clone(), client: None, via: Via::Mcp };
    (principal, by)
}

fn is_none<T>(result: &Result<T, SessionError>) -> bool {
    matches!(result, Err(SessionError::NoSession))
}

#[test]
fn names_have_a_form() {
    for good in ["a", "0", "my-app.v2_x", &"x".repeat(64)] {
        assert_eq!(good.parse::<SessionName>().map(|name| name.to_string()), Ok(good.to_owned()));
    }
    for bad in ["", "-a", ".a", "_a", "A", "a b", "a/b", "ä", "a\0", &"x".repeat(65)] {
        assert_eq!(bad.parse::<SessionName>(), Err(BadName::Form), "{bad:?}");
    }
    for bad in ["sesn_", "sesn_x", "sesn_0197c0de00007000800000000000000g"] {
        assert_eq!(bad.parse::<SessionName>(), Err(BadName::Id));
        assert_eq!(bad.parse::<SessionRef>(), Err(BadName::Id));
    }
    let id = SessionId::new();
    assert_eq!(id.to_string().parse(), Ok(SessionRef::Id(id)));
}

async fn the_first_to_open_a_name_makes_the_session(store: &Store) -> Result<()> {
    let wanted: SessionRef = "demo".parse()?;
    ensure!(is_none(&store.sessions.find(&owner(), &wanted).await), "finding makes none");
    ensure!(store.sessions.list(&owner(), &Listing::default()).await?.0.is_empty());
    let made = store.sessions.open(&owner(), &wanted, &by()).await?;
    ensure!(made.last_seq == Seq(1) && made.status == SessionStatus::Active && made.bytes > 0);
    ensure!(store.sessions.open(&owner(), &wanted, &by()).await? == made);
    ensure!(store.sessions.find(&owner(), &SessionRef::Id(made.id)).await? == made);
    let events = store.all(made.id).await?;
    ensure!(
        events.len() == 1 && events[0].known() == Some(Body::SessionCreated { name: Some("demo".into()) })
    );
    let unknown = SessionRef::Id(SessionId::new());
    ensure!(is_none(&store.sessions.open(&owner(), &unknown, &by()).await), "an id is never made up");
    Ok(())
}

async fn racing_openers_get_the_same_session(store: &Store) -> Result<()> {
    for round in 0..5 {
        let wanted: SessionRef = format!("race-{round}").parse()?;
        let mut racers = JoinSet::new();
        for _ in 0..8 {
            let (sessions, wanted) = (store.sessions.clone(), wanted.clone());
            racers.spawn(async move { sessions.open(&owner(), &wanted, &by()).await });
        }
        let opened = racers.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
        ensure!(opened.iter().all(|session| session.id == opened[0].id));
        ensure!(store.all(opened[0].id).await?.len() == 1, "made once");
    }
    Ok(())
}

async fn somebody_elses_is_none(store: &Store) -> Result<()> {
    let (other, other_by) = somebody_else();
    let wanted: SessionRef = "demo".parse()?;
    let mine = store.sessions.open(&owner(), &wanted, &by()).await?;
    let theirs = store.sessions.find(&other, &SessionRef::Id(mine.id)).await;
    let unknown = store.sessions.find(&other, &SessionRef::Id(SessionId::new())).await;
    ensure!(is_none(&theirs) && is_none(&unknown));
    ensure!(format!("{theirs:?}") == format!("{unknown:?}"));
    ensure!(is_none(&store.sessions.open(&other, &SessionRef::Id(mine.id), &other_by).await));
    ensure!(is_none(&store.sessions.find(&other, &wanted).await));
    ensure!(store.sessions.list(&other, &Listing::default()).await?.0.is_empty());
    let own = store.sessions.open(&other, &wanted, &other_by).await?;
    ensure!(own.id != mine.id, "names are per principal");
    Ok(())
}

async fn a_name_is_taken_once(store: &Store) -> Result<()> {
    let name: SessionName = "demo".parse()?;
    let made = store.sessions.create(&owner(), Some(&name), &by()).await?;
    let again = store.sessions.create(&owner(), Some(&name), &by()).await;
    ensure!(matches!(&again, Err(SessionError::NameTaken(taken)) if *taken == name), "{again:?}");
    store.sessions.archive(&made, &by(), At::End).await?;
    ensure!(matches!(
        store.sessions.create(&owner(), Some(&name), &by()).await,
        Err(SessionError::NameTaken(_))
    ));
    store.sessions.delete(&made).await?;
    let next = store.sessions.create(&owner(), Some(&name), &by()).await?;
    ensure!(next.id != made.id, "free again");
    Ok(())
}

async fn listing_is_newest_first_and_pages(store: &Store) -> Result<()> {
    let mut made = Vec::new();
    for _ in 0..5 {
        made.insert(0, store.session().await?.id);
    }
    let (mut seen, mut before) = (Vec::new(), None);
    loop {
        let listing = Listing { before, limit: Some(2), status: None };
        let (page, more) = store.sessions.list(&owner(), &listing).await?;
        seen.extend(page.iter().map(|session| session.id));
        before = seen.last().copied();
        if !more {
            break;
        }
    }
    ensure!(seen == made);
    let found = store.sessions.find(&owner(), &SessionRef::Id(made[2])).await?;
    store.sessions.archive(&found, &by(), At::End).await?;
    let only = |status| Listing { status: Some(status), ..Listing::default() };
    let (archived, _) = store.sessions.list(&owner(), &only(SessionStatus::Archived)).await?;
    ensure!(archived.iter().map(|session| session.id).eq([made[2]]));
    let (active, _) = store.sessions.list(&owner(), &only(SessionStatus::Active)).await?;
    ensure!(active.len() == 4);
    Ok(())
}

async fn limits_are_held(store: &Store) -> Result<()> {
    let limits = SessionLimits { sessions: 2, stored_bytes: 10_000 };
    let sessions = Sessions::new(store.database.clone(), NODE.to_owned(), limits);
    let first = sessions.create(&owner(), None, &by()).await?;
    sessions.create(&owner(), None, &by()).await?;
    let third = sessions.open(&owner(), &"third".parse()?, &by()).await;
    ensure!(matches!(third, Err(SessionError::TooManySessions { limit: 2 })), "{third:?}");
    ensure!(format!("{:#}", third.expect_err("refused")).contains("you have 2 sessions"));
    let (other, other_by) = somebody_else();
    sessions.create(&other, None, &other_by).await?;

    sessions.append(&first, At::End, &[said(&"x".repeat(10_000))]).await?;
    let usage = sessions.usage(&owner()).await?;
    ensure!(usage.sessions == 2 && usage.stored_bytes > 10_000, "{usage:?}");
    let refused = sessions.append(&first, At::End, &[said("more")]).await;
    ensure!(matches!(refused, Err(SessionError::TooManyBytes { limit: 10_000 })), "{refused:?}");
    sessions.log().append(first.id, At::End, &[ended(used().id)]).await?;
    sessions.delete(&first).await?;
    let third = sessions.open(&owner(), &"third".parse()?, &by()).await?;
    sessions.append(&third, At::End, &[said("room again")]).await?;
    Ok(())
}

async fn nothing_ends_while_a_call_runs(store: &Store) -> Result<()> {
    let session = store.session().await?;
    let call = used();
    store.log.append(session.id, At::End, &[call.clone(), started(call.id)]).await?;
    for refused in [
        store.sessions.archive(&session, &by(), At::End).await.map(|_| ()),
        store.sessions.delete(&session).await,
    ] {
        ensure!(matches!(refused, Err(SessionError::Running)), "{refused:?}");
    }
    let end = store.log.append(session.id, At::End, &[ended(call.id)]).await?;
    ensure!(end == Seq(4), "what was refused left nothing");
    store.sessions.archive(&session, &by(), At::End).await?;
    store.sessions.delete(&session).await?;
    Ok(())
}

/// How many rows are left of a session.
async fn rows(store: &Store, id: SessionId) -> Result<i64> {
    let rows = sqlx::query_scalar(
        "select (select count(*) from session where id = $1) + (select count(*) from event where session = $1)
            + (select count(*) from output where session = $1) + (select count(*) from open_call where session = $1)
            + (select count(*) from lease where subject like '%' || $1 || '%')",
    )
    .bind(id.to_string())
    .fetch_one(store.database.reader())
    .await?;
    Ok(rows)
}

async fn fill(store: &Store, id: SessionId) -> Result<()> {
    for _ in 0..3 {
        let events: Vec<_> = (0..400).map(|n| said(&n.to_string())).collect();
        store.log.append(id, At::End, &events).await?;
    }
    store.sessions.outputs().store(id, &vec![7; 1_000_000]).await?;
    store.execute("insert into lease values ('session/' || $1, 'node_a', 1)", id).await?;
    store.execute("insert into lease values ('hand/' || $1 || '/sandbox', 'node_a', 1)", id).await?;
    Ok(())
}

async fn deleting_removes_everything(store: &Store) -> Result<()> {
    let (session, stays) = (store.session().await?, store.session().await?);
    fill(store, session.id).await?;
    fill(store, stays.id).await?;
    let before = rows(store, stays.id).await?;
    store.sessions.delete(&session).await?;
    ensure!(rows(store, session.id).await? == 0);
    ensure!(rows(store, stays.id).await? == before);
    ensure!(is_none(&store.sessions.delete(&session).await));
    ensure!(is_none(&store.sessions.find(&owner(), &SessionRef::Id(session.id)).await));
    Ok(())
}

async fn a_crashed_deletion_is_finished(store: &Store) -> Result<()> {
    let session = store.session().await?;
    fill(store, session.id).await?;
    store.execute("update session set status = 'deleting', name = null where id = $1", session.id).await?;
    store.execute("delete from event where session = $1 and seq < 300", session.id).await?;
    ensure!(is_none(&store.sessions.find(&owner(), &SessionRef::Id(session.id)).await));
    ensure!(store.sessions.finish_deletions().await? == 1);
    ensure!(rows(store, session.id).await? == 0);
    ensure!(store.sessions.finish_deletions().await? == 0);
    Ok(())
}

async fn an_event_by_its_place(store: &Store) -> Result<()> {
    let session = store.session().await?;
    let event = said("here");
    store.log.append(session.id, At::End, std::slice::from_ref(&event)).await?;
    let found = store.sessions.event(&session, Seq(2)).await?;
    ensure!(found.map(|event| event.id) == Some(event.id));
    for nowhere in [i64::MIN, -1, 0, 3, i64::MAX] {
        ensure!(store.sessions.event(&session, Seq(nowhere)).await?.is_none());
    }
    let page = store.sessions.slice(&session, Slice::default()).await?;
    ensure!(page.events.len() == 2);
    store.sessions.delete(&session).await?;
    let gone = store.log.read(session.id, Slice::default()).await;
    ensure!(matches!(gone, Err(LogError::NoSession)));
    Ok(())
}
