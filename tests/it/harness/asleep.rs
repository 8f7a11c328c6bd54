//! A session that has slept for long wakes to the state that its log tells, whatever is kept beside the log.

use anyhow::{Result, ensure};
use gateway::harness::context::Policy;
use gateway::session::{At, Body, By, EventLog, NewEvent, SessionId, State, Via};
use serde_json::json;

use super::rig::{self, Process, Setup};
use crate::log::{Store, on_both};

/// Events before the summary.
const EVENTS: usize = 20_000;
/// Events of one append.
const BATCH: usize = 1_000;

on_both!(without_its_snapshot_a_compacted_session_wakes_to_the_same_state);

async fn without_its_snapshot_a_compacted_session_wakes_to_the_same_state(store: &Store) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut setup = Setup::on(&store.database, "home", folder.path());
    // Any answer is too much from here on.
    setup.manner.policy = Policy { compact_at: Some(1), ..Policy::default() };
    let process = setup.make().await?;
    let id = process.asked("message 0").await?;
    process.wake(id).await?;
    fill(store, id).await?;
    process.say(id, "message 1").await?;
    process.wake(id).await?;

    let kept = process.sessions.kept_state(&store.log, id).await?;
    let through = kept.summarized().map_or(0, |through| through.0);
    ensure!(usize::try_from(through)? > EVENTS && kept.told.len() < 5, "{:?} {}", through, kept.told.len());
    ensure!(store.execute("delete from snapshot where session = $1", id).await? == 1);
    ensure!(process.sessions.kept_state(&store.log, id).await? == State::default());
    ensure!(process.sessions.state(id).await? == kept);

    // The waker finds the way from the beginning, too, and leaves what it learned.
    process.say(id, "@say I am back.").await?;
    process.wake(id).await?;
    goes_on(store, &process, id).await
}

async fn goes_on(store: &Store, process: &Process, id: SessionId) -> Result<()> {
    let state = process.state(id).await?;
    ensure!(process.sessions.kept_state(&store.log, id).await? == state);
    let events = process.events(id).await?;
    let said = rig::said(&events[events.len() - 20..]);
    ensure!(said.last().is_some_and(|said| said == "I am back."), "{said:?}");
    ensure!(rig::rests(&events) == ["end_turn"; 3], "{:?}", rig::rests(&events));
    // What the summary stands for is no more than the log has, and no less.
    let (mut fresh, mut again) = (State::default(), State::default());
    fresh.replay(events.iter().cloned());
    for event in &events {
        again.replay([event.clone()]);
    }
    ensure!(fresh == state && again == state);
    Ok(())
}

/// Another brain has talked for long.
async fn fill(store: &Store, id: SessionId) -> Result<()> {
    let by = By { via: Via::Mcp, ..rig::by() };
    for batch in 0..EVENTS / BATCH {
        let word = |n| {
            let content = json!([{"type": "text", "text": format!("word {}", batch * BATCH + n)}]);
            NewEvent::of(by.clone(), &Body::AgentMessage { content })
        };
        let words: Vec<NewEvent> = (0..BATCH).map(word).collect();
        store.log.append(id, At::End, &words).await?;
    }
    Ok(())
}
