//! A process that dies anywhere, and another one that goes on: the same story, no call made twice, one outcome for each.
//!
//! How often is set by `MANYHANDS_TEST_DROPS`, for longer runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use gateway::session::{At, Event, EventLog, LogError, NewEvent, Seq, SessionId, Slice};
use tests::faulty::{Fault, Lost};

use super::rig::{Process, Setup, field, lines, rests, said};
use crate::crash::truth;
use crate::log::Store;

/// Calls that a script makes.
pub(super) const CALLS: usize = 12;
/// More appends than a whole session takes.
const APPENDS_MAX: usize = 60;
/// How many sessions die at the same time.
const AT_ONCE: usize = 12;

/// How often, as an environment variable says.
#[expect(clippy::disallowed_methods, reason = "how often is asked for from outside")]
pub(super) fn times(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|times| times.parse().ok()).unwrap_or(default)
}

/// Twelve calls over three hands, some of them at once.
fn script(file: &Path) -> String {
    let file = file.display();
    let call = |hand: &str, tool: &str, n: usize| {
        format!("@call {hand}__{tool} {{\"file\": \"{file}\", \"text\": \"{n}\"}}\n")
    };
    let mut script = "@say Let me see.\n".to_owned();
    script += &call("one", "note", 1);
    script += &format!("@then\n{}{}", call("two", "note", 2), call("one", "note", 3));
    script += &format!("@then\n@think Hm.\n{}", call("three", "look", 4));
    script +=
        &format!("@then\n{}{}{}", call("one", "look", 5), call("two", "look", 6), call("two", "note", 7));
    script += &format!("@then\n{}", call("three", "note", 8));
    script += &format!("@then\n@say Half of it.\n{}{}", call("two", "note", 9), call("three", "note", 10));
    script += &format!("@then\n{}{}", call("one", "note", 11), call("one", "note", 12));
    script + "@then\n@say All done."
}

/// What a session is about, whatever happened on the way.
fn story(events: &[Event]) -> Vec<String> {
    let told = events.iter().filter_map(|event| match event.kind() {
        "user.message" | "agent.message" => Some(format!("{}: {}", event.kind(), field(event, "content"))),
        "agent.tool_use" => Some(format!("call {} {}", field(event, "name"), field(event, "input.text"))),
        _ => None,
    });
    told.collect()
}

/// The log tells the whole story, every call has one outcome, and nothing was done twice.
fn check(events: &[Event], file: &Path, whole: &[String]) -> Result<()> {
    truth::check(events)?;
    let story: Vec<String> =
        story(events).into_iter().map(|line| line.replace(&file.display().to_string(), "FILE")).collect();
    ensure!(story == whole, "another story: {story:#?}");
    ensure!(rests(events).last().map(String::as_str) == Some("end_turn"), "{:?}", rests(events));
    let mut done: BTreeMap<String, usize> = BTreeMap::new();
    for line in lines(file) {
        *done.entry(line).or_default() += 1;
    }
    for use_ in events.iter().filter(|event| event.kind() == "agent.tool_use") {
        let text = field(use_, "input.text").as_str().unwrap_or_default();
        let id = use_.id.to_string();
        let of = |kind: &str| {
            events.iter().find(|event| event.kind() == kind && field(event, "tool_use_id") == id.as_str())
        };
        let outcome =
            of("agent.tool_result").map(|event| field(event, "outcome").clone()).context("no outcome")?;
        let (times, started) = (done.get(text).copied().unwrap_or(0), of("hand.call_started").is_some());
        ensure!(times <= 1, "call {text} was made {times} times");
        ensure!(times == 0 || started, "call {text} was made and not announced");
        match outcome.as_str().unwrap_or_default() {
            "ok" => ensure!(times == 1 && started, "call {text} is said to be done, and is not"),
            // It was announced, and nobody knows.
            "unknown" => ensure!(started, "call {text} was never announced"),
            // Called off, or its hand could not be had.
            "cancelled" => {}
            "error" => ensure!(times == 0, "call {text} is said to have failed, and was made"),
            other => anyhow::bail!("call {text} ended as {other}"),
        }
    }
    Ok(())
}

fn whole() -> Vec<String> {
    let mut whole = vec![format!(
        "user.message: {}",
        serde_json::json!([{"type": "text", "text": script(Path::new("FILE"))}])
    )];
    let said = |text: &str| format!("agent.message: {}", serde_json::json!([{"type": "text", "text": text}]));
    let call = |hand: &str, tool: &str, n: usize| format!("call \"{hand}__{tool}\" \"{n}\"");
    whole.extend([
        said("Let me see."),
        call("one", "note", 1),
        call("two", "note", 2),
        call("one", "note", 3),
    ]);
    whole.extend([
        call("three", "look", 4),
        call("one", "look", 5),
        call("two", "look", 6),
        call("two", "note", 7),
    ]);
    whole.extend([
        call("three", "note", 8),
        said("Half of it."),
        call("two", "note", 9),
        call("three", "note", 10),
    ]);
    whole.extend([call("one", "note", 11), call("one", "note", 12), said("All done.")]);
    whole
}

/// A session of its own in a process of its own, which dies, and what is left of it for another.
struct Case<'a> {
    store: &'a Store,
    folder: PathBuf,
    home: String,
    /// What the processes' logs are wrapped in.
    wrap: fn(Arc<dyn EventLog>) -> Arc<dyn EventLog>,
}

impl<'a> Case<'a> {
    fn new(store: &'a Store, folder: &Path, name: &str) -> Result<Self> {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(Self { store, folder, home: format!("home-{name}"), wrap: |log| log })
    }

    fn file(&self) -> PathBuf {
        self.folder.join("file")
    }

    async fn process(&self) -> Result<Process> {
        let mut setup = Setup::on(&self.store.database, &self.home, &self.folder);
        setup.wrap = self.wrap;
        setup.make().await
    }

    /// Dies by `fault`; another process goes on. Returns the log, and whether it died.
    async fn dies(&self, fault: Fault, settled: Settled) -> Result<(Vec<Event>, bool)> {
        let first = self.process().await?;
        let id = first.asked(&script(&self.file())).await?;
        first.faulty.fail(id, fault);
        let died = first.wake(id).await.is_err();
        first.die().await;
        let second = self.process().await?;
        if settled == Settled::First {
            second.leases.settle().await?;
        }
        second.leases.reap().await?;
        second.wake(id).await?;
        let events = second.events(id).await?;
        second.die().await;
        Ok((events, died))
    }
}

/// Who writes what became of calls that a dead process had begun: the process that looks after the dead, or the loop.
#[derive(Clone, Copy, PartialEq)]
enum Settled {
    First,
    ByTheLoop,
}

/// Every append of a session, lost with all that come behind it, or written and unanswered.
///
/// What is written when all from the third append on is lost, is written, too, when the second is the last: which of the
/// two happens is told apart by what the process had in hand alone. So each is tried at every other append, unless
/// `MANYHANDS_TEST_DEATHS` is set.
async fn at_every_append(store: &Store) -> Result<()> {
    let (folder, begun) = (tempfile::tempdir()?, Instant::now());
    let whole = whole();
    let both = times("MANYHANDS_TEST_DEATHS", 0) > 0;
    let faults = (1..=APPENDS_MAX).flat_map(|from| {
        let lost = if from % 2 == 0 { Lost::Process } else { Lost::AnswerAndProcess };
        let other = if from % 2 == 0 { Lost::AnswerAndProcess } else { Lost::Process };
        let lost = [Some(lost), both.then_some(other)];
        lost.into_iter().flatten().map(move |lost| Fault { from, times: 1, lost })
    });
    let ends: Vec<(usize, bool, BTreeMap<String, usize>)> = stream::iter(faults)
        .map(|fault| {
            let (folder, whole) = (folder.path(), &whole);
            async move {
                let name = format!("{}-{:?}", fault.from, fault.lost);
                let case = Case::new(store, folder, &name)?;
                let settled = if fault.from % 4 < 2 { Settled::First } else { Settled::ByTheLoop };
                let (events, died) =
                    case.dies(fault, settled).await.with_context(|| format!("with {fault:?}"))?;
                check(&events, &case.file(), whole).with_context(|| format!("with {fault:?}"))?;
                Ok::<_, anyhow::Error>((fault.from, died, truth::outcomes(&events)))
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    let deaths = ends.iter().filter(|(_, died, _)| *died).count();
    let mut outcomes = BTreeMap::new();
    for (_, _, of_one) in &ends {
        for (outcome, times) in of_one {
            *outcomes.entry(outcome.clone()).or_insert(0) += times;
        }
    }
    println!("{deaths} deaths of {} in {:?}: {outcomes:?}", ends.len(), begun.elapsed());
    // All appends of a session were among them, and none of those behind its end.
    ensure!(deaths > 2 * CALLS && deaths < ends.len(), "{deaths} deaths");
    ensure!(outcomes.contains_key("unknown"), "no death hit a call that was begun: {outcomes:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_death_at_every_append_changes_no_story_on_sqlite() -> Result<()> {
    at_every_append(&Store::sqlite().await?).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_death_at_every_append_changes_no_story_on_postgresql() -> Result<()> {
    at_every_append(&Store::postgres().await?).await
}

/// Pseudo-random numbers, from a seed.
pub(super) fn dice(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed | 1;
    move |limit| {
        // xorshift64*
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % limit.max(1)
    }
}

/// The future of the loop is dropped at any await, again and again, while an append fails here and there.
async fn drops(store: &Store) -> Result<()> {
    let (folder, whole) = (tempfile::tempdir()?, whole());
    let seed = u64::from_le_bytes(gateway::clock::secret());
    println!("seed {seed}");
    let total: Vec<usize> = stream::iter(0..times("MANYHANDS_TEST_DROPS", 16))
        .map(|n| {
            let (folder, whole) = (folder.path(), &whole);
            async move {
                let case = Case::new(store, folder, &format!("drop-{n}"))?;
                let mut dice = dice(seed.wrapping_add(n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
                let process = case.process().await?;
                let id = process.asked(&script(&case.file())).await?;
                let (mut dropped, begun) = (0_usize, Instant::now());
                loop {
                    let lost = if dice(2) == 0 { Lost::Write } else { Lost::Answer };
                    let from = usize::try_from(dice(25))? + 1;
                    process.faulty.fail(id, Fault { from, times: 1, lost });
                    // Longer and longer, so that it comes to an end on any machine.
                    let patience = Duration::from_micros(dice(30_000 + 10_000 * dropped as u64));
                    match tokio::time::timeout(patience, process.wake(id)).await {
                        Ok(Ok(())) => break,
                        Ok(Err(_)) | Err(_) => dropped += 1,
                    }
                    ensure!(
                        begun.elapsed() < Duration::from_mins(4),
                        "it never ends: {:?}",
                        said(&process.events(id).await?)
                    );
                }
                process.faulty.fail(id, Fault { from: usize::MAX, times: 0, lost: Lost::Write });
                process.calls.drained().await;
                let events = process.events(id).await?;
                check(&events, &case.file(), whole).with_context(|| format!("drop {n}, seed {seed}"))?;
                Ok::<_, anyhow::Error>(dropped)
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    println!("{} sessions, {} drops", total.len(), total.iter().sum::<usize>());
    ensure!(total.iter().sum::<usize>() >= total.len(), "hardly anything was dropped");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn futures_dropped_anywhere_change_no_story_on_sqlite() -> Result<()> {
    drops(&Store::sqlite().await?).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn futures_dropped_anywhere_change_no_story_on_postgresql() -> Result<()> {
    drops(&Store::postgres().await?).await
}

/// A log whose reader forgets that calls were begun.
struct Forgetful(Arc<dyn EventLog>);

#[async_trait]
impl EventLog for Forgetful {
    async fn append(&self, id: SessionId, at: At, events: &[NewEvent]) -> Result<Seq, LogError> {
        self.0.append(id, at, events).await
    }

    async fn read(&self, id: SessionId, slice: Slice) -> Result<Vec<Event>, LogError> {
        let events = self.0.read(id, slice).await?;
        Ok(events.into_iter().filter(|event| event.kind() != "hand.call_started").collect())
    }
}

/// Of a loop that makes again what was begun, the database lets nothing through; and without the database, this suite
/// would tell.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loop_that_makes_again_what_was_begun_is_caught() -> Result<()> {
    let (folder, whole) = (tempfile::tempdir()?, whole());
    let (held, bare) = (Store::sqlite().await?, Store::sqlite().await?);
    bare.database
        .write(|connection| {
            Box::pin(async move {
                sqlx::query("drop index event_started").execute(connection).await?;
                Ok::<_, gateway::database::DatabaseError>(())
            })
        })
        .await?;
    for (store, name) in [(&held, "held"), (&bare, "bare")] {
        let twice: Vec<bool> = stream::iter((8..APPENDS_MAX / 2).step_by(2))
            .map(|from| {
                let (folder, whole) = (folder.path(), &whole);
                async move {
                    let mut case = Case::new(store, folder, &format!("{name}-{from}"))?;
                    case.wrap = |log| Arc::new(Forgetful(log));
                    let fault = Fault { from, times: 1, lost: Lost::Process };
                    let told = case.dies(fault, Settled::ByTheLoop);
                    let told = tokio::time::timeout(Duration::from_mins(1), told).await;
                    let mut did = lines(&case.file());
                    let all = did.len();
                    did.sort();
                    did.dedup();
                    let right = match told {
                        Ok(Ok((events, _))) => check(&events, &case.file(), whole).is_ok(),
                        Ok(Err(_)) | Err(_) => false,
                    };
                    ensure!(
                        did.len() == all || !right,
                        "a call was made twice at append {from}, and nobody tells"
                    );
                    Ok::<_, anyhow::Error>(did.len() < all)
                }
            })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        let any = twice.contains(&true);
        ensure!(any == (name == "bare"), "{name}: {twice:?}");
    }
    Ok(())
}
