//! Sessions that sleep: what they cost in memory, and how fast the loop is back at work on one.

use std::path::Path;

use anyhow::{Result, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use gateway::access::Principal;
use gateway::database::{Database, DatabaseConfig};
use gateway::session::{At, Body, By, EventLog, NewEvent, Seq, SessionLimits, Sessions, Via};
use serde_json::json;
use tests::gateway::{Gateway, Options};

use crate::owner::{Owner, Turn};
use crate::process::{MEGABYTE, resident};
use crate::report::{Bound, Row, percentile};

/// Sessions that sleep, and sessions in which the model is thinking.
const ASLEEP: usize = 1_000;
const RUNNING: usize = 50;
/// Processes measured with sleeping sessions, and without.
const ROUNDS: usize = 5;
/// Sessions that are put to sleep at the same time.
const AT_ONCE: usize = 8;
/// Events of the short log and of the long one, both compacted, and wakes of each.
const FEW: usize = 100;
const MANY: usize = 100_000;
const WAKES: usize = 100;
/// Events of one append.
const BATCH: usize = 1_000;
/// What a model says to a session that was asleep.
const WORD: &str = "@say I am awake.";

pub(crate) async fn rows(scratch: &Path) -> Result<Vec<Row>> {
    let folder = scratch.join("sleep");
    let [asleep, none, logs] = ["asleep", "none", "logs"].map(|name| folder.join(name));
    let grown = put_to_sleep(&asleep).await?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        with.push(memory(&asleep).await?);
        without.push(memory(&none).await?);
    }
    let (with, without) = (percentile(&mut with, 0.5), percentile(&mut without, 0.5));
    let memory = Row {
        what: "resident memory of 1 000 sleeping sessions",
        value: (with - without) / MEGABYTE,
        must: Bound::AtMost(1.0),
        aim: Bound::AtMost(0.5),
        unit: "MB",
        detail: format!(
            "{:.1} MB − {:.1} MB, 50 running; {:.1} MB more while the second half fell asleep",
            with / MEGABYTE,
            without / MEGABYTE,
            grown / MEGABYTE
        ),
    };
    Ok(vec![memory, wakes(&asleep).await?, compacted(&logs).await?])
}

async fn gateway(data: &Path) -> Result<(Gateway, Owner)> {
    let options = Options::default().data(data).env("MANYHANDS_BRAIN_MODEL", "scripted/sleep");
    let gateway = Gateway::start(options).await?;
    let owner = Owner::of(&gateway)?;
    Ok((gateway, owner))
}

/// Each has had a turn. What the process grew by with the second half of them, in bytes.
async fn put_to_sleep(data: &Path) -> Result<f64> {
    let (mut gateway, owner) = gateway(data).await?;
    let mut after = Vec::new();
    for half in [0..ASLEEP / 2, ASLEEP / 2..ASLEEP] {
        let turns = half.map(|n| {
            let owner = owner.clone();
            async move { owner.run(&format!("asleep-{n}"), "@say Good night.").await?.end().await }
        });
        let turns: Vec<_> = stream::iter(turns).buffer_unordered(AT_ONCE).try_collect().await?;
        ensure!(turns.len() == ASLEEP / 2);
        after.push(resident(gateway.pid())?);
    }
    gateway.stop()?;
    Ok(after[1] - after[0])
}

/// Has a model think in so many sessions.
async fn running(owner: &Owner) -> Result<Vec<Turn>> {
    let mut turns = Vec::new();
    for n in 0..RUNNING {
        let mut turn = owner.run(&format!("running-{n}"), "@wait 3000s").await?;
        turn.running().await?;
        turns.push(turn);
    }
    Ok(turns)
}

/// Bytes resident of a new process while sessions run in it.
async fn memory(data: &Path) -> Result<f64> {
    let (mut gateway, owner) = gateway(data).await?;
    let running = running(&owner).await?;
    let bytes = resident(gateway.pid())?;
    // The next process begins with those that sleep, and no others.
    for n in 0..running.len() {
        owner.delete(&format!("running-{n}")).await?;
    }
    gateway.stop()?;
    Ok(bytes)
}

/// From a person's word in a sleeping session to the first of its model, while others run.
async fn wakes(data: &Path) -> Result<Row> {
    let (_gateway, owner) = gateway(data).await?;
    let running = running(&owner).await?;
    let mut times = Vec::new();
    for n in 0..ASLEEP {
        let mut turn = owner.run(&format!("asleep-{n}"), WORD).await?;
        times.push(turn.first_token().await?);
        turn.end().await?;
    }
    let (p50, p99) = (percentile(&mut times, 0.5), percentile(&mut times, 0.99));
    Ok(Row {
        what: "a sleeping session's wake to its model's first byte, p99",
        value: p99 * 1e3,
        must: Bound::None,
        aim: Bound::None,
        unit: "ms",
        detail: format!("p50 {:.1} ms, {} running", p50 * 1e3, running.len()),
    })
}

/// The same for a long log and for a short one, both compacted.
async fn compacted(data: &Path) -> Result<Row> {
    filled(data).await?;
    let (_gateway, owner) = gateway(data).await?;
    let (mut few, mut many) = (Vec::new(), Vec::new());
    for round in 0..=WAKES {
        for (session, times) in [("few", &mut few), ("many", &mut many)] {
            let mut turn = owner.run(session, WORD).await?;
            let time = turn.first_token().await?;
            turn.end().await?;
            // The first one reads it all, and leaves what it learned for the next.
            if round > 0 {
                times.push(time);
            }
        }
    }
    let (few, many) = (percentile(&mut few, 0.5), percentile(&mut many, 0.5));
    Ok(Row {
        what: "a compacted session of 100 000 events wakes, against 100",
        value: many / few,
        must: Bound::AtMost(2.0),
        aim: Bound::AtMost(1.2),
        unit: "x",
        detail: format!("p50 {:.1} ms / {:.1} ms to the model's first byte", many * 1e3, few * 1e3),
    })
}

/// Two logs, each with a summary at its end.
async fn filled(data: &Path) -> Result<()> {
    let database = Database::open(DatabaseConfig::Directory(data.to_owned())).await?;
    let limits = SessionLimits { sessions: 100, stored_bytes: u64::MAX };
    let sessions = Sessions::new(database.clone(), "node_bench".into(), limits);
    for (name, events) in [("few", FEW), ("many", MANY)] {
        let by = by(Via::Mcp);
        let id = sessions.create(&Principal::owner(), Some(&name.parse()?), &by).await?.id;
        let mut last = Seq(1);
        for _ in 0..events.div_ceil(BATCH) {
            let words = (0..events.min(BATCH)).map(|_| said(&by));
            last = sessions.log().append(id, At::End, &words.collect::<Vec<_>>()).await?;
        }
        let summary = "They talked for long.".to_owned();
        let compacted = NewEvent::of(self::by(Via::Loop), &Body::ContextCompacted { through: last, summary });
        sessions.log().append(id, At::End, &[compacted]).await?;
    }
    database.close().await;
    Ok(())
}

fn said(by: &By) -> NewEvent {
    let content = json!([{"type": "text", "text": "x".repeat(100)}]);
    NewEvent::of(by.clone(), &Body::UserMessage { content })
}

fn by(via: Via) -> By {
    By { principal: Principal::owner().0, client: Some("bench/1".into()), via }
}
