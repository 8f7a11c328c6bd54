//! `kill -9` under load: of the gateway, and of its sandboxes.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gateway::session::Event;
use rustix::process::{Pid, Signal, kill_process};
use tests::gateway::{Gateway, Options};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::client::{Client, Given};
use super::truth::{self, Reader, field, of, processes};

/// How often something is killed.
const KILLS: usize = 50;
/// Sessions that the writers share, four calls and two notes at a time in each of the first four.
const SESSIONS: [&str; 4] = ["one", "two", "three", "four"];
/// Writers of calls in each session.
const CALLERS: usize = 3;

/// Pseudo-random numbers, from a seed that is printed.
struct Dice(u64);

impl Dice {
    fn new() -> Self {
        let seed = u64::from_le_bytes(gateway::clock::secret());
        println!("seed {seed}");
        Self(seed | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % limit
    }
}

/// What the writers were told.
#[derive(Default)]
struct Told {
    /// By session: calls by their mark, with their answers.
    calls: BTreeMap<&'static str, HashMap<String, Given>>,
    /// By session: notes that were acknowledged.
    notes: BTreeMap<&'static str, Vec<String>>,
    /// Requests that broke off.
    broken: usize,
}

/// Sixteen writers, whose gateway changes under them.
struct Writers {
    tasks: JoinSet<Result<(&'static str, Told)>>,
    stop: CancellationToken,
}

impl Writers {
    fn start(gateway: &watch::Receiver<Option<Client>>) -> Self {
        let (mut tasks, stop) = (JoinSet::new(), CancellationToken::new());
        for session in SESSIONS {
            for writer in 0..CALLERS {
                tasks.spawn(call_all(gateway.clone(), session, writer, stop.clone()));
            }
            tasks.spawn(note_all(gateway.clone(), session, stop.clone()));
        }
        Self { tasks, stop }
    }

    /// Lets every writer have the answer it waits for.
    async fn end(mut self) -> Result<Told> {
        self.stop.cancel();
        let mut all = Told::default();
        while let Some(told) = self.tasks.join_next().await {
            let (session, told) = told??;
            for calls in told.calls.into_values() {
                all.calls.entry(session).or_default().extend(calls);
            }
            for notes in told.notes.into_values() {
                all.notes.entry(session).or_default().extend(notes);
            }
            all.broken += told.broken;
        }
        Ok(all)
    }
}

async fn living(gateway: &mut watch::Receiver<Option<Client>>) -> Result<Client> {
    gateway.wait_for(Option::is_some).await?.clone().context("just seen")
}

/// Each call has a key and is asked for again until it has an answer.
async fn call_all(
    mut gateway: watch::Receiver<Option<Client>>,
    session: &'static str,
    writer: usize,
    stop: CancellationToken,
) -> Result<(&'static str, Told)> {
    let mut told = Told::default();
    for n in 0.. {
        if stop.is_cancelled() {
            break;
        }
        let mark = format!("{session}-{writer}-{n}");
        let command = format!("echo {mark} >> /workspace/log; sleep 0.0{}", n % 8);
        let given = loop {
            let client = living(&mut gateway).await?;
            match client.bash_keyed(session, &command, &mark).await {
                Ok(given) => break given,
                Err(_) => told.broken += 1,
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        told.calls.entry(session).or_default().insert(mark, given);
    }
    Ok((session, told))
}

async fn note_all(
    mut gateway: watch::Receiver<Option<Client>>,
    session: &'static str,
    stop: CancellationToken,
) -> Result<(&'static str, Told)> {
    let mut told = Told::default();
    for n in 0.. {
        if stop.is_cancelled() {
            break;
        }
        let note = format!("{session}-note-{n}");
        match living(&mut gateway).await?.emit(session, &note).await {
            Ok(()) => told.notes.entry(session).or_default().push(note),
            Err(_) => told.broken += 1,
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok((session, told))
}

/// Logs, answers and `/workspace` agree.
async fn agree(reader: &Reader, told: &Told, gateway: &Client) -> Result<BTreeMap<String, usize>> {
    let mut outcomes = BTreeMap::new();
    for session in SESSIONS {
        let events = reader.events(session).await?;
        let results: HashMap<i64, &Event> =
            of(&events, "agent.tool_result").into_iter().map(|event| (event.seq.0, event)).collect();
        let lines = gateway.bash(session, "cat /workspace/log").await?.text;
        let mut times: HashMap<&str, usize> = HashMap::new();
        for line in lines.lines().filter(|line| line.starts_with(session)) {
            *times.entry(line).or_default() += 1;
        }
        ensure!(!times.is_empty(), "no call of {session} had an effect: {lines}");
        ensure!(times.values().all(|times| *times == 1), "something ran twice: {times:?}");
        for (mark, given) in told.calls.get(session).context("no call was answered")? {
            let result =
                results.get(&given.seq).with_context(|| format!("{mark} was answered, not logged"))?;
            ensure!(field(result, "outcome") == given.outcome, "{mark}: {given:?}");
            let ran = times.contains_key(mark.as_str());
            match given.outcome.as_str() {
                "ok" => ensure!(ran, "{mark} is ok, and its effect is gone"),
                // Asked for, and its process died before it started.
                "cancelled" => ensure!(!ran, "{mark} did not run, says its outcome, and did"),
                "unknown" | "lost" => {}
                other => ensure!(other == "error" && !ran, "{mark}: {given:?}"),
            }
            *outcomes.entry(given.outcome.clone()).or_default() += 1;
        }
        let noted: Vec<&str> = of(&events, "test.noted").iter().map(|event| field(event, "text")).collect();
        let acknowledged = told.notes.get(session).context("no note was acknowledged")?;
        for note in acknowledged {
            ensure!(noted.contains(&note.as_str()), "{note} was acknowledged, and is gone");
        }
    }
    Ok(outcomes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_leaves_one_outcome_for_every_call() -> Result<()> {
    let (scratch, mut dice) = (tempfile::tempdir()?, Dice::new());
    let data = scratch.path().join("data");
    let options = Options::default().data(&data);
    let (current, seen) = watch::channel(None);
    let writers = Writers::start(&seen);
    let began = Instant::now();
    for kill in 0..KILLS {
        let mut gateway = Gateway::start(options.clone()).await?;
        current.send_replace(Some(Client::of(&gateway)?));
        tokio::time::sleep(Duration::from_millis(50 + dice.below(900))).await;
        current.send_replace(None);
        gateway.kill().with_context(|| format!("kill {kill}"))?;
    }
    let killing = began.elapsed();
    let mut gateway = Gateway::start(options).await?;
    let client = Client::of(&gateway)?;
    current.send_replace(Some(client.clone()));
    let told = writers.end().await?;
    let reader = Reader::directory(&data).await?;
    let outcomes = agree(&reader, &told, &client).await?;
    gateway.stop()?;
    let mut all = BTreeMap::new();
    for session in SESSIONS {
        let events = reader.events(session).await?;
        truth::check_ended(&events).with_context(|| format!("in {session}"))?;
        truth::check_no_orphans(&events, &data)?;
        *all.entry("events").or_insert(0) += events.len();
        *all.entry("provisioned").or_insert(0) += of(&events, "hand.provisioned").len();
        *all.entry("lost").or_insert(0) += of(&events, "hand.lost").len();
        *all.entry("started").or_insert(0) += of(&events, "hand.call_started").len();
    }
    println!(
        "{KILLS} kills in {killing:?}: {all:?}, answers {outcomes:?}, {} requests broke off",
        told.broken
    );
    ensure!(reader.rows("open_call").await? == 0 && reader.rows("instance").await? == 0, "rows are left");
    ensure!(outcomes.contains_key("unknown"), "no kill hit a running call: {outcomes:?}");
    Ok(())
}

/// The outermost process and PID 1 of each sandbox that the gateway has.
fn sandboxes(gateway: u32) -> Result<Vec<(u32, String)>> {
    let parent = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let mut ours = processes(&["sandbox-init\0inst_".to_owned()])?;
    ours.retain(|(pid, _)| {
        let above = parent(*pid);
        above == Some(gateway) || above.and_then(parent) == Some(gateway)
    });
    Ok(ours)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_sandbox_is_one_outcome_and_one_loss() -> Result<()> {
    let (scratch, mut dice) = (tempfile::tempdir()?, Dice::new());
    let data = scratch.path().join("data");
    let mut gateway = Gateway::start(Options::default().data(&data)).await?;
    let client = Client::of(&gateway)?;
    let (_current, seen) = watch::channel(Some(client.clone()));
    let writers = Writers::start(&seen);
    let (mut killed, began) = (0, Instant::now());
    while killed < KILLS {
        ensure!(began.elapsed() < Duration::from_mins(4), "only {killed} sandboxes were there to kill");
        tokio::time::sleep(Duration::from_millis(20 + dice.below(500))).await;
        let ours = sandboxes(gateway.pid())?;
        if ours.is_empty() {
            continue;
        }
        let (pid, _) = ours[usize::try_from(dice.below(ours.len() as u64))?];
        let pid = Pid::from_raw(i32::try_from(pid)?).context("no process id")?;
        killed += usize::from(kill_process(pid, Signal::KILL).is_ok());
    }
    let killing = began.elapsed();
    let told = writers.end().await?;
    let reader = Reader::directory(&data).await?;
    let outcomes = agree(&reader, &told, &client).await?;
    gateway.stop()?;
    let (mut lost, mut started) = (0, 0);
    for session in SESSIONS {
        let events = reader.events(session).await?;
        truth::check_ended(&events).with_context(|| format!("in {session}"))?;
        truth::check_no_orphans(&events, &data)?;
        lost += of(&events, "hand.lost").len();
        started += of(&events, "hand.call_started").len();
    }
    println!(
        "{killed} kills in {killing:?}: {lost} hands lost, {started} calls started, answers {outcomes:?}"
    );
    ensure!(lost > 0 && lost <= killed, "{killed} kills, {lost} losses");
    ensure!(outcomes.contains_key("lost"), "no kill hit a running call: {outcomes:?}");
    ensure!(told.broken == 0, "{} requests broke off, and the gateway lived", told.broken);
    Ok(())
}
