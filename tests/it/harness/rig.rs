//! Processes on one database, with hands that write down what they did, and a model that follows a script.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use gateway::access::Principal;
use gateway::brain::BrainSetting;
use gateway::calls::Calls;
use gateway::config::Config;
use gateway::database::Database;
use gateway::harness::{Backoff, Chooser, Harness, Manner, WakeError, chooser, wake};
use gateway::leases::Leases;
use gateway::leases::node::{Me, Nodes};
use gateway::registry::{Making, Registry};
use gateway::session::{
    At, Body, By, Event, EventLog, NewEvent, Seq, SessionId, SessionLimits, Sessions, State, Via,
};
use hands::{
    Call, CallContext, Effects, Ending, Hand, HandError, Handle, InstanceId, Lease, Outcome, Progress, Tool,
};
use serde_json::{Value, json};
use tests::faulty::FaultyLog;
use tokio_util::sync::CancellationToken;

use crate::log::Store;

/// Three hands.
const HANDS: &str =
    "[hands.one]\nkind = \"sandbox\"\n[hands.two]\nkind = \"sandbox\"\n[hands.three]\nkind = \"sandbox\"\n";

/// A hand that does nothing but write a line into a file, so that what it did twice is seen.
struct Diary {
    pause: Duration,
}

impl Diary {
    fn tool(name: &str, effects: Effects) -> Tool {
        let schema = json!({"type": "object"}).as_object().cloned().unwrap_or_default();
        Tool {
            name: name.to_owned(),
            description: "Writes.".to_owned(),
            input_schema: schema.into(),
            effects,
            definition: None,
        }
    }
}

#[async_trait]
impl Hand for Diary {
    async fn tools(&self) -> Result<Vec<Tool>, HandError> {
        Ok(vec![Self::tool("look", Effects::ReadOnly), Self::tool("note", Effects::Destructive)])
    }

    async fn provision(&self, lease: &Lease, _: &dyn Progress) -> Result<Handle, HandError> {
        let made = std::fs::create_dir_all(&lease.work);
        made.map_err(|source| HandError::Io { doing: "making a folder", source })?;
        Ok(Handle { instance: lease.instance.clone() })
    }

    async fn execute(&self, _: &Handle, call: &Call, context: CallContext) -> Result<Outcome, HandError> {
        let file = call.arguments.get("file").and_then(Value::as_str).unwrap_or("/dev/null");
        let text = call.arguments.get("text").and_then(Value::as_str).unwrap_or_default();
        let written = std::fs::OpenOptions::new().create(true).append(true).open(file);
        written
            // In one piece: calls beside this one write into the same file.
            .and_then(|mut file| file.write_all(format!("{text}\n").as_bytes()))
            .map_err(|source| HandError::Io { doing: "writing", source })?;
        tokio::select! {
            () = tokio::time::sleep(self.pause) => Ok(Outcome::ok(format!("noted {text}"))),
            () = context.cancel.cancelled() => Ok(Outcome::ended(Ending::Cancelled, "cancelled")),
        }
    }

    fn alive(&self, _: &Handle) -> bool {
        true
    }

    async fn release(&self, _: Handle) -> Result<(), HandError> {
        Ok(())
    }

    async fn reap(&self, _: &[InstanceId]) -> Result<(), HandError> {
        Ok(())
    }

    fn about(&self) -> Value {
        json!({})
    }
}

/// One process, as far as the loop is concerned.
pub(super) struct Process {
    pub(super) sessions: Arc<Sessions>,
    pub(super) leases: Arc<Leases>,
    pub(super) calls: Calls,
    pub(super) harness: Arc<Harness>,
    pub(super) faulty: Arc<FaultyLog>,
    hurry: CancellationToken,
}

/// How a process is made.
pub(super) struct Setup<'a> {
    pub(super) database: &'a Database,
    /// Its data directory: processes of one take each other's place.
    pub(super) home: &'a str,
    /// Where work is kept.
    pub(super) folder: &'a Path,
    pub(super) manner: Manner,
    pub(super) chooser: Chooser,
    /// How long each call takes.
    pub(super) pause: Duration,
    /// Most instances that a principal may have.
    pub(super) instances: usize,
    /// What its log is wrapped in.
    pub(super) wrap: fn(Arc<dyn EventLog>) -> Arc<dyn EventLog>,
}

impl<'a> Setup<'a> {
    pub(super) fn on(database: &'a Database, home: &'a str, folder: &'a Path) -> Self {
        let manner = Manner { backoff: quick(), ..Manner::default() };
        let chooser = chooser(scripted(), |_| None);
        let (pause, instances) = (Duration::ZERO, 1_000);
        Self { database, home, folder, manner, chooser, pause, instances, wrap: |log| log }
    }

    pub(super) async fn make(self) -> Result<Process> {
        let Self { database, home, folder, manner, chooser, pause, instances, wrap } = self;
        let me = Me::new(home);
        let limits = SessionLimits { sessions: 10_000, stored_bytes: 1 << 30 };
        let sessions = Arc::new(Sessions::new(database.clone(), me.id().0, limits));
        let dead_after = Duration::from_mins(10);
        let nodes = Nodes::join(database.clone(), me, home.into(), "host".into(), dead_after).await?;
        let maker = Box::new(move |_: &Making<'_>| Ok(Arc::new(Diary { pause }) as Arc<dyn Hand>));
        let config = Config::parse(HANDS, "manyhands.toml".as_ref(), [])?;
        let registry = Arc::new(Registry::open(database.clone(), &config.hands, maker).await?);
        let faulty = Arc::new(FaultyLog::new(wrap(Arc::new(sessions.log().clone()))));
        let log: Arc<dyn EventLog> = faulty.clone();
        let work = folder.join("work");
        let leases =
            Leases::new(database.clone(), log.clone(), Arc::new(nodes), registry.clone(), work, instances);
        let (leases, hurry) = (Arc::new(leases), CancellationToken::new());
        let calls = Calls::new(
            sessions.clone(),
            log.clone(),
            leases.clone(),
            1_000,
            hands::Spool::default(),
            hurry.clone(),
        );
        let harness =
            Harness::new(sessions.clone(), log, leases.clone(), registry, calls.clone(), chooser, manner);
        Ok(Process { sessions, leases, calls, harness: Arc::new(harness), faulty, hurry })
    }
}

/// The scripted model, which takes no time.
pub(super) fn scripted() -> BrainSetting {
    BrainSetting { model: Some("scripted/demo".into()), ..BrainSetting::default() }
}

/// Failures are soon over.
pub(super) fn quick() -> Backoff {
    Backoff { first: Duration::from_millis(1), most: Duration::from_millis(5), tries: 4 }
}

impl Process {
    /// A session in which somebody has said this.
    pub(super) async fn asked(&self, prompt: &str) -> Result<SessionId> {
        let session = self.sessions.create(&Principal::owner(), None, &by()).await?;
        self.say(session.id, prompt).await?;
        Ok(session.id)
    }

    pub(super) async fn say(&self, id: SessionId, prompt: &str) -> Result<Seq> {
        self.write(id, &Body::UserMessage { content: json!([{"type": "text", "text": prompt}]) }).await
    }

    pub(super) async fn write(&self, id: SessionId, body: &Body) -> Result<Seq> {
        Ok(self.sessions.log().append(id, At::End, &[NewEvent::of(by(), body)]).await?)
    }

    pub(super) async fn wake(&self, id: SessionId) -> Result<(), WakeError> {
        wake(&self.harness, id, CancellationToken::new()).await
    }

    /// All that it runs ends, and it says nothing any more.
    pub(super) async fn die(&self) {
        self.hurry.cancel();
        self.calls.drained().await;
    }

    pub(super) async fn events(&self, id: SessionId) -> Result<Vec<Event>> {
        all(self.sessions.log(), id).await
    }

    pub(super) async fn state(&self, id: SessionId) -> Result<State> {
        Ok(self.sessions.state(id).await?)
    }
}

pub(super) async fn all(log: &dyn EventLog, id: SessionId) -> Result<Vec<Event>> {
    let mut events: Vec<Event> = Vec::new();
    loop {
        let after = Some(events.last().map_or(Seq(0), |event| event.seq));
        let slice = gateway::session::Slice { after, limit: Some(1_000), ..Default::default() };
        let more = log.read(id, slice).await?;
        if more.is_empty() {
            return Ok(events);
        }
        events.extend(more);
    }
}

pub(super) fn by() -> By {
    By { principal: Principal::owner().to_string(), client: None, via: Via::Cli }
}

/// One process on a new SQLite database.
pub(super) struct Alone {
    pub(super) process: Process,
    pub(super) folder: tempfile::TempDir,
    _store: Store,
}

impl Alone {
    pub(super) async fn new() -> Result<Self> {
        Self::with(|_| {}).await
    }

    pub(super) async fn with(change: impl FnOnce(&mut Setup<'_>)) -> Result<Self> {
        let (store, folder) = (Store::sqlite().await?, tempfile::tempdir()?);
        let mut making = Setup::on(&store.database, "home", folder.path());
        change(&mut making);
        let process = making.make().await?;
        Ok(Self { process, folder, _store: store })
    }

    /// A file for the hands to write to.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// What stands in a hand's file.
pub(super) fn lines(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

pub(super) fn field<'a>(event: &'a Event, path: &str) -> &'a Value {
    static NOTHING: Value = Value::Null;
    let mut parts = path.split('.');
    let first = parts.next().and_then(|name| event.fields.get(name));
    let found = parts.fold(first, |value, name| value?.get(name));
    found.unwrap_or(&NOTHING)
}

/// What the loop's models said, a text each.
pub(crate) fn said(events: &[Event]) -> Vec<String> {
    let messages = events.iter().filter(|event| event.kind() == "agent.message");
    messages.map(|event| field(event, "content")[0]["text"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Why the loop rested, each time.
pub(crate) fn rests(events: &[Event]) -> Vec<String> {
    let idle = events.iter().filter(|event| event.kind() == "session.status_idle");
    idle.map(|event| field(event, "stop_reason.type").as_str().unwrap_or_default().to_owned()).collect()
}

/// The text of the outcome of the `n`th call.
pub(super) fn outcome(events: &[Event], n: usize) -> Result<(String, String)> {
    let call =
        events.iter().filter(|event| event.kind() == "agent.tool_use").nth(n).context("no such call")?;
    let id = call.id.to_string();
    let result = events
        .iter()
        .find(|event| event.kind() == "agent.tool_result" && field(event, "tool_use_id") == id.as_str())
        .context("it has no outcome")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok((text(field(result, "outcome")), text(&field(result, "content")[0]["text"])))
}
