//! The log in a database: one text and one code for SQLite and PostgreSQL.
//!
//! An append takes its places with one `update` of the session's row. The lock on that row, held until the
//! commit, is what leaves no gap and no duplicate; the unique indexes of `event` hold that a call starts once
//! and ends once, whoever appends.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use sqlx::{Any, Executor};

use super::awake;
use super::row::{CallChange, InstanceChange, NewRow, Wakes};
use super::turns::Turns;
use super::{At, Event, EventLog, Held, LogError, NewEvent, Seq, SessionId, Slice};
use crate::clock;
use crate::database::{
    Connection, Database, DatabaseError, Dialect, Did, Failure, Script, Signals, Statement, Stopped,
};

/// Rows in one `insert`; each binds eleven values of SQLite's 32 766.
const INSERT_ROWS_MAX: usize = 64;
/// Most events in one append.
pub const APPEND_EVENTS_MAX: usize = 1_000;

/// The texts that carry the log's promises. Only tests ever use others than [`Statements::of`].
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Statements {
    /// Takes `$2` places at the end.
    pub end: &'static str,
    /// The same, if the log ends at `$5`.
    pub after: &'static str,
    /// Where session `$1` ends, once the places are taken.
    pub place: &'static str,
    /// A row, if lease `$1` still has epoch `$2`, which then can't change until the commit.
    pub held: &'static str,
}

impl Statements {
    /// Those of a database.
    pub fn of(dialect: Dialect) -> Self {
        Self {
            end: "update session set last_seq = last_seq + $2, bytes = bytes + $3, updated_at = $4
                where id = $1 and status = 'active' returning last_seq",
            after: "update session set last_seq = last_seq + $2, bytes = bytes + $3, updated_at = $4
                where id = $1 and status = 'active' and last_seq = $5 returning last_seq",
            place: "(select last_seq from session where id = $1)",
            held: match dialect {
                // One transaction writes at a time: nothing to lock.
                Dialect::Sqlite => "select 1 from lease where subject = $1 and epoch = $2",
                Dialect::Postgres => "select 1 from lease where subject = $1 and epoch = $2 for share",
            },
        }
    }
}

/// An [`EventLog`] in a [`Database`]. Clones share it.
#[derive(Clone, Debug)]
pub struct SqlLog {
    pub(super) database: Database,
    node: Arc<RwLock<String>>,
    statements: Statements,
    pub(super) turns: Arc<Turns>,
}

impl SqlLog {
    /// `node` is this process, as its open calls name it.
    pub fn new(database: Database, node: String) -> Self {
        let statements = Statements::of(database.dialect());
        Self::with_statements(database, node, statements)
    }

    /// For tests that show what a statement's conditions are good for.
    #[doc(hidden)]
    pub fn with_statements(database: Database, node: String, statements: Statements) -> Self {
        Self { database, node: Arc::new(RwLock::new(node)), statements, turns: Arc::default() }
    }

    /// This process goes on under another name. Calls that are open keep the old one.
    pub fn rename(&self, node: String) {
        *self.node.write().unwrap_or_else(PoisonError::into_inner) = node;
    }

    /// The events, ready to be appended within somebody's own transaction.
    pub(super) fn batch(&self, id: SessionId, at: At, events: &[NewEvent]) -> Result<Batch, LogError> {
        if events.len() > APPEND_EVENTS_MAX {
            return Err(LogError::Malformed("there are more than 1000 in one append"));
        }
        Ok(Batch {
            session: id.to_string(),
            topic: topic(id),
            at,
            rows: events.iter().map(NewRow::of).collect::<Result<_, _>>()?,
            node: self.node.read().unwrap_or_else(PoisonError::into_inner).clone(),
            statements: self.statements,
        })
    }
}

#[async_trait]
impl EventLog for SqlLog {
    async fn append(&self, id: SessionId, at: At, events: &[NewEvent]) -> Result<Seq, LogError> {
        let batch = self.batch(id, at, events)?;
        let _turn = match self.database.dialect() {
            Dialect::Sqlite => None,
            Dialect::Postgres => Some(self.turns.wait(id).await),
        };
        let (steps, script) = batch.script();
        match self.database.run(script).await {
            Ok(done) => last(&steps, &done),
            Err(stopped) => Err(batch.stopped(&steps, stopped, self.database.reader()).await),
        }
    }

    async fn read(&self, id: SessionId, slice: Slice) -> Result<Vec<Event>, LogError> {
        Ok(super::slice::read(&self.database, id, &slice).await?.events)
    }
}

/// What a session's signals are called.
pub(super) fn topic(id: SessionId) -> String {
    id.to_string()
}

/// Events that are ready to be appended.
#[derive(Debug)]
pub(super) struct Batch {
    session: String,
    topic: String,
    at: At,
    rows: Vec<NewRow>,
    node: String,
    statements: Statements,
}

/// What a statement of an append is for.
#[derive(Debug)]
enum Step {
    /// This lease must be held.
    Held(String),
    /// Moves the session's end behind the new events.
    Places,
    Events,
    OpenCall,
    Instance,
    Awake,
}

impl Batch {
    /// Appends within somebody's transaction. Whoever commits it publishes the place on the topic.
    pub(super) async fn append(&self, connection: &mut Connection) -> Result<Seq, LogError> {
        let (steps, script) = self.script();
        match script.run(connection).await {
            Ok(done) => last(&steps, &done),
            Err(stopped) => Err(self.stopped(&steps, stopped, connection).await),
        }
    }

    /// What is to be done, and what each statement of it is for.
    fn script(&self) -> (Vec<Step>, Script) {
        let now = format!("{:.6}", clock::now());
        let (steps, statements): (Vec<Step>, Vec<Statement>) = self.steps(&now).into_iter().unzip();
        let places = steps.iter().position(|step| matches!(step, Step::Places)).unwrap_or_default();
        let script = Script::new(statements).tells(self.topic.as_str(), places);
        let script = if self.wakes() { script.tells(awake::TOPIC, places) } else { script };
        (steps, script)
    }

    /// Whether the built-in loop may have something to do once this is written.
    fn wakes(&self) -> bool {
        self.rows.iter().any(|row| row.wakes != Wakes::Nobody)
    }

    /// In the order that decides which refusal is told. Leases come before the session's row is locked, here and
    /// everywhere, so that nobody waits in a circle.
    fn steps(&self, now: &str) -> Vec<(Step, Statement)> {
        let mut steps = Vec::new();
        self.check_held(&mut steps);
        steps.push((Step::Places, self.take_places(now)));
        self.insert(now, &mut steps);
        self.change_open_calls(&mut steps);
        self.change_instances(&mut steps);
        if self.wakes() {
            let awake = awake::put(&self.session, self.statements.place, &self.rows);
            steps.push((Step::Awake, awake));
        }
        steps
    }

    fn check_held(&self, steps: &mut Vec<(Step, Statement)>) {
        let (At::Held(leases) | At::HeldAfter(leases, _)) = &self.at else { return };
        let mut leases: Vec<&Held> = leases.iter().collect();
        leases.sort_by(|a, b| a.subject.cmp(&b.subject));
        for Held { subject, epoch } in leases {
            let held = Statement::new(self.statements.held).bind(subject.as_str()).bind(*epoch).needs_row();
            steps.push((Step::Held(subject.clone()), held));
        }
    }

    fn take_places(&self, now: &str) -> Statement {
        let (text, after) = match self.at {
            At::End | At::Held(_) => (self.statements.end, None),
            At::After(seq) | At::HeldAfter(_, seq) => (self.statements.after, Some(seq)),
        };
        let statement = Statement::new(text)
            .bind(self.session.as_str())
            .bind(i64::try_from(self.rows.len()).unwrap_or(i64::MAX))
            .bind(self.rows.iter().map(|row| row.size).sum::<i64>())
            .bind(now)
            .needs_row();
        match after {
            Some(seq) => statement.bind(seq.0),
            None => statement,
        }
    }

    /// What it means that the script stopped. `ask` is where the session's state is asked for.
    async fn stopped<'e>(
        &self,
        steps: &[Step],
        stopped: Stopped,
        ask: impl Executor<'e, Database = Any>,
    ) -> LogError {
        let at = match stopped {
            Stopped::Transaction(error) => return error.into(),
            Stopped::Failed(at, failure) if matches!(steps[at], Step::Events) => {
                return insert_failure(failure);
            }
            Stopped::Failed(_, failure) => return DatabaseError::from(failure).into(),
            Stopped::Refused(at) => at,
        };
        match (&steps[at], self.refusal(ask).await) {
            (Step::Instance, _) => LogError::InstanceGone,
            // A session that is gone has no leases; say that it is gone.
            (Step::Held(subject), LogError::Conflict) => LogError::Fenced(subject.clone()),
            (_, other) => other,
        }
    }

    /// Why no place was given.
    async fn refusal<'e>(&self, ask: impl Executor<'e, Database = Any>) -> LogError {
        let status = sqlx::query_scalar::<_, String>("select status from session where id = $1")
            .bind(self.session.clone())
            .fetch_optional(ask)
            .await;
        match status.as_ref().map(Option::as_deref) {
            Ok(Some("active")) => LogError::Conflict,
            Ok(Some("archived")) => LogError::Archived,
            Ok(_) => LogError::NoSession,
            Err(_) => {
                status.map_err(DatabaseError::from).map_or_else(LogError::from, |_| LogError::NoSession)
            }
        }
    }

    fn insert(&self, now: &str, steps: &mut Vec<(Step, Statement)>) {
        let mut ahead = i64::try_from(self.rows.len()).unwrap_or(i64::MAX);
        for rows in self.rows.chunks(INSERT_ROWS_MAX) {
            let text = insert_text(self.statements.place, rows.len());
            let mut statement = Statement::new(text).bind(self.session.as_str()).bind(now);
            for row in rows {
                ahead -= 1;
                statement = statement
                    .bind(ahead)
                    .bind(row.id.as_str())
                    .bind(row.kind.as_str())
                    .bind(row.tool_use_id.clone())
                    .bind(row.call_key.clone())
                    .bind(row.resend_key.clone())
                    .bind(row.output_id.clone())
                    .bind(row.size)
                    .bind(row.by.as_str())
                    .bind(row.body.as_str())
                    .bind(row.private.clone());
            }
            steps.push((Step::Events, statement));
        }
    }

    /// Keeps the index of open calls in step with the log.
    fn change_open_calls(&self, steps: &mut Vec<(Step, Statement)>) {
        for (call, change) in open_calls(&self.rows, &self.node) {
            let statement = match change {
                Some((node, started)) => Statement::new(
                    "insert into open_call (session, tool_use_id, node, started) values ($1, $2, $3, $4)
                     on conflict (session, tool_use_id) do update set node = excluded.node, started = excluded.started",
                )
                .bind(self.session.as_str())
                .bind(call)
                .bind(node)
                .bind(started),
                None => Statement::new("delete from open_call where session = $1 and tool_use_id = $2")
                    .bind(self.session.as_str())
                    .bind(call),
            };
            steps.push((Step::OpenCall, statement));
        }
    }

    /// Keeps the index of instances in step with the log, which says once that an instance is gone.
    fn change_instances(&self, steps: &mut Vec<(Step, Statement)>) {
        for row in &self.rows {
            let statement = match &row.instance {
                InstanceChange::None => continue,
                // The log says once that an instance is gone: nothing begins in it from then on.
                InstanceChange::Used(id) => Statement::new(
                    "select 1 where not exists (select 1 from instance where id = $1 and lost = 1)",
                )
                .bind(id.as_str())
                .needs_row(),
                InstanceChange::There(id) => {
                    Statement::new("update instance set lost = 0 where id = $1").bind(id.as_str())
                }
                InstanceChange::Gone(id) => {
                    Statement::new("update instance set lost = 1 where id = $1 and lost = 0")
                        .bind(id.as_str())
                        .needs_change()
                }
            };
            steps.push((Step::Instance, statement));
        }
    }
}

/// What becomes of each call that the rows speak of: open on a node (started or not), or closed.
fn open_calls<'a>(rows: &'a [NewRow], node: &'a str) -> BTreeMap<&'a str, Option<(&'a str, i64)>> {
    let mut calls = BTreeMap::new();
    for row in rows {
        match &row.call {
            CallChange::None => {}
            CallChange::Asked { call } => {
                calls.insert(call.as_str(), Some((node, 0)));
            }
            CallChange::Started { call, node } => {
                calls.insert(call.as_str(), Some((node.as_str(), 1)));
            }
            CallChange::Ended { call } => {
                calls.insert(call.as_str(), None);
            }
        }
    }
    calls
}

/// `place` is where the log ends with the new events; each knows how many of them come behind it.
fn insert_text(place: &str, rows: usize) -> String {
    let mut text =
        "insert into event (session, at, seq, id, type, tool_use_id, call_key, resend_key, output_id, \
                    size, by, body, private) values "
            .to_owned();
    for row in 0..rows {
        let first = 3 + row * 11;
        let comma = if row == 0 { "" } else { ", " };
        // Writing to a string does not fail.
        write!(text, "{comma}($1, $2, {place} - ${first}").unwrap_or_default();
        for value in first + 1..first + 11 {
            write!(text, ", ${value}").unwrap_or_default();
        }
        text.push(')');
    }
    text
}

/// Where the log ends once the script of an append went through.
fn last(steps: &[Step], done: &[Did]) -> Result<Seq, LogError> {
    let places = steps.iter().zip(done).find(|(step, _)| matches!(step, Step::Places));
    places.and_then(|(_, did)| did.number).map(Seq).ok_or(LogError::NoSession)
}

/// Tells which promise of the table refused the events: PostgreSQL names the index, SQLite its columns.
fn insert_failure(failure: Failure) -> LogError {
    match &failure {
        Failure::Taken { index, .. } => match index.as_str() {
            "event_started" | "event_result" | "event_confirmed" => return LogError::Settled,
            "event_call_key" => return LogError::KeyTaken,
            columns if columns.ends_with("event.session, event.tool_use_id") => return LogError::Settled,
            columns if columns.ends_with("event.session, event.call_key") => return LogError::KeyTaken,
            _ => {}
        },
        Failure::Said { message, .. } if message.contains("a call with an outcome never starts") => {
            return LogError::Settled;
        }
        _ => {}
    }
    DatabaseError::from(failure).into()
}

/// Publishes a place that a transaction of this process has committed.
pub(super) fn publish(signals: &Signals, id: SessionId, seq: Seq) {
    signals.publish(&topic(id), seq.0);
}
