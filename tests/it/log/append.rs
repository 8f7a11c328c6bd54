//! Appending: order, positions, all or nothing, nothing changes.

use anyhow::{Result, ensure};
use gateway::database::Database;
use gateway::session::{
    At, Body, EVENT_BYTES_MAX, EventLog, Held, LogError, NewEvent, Seq, SessionId, SessionStatus, Work,
};
use tokio::task::JoinSet;

use super::{Store, by, ensure_holds, ensure_refused, on_both, said, sessions};

on_both!(
    events_stand_in_the_order_of_their_appends,
    an_event_is_read_back_whole,
    writers_to_the_end_never_conflict,
    after_is_compared,
    one_of_racing_comparers_wins,
    all_or_nothing,
    what_is_refused_leaves_what_is_beside_it,
    the_first_refusal_is_told,
    nothing_starts_in_an_instance_that_the_log_says_is_gone,
    what_does_not_fit_is_refused,
    an_unknown_session_is_none,
    an_archived_session_is_read_only,
    a_session_that_is_being_deleted_is_none,
    the_database_itself_keeps_events,
);

async fn events_stand_in_the_order_of_their_appends(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    let (a, b, c, d) = (said("a"), said("b"), said("c"), said("d"));
    ensure!(store.log.append(id, At::End, std::slice::from_ref(&a)).await? == Seq(2));
    ensure!(store.log.append(id, At::End, &[b.clone(), c.clone()]).await? == Seq(4));
    ensure!(store.log.append(id, At::After(Seq(4)), std::slice::from_ref(&d)).await? == Seq(5));
    ensure!(store.log.append(id, At::End, &[]).await? == Seq(5), "nothing appended, nothing moved");
    ensure_holds(store, id, &[a.id, b.id, c.id, d.id]).await
}

async fn an_event_is_read_back_whole(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    let odd = serde_json::json!({
        "type": "my.note", "nul": "\u{0}", "wide": "\u{1f980}", "deep": {"n": [1, -2.5, null, true, 9_007_199_254_740_993_i64]},
    });
    let fields = odd.as_object().cloned().unwrap_or_default();
    let many: Vec<NewEvent> = std::iter::once(NewEvent { fields: fields.clone(), ..said("") })
        .chain((0..200).map(|n| said(&n.to_string())))
        .collect();
    store.log.append(id, At::End, &many).await?;
    let all = store.all(id).await?;
    ensure!(all[1].fields == fields && all[1].by == by() && all[1].session == id, "changed: {:?}", all[1]);
    ensure_holds(store, id, &many.iter().map(|event| event.id).collect::<Vec<_>>()).await
}

/// 16 writers in two processes' worth of connections (on PostgreSQL).
pub(super) async fn writers_to_the_end_never_conflict(store: &Store) -> Result<()> {
    const WRITERS: usize = 16;
    const EACH: usize = 12;
    let id = store.session().await?.id;
    let other = match store.database.dialect() {
        gateway::database::Dialect::Postgres => sessions(&Database::open(store.config.clone()).await?),
        gateway::database::Dialect::Sqlite => store.sessions.clone(),
    };
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let log = if writer % 2 == 0 { store.log.clone() } else { other.log().clone() };
        writers.spawn(async move {
            let mut places = Vec::new();
            for n in 0..EACH {
                let event = said(&format!("{writer} {n}"));
                places.push((log.append(id, At::End, std::slice::from_ref(&event)).await?, event.id));
            }
            Ok::<_, LogError>(places)
        });
    }
    let mut places = Vec::new();
    while let Some(writer) = writers.join_next().await {
        let writer = writer??;
        ensure!(writer.is_sorted(), "a writer's own events are in order");
        places.extend(writer);
    }
    places.sort_unstable();
    ensure_holds(store, id, &places.iter().map(|(_, id)| *id).collect::<Vec<_>>()).await
}

pub(super) async fn after_is_compared(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    let (first, late) = (said("first"), said("late"));
    store.log.append(id, At::After(Seq(1)), std::slice::from_ref(&first)).await?;
    for wrong in [0, 1, 3] {
        let refused = store.log.append(id, At::After(Seq(wrong)), std::slice::from_ref(&late)).await;
        ensure_refused(&refused, |error| matches!(error, LogError::Conflict))?;
    }
    ensure_holds(store, id, &[first.id]).await
}

async fn one_of_racing_comparers_wins(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    for end in 1..6 {
        let mut racers = JoinSet::new();
        for _ in 0..6 {
            let log = store.log.clone();
            racers.spawn(async move { log.append(id, At::After(Seq(end)), &[said("mine")]).await });
        }
        let outcomes = racers.join_all().await;
        let won = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        ensure!(won == 1, "{won} won: {outcomes:?}");
        for lost in outcomes.iter().filter(|outcome| outcome.is_err()) {
            ensure_refused(lost, |error| matches!(error, LogError::Conflict))?;
        }
    }
    Ok(())
}

async fn all_or_nothing(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    let twice = said("twice");
    let call = super::used();
    let outcome = super::ended(call.id);
    store.log.append(id, At::End, &[call.clone(), outcome.clone()]).await?;
    let refused = store.log.append(id, At::End, &[twice, super::ended(call.id)]).await;
    ensure_refused(&refused, |error| matches!(error, LogError::Settled))?;
    ensure_holds(store, id, &[call.id, outcome.id]).await
}

/// Appends that wait together are committed together, also where some of them are refused, early or late.
async fn what_is_refused_leaves_what_is_beside_it(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    let call = super::used();
    store.log.append(id, At::End, &[call.clone(), super::ended(call.id)]).await?;
    let mut writers = JoinSet::new();
    for n in 0..48 {
        let (log, call) = (store.log.clone(), call.id);
        writers.spawn(async move {
            let event = said("kept");
            let (at, events) = match n % 3 {
                0 => (At::End, vec![event.clone()]),
                1 => (At::After(Seq(1)), vec![event.clone()]),
                _ => (At::End, vec![event.clone(), super::ended(call)]),
            };
            (n % 3, event.id, log.append(id, at, &events).await)
        });
    }
    let mut kept = Vec::new();
    for (kind, event, outcome) in writers.join_all().await {
        match kind {
            0 => kept.push((outcome?, event)),
            1 => ensure_refused(&outcome, |error| matches!(error, LogError::Conflict))?,
            _ => ensure_refused(&outcome, |error| matches!(error, LogError::Settled))?,
        }
    }
    kept.sort_unstable();
    let all = store.all(id).await?;
    let held: Vec<_> = all.iter().skip(3).map(|event| (event.seq, event.id)).collect();
    ensure!(held == kept, "the log holds {held:?}, not {kept:?}");
    Ok(())
}

/// A lease before the session, the session before the call, the call before the instance.
async fn the_first_refusal_is_told(store: &Store) -> Result<()> {
    let session = store.session().await?;
    let id = session.id;
    let call = super::used();
    store.log.append(id, At::End, &[call.clone(), super::ended(call.id)]).await?;
    let lost = Body::HandLost { hand: "sandbox".into(), instance: "inst_none".into(), work: Work::Kept };
    let lost = NewEvent::of(by(), &lost);
    let all = [super::ended(call.id), lost.clone()];
    let unheld = || At::Held(vec![Held { subject: format!("hand/{id}/sandbox"), epoch: 1 }]);
    let refused = store.log.append(id, unheld(), &all).await;
    ensure_refused(&refused, |error| matches!(error, LogError::Fenced(_)))?;
    let refused = store.log.append(id, At::After(Seq(1)), &all).await;
    ensure_refused(&refused, |error| matches!(error, LogError::Conflict))?;
    let refused = store.log.append(id, At::End, &all).await;
    ensure_refused(&refused, |error| matches!(error, LogError::Settled))?;
    let refused = store.log.append(id, At::End, &[said("before"), lost]).await;
    ensure_refused(&refused, |error| matches!(error, LogError::InstanceGone))?;
    store.sessions.archive(&session, &by(), At::End).await?;
    let refused = store.log.append(id, unheld(), &all).await;
    ensure_refused(&refused, |error| matches!(error, LogError::Archived))?;
    ensure!(store.all(id).await?.len() == 4, "what was refused left nothing");
    Ok(())
}

async fn nothing_starts_in_an_instance_that_the_log_says_is_gone(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    let row = "insert into instance (id, session, hand, kind, node, lost, created_at)
        values ('inst_1', $1, 'sandbox', 'sandbox', 'node_b', 0, '2026-11-30T00:00:00Z')";
    store.execute(row, id).await?;
    let call = || {
        let call = super::used();
        [call.clone(), super::started(call.id)]
    };
    store.log.append(id, At::End, &call()).await?;
    let lost = Body::HandLost { hand: "sandbox".into(), instance: "inst_1".into(), work: Work::Kept };
    store.log.append(id, At::End, &[NewEvent::of(by(), &lost)]).await?;
    let refused = store.log.append(id, At::End, &call()).await;
    ensure_refused(&refused, |error| matches!(error, LogError::InstanceGone))?;
    ensure!(store.all(id).await?.len() == 4, "what was refused left nothing");
    Ok(())
}

async fn what_does_not_fit_is_refused(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    let large = said(&"x".repeat(EVENT_BYTES_MAX));
    let refused = store.log.append(id, At::End, &[said("before"), large]).await;
    ensure_refused(&refused, |error| matches!(error, LogError::TooLarge(_)))?;
    let fits = said(&"x".repeat(EVENT_BYTES_MAX - 64));
    store.log.append(id, At::End, std::slice::from_ref(&fits)).await?;
    for (field, value) in
        [("type", String::new()), ("type", "x".repeat(129)), ("seq", "7".to_owned()), ("by", "me".to_owned())]
    {
        let mut event = said("malformed");
        event.fields.insert(field.into(), value.into());
        let refused = store.log.append(id, At::End, &[event]).await;
        ensure_refused(&refused, |error| matches!(error, LogError::Malformed(_)))?;
    }
    ensure_holds(store, id, &[fits.id]).await
}

async fn an_unknown_session_is_none(store: &Store) -> Result<()> {
    let id = SessionId::new();
    for at in super::every_at(0) {
        let refused = store.log.append(id, at, &[said("hello?")]).await;
        ensure_refused(&refused, |error| matches!(error, LogError::NoSession))?;
    }
    let refused = store.log.read(id, gateway::session::Slice::default()).await;
    ensure_refused(&refused, |error| matches!(error, LogError::NoSession))
}

async fn an_archived_session_is_read_only(store: &Store) -> Result<()> {
    let session = store.session().await?;
    let archived = store.sessions.archive(&session, &by(), At::End).await?;
    ensure!(archived.status == SessionStatus::Archived && archived.last_seq == Seq(2));
    for at in super::every_at(2) {
        let refused = store.log.append(session.id, at, &[said("too late")]).await;
        ensure_refused(&refused, |error| matches!(error, LogError::Archived))?;
    }
    let last = store.all(session.id).await?.pop();
    let updated = Body::SessionUpdated { status: "archived".into(), model: None };
    ensure!(last.and_then(|event| event.known()) == Some(updated));
    Ok(())
}

async fn a_session_that_is_being_deleted_is_none(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    store.execute("update session set status = 'deleting' where id = $1", id).await?;
    for at in super::every_at(1) {
        let refused = store.log.append(id, at, &[said("too late")]).await;
        ensure_refused(&refused, |error| matches!(error, LogError::NoSession))?;
    }
    let refused = store.log.read(id, gateway::session::Slice::default()).await;
    ensure_refused(&refused, |error| matches!(error, LogError::NoSession))
}

async fn the_database_itself_keeps_events(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    let event = said("keep me");
    store.log.append(id, At::End, std::slice::from_ref(&event)).await?;
    for (text, why) in [
        ("update event set body = '{}' where session = $1", "an event never changes"),
        ("delete from event where session = $1", "an event stays as long as its session"),
    ] {
        let refused = store.execute(text, id).await;
        let said = format!("{:#}", refused.expect_err("the database refuses"));
        ensure!(said.contains(why), "{said}");
    }
    ensure_holds(store, id, &[event.id]).await
}
