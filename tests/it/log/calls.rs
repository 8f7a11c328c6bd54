//! Calls: they start once and end once, whoever says so, and their keys find them.

use anyhow::{Result, ensure};
use gateway::session::{At, CallKey, EventId, EventLog, LogError, NewEvent, OpenCall, Via};
use tokio::task::JoinSet;

use super::{NODE, Store, ended, ensure_holds, ensure_refused, every_at, on_both, said, started, used};

on_both!(
    a_call_ends_once_on_any_append,
    a_call_starts_once_on_any_append,
    a_call_with_an_outcome_never_starts,
    of_racing_outcomes_one_stands,
    a_lasting_key_is_taken_once,
    a_key_finds_its_call,
    open_calls_follow_the_log,
);

async fn a_call_ends_once_on_any_append(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    let (call, outcome) = (used(), said("between"));
    let first = ended(call.id);
    store.log.append(id, At::End, &[call.clone(), outcome.clone(), first.clone()]).await?;
    for at in every_at(4) {
        let refused = store.log.append(id, at, &[ended(call.id)]).await;
        ensure_refused(&refused, |error| matches!(error, LogError::Settled))?;
    }
    let elsewhere = store.session().await?.id;
    store.log.append(elsewhere, At::End, &[ended(call.id)]).await?;
    ensure_holds(store, id, &[call.id, outcome.id, first.id]).await
}

async fn a_call_starts_once_on_any_append(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    let call = used();
    let first = started(call.id);
    store.log.append(id, At::End, &[call.clone(), first.clone()]).await?;
    for at in every_at(3) {
        let refused = store.log.append(id, at, &[started(call.id)]).await;
        ensure_refused(&refused, |error| matches!(error, LogError::Settled))?;
    }
    ensure_holds(store, id, &[call.id, first.id]).await
}

async fn a_call_with_an_outcome_never_starts(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    let call = used();
    let outcome = ended(call.id);
    store.log.append(id, At::End, &[call.clone(), outcome.clone()]).await?;
    for at in every_at(3) {
        let refused = store.log.append(id, at, &[started(call.id)]).await;
        ensure_refused(&refused, |error| matches!(error, LogError::Settled))?;
    }
    ensure_holds(store, id, &[call.id, outcome.id]).await
}

async fn of_racing_outcomes_one_stands(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    for _ in 0..5 {
        let call = used();
        store.log.append(id, At::End, &[call.clone(), started(call.id)]).await?;
        let mut racers = JoinSet::new();
        for _ in 0..6 {
            let (log, outcome) = (store.log.clone(), ended(call.id));
            racers.spawn(async move { log.append(id, At::End, &[outcome]).await });
        }
        let outcomes = racers.join_all().await;
        ensure!(outcomes.iter().filter(|outcome| outcome.is_ok()).count() == 1, "{outcomes:?}");
        for lost in outcomes.iter().filter(|outcome| outcome.is_err()) {
            ensure_refused(lost, |error| matches!(error, LogError::Settled))?;
        }
    }
    let open = store.sessions.open_calls(&[NODE.into(), "node_b".into()]).await?;
    ensure!(open.is_empty(), "{open:?}");
    Ok(())
}

fn keyed(key: CallKey) -> NewEvent {
    NewEvent { key: Some(key), ..used() }
}

async fn a_lasting_key_is_taken_once(store: &Store) -> Result<()> {
    let (id, elsewhere) = (store.session().await?.id, store.session().await?.id);
    let lasting = || keyed(CallKey::Forever(format!("local:owner \u{0} {}", "k".repeat(5_000))));
    let resend = || keyed(CallKey::Resend("toolu_1".into()));
    store.log.append(id, At::End, &[lasting()]).await?;
    for at in every_at(2) {
        let refused = store.log.append(id, at, &[lasting()]).await;
        ensure_refused(&refused, |error| matches!(error, LogError::KeyTaken))?;
    }
    store.log.append(elsewhere, At::End, &[lasting()]).await?;
    store.log.append(id, At::End, &[keyed(CallKey::Forever("another".into()))]).await?;
    store.log.append(id, At::End, &[resend(), resend()]).await?;
    Ok(())
}

async fn a_key_finds_its_call(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    let (lasting, resend) = (CallKey::Forever("k".into()), CallKey::Resend("k".into()));
    let (first, second, third) = (keyed(lasting.clone()), keyed(resend.clone()), keyed(resend.clone()));
    let outcome = ended(first.id);
    store.log.append(id, At::End, &[first.clone(), second, third.clone(), outcome.clone()]).await?;
    let found = store.sessions.call_by_key(id, &lasting).await?.expect("there is one");
    ensure!(found.asked.id == first.id && found.outcome.map(|event| event.id) == Some(outcome.id));
    let found = store.sessions.call_by_key(id, &resend).await?.expect("there is one");
    ensure!(found.asked.id == third.id && found.outcome.is_none(), "the latest");
    ensure!(store.sessions.call_by_key(id, &CallKey::Forever("other".into())).await?.is_none());
    let elsewhere = store.session().await?.id;
    ensure!(store.sessions.call_by_key(elsewhere, &lasting).await?.is_none());
    Ok(())
}

async fn open_calls_follow_the_log(store: &Store) -> Result<()> {
    let id = store.session().await?.id;
    let (asked, running, done, at_once) = (used(), used(), used(), used());
    let mut of_the_loop = used();
    of_the_loop.by.via = Via::Loop;
    store.log.append(id, At::End, &[asked.clone(), running.clone(), done.clone(), of_the_loop]).await?;
    store.log.append(id, At::End, &[started(running.id), started(done.id)]).await?;
    store
        .log
        .append(id, At::End, &[ended(done.id), at_once.clone(), started(at_once.id), ended(at_once.id)])
        .await?;
    let open = |call: EventId, node: &str, started| OpenCall {
        session: id,
        tool_use_id: call,
        node: node.to_owned(),
        started,
    };
    let both = [NODE.to_owned(), "node_b".to_owned()];
    let mut found = store.sessions.open_calls(&both).await?;
    found.sort_by_key(|call| call.started);
    ensure!(found == [open(asked.id, NODE, false), open(running.id, "node_b", true)], "{found:?}");
    ensure!(store.sessions.open_calls(&both[1..]).await? == [open(running.id, "node_b", true)]);
    ensure!(store.sessions.open_calls(&["node_c".into()]).await?.is_empty());
    ensure!(store.sessions.open_calls(&[]).await?.is_empty());
    Ok(())
}
