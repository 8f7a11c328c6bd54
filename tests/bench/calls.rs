//! A tool call through the gateway, against the same call direct and through a proxy that looks at nothing.
//!
//! Four pairs of eras, with and without the log. What is compared is measured round by round, one after the other, so
//! that the machine's drift hits all of it; each figure is the median over the rounds.
//!
//! F is what the proxy adds at p50 with one caller, measured with a client and a server of the client's era.

mod caller;
mod peers;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::task::JoinSet;

use self::caller::{Caller, Era, Target};
use self::peers::{Pair, Peers};
use crate::disk;
use crate::report::{Bound, Row, percentile};

/// Rounds that are compared.
const ROUNDS: usize = 5;
/// Calls of one target in one round, and before the first round.
const CALLS: usize = 1_000;
const WARM_UP: usize = 200;
/// The longest that one target may take in one round.
const SLICE: Duration = Duration::from_secs(4);
/// Callers at once.
const CALLERS: [usize; 3] = [1, 16, 64];

/// The four ways that one pair of eras is called.
const WAYS: usize = 4;
const DIRECT: usize = 0;
const PROXY: usize = 1;
const UNLOGGED: usize = 2;
const LOGGED: usize = 3;

/// The medians of one target with one number of callers.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    /// p50 of a call, in seconds.
    p50: f64,
    /// p99 of a call, in seconds.
    p99: f64,
    /// Calls a second.
    rate: f64,
    /// CPU seconds of the process in the middle for one call; 0 where there is none.
    cpu: f64,
}

pub(crate) async fn rows(scratch: &Path) -> Result<Vec<Row>> {
    let d = disk::d(scratch)?;
    let peers = Peers::start(scratch).await?;
    let mut rows = Vec::new();
    for pair in Pair::ALL {
        let ways = peers.ways(pair);
        let mut measured = Vec::new();
        for callers in CALLERS {
            measured.push(compare(&ways, callers).await?);
        }
        let [one, sixteen, many] = measured.as_slice() else { continue };
        rows.extend(latency(pair, one, d));
        rows.extend([throughput(pair, 16, sixteen), throughput(pair, 64, many), cpu(pair, sixteen)]);
    }
    rows.push(memory(&peers)?);
    Ok(rows)
}

/// Added at p50 with one caller, without and with the log.
fn latency(pair: Pair, one: &[Figures; WAYS], d: f64) -> [Row; 2] {
    let f = (one[PROXY].p50 - one[DIRECT].p50).max(1e-6);
    let us = |seconds: f64| seconds * 1e6;
    let detail = |way: &Figures| {
        format!(
            "direct {:.0}, F {:.0}, gateway +{:.0} us; p99 {:.2} ms; D {:.0} us",
            us(one[DIRECT].p50),
            us(f),
            us(way.p50 - one[DIRECT].p50),
            way.p99 * 1e3,
            us(d)
        )
    };
    let row = |what, way: &Figures, must: f64, aim: f64| Row {
        what,
        value: (way.p50 - one[DIRECT].p50) / f,
        must: Bound::AtMost(must),
        aim: Bound::AtMost(aim),
        unit: "F",
        detail: detail(way),
    };
    let durable = d / f;
    [
        row(pair.name("added, no log"), &one[UNLOGGED], 1.8, 1.3),
        row(pair.name("added, logged"), &one[LOGGED], 1.8 + 4.0 * durable, 1.3 + 3.2 * durable),
    ]
}

/// Calls a second with the log, as a part of the proxy's.
fn throughput(pair: Pair, callers: usize, figures: &[Figures; WAYS]) -> Row {
    let what = if callers == 16 { "16 callers, logged" } else { "64 callers, logged" };
    Row {
        what: pair.name(what),
        value: figures[LOGGED].rate / figures[PROXY].rate,
        must: Bound::AtLeast(0.4),
        aim: Bound::AtLeast(0.6),
        unit: "x",
        detail: format!(
            "calls/s: direct {:.0}, proxy {:.0}, no log {:.0}, logged {:.0}; p99 logged {:.1} ms",
            figures[DIRECT].rate,
            figures[PROXY].rate,
            figures[UNLOGGED].rate,
            figures[LOGGED].rate,
            figures[LOGGED].p99 * 1e3
        ),
    }
}

/// CPU of a call without the log, against the proxy's.
fn cpu(pair: Pair, figures: &[Figures; WAYS]) -> Row {
    Row {
        what: pair.name("CPU a call, no log"),
        value: figures[UNLOGGED].cpu / figures[PROXY].cpu.max(1e-9),
        must: Bound::AtMost(2.0),
        aim: Bound::AtMost(1.5),
        unit: "x",
        detail: format!(
            "proxy {:.0}, no log {:.0}, logged {:.0} us, 16 callers",
            figures[PROXY].cpu * 1e6,
            figures[UNLOGGED].cpu * 1e6,
            figures[LOGGED].cpu * 1e6
        ),
    }
}

fn memory(peers: &Peers) -> Result<Row> {
    Ok(Row {
        what: "resident memory at most, 64 callers of an MCP hand",
        value: peers.highest_memory()? / 1e6,
        must: Bound::AtMost(60.0),
        aim: Bound::AtMost(30.0),
        unit: "MB",
        detail: "VmHWM after all of the above".to_owned(),
    })
}

/// A target, and the process in the middle, if there is one.
pub(crate) struct Way {
    pub(crate) target: Target,
    pub(crate) pid: Option<u32>,
}

async fn compare(ways: &[Way; WAYS], callers: usize) -> Result<[Figures; WAYS]> {
    for way in ways {
        slice(way, callers, WARM_UP).await?;
    }
    let mut rounds: [Vec<Figures>; WAYS] = Default::default();
    for _ in 0..ROUNDS {
        for (way, figures) in ways.iter().zip(&mut rounds) {
            figures.push(slice(way, callers, CALLS).await?);
        }
    }
    Ok(rounds.map(|figures| {
        let median =
            |of: fn(&Figures) -> f64| percentile(&mut figures.iter().map(of).collect::<Vec<_>>(), 0.5);
        Figures {
            p50: median(|f| f.p50),
            p99: median(|f| f.p99),
            rate: median(|f| f.rate),
            cpu: median(|f| f.cpu),
        }
    }))
}

async fn slice(way: &Way, callers: usize, calls: usize) -> Result<Figures> {
    let mut open = Vec::new();
    for _ in 0..callers {
        open.push(Caller::connect(&way.target).await?);
    }
    let before = way.pid.map(peers::cpu_seconds).transpose()?;
    let (start, taken) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let mut running = JoinSet::new();
    for mut caller in open {
        let taken = taken.clone();
        running.spawn(async move {
            let mut samples = Vec::new();
            while taken.fetch_add(1, Ordering::Relaxed) < calls && start.elapsed() < SLICE {
                let call = Instant::now();
                caller.echo("hello, gateway").await?;
                samples.push(call.elapsed().as_secs_f64());
            }
            anyhow::Ok((caller, samples))
        });
    }
    let (mut samples, mut done) = (Vec::new(), Vec::new());
    while let Some(ended) = running.join_next().await {
        let (caller, some) = ended??;
        samples.extend(some);
        done.push(caller);
    }
    let seconds = start.elapsed().as_secs_f64();
    let after = way.pid.map(peers::cpu_seconds).transpose()?;
    for caller in done {
        caller.close().await?;
    }
    #[expect(clippy::cast_precision_loss, reason = "some thousand calls")]
    let made = samples.len() as f64;
    Ok(Figures {
        p50: percentile(&mut samples, 0.5),
        p99: percentile(&mut samples, 0.99),
        rate: made / seconds,
        cpu: before.zip(after).map_or(0.0, |(before, after)| (after - before) / made),
    })
}
