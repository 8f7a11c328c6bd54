//! What once stopped a session for good, or had it wait without a word.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gateway::session::{Body, Event, EventLog as _, SessionId, Slice};
use jiff::Timestamp;
use serde_json::{Value, json};
use tests::gateway::{Gateway, run};
use tokio_util::task::TaskTracker;

use super::interrupt::{options, text};
use super::rig::{Alone, field, lines, outcome, rests, said};
use crate::crash::truth::{self, Reader, of};

/// Far more than anything here takes, and far less than the provider asks to wait.
const SOON: Duration = Duration::from_mins(1);

/// A command on its way.
fn begin(
    data: &Path,
    arguments: &'static [&'static str],
) -> tokio::task::JoinHandle<Result<std::process::Output>> {
    let data = data.to_owned();
    TaskTracker::new().spawn_blocking(move || run(&data, arguments))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_refused_answer_asks_for_is_not_done() -> Result<()> {
    let alone = Alone::new().await?;
    let file = alone.file("file");
    let call = format!("@call one__note {{\"file\": \"{}\", \"text\": \"x\"}}\n", file.display());
    let id = alone.process.asked(&format!("@say No.\n{call}{call}@stop refusal")).await?;
    alone.process.wake(id).await?;
    let events = alone.process.events(id).await?;
    ensure!(rests(&events) == ["refusal"] && lines(&file).is_empty(), "{:?}", rests(&events));
    for n in 0..2 {
        let (outcome, said) = outcome(&events, n)?;
        ensure!(outcome == "denied" && said.contains("refusal"), "{outcome}: {said}");
    }
    ensure!(of(&events, "span.model_request_start").len() == 1, "it is not asked again");
    alone.process.say(id, "@say Well.").await?;
    alone.process.wake(id).await?;
    let events = alone.process.events(id).await?;
    ensure!(rests(&events) == ["refusal", "end_turn"] && said(&events)[1..] == ["Well."]);
    Ok(())
}

/// When the log was last written to.
fn last(events: &[Event]) -> Timestamp {
    events.last().map_or(Timestamp::UNIX_EPOCH, |event| event.at)
}

/// Waits until there are so many events of a type.
async fn until(alone: &Alone, id: SessionId, kind: &str, many: usize) -> Result<()> {
    let begun = Instant::now();
    loop {
        let slice = Slice { types: vec![kind.to_owned()], ..Slice::default() };
        if alone.process.sessions.log().read(id, slice).await?.len() >= many {
            return Ok(());
        }
        ensure!(begun.elapsed() < SOON, "there are no {many} of {kind}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_provider_asks_to_wait_ends_with_another_model_and_on_demand() -> Result<()> {
    let alone = Alone::new().await?;
    let id = alone.process.asked("@fail rate_limited 600s").await?;
    let ask = async {
        until(&alone, id, "session.error", 1).await?;
        // On demand: the same again.
        alone.process.write(id, &Body::StatusRescheduled {}).await?;
        until(&alone, id, "session.error", 2).await?;
        // Who says something alone waits, and can see why and until when.
        alone.process.say(id, "@say One.").await?;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let state = alone.process.state(id).await?;
        let waits = state.waits(last(&alone.process.events(id).await?));
        ensure!(waits.is_some_and(|wait| wait.why.contains("rate limit is reached")), "{waits:?}");
        ensure!(state.failures.count == 0 && state.spent.requests == 0, "{:?}", state.spent);
        let model = Some("scripted/other".to_owned());
        alone.process.write(id, &Body::SessionUpdated { status: "active".to_owned(), model }).await?;
        until(&alone, id, "session.status_idle", 1).await
    };
    let (woken, asked) = tokio::join!(tokio::time::timeout(SOON, alone.process.wake(id)), ask);
    woken??;
    asked?;
    let events = alone.process.events(id).await?;
    ensure!(said(&events) == ["One."] && rests(&events) == ["end_turn"], "{:?}", said(&events));
    ensure!(alone.process.state(id).await?.waits(last(&events)).is_none());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_is_told_to_who_waits() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path();
    let gateway = Gateway::start(options(data)).await?;
    let reader = Reader::directory(data).await?;
    let first = begin(data, &["run", "--session", "limited", "@fail rate_limited 600s"]);
    reader.until("limited", |events| of(events, "session.error").len() == 1).await?;
    let second = begin(data, &["run", "--session", "limited", "@say Later."]);
    reader.until("limited", |events| of(events, "user.message").len() == 2).await?;
    let shown: Value =
        serde_json::from_slice(&gateway.cli(&["session", "show", "limited", "--json"])?.stdout)?;
    let waits = &shown["loop"]["waits"];
    ensure!(waits["why"].as_str().is_some_and(|why| why.contains("asks to wait 600 s")), "{shown}");
    let until: Timestamp = waits["until"].as_str().unwrap_or_default().parse()?;
    ensure!(until > last(&reader.events("limited").await?), "{shown}");
    ensure!(text(&gateway.cli(&["session", "show", "limited"])?.stdout).contains("asks to wait 600 s"));
    // Both hear what comes of it, once it is asked for.
    ensure!(gateway.cli(&["wake", "limited"])?.status.success());
    let second = second.await??;
    let said = text(&second.stdout);
    ensure!(said.contains("asks to wait 600 s: the model is asked again at 2"), "{second:?}");
    ensure!(second.status.success() && said.ends_with("Later.\n"), "{second:?}");
    ensure!(first.await??.status.success());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_archived_once_the_loop_rests() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path();
    let mut gateway = Gateway::start(options(data)).await?;
    let reader = Reader::directory(data).await?;
    let asked = |events: &[Event]| !of(events, "span.model_request_start").is_empty();
    let ran = begin(data, &["run", "--session", "speaks", "@say Half of\n@wait 300s\n@say it."]);
    let left = begin(data, &["run", "--session", "left", "@wait 300s\n@say Late."]);
    reader.until("speaks", asked).await?;
    reader.until("left", asked).await?;
    let archived = gateway.cli(&["session", "archive", "speaks"])?;
    ensure!(archived.status.success(), "{archived:?}");
    let ran = tokio::time::timeout(SOON, ran).await???;
    ensure!(ran.status.code() == Some(1), "{ran:?}");
    gateway.kill()?;
    ensure!(!tokio::time::timeout(SOON, left).await???.status.success());
    // No gateway is there to stop it, and none needs to be.
    let archived = run(data, &["session", "archive", "left"])?;
    ensure!(archived.status.success(), "{archived:?}");
    for session in ["speaks", "left"] {
        let events = reader.events(session).await?;
        truth::check(&events)?;
        ensure!(rests(&events) == ["interrupted"], "{session}: {:?}", truth::types(&events));
        ensure!(events.last().is_some_and(|last| *field(last, "status") == json!("archived")));
        let shown = run(data, &["session", "show", session, "--json"])?;
        let shown: Value = serde_json::from_slice(&shown.stdout)?;
        ensure!(shown["status"] == "archived" && shown["loop"]["status"]["type"] == "idle", "{shown}");
    }
    ensure!(of(&reader.events("speaks").await?, "span.model_request_end").len() == 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_came_of_a_turn_is_said_as_it_is() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let gateway = Gateway::start(options(folder.path())).await?;
    for (arguments, code, says) in [
        (&["run", "--session", "quiet", "@nothing"][..], 0, "the model said nothing"),
        (&["wake", "quiet"][..], 0, "there is nothing to go on with"),
        (&["run", "--session", "full", "@say Ha\n@stop context_full"][..], 1, "context window is full"),
        (&["run", "--session", "cut", "@say Ha\n@stop max_tokens"][..], 1, "brain.max_tokens"),
        (&["run", "--session", "well", "@say All."][..], 0, ""),
    ] {
        let answer = gateway.cli(arguments)?;
        let said = text(&answer.stderr);
        ensure!(answer.status.code() == Some(code) && said.contains(says), "{arguments:?}: {answer:?}");
        ensure!(said.is_empty() == says.is_empty(), "{said}");
        ensure!(said.contains("brain.max_tokens") == (says == "brain.max_tokens"), "{said}");
    }
    Ok(())
}

/// As it does for other calls, the loop waits for room among the principal's instances.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_waits_for_room_among_the_instances() -> Result<()> {
    let alone = Alone::with(|setup| {
        setup.pause = Duration::from_millis(400);
        setup.instances = 2;
    })
    .await?;
    let mut asked = Vec::new();
    for _ in 0..6 {
        asked.push(alone.process.asked("@call one__note {\"text\": \"x\"}\n@then\n@say Done.").await?);
    }
    let woken = futures_util::future::join_all(asked.iter().map(|id| alone.process.wake(*id))).await;
    woken.into_iter().collect::<Result<Vec<_>, _>>()?;
    for id in asked {
        let (outcome, said) = outcome(&alone.process.events(id).await?, 0)?;
        ensure!(outcome == "ok", "{outcome}: {said}");
    }
    Ok(())
}
