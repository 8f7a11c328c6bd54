//! Statements that go to the database together, as one transaction or as a part of one.
//!
//! A script is data: whoever runs it needs to ask nobody in between. On SQLite the writer's own thread does
//! ([`super::sqlite`]); within a transaction that does more than that, and on PostgreSQL, its statements go one by one.

use std::borrow::Cow;

use futures_util::StreamExt as _;
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::{Arguments as _, AssertSqlSafe, Database as _, Either, Executor as _, Row as _, Sqlite};

use super::error::Failure;
use super::signals::notify;
use super::{Connection, DatabaseError, Dialect, Signals};

/// Most values of a statement that is kept prepared: there are many texts that are as long, and each is rare.
const KEPT_VALUES_MAX: usize = 48;

/// A statement with its values: `$1` and so on, counted anew in each.
#[derive(Debug)]
#[must_use]
pub struct Statement {
    text: Cow<'static, str>,
    values: Vec<Value>,
    needs: Needs,
}

/// A value in a statement.
#[derive(Clone, Debug)]
pub enum Value {
    /// A text.
    Text(String),
    /// The absence of a text.
    NoText,
    /// A number.
    Number(i64),
}

/// Without what a statement is refused, with all that stand behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    Nothing,
    Row,
    Change,
}

/// Why statements did not all go through. Nothing of them was kept, or whoever gets it rolls back.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    /// The transaction itself failed.
    #[error(transparent)]
    Transaction(#[from] DatabaseError),
    /// This one found no row, or changed none, and had to.
    #[error("statement {0} was refused")]
    Refused(usize),
    /// This one failed.
    #[error("statement {0} failed: {1}")]
    Failed(usize, #[source] Failure),
}

impl Statement {
    /// A statement without values.
    pub fn new(text: impl Into<Cow<'static, str>>) -> Self {
        Self { text: text.into(), values: Vec::new(), needs: Needs::Nothing }
    }

    /// With the next value.
    pub fn bind(mut self, value: impl Into<Value>) -> Self {
        self.values.push(value.into());
        self
    }

    /// Refused when it gives no row.
    pub fn needs_row(self) -> Self {
        Self { needs: Needs::Row, ..self }
    }

    /// Refused when it changes no row.
    pub fn needs_change(self) -> Self {
        Self { needs: Needs::Change, ..self }
    }

    /// Its text.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Its values, from `$1` on.
    pub(super) fn values(&self) -> &[Value] {
        &self.values
    }

    /// Whether it is worth to be kept prepared.
    pub(super) fn is_kept(&self) -> bool {
        self.values.len() <= KEPT_VALUES_MAX
    }

    /// Whether it did not do what it has to.
    pub(super) fn is_refused(&self, did: &Did) -> bool {
        match self.needs {
            Needs::Nothing => false,
            Needs::Row => !did.gave_row,
            Needs::Change => did.changed == 0,
        }
    }
}

/// What a statement did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Did {
    /// What stands first in the last row that it gave, if that is a number.
    pub number: Option<i64>,
    pub(super) gave_row: bool,
    pub(super) changed: u64,
}

/// Statements in their order, and who is told once they are committed.
#[derive(Debug)]
#[must_use]
pub struct Script {
    statements: Vec<Statement>,
    told: Vec<(String, usize)>,
}

impl Script {
    /// These, which all go through, or stop at the first that does not.
    pub fn new(statements: Vec<Statement>) -> Self {
        Self { statements, told: Vec::new() }
    }

    /// Whoever waits for this topic is told that it has come to the number which this statement gave.
    pub fn tells(mut self, topic: impl Into<String>, statement: usize) -> Self {
        self.told.push((topic.into(), statement));
        self
    }

    /// The statements.
    pub(super) fn statements(&self) -> &[Statement] {
        &self.statements
    }

    /// Runs it within a transaction. Once that is committed, whoever did so calls [`Script::publish`].
    pub async fn run(&self, connection: &mut Connection) -> Result<Vec<Did>, Stopped> {
        let mut all = Vec::with_capacity(self.statements.len());
        for (at, statement) in self.statements.iter().enumerate() {
            let did = one(connection, statement).await.map_err(|error| Stopped::Failed(at, error.into()))?;
            if statement.is_refused(&did) {
                return Err(Stopped::Refused(at));
            }
            all.push(did);
        }
        let dialect = dialect(connection);
        for (topic, reached) in self.reached(&all) {
            let told = notify(connection, dialect, topic, reached).await;
            told.map_err(|error| Stopped::Transaction(error.into()))?;
        }
        Ok(all)
    }

    /// Tells those of this process who wait. The others hear it from PostgreSQL, by the transaction itself.
    pub fn publish(&self, signals: &Signals, all: &[Did]) {
        for (topic, reached) in self.reached(all) {
            signals.publish(topic, reached);
        }
    }

    fn reached<'a>(&'a self, all: &'a [Did]) -> impl Iterator<Item = (&'a str, i64)> {
        self.told.iter().filter_map(|(topic, at)| Some((topic.as_str(), all.get(*at)?.number?)))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Option<String>> for Value {
    fn from(text: Option<String>) -> Self {
        text.map_or(Self::NoText, Self::Text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

fn dialect(connection: &Connection) -> Dialect {
    if connection.backend_name() == Sqlite::NAME { Dialect::Sqlite } else { Dialect::Postgres }
}

async fn one(connection: &mut Connection, statement: &Statement) -> Result<Did, sqlx::Error> {
    let mut values = AnyArguments::default();
    for value in &statement.values {
        // What these become is plain data, which always can be.
        let added = match value {
            Value::Text(text) => values.add(text.clone()),
            Value::NoText => values.add(None::<String>),
            Value::Number(number) => values.add(*number),
        };
        added.expect("plain data");
    }
    let text = AssertSqlSafe(statement.text.to_string());
    let query = sqlx::query_with(text, values).persistent(statement.is_kept());
    let mut results = connection.fetch_many(query);
    let mut did = Did::default();
    while let Some(result) = results.next().await {
        match result? {
            Either::Left(result) => did.changed = result.rows_affected(),
            Either::Right(row) => {
                did.gave_row = true;
                did.number = first_number(&row);
            }
        }
    }
    Ok(did)
}

fn first_number(row: &AnyRow) -> Option<i64> {
    row.try_get(0).ok()
}
