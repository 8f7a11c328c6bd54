//! Connections that send nothing: what they cost in memory, and whether calls beside them take longer.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tests::gateway::{Gateway, Options};
use tokio::net::TcpStream;

use crate::process::{Caller, MEGABYTE, resident};
use crate::report::{Bound, Row, percentile};

/// Connections that send nothing.
const SILENT: usize = 10_000;
/// Files that this process has open beside them.
const OTHERS: u64 = 500;
/// Calls measured with them, and without, in each round.
const CALLS: usize = 300;
/// Rounds of each, in turns.
const ROUNDS: usize = 7;
/// How long the gateway may take to accept them.
const ACCEPT_MAX: Duration = Duration::from_secs(30);

pub(crate) async fn rows(scratch: &Path) -> Result<Vec<Row>> {
    raise()?;
    let gateway = Gateway::start(Options::default().data(&scratch.join("connections"))).await?;
    let caller = Caller::new(&gateway, reqwest::Client::new())?;
    // The first ones warm up.
    calls(&caller).await?;
    let (mut with, mut without, mut grown) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        without.push(calls(&caller).await?);
        let before = resident(gateway.pid())?;
        let silent = silent(&gateway).await?;
        grown.push(resident(gateway.pid())? - before);
        with.push(calls(&caller).await?);
        ensure!(open(&gateway)? > SILENT, "some were closed while calls were measured");
        drop(silent);
    }
    // Memory that was once taken is used again: the first round shows the whole of it.
    let first = grown[0];
    let (with, without) = (percentile(&mut with, 0.5), percentile(&mut without, 0.5));
    Ok(vec![
        Row {
            what: "resident memory of 10 000 silent connections",
            value: first / MEGABYTE,
            must: Bound::AtMost(40.0),
            aim: Bound::AtMost(20.0),
            unit: "MB",
            detail: format!("{:.1} kB each", first / 1e3 / f64::from(u32::try_from(SILENT)?)),
        },
        Row {
            what: "a call beside 10 000 silent connections, p50",
            value: with / without,
            must: Bound::AtMost(1.2),
            aim: Bound::AtMost(1.05),
            unit: "x",
            detail: format!(
                "{:.2} ms / {:.2} ms, medians of {ROUNDS} rounds of {CALLS} session_emit",
                with * 1e3,
                without * 1e3
            ),
        },
    ])
}

/// Lets this process have so many connections.
fn raise() -> Result<()> {
    let (wanted, maximum) = (u64::try_from(SILENT)? + OTHERS, getrlimit(Resource::Nofile).maximum);
    ensure!(maximum.is_none_or(|maximum| maximum >= wanted), "needs {wanted} open files: ulimit -Hn");
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })?)
}

/// Seconds that a call takes, the p50 of some.
async fn calls(caller: &Caller) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..CALLS {
        let begun = Instant::now();
        caller.emit().await?;
        times.push(begun.elapsed().as_secs_f64());
    }
    Ok(percentile(&mut times, 0.5))
}

/// Returns when the gateway has accepted all of them.
async fn silent(gateway: &Gateway) -> Result<Vec<TcpStream>> {
    let address = gateway.url().strip_prefix("http://").context("an address")?;
    let mut silent = Vec::new();
    for _ in 0..SILENT {
        silent.push(TcpStream::connect(address).await?);
    }
    let begun = Instant::now();
    while open(gateway)? <= SILENT {
        ensure!(begun.elapsed() < ACCEPT_MAX, "the gateway does not accept them");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(silent)
}

/// Files that the gateway has open.
fn open(gateway: &Gateway) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{}/fd", gateway.pid()))?.count())
}
