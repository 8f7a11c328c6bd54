//! Two gateways on one PostgreSQL: the first dies or freezes in the middle of its work, the second finishes it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use gateway::session::Event;
use rustix::process::Signal;
use tests::gateway::{Gateway, Options};
use tests::postgres::{self, TestDatabase};
use tokio_util::task::TaskTracker;

use super::rig::{field, rests, said};
use crate::crash::takeover::{self, DEAD_AFTER};
use crate::crash::truth::{self, Reader, of};

fn on(database: &TestDatabase) -> Options {
    takeover::on(database).env("MANYHANDS_BRAIN_MODEL", "scripted/demo")
}

/// What is summarized. Whoever summarizes a script plays it, so that the summary takes as long as the answer did.
pub(super) const COUNTED: &str = "Count.\n@wait 3s\n@say One.";

/// Before each further prompt, a summary takes the place of what came before.
pub(super) fn summing(options: Options) -> Options {
    options.env("MANYHANDS_BRAIN_MODEL", "scripted/demo").env("MANYHANDS_LOOP_COMPACT_AT", "1")
}

pub(super) fn summaries_begun(events: &[Event]) -> usize {
    let starts = of(events, "span.model_request_start").into_iter();
    starts.filter(|start| field(start, "purpose") == "compaction").count()
}

/// Says this in the session, from a process that need not be there.
fn say(gateway: &Gateway, prompt: &'static str) {
    let data = gateway.data().to_owned();
    TaskTracker::new()
        .spawn_blocking(move || tests::gateway::run(&data, &["run", "--session", "work", prompt]));
}

/// A summary was begun twice and written once; it stands for all that was said before, and nothing was said twice.
fn check_summary(events: &[Event]) -> Result<()> {
    truth::check(events)?;
    ensure!(summaries_begun(events) == 2, "{:?}", truth::types(events));
    let asked = of(events, "user.message");
    let summaries = of(events, "agent.thread_context_compacted");
    let ([_, asked], [summary]) = (&asked[..], &summaries[..]) else {
        bail!("{:?}", truth::types(events));
    };
    ensure!(field(summary, "summary") == "One.", "{summary:?}");
    ensure!(field(summary, "through").as_i64() == Some(asked.seq.0 - 1), "{summary:?}");
    ensure!(said(events) == ["One.", "Two."], "{:?}", said(events));
    // The summary that was broken off is begun and never ended.
    ensure!(of(events, "span.model_request_end").len() == 3, "{:?}", truth::types(events));
    ensure!(of(events, "session.error").is_empty(), "{:?}", truth::types(events));
    Ok(())
}

/// Two gateways, the first of which is at work on a session.
struct Two {
    first: Gateway,
    second: Gateway,
    reader: Reader,
    _database: TestDatabase,
}

impl Two {
    async fn at_work(prompt: &str, until: impl Fn(&[Event]) -> bool) -> Result<Self> {
        let database = postgres::database().await?;
        let reader = Reader::url(database.url()).await?;
        let first = Gateway::start(on(&database)).await?;
        // Whoever said it need not be there.
        let (data, prompt) = (first.data().to_owned(), prompt.to_owned());
        TaskTracker::new()
            .spawn_blocking(move || tests::gateway::run(&data, &["run", "--session", "work", &prompt]));
        reader.until("work", until).await?;
        let second = Gateway::start(on(&database)).await?;
        Ok(Self { first, second, reader, _database: database })
    }

    async fn ended(&self) -> Result<Vec<Event>> {
        let events = self.reader.until("work", |events| rests(events) == ["end_turn"]).await?;
        truth::check(&events)?;
        Ok(events)
    }
}

fn asked(events: &[Event]) -> bool {
    !of(events, "span.model_request_start").is_empty()
}

fn started(events: &[Event]) -> bool {
    !of(events, "hand.call_started").is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_killed_in_a_model_s_stream_is_followed_by_another() -> Result<()> {
    // The first request takes long; the second process asks again, and nobody sees the difference.
    let mut two = Two::at_work("@wait 3s\n@say Here it is.", asked).await?;
    two.first.kill()?;
    let killed = Instant::now();
    let events = two.ended().await?;
    println!("finished {:?} after the kill", killed.elapsed());
    ensure!(said(&events) == ["Here it is."] && of(&events, "span.model_request_start").len() == 2);
    ensure!(of(&events, "span.model_request_end").len() == 1);
    drop(two.second);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_killed_in_a_call_is_followed_by_another() -> Result<()> {
    let script = "@call sandbox__bash {\"command\": \"sleep 100\"}\n@then\n@say It says {{result}}";
    let mut two = Two::at_work(script, started).await?;
    two.first.kill()?;
    let events = two.ended().await?;
    let outcomes = truth::outcomes(&events);
    ensure!(outcomes == [("unknown".to_owned(), 1)].into(), "{outcomes:?}");
    ensure!(said(&events)[0].contains("it was not run again"), "{:?}", said(&events));
    Ok(())
}

/// Which of the two it is that works on the session, is left to them; that one is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_killed_in_a_compaction_is_followed_by_another() -> Result<()> {
    let database = postgres::database().await?;
    let reader = Reader::url(database.url()).await?;
    let mut first = Gateway::start(summing(on(&database))).await?;
    say(&first, COUNTED);
    reader.until("work", |events| rests(events).len() == 1).await?;
    let mut second = Gateway::start(summing(on(&database))).await?;
    say(&first, "@say Two.");
    reader.until("work", |events| summaries_begun(events) == 1).await?;
    let shown = first.cli(&["session", "show", "work", "--json"])?;
    let shown: serde_json::Value =
        serde_json::from_slice(&shown.stdout).with_context(|| format!("{shown:?}"))?;
    let at_work = if shown["loop"]["here"] == true { &mut first } else { &mut second };
    at_work.kill()?;
    let events = reader.events("work").await?;
    ensure!(of(&events, "agent.thread_context_compacted").is_empty(), "it was killed too late");
    let events = reader.until("work", |events| rests(events).len() == 2).await?;
    check_summary(&events)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_killed_in_a_compaction_begins_it_again_when_it_is_back() -> Result<()> {
    let data = tempfile::tempdir()?;
    let options = || summing(Options::default().data(data.path()));
    let mut gateway = Gateway::start(options()).await?;
    let reader = Reader::directory(data.path()).await?;
    say(&gateway, COUNTED);
    reader.until("work", |events| rests(events).len() == 1).await?;
    say(&gateway, "@say Two.");
    reader.until("work", |events| summaries_begun(events) == 1).await?;
    gateway.kill()?;
    let events = reader.events("work").await?;
    ensure!(of(&events, "agent.thread_context_compacted").is_empty(), "it was killed too late");
    let _gateway = Gateway::start(options()).await?;
    let events = reader.until("work", |events| rests(events).len() == 2).await?;
    check_summary(&events)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_ends_cleanly_leaves_its_work_at_once() -> Result<()> {
    let mut two = Two::at_work("@wait 3s\n@say Here it is.", asked).await?;
    two.first.stop()?;
    let stopped = Instant::now();
    two.reader.until("work", |events| of(events, "span.model_request_start").len() == 2).await?;
    println!("taken over {:?} after the end", stopped.elapsed());
    ensure!(said(&two.ended().await?) == ["Here it is."]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_gateway_that_was_taken_over_writes_nothing() -> Result<()> {
    let two = Two::at_work("@wait 3s\n@say Here it is.", asked).await?;
    let frozen = two.reader.nodes("alive").await?;
    two.first.signal(Signal::STOP)?;
    let before = two.ended().await?;
    two.first.signal(Signal::CONT)?;
    // It joins again, under another name, when it has seen what became of it.
    let thawed = Instant::now();
    loop {
        let alive = two.reader.nodes("alive").await?;
        if alive.len() == 2 && alive != frozen {
            break;
        }
        ensure!(thawed.elapsed() < DEAD_AFTER * 30, "{alive:?}\n{}", two.first.stderr());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Longer than what its model still had to say.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let after = two.reader.events("work").await?;
    ensure!(after.len() == before.len(), "it added {:?}", truth::types(&after[before.len()..]));
    // And it works again.
    let answer = tests::gateway::run(two.first.data(), &["run", "--session", "work", "@say Awake."])?;
    ensure!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let events = two.reader.until("work", |events| rests(events).len() == 2).await?;
    truth::check(&events)?;
    let epochs: Vec<_> =
        of(&events, "span.model_request_start").iter().map(|event| field(event, "through").clone()).collect();
    ensure!(epochs.len() == 3, "{epochs:?}");
    two.second.cli(&["session", "show", "work"]).context("the second one answers")?;
    Ok(())
}
