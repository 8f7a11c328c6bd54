//! `manyhands interrupt`: a person stops the loop, and may say what it is to do instead.

use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gateway::session::Event;
use serde_json::Value;
use tests::gateway::{Gateway, Options, command, run};
use tests::postgres;
use tokio_util::task::TaskTracker;

use super::rig::{field, rests, said};
use super::takeover::{COUNTED, summaries_begun, summing};
use crate::crash::takeover;
use crate::crash::truth::{self, Reader, of, outcomes};

/// Ten times what a loop may take to stop, and the start of a command.
const SOON: Duration = Duration::from_secs(10);

pub(super) fn options(data: &Path) -> Options {
    Options::default().env("MANYHANDS_BRAIN_MODEL", "scripted/demo").data(data)
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Has the loop begin, and returns what `run` prints at its end.
fn begin(
    data: &Path,
    session: &'static str,
    prompt: &'static str,
) -> tokio::task::JoinHandle<Result<Output>> {
    let data = data.to_owned();
    TaskTracker::new().spawn_blocking(move || run(&data, &["run", "--session", session, prompt]))
}

fn asked(events: &[Event]) -> bool {
    !of(events, "span.model_request_start").is_empty()
}

fn started(events: &[Event]) -> bool {
    !of(events, "hand.call_started").is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_and_its_calls_stop_and_what_is_said_instead_goes_on() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path();
    let gateway = Gateway::start(options(data)).await?;
    let reader = Reader::directory(data).await?;

    // While the model speaks.
    let ran = begin(data, "speaks", "@wait 300s\n@say Late.");
    reader.until("speaks", asked).await?;
    let begun = Instant::now();
    let stopped = gateway.cli(&["interrupt", "speaks"])?;
    println!("stopped in {:?}", begun.elapsed());
    ensure!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    ensure!(stopped.status.success() && text(&stopped.stdout) == "stopped\n", "{stopped:?}");
    ensure!(rests(&reader.events("speaks").await?) == ["interrupted"]);
    let ran = ran.await??;
    ensure!(ran.status.code() == Some(1) && text(&ran.stderr).contains("somebody stopped it"), "{ran:?}");

    // There is nothing to stop any more, nor where it never worked, nor where nothing is.
    for (session, why) in
        [("speaks", "rests there (interrupted)"), ("new", "never asked"), ("none", "no session")]
    {
        if session == "new" {
            ensure!(gateway.cli(&["session", "new", session])?.status.success());
        }
        let refused = gateway.cli(&["interrupt", session])?;
        ensure!(refused.status.code() == Some(1) && text(&refused.stderr).contains(why), "{refused:?}");
    }

    // While a call runs and another waits for it: neither goes on, though a person says something at once.
    let calls = "@call sandbox__bash {\"command\": \"sleep 300\"}\n@call sandbox__bash {\"command\": \"echo x > file\"}";
    let ran = begin(data, "calls", calls);
    reader.until("calls", started).await?;
    let begun = Instant::now();
    let said_so =
        ["interrupt", "calls", "@call sandbox__bash {\"command\": \"ls\"}\n@then\n@say It has: {{result}}"];
    let stopped = gateway.cli(&[&said_so[..], &["--json"]].concat())?;
    ensure!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let told: Value = serde_json::from_slice(&stopped.stdout).with_context(|| format!("{stopped:?}"))?;
    ensure!(told["came"] == "stopped" && told["seq"].is_i64(), "{told}");
    ensure!(told["note"].as_str().is_some_and(|note| note.starts_with("stopped: it goes on")), "{told}");
    let events = reader.until("calls", |events| rests(events).len() == 2).await?;
    truth::check(&events)?;
    ensure!(
        rests(&events) == ["interrupted", "end_turn"] && said(&events) == ["It has: "],
        "{:?}",
        said(&events)
    );
    let expected = [("cancelled".to_owned(), 2), ("ok".to_owned(), 1)].into();
    ensure!(outcomes(&events) == expected, "{:?}", outcomes(&events));
    ensure!(text(&ran.await??.stderr).contains("somebody stopped it"));

    // What rests is told what to do, and a turn that was asked for behind an interruption is waited for.
    let stopped = gateway.cli(&["interrupt", "calls", "@say As you like."])?;
    ensure!(text(&stopped.stdout).starts_with("nothing ran: it goes on"), "{stopped:?}");
    let events = reader.until("calls", |events| rests(events).len() == 3).await?;
    ensure!(
        said(&events).last().map(String::as_str) == Some("As you like.") && rests(&events)[2] == "end_turn"
    );
    ensure!(of(&events, "user.interrupt").len() == 1, "{:?}", truth::types(&events));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_waits_for_a_person_is_given_up() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let asking = "[hands.sandbox]\nkind = \"sandbox\"\npermission = \"ask\"\n";
    let gateway = Gateway::start(options(folder.path()).config(asking)).await?;
    let reader = Reader::directory(folder.path()).await?;
    let ran = gateway.cli(&["run", "--session", "asks", "@call sandbox__bash {\"command\": \"true\"}"])?;
    ensure!(text(&ran.stderr).contains("waits for your word"), "{ran:?}");
    let stopped = gateway.cli(&["interrupt", "asks"])?;
    ensure!(text(&stopped.stdout) == "stopped\n", "{stopped:?}");
    let events = reader.events("asks").await?;
    ensure!(rests(&events) == ["requires_action", "interrupted"], "{:?}", rests(&events));
    ensure!(outcomes(&events) == [("cancelled".to_owned(), 1)].into(), "{:?}", outcomes(&events));
    // A word on it now would let nothing run.
    let call = of(&events, "agent.tool_use")[0].id.to_string();
    let refused = gateway.cli(&["confirm", "asks", &call, "allow"])?;
    ensure!(refused.status.code() == Some(1) && text(&refused.stderr).contains("has ended"), "{refused:?}");
    Ok(())
}

/// Without a gateway it ends at once, and what is to be done instead is left to whoever goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_gateway_the_next_one_keeps_to_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path();
    let mut gateway = Gateway::start(options(data)).await?;
    let reader = Reader::directory(data).await?;
    for session in ["bare", "instead"] {
        begin(data, session, "@call sandbox__bash {\"command\": \"sleep 300\"}\n@then\n@say Slept.");
        reader.until(session, started).await?;
    }
    gateway.kill()?;
    let stopped = run(data, &["interrupt", "bare"])?;
    ensure!(text(&stopped.stdout) == "stopped\n", "{stopped:?}");
    ensure!(rests(&reader.events("bare").await?) == ["interrupted"], "it has no end");
    let stopped = run(data, &["interrupt", "instead", "@say Good morning."])?;
    let note = text(&stopped.stdout);
    ensure!(note.contains("what you said once a gateway runs, or with `manyhands wake instead`"), "{note}");
    ensure!(rests(&reader.events("instead").await?).is_empty(), "nobody works here");

    let mut woken = command(data);
    woken.env("MANYHANDS_BRAIN_MODEL", "scripted/demo").args(["wake", "instead"]);
    let woken = woken.output()?;
    ensure!(woken.status.success() && text(&woken.stdout).contains("Good morning."), "{woken:?}");
    let _gateway = Gateway::start(options(data)).await?;
    let events = reader.until("bare", |events| rests(events).len() == 1).await?;
    ensure!(rests(&events) == ["interrupted"] && said(&events).is_empty(), "{:?}", said(&events));
    ensure!(outcomes(&events) == [("unknown".to_owned(), 1)].into(), "{:?}", outcomes(&events));
    let events = reader.events("instead").await?;
    truth::check(&events)?;
    ensure!(said(&events) == ["Good morning."], "{:?}", said(&events));
    Ok(())
}

/// It need not be the gateway that works on the session that is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_gateway_on_the_same_database_passes_it_on() -> Result<()> {
    let database = postgres::database().await?;
    let options = || takeover::on(&database).env("MANYHANDS_BRAIN_MODEL", "scripted/demo");
    let (first, second) = (Gateway::start(options()).await?, Gateway::start(options()).await?);
    let reader = Reader::url(database.url()).await?;
    begin(first.data(), "work", "@call sandbox__bash {\"command\": \"sleep 300\"}");
    reader.until("work", started).await?;
    // One of the two works on it: both are told.
    for (gateway, n) in [(&first, 1), (&second, 2)] {
        let begun = Instant::now();
        let instead = "@call sandbox__bash {\"command\": \"sleep 300\"}";
        let told = gateway.cli(&["interrupt", "work", instead])?;
        ensure!(text(&told.stdout).starts_with("stopped: it goes on"), "{told:?}");
        ensure!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        reader.until("work", |events| of(events, "hand.call_started").len() == n + 1).await?;
    }
    let told = second.cli(&["interrupt", "work"])?;
    ensure!(text(&told.stdout) == "stopped\n", "{told:?}");
    let events = reader.events("work").await?;
    truth::check(&events)?;
    ensure!(rests(&events) == ["interrupted"; 3], "{:?}", rests(&events));
    ensure!(outcomes(&events) == [("cancelled".to_owned(), 3)].into(), "{:?}", outcomes(&events));
    Ok(())
}

/// A summary that is stopped is none, and its request has an end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_summary_is_stopped_too() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let gateway = Gateway::start(summing(Options::default().data(folder.path()))).await?;
    let reader = Reader::directory(folder.path()).await?;
    begin(folder.path(), "work", COUNTED);
    reader.until("work", |events| rests(events).len() == 1).await?;
    begin(folder.path(), "work", "@say Two.");
    reader.until("work", |events| summaries_begun(events) == 1).await?;
    let told = gateway.cli(&["interrupt", "work"])?;
    ensure!(text(&told.stdout) == "stopped\n", "{told:?}");
    let events = reader.events("work").await?;
    ensure!(
        rests(&events) == ["end_turn", "interrupted"] && said(&events) == ["One."],
        "{:?}",
        said(&events)
    );
    ensure!(of(&events, "agent.thread_context_compacted").is_empty(), "{:?}", truth::types(&events));
    let ends = of(&events, "span.model_request_end");
    ensure!(ends.len() == 2 && field(ends[1], "is_error") == true, "{ends:?}");
    Ok(())
}
