//! Faults inside the gateway: appends that fail, a hand that panics, a hand that never comes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use async_trait::async_trait;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use gateway::access::Principal;
use gateway::calls::{Answer, Ask, CallError, Calls, News, Ticket};
use gateway::config::Config;
use gateway::database::{Database, DatabaseConfig};
use gateway::leases::Leases;
use gateway::leases::node::{Me, Nodes};
use gateway::registry::{Making, Registry};
use gateway::session::{By, CallOutcome, EventLog, SessionId, SessionLimits, Sessions, Via};
use hands::sandbox::Sandbox;
use hands::{Call, CallContext, Hand, HandError, Handle, InstanceId, Lease, Outcome, Progress, Tool};
use serde_json::{Value, json};
use tests::faulty::{Fault, FaultyLog, Lost};
use tokio_util::sync::CancellationToken;

use super::truth::{self, Reader, outcomes};

/// A real sandbox that is in trouble when it is told to be.
struct Troubled {
    sandbox: Sandbox,
    /// How many further instances never come.
    hangs: AtomicUsize,
}

#[async_trait]
impl Hand for Troubled {
    async fn tools(&self) -> Result<Vec<Tool>, HandError> {
        self.sandbox.tools().await
    }

    async fn provision(&self, lease: &Lease, progress: &dyn Progress) -> Result<Handle, HandError> {
        let hangs = self.hangs.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if hangs.is_ok() {
            std::future::pending::<()>().await;
        }
        self.sandbox.provision(lease, progress).await
    }

    async fn execute(
        &self,
        handle: &Handle,
        call: &Call,
        context: CallContext,
    ) -> Result<Outcome, HandError> {
        assert!(call.arguments["command"] != "panic", "as it was told");
        self.sandbox.execute(handle, call, context).await
    }

    fn alive(&self, handle: &Handle) -> bool {
        self.sandbox.alive(handle)
    }

    async fn release(&self, handle: Handle) -> Result<(), HandError> {
        self.sandbox.release(handle).await
    }

    async fn reap(&self, instances: &[InstanceId]) -> Result<(), HandError> {
        self.sandbox.reap(instances).await
    }

    fn about(&self) -> Value {
        self.sandbox.about()
    }
}

/// The rooms below the faces, over a log with faults.
struct Rig {
    sessions: Arc<Sessions>,
    log: Arc<FaultyLog>,
    hand: Arc<Troubled>,
    registry: Arc<Registry>,
    leases: Arc<Leases>,
    calls: Calls,
    reader: Reader,
    directory: tempfile::TempDir,
}

impl Rig {
    async fn new(running_max: usize) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let database = Database::open(DatabaseConfig::Directory(directory.path().to_owned())).await?;
        let me = Me::new("home");
        let limits = SessionLimits { sessions: 1000, stored_bytes: 1 << 30 };
        let sessions = Arc::new(Sessions::new(database.clone(), me.id().0, limits));
        let minute = Duration::from_mins(1);
        let nodes = Nodes::join(database.clone(), me, "home".into(), "host".into(), minute).await?;
        let hand = Arc::new(Troubled {
            sandbox: Sandbox::new(crate::sandbox_kit::config()),
            hangs: AtomicUsize::new(0),
        });
        let made = hand.clone();
        let maker = Box::new(move |_: &Making<'_>| Ok(made.clone() as Arc<dyn Hand>));
        let config = Config::parse("", "manyhands.toml".as_ref(), [])?;
        let registry = Arc::new(Registry::open(database.clone(), &config.hands, maker).await?);
        let log = Arc::new(FaultyLog::new(Arc::new(sessions.log().clone())));
        let shared: Arc<dyn EventLog> = log.clone();
        let work = directory.path().join("work");
        let leases = Leases::new(database, shared.clone(), Arc::new(nodes), registry.clone(), work, 64);
        let leases = Arc::new(leases);
        let calls = Calls::new(
            sessions.clone(),
            shared,
            leases.clone(),
            running_max,
            hands::Spool::default(),
            CancellationToken::new(),
        );
        let reader = Reader::directory(directory.path()).await?;
        Ok(Self { sessions, log, hand, registry, leases, calls, reader, directory })
    }

    fn by() -> By {
        By { principal: Principal::owner().to_string(), client: None, via: Via::Mcp }
    }

    async fn session(&self, name: &str) -> Result<SessionId> {
        Ok(self.sessions.open(&Principal::owner(), &name.parse()?, &Self::by()).await?.id)
    }

    fn begin(&self, session: SessionId, command: &str) -> Result<Ticket> {
        let hand = self.registry.get("sandbox")?;
        let tool = hand.tool("bash").context("no bash")?;
        let arguments = BTreeMap::from([("command", command)]);
        let Value::Object(arguments) = json!(arguments) else { bail!("no object") };
        let (by, principal, caller) = (Self::by(), Principal::owner(), Arc::default());
        Ok(self.calls.begin(Ask {
            by,
            principal,
            session,
            hand,
            tool,
            arguments,
            key: None,
            caller,
            turn: None,
        })?)
    }

    async fn call(&self, session: SessionId, command: &str) -> Result<Result<Arc<Answer>, CallError>> {
        let mut ticket = self.begin(session, command)?;
        loop {
            if let News::Ended(end) = ticket.next().await {
                return Ok(end);
            }
        }
    }

    /// Waits until nothing runs, and nothing is left to be written.
    async fn settled(&self) -> Result<()> {
        let start = Instant::now();
        while self.calls.running() > 0 || self.reader.rows("open_call").await? > 0 {
            ensure!(start.elapsed() < Duration::from_mins(2), "{} calls never end", self.calls.running());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    fn lines(&self, session: SessionId) -> String {
        let work = self.directory.path().join("work").join(session.to_string());
        std::fs::read_to_string(work.join("sandbox").join("log")).unwrap_or_default()
    }

    async fn end(self) -> Result<()> {
        self.calls.drained().await;
        self.leases.release_all().await;
        ensure!(self.reader.rows("instance").await? == 0, "instances are left");
        Ok(())
    }
}

fn text(answer: &Answer) -> String {
    answer.content.iter().filter_map(|block| block["text"].as_str()).collect()
}

/// Three calls write use, provisioned, started, result; use and started, result; use and started, result.
const APPENDS: usize = 8;

/// Three calls of which one append goes wrong. Each runs once or not at all, and its answer says which.
async fn three_calls(rig: &Rig, fault: Fault) -> Result<()> {
    let name = format!("fault-{}-{:?}", fault.from, fault.lost).to_lowercase();
    let session = rig.session(&name).await?;
    rig.log.fail(session, fault);
    for n in 0..3 {
        let end = rig.call(session, &format!("echo {n} >> /workspace/log")).await?;
        let times = rig.lines(session).lines().filter(|line| *line == n.to_string()).count();
        match &end {
            Ok(answer) if answer.outcome == CallOutcome::Ok => {
                ensure!(times == 1, "call {n} ran {times} times");
            }
            Ok(answer) => {
                ensure!(times == 0 && text(answer).contains("did not run"), "call {n} ran: {answer:?}");
            }
            Err(error @ CallError::Log(_)) => {
                ensure!(times == 0 && error.to_string().contains("did not run"), "call {n} ran: {error}");
            }
            Err(error) => bail!("call {n}: {error}"),
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_that_fails_runs_nothing_twice_and_loses_no_outcome() -> Result<()> {
    let rig = Rig::new(32).await?;
    let faults =
        (1..=APPENDS).flat_map(|from| [Lost::Write, Lost::Answer].map(|lost| Fault { from, times: 1, lost }));
    stream::iter(faults)
        .map(|fault| {
            let rig = &rig;
            async move { three_calls(rig, fault).await.with_context(|| format!("with {fault:?}")) }
        })
        .buffer_unordered(4)
        .try_collect::<Vec<()>>()
        .await?;
    rig.settled().await?;
    let mut all = BTreeMap::new();
    for from in 1..=APPENDS {
        for lost in [Lost::Write, Lost::Answer] {
            let name = format!("fault-{from}-{lost:?}").to_lowercase();
            let events = rig.reader.events(&name).await?;
            truth::check(&events).with_context(|| name)?;
            for (outcome, times) in outcomes(&events) {
                *all.entry(outcome).or_insert(0) += times;
            }
        }
    }
    println!("{} faults: {all:?}", APPENDS * 2);
    rig.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_that_cant_be_written_soon_is_written_later() -> Result<()> {
    let rig = Rig::new(4).await?;
    let session = rig.session("late").await?;
    rig.call(session, "true").await??;
    // The second call's outcome, once more than its asker waits for.
    rig.log.fail(session, Fault { from: 2, times: 4, lost: Lost::Write });
    let end = rig.call(session, "echo x >> /workspace/log").await?;
    ensure!(matches!(end, Err(CallError::Unrecorded { ending: "as asked", .. })), "{end:?}");
    ensure!(rig.reader.rows("open_call").await? == 1);
    rig.settled().await?;
    let events = rig.reader.events("late").await?;
    truth::check(&events)?;
    ensure!(outcomes(&events) == [("ok".to_owned(), 2)].into(), "{:?}", outcomes(&events));
    ensure!(rig.lines(session) == "x\n");
    rig.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_that_panics_is_an_outcome() -> Result<()> {
    let rig = Rig::new(4).await?;
    let session = rig.session("panics").await?;
    // More than may run at once: none of them may stay counted.
    for _ in 0..6 {
        let answer = rig.call(session, "panic").await??;
        ensure!(answer.outcome == CallOutcome::Unknown, "{answer:?}");
        ensure!(text(&answer).contains("not run again"), "{answer:?}");
    }
    ensure!(rig.call(session, "true").await??.outcome == CallOutcome::Ok);
    rig.settled().await?;
    truth::check(&rig.reader.events("panics").await?)?;
    // Nothing of it counts as in use.
    ensure!(rig.leases.release(session, &"sandbox".parse()?).await?);
    rig.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_that_never_comes_is_called_off_with_its_call() -> Result<()> {
    let rig = Rig::new(4).await?;
    let session = rig.session("hangs").await?;
    rig.hand.hangs.store(1, Ordering::SeqCst);
    let ticket = rig.begin(session, "true")?;
    let start = Instant::now();
    while rig.hand.hangs.load(Ordering::SeqCst) > 0 {
        ensure!(start.elapsed() < Duration::from_secs(20), "it was not asked for");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Somebody else waits for the same hand meanwhile.
    let second = rig.begin(session, "true")?;
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(ticket);
    let mut second = second;
    let end = loop {
        if let News::Ended(end) = second.next().await {
            break end?;
        }
    };
    ensure!(end.outcome == CallOutcome::Ok, "{end:?}");
    rig.settled().await?;
    let events = rig.reader.events("hangs").await?;
    truth::check(&events)?;
    ensure!(outcomes(&events) == [("cancelled".to_owned(), 1), ("ok".to_owned(), 1)].into());
    ensure!(truth::of(&events, "hand.provisioned").len() == 1 && truth::of(&events, "hand.lost").is_empty());
    rig.end().await
}
