//! Two gateways on one PostgreSQL: what lives is left alone, what is dead is settled once, what thaws adds nothing.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gateway::session::Event;
use rustix::process::Signal;
use tests::gateway::{Gateway, Options};
use tests::postgres::{self, TestDatabase};

use super::client::Client;
use super::truth::{self, Reader, field, of, outcomes};

/// Silence after which a process counts as dead, in these tests.
pub(crate) const DEAD_AFTER: Duration = Duration::from_secs(1);

/// How a gateway on it is started.
pub(crate) fn on(database: &TestDatabase) -> Options {
    Options::default()
        .env("MANYHANDS_DATABASE_URL", database.url())
        .env("MANYHANDS_NODES_HEARTBEAT_MS", "200")
        .env("MANYHANDS_NODES_DEAD_AFTER_MS", &DEAD_AFTER.as_millis().to_string())
}

fn started(events: &[Event]) -> bool {
    !of(events, "hand.call_started").is_empty()
}

/// A call in a task of its own, once it has started.
async fn running(
    client: &Client,
    reader: &Reader,
    session: &'static str,
    command: &'static str,
) -> Result<tokio::task::JoinHandle<Result<super::client::Given>>> {
    let call = client.begin(session, command);
    reader.until(session, started).await?;
    Ok(call)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_gateway_disturbs_nothing_and_settles_the_dead() -> Result<()> {
    let database = postgres::database().await?;
    let reader = Reader::url(database.url()).await?;
    let home = tempfile::tempdir()?;
    let mut first = Gateway::start(on(&database).data(home.path())).await?;
    let client = Client::of(&first)?;
    let long = running(&client, &reader, "calm", "sleep 3; echo through").await?;
    let second = Gateway::start(on(&database)).await?;
    let given = long.await??;
    ensure!(given.outcome == "ok" && given.text.contains("through"), "{given:?}");
    let events = reader.events("calm").await?;
    truth::check(&events)?;
    ensure!(of(&events, "hand.lost").is_empty(), "{:?}", truth::types(&events));

    let doomed = running(&client, &reader, "doomed", "sleep 100").await?;
    first.kill()?;
    let killed = Instant::now();
    let settled =
        |events: &[Event]| !of(events, "agent.tool_result").is_empty() && !of(events, "hand.lost").is_empty();
    let events = reader.until("doomed", settled).await?;
    println!("settled {:?} after the kill", killed.elapsed());
    ensure!(killed.elapsed() < DEAD_AFTER * 10, "it took {:?}", killed.elapsed());
    ensure!(doomed.await?.is_err(), "its gateway is dead");
    ensure!(outcomes(&events) == [("unknown".to_owned(), 1)].into(), "{:?}", outcomes(&events));
    truth::check_ended(&events)?;
    // The work is on the other gateway's disk, and the brain is told so.
    let note = Client::of(&second)?.bash("calm", "ls /workspace").await?.text;
    ensure!(note.contains("on another machine") && note.contains("out of reach"), "{note}");

    // At home again, what is there is said to be there.
    let again = Gateway::start(on(&database).data(home.path())).await?;
    truth::check_no_orphans(&events, home.path())?;
    let note = Client::of(&again)?.bash("doomed", "true").await?.text;
    ensure!(note.contains("same /workspace"), "{note}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_clean_shutdown_frees_is_free_at_once() -> Result<()> {
    let database = postgres::database().await?;
    let reader = Reader::url(database.url()).await?;
    // Nobody is ever counted dead here.
    let patient = on(&database).env("MANYHANDS_NODES_DEAD_AFTER_MS", "600000");
    let mut first = Gateway::start(patient.clone().env("MANYHANDS_DRAIN_S", "0")).await?;
    let second = Gateway::start(patient).await?;
    let call = running(&Client::of(&first)?, &reader, "both", "sleep 100").await?;
    let busy = Client::of(&second)?.bash("both", "true").await?;
    ensure!(busy.outcome == "error" && busy.text.contains("on another gateway"), "{busy:?}");
    first.stop()?;
    drop(call);
    let events = reader.events("both").await?;
    ensure!(outcomes(&events).get("cancelled") == Some(&1), "{:?}", outcomes(&events));
    truth::check_ended(&events)?;
    ensure!(reader.nodes("stopped").await?.len() == 1);
    let given = Client::of(&second)?.bash("both", "true").await?;
    ensure!(given.outcome == "ok" && given.text.contains("on another machine"), "{given:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_hand_may_be_taken_from_a_living_gateway() -> Result<()> {
    let database = postgres::database().await?;
    let reader = Reader::url(database.url()).await?;
    let first = Gateway::start(on(&database)).await?;
    let second = Gateway::start(on(&database)).await?;
    let (one, two) = (Client::of(&first)?, Client::of(&second)?);
    for (client, note) in [(&one, ""), (&two, "another machine"), (&one, "another machine"), (&one, "")] {
        let given = client.bash("shared", "echo x >> /workspace/log").await?;
        ensure!(given.outcome == "ok", "{given:?}");
        ensure!(given.text.contains(note) && given.text.is_empty() == note.is_empty(), "{given:?}");
    }
    let lines = one.bash("shared", "cat /workspace/log").await?.text;
    ensure!(lines == "x\nx\nx\n", "its own work is there: {lines:?}");
    let events = reader.events("shared").await?;
    truth::check(&events)?;
    drop((first, second));
    let events = reader.events("shared").await?;
    truth::check_ended(&events)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_gateway_that_was_settled_adds_nothing() -> Result<()> {
    let database = postgres::database().await?;
    let reader = Reader::url(database.url()).await?;
    let first = Gateway::start(on(&database)).await?;
    let client = Client::of(&first)?;
    let frozen = reader.nodes("alive").await?.pop().context("a node")?;
    let call = running(&client, &reader, "frozen", "sleep 1; echo x >> /workspace/log").await?;
    first.signal(Signal::STOP)?;
    let second = Gateway::start(on(&database)).await?;
    let settled =
        |events: &[Event]| !of(events, "agent.tool_result").is_empty() && !of(events, "hand.lost").is_empty();
    let before = reader.until("frozen", settled).await?;
    ensure!(outcomes(&before) == [("unknown".to_owned(), 1)].into(), "{:?}", outcomes(&before));
    first.signal(Signal::CONT)?;
    // Whoever waited for it is told what the log has.
    let given = call.await??;
    ensure!(given.outcome == "unknown" && given.replayed, "{given:?}");
    let start = Instant::now();
    loop {
        let alive = reader.nodes("alive").await?;
        if alive.len() == 2 && !alive.contains(&frozen) {
            break;
        }
        ensure!(start.elapsed() < DEAD_AFTER * 20, "it did not join again: {alive:?}\n{}", first.stderr());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let after = reader.events("frozen").await?;
    ensure!(after.len() == before.len(), "it added {:?}", truth::types(&after[before.len()..]));
    let given = client.bash("frozen", "cat /workspace/log").await?;
    ensure!(given.outcome == "ok" && given.text.contains("same /workspace"), "{given:?}");
    let events = reader.events("frozen").await?;
    let node = of(&events, "hand.call_started").last().map(|event| field(event, "node").to_owned());
    ensure!(node.as_deref() != Some(frozen.as_str()) && node.is_some(), "{node:?}");
    truth::check(&events)?;
    truth::check_no_orphans(&before, std::path::Path::new("/nowhere"))?;
    drop(second);
    Ok(())
}
