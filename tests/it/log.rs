//! The contract of the session log, over every database it runs on.
//!
//! Each line of it is a function that returns an error when the log breaks it, so that `mutation` can show that a
//! log without its checks does break it.

mod append;
mod calls;
mod crash;
mod follow;
mod leases;
mod model;
mod mutation;
mod slices;
mod wire;

use anyhow::{Result, ensure};
use gateway::access::Principal;
use gateway::database::{Database, DatabaseConfig};
use gateway::session::{
    At, Body, By, CallOutcome, Event, EventId, EventLog, HandRef, LogError, NewEvent, SessionId, SessionInfo,
    SessionLimits, Sessions, Slice, SqlLog, Statements, Via,
};
use tests::postgres::{self, TestDatabase};

/// Runs each function, which takes a [`Store`], on SQLite and on PostgreSQL.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() -> anyhow::Result<()> {
                super::$name(&$crate::log::Store::sqlite().await?).await
            })*
        }
        mod postgresql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() -> anyhow::Result<()> {
                super::$name(&$crate::log::Store::postgres().await?).await
            })*
        }
    };
}
pub(crate) use on_both;

/// An empty database and the log in it.
pub(crate) struct Store {
    pub(crate) config: DatabaseConfig,
    pub(crate) database: Database,
    pub(crate) sessions: Sessions,
    pub(crate) log: SqlLog,
    _keep: Keep,
}

enum Keep {
    Directory { _directory: tempfile::TempDir },
    Postgres { _database: TestDatabase },
}

/// This process, as far as the log is concerned.
pub(crate) const NODE: &str = "node_a";

impl Store {
    pub(crate) async fn sqlite() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let config = DatabaseConfig::Directory(directory.path().to_path_buf());
        Self::open(config, Keep::Directory { _directory: directory }).await
    }

    pub(crate) async fn postgres() -> Result<Self> {
        let database = postgres::database().await?;
        let config = DatabaseConfig::Url(database.url().into());
        Self::open(config, Keep::Postgres { _database: database }).await
    }

    async fn open(config: DatabaseConfig, keep: Keep) -> Result<Self> {
        let database = Database::open(config.clone()).await?;
        let sessions = sessions(&database);
        let log = sessions.log().clone();
        Ok(Self { config, database, sessions, log, _keep: keep })
    }

    /// The same database with a log that uses other statements.
    pub(crate) fn with_statements(mut self, change: impl FnOnce(&mut Statements)) -> Self {
        let mut statements = Statements::of(self.database.dialect());
        change(&mut statements);
        self.log = SqlLog::with_statements(self.database.clone(), NODE.to_owned(), statements);
        self
    }

    /// A new session; its `session.created` is event 1.
    pub(crate) async fn session(&self) -> Result<SessionInfo> {
        Ok(self.sessions.create(&owner(), None, &by()).await?)
    }

    /// Everything in a log.
    pub(crate) async fn all(&self, id: SessionId) -> Result<Vec<Event>> {
        let mut events: Vec<Event> = Vec::new();
        loop {
            let after = Some(events.last().map_or(gateway::session::Seq(0), |event| event.seq));
            let more = self.log.read(id, Slice { after, limit: Some(1_000), ..Slice::default() }).await?;
            if more.is_empty() {
                return Ok(events);
            }
            events.extend(more);
        }
    }

    /// Runs one statement, as somebody at the database might.
    pub(crate) async fn execute(&self, text: &'static str, id: SessionId) -> Result<u64> {
        let rows = self.database.write(move |connection| {
            Box::pin(async move {
                let done = sqlx::query(text).bind(id.to_string()).execute(connection).await;
                Ok::<_, LogError>(done.map_err(gateway::database::DatabaseError::from)?.rows_affected())
            })
        });
        Ok(rows.await?)
    }
}

pub(crate) fn sessions(database: &Database) -> Sessions {
    let limits = SessionLimits { sessions: 1_000, stored_bytes: 1 << 40 };
    Sessions::new(database.clone(), NODE.to_owned(), limits)
}

pub(crate) fn owner() -> Principal {
    Principal::owner()
}

pub(crate) fn by() -> By {
    By { principal: owner().0, client: Some("tests/1".into()), via: Via::Mcp }
}

pub(crate) fn said(text: &str) -> NewEvent {
    NewEvent::of(by(), &Body::UserMessage { content: text.into() })
}

pub(crate) fn used() -> NewEvent {
    let hand = HandRef { name: "sandbox".into(), kind: "sandbox".into() };
    let (name, tool) = ("sandbox__bash".into(), "bash".into());
    let input = serde_json::Map::new();
    let body = Body::ToolUse { name, input, hand, tool, call_key: None, evaluated_permission: None };
    NewEvent::of(by(), &body)
}

pub(crate) fn started(call: EventId) -> NewEvent {
    let (hand, instance, node) = ("sandbox".into(), "inst_1".into(), "node_b".into());
    NewEvent::of(by(), &Body::CallStarted { tool_use_id: call, hand, instance, node, epoch: 1, waker: None })
}

pub(crate) fn ended(call: EventId) -> NewEvent {
    let outcome = CallOutcome::Ok;
    NewEvent::of(
        by(),
        &Body::ToolResult {
            tool_use_id: call,
            content: vec![],
            output: None,
            rest: Box::default(),
            is_error: false,
            outcome,
        },
    )
}

/// The log holds exactly these, at 1, 2, 3 and so on.
pub(crate) async fn ensure_holds(store: &Store, id: SessionId, events: &[EventId]) -> Result<()> {
    let all = store.all(id).await?;
    let seqs: Vec<i64> = all.iter().map(|event| event.seq.0).collect();
    ensure!(seqs == (1..).take(seqs.len()).collect::<Vec<i64>>(), "gap or duplicate: {seqs:?}");
    let ids: Vec<EventId> = all.iter().skip(1).map(|event| event.id).collect();
    ensure!(ids == events, "the log holds {ids:?}, not {events:?}");
    Ok(())
}

/// It failed, as it should.
pub(crate) fn ensure_refused<T: std::fmt::Debug>(
    result: &Result<T, LogError>,
    expected: fn(&LogError) -> bool,
) -> Result<()> {
    ensure!(result.as_ref().is_err_and(expected), "not refused as it should be: {result:?}");
    Ok(())
}

/// The three kinds of append that go through in a session that ends at `end` and holds no lease.
pub(crate) fn every_at(end: i64) -> [At; 3] {
    [At::End, At::After(gateway::session::Seq(end)), At::Held(vec![])]
}
