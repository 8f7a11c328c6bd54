//! Statements that go to the database together.
//!
//! `SQLite` runs in a thread of its own, and what a statement costs is mostly the way there and back: here several of
//! them are one text, and one way. `PostgreSQL` takes one statement at a time, and gets the same ones one by one.

use std::borrow::Cow;
use std::fmt::Write as _;

use futures_util::StreamExt as _;
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::{Arguments as _, AssertSqlSafe, Database as _, Either, Executor as _, Sqlite};

use super::{Connection, DatabaseError, Dialect};

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

/// Why statements did not all go through. Whoever gets it rolls back.
#[derive(Debug)]
pub enum Stopped {
    /// The transaction did not begin.
    Unopened(DatabaseError),
    /// This one found no row, or changed none, and had to.
    Refused(usize),
    /// This one failed.
    Failed(usize, sqlx::Error),
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

    fn is_refused(&self, did: &Did) -> bool {
        match self.needs {
            Needs::Nothing => false,
            Needs::Row => did.row.is_none(),
            Needs::Change => did.changed == 0,
        }
    }
}

/// What a statement did.
#[derive(Default)]
pub struct Did {
    /// The last row that it gave.
    pub row: Option<AnyRow>,
    changed: u64,
}

/// What opens a transaction, or a part of one, and has not been sent yet: it goes with what comes next.
#[derive(Default)]
pub(super) struct Opening {
    waiting: Vec<&'static str>,
    failed: Option<DatabaseError>,
}

impl Opening {
    /// One more, behind those that wait.
    pub(super) fn push(&mut self, statement: &'static str) {
        self.waiting.push(statement);
    }

    /// Whether nothing of it was sent since the last look.
    pub(super) fn waits_for(&self, statement: &str) -> bool {
        self.waiting.contains(&statement)
    }

    /// Why it failed, if it did.
    pub(super) fn check(&mut self) -> Result<(), DatabaseError> {
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Sends what waits, with nothing behind it.
    pub(super) async fn send(&mut self, connection: &mut Connection) -> Result<(), DatabaseError> {
        match run(connection, &std::mem::take(&mut self.waiting), &[]).await {
            Ok(_) => Ok(()),
            Err(Stopped::Unopened(error)) => Err(error),
            Err(Stopped::Failed(_, error)) => Err(error.into()),
            // There is nothing that could be.
            Err(Stopped::Refused(_)) => Ok(()),
        }
    }
}

/// A connection whose transaction begins with the first that is asked of it.
pub struct Entry<'c> {
    connection: &'c mut Connection,
    opening: Option<&'c mut Opening>,
}

impl<'c> Entry<'c> {
    pub(super) fn new(connection: &'c mut Connection, opening: &'c mut Opening) -> Self {
        Self { connection, opening: Some(opening) }
    }

    /// Begins the transaction, for all that can be done in one.
    pub(super) async fn open(self) -> Result<&'c mut Connection, DatabaseError> {
        if let Some(opening) = self.opening
            && let Err(error) = opening.send(self.connection).await
        {
            opening.failed = Some(error.clone());
            return Err(error);
        }
        Ok(self.connection)
    }

    /// Begins the transaction with these statements, which all go through, or stop at the first that does not.
    pub async fn run(self, statements: &[Statement]) -> (&'c mut Connection, Result<Vec<Did>, Stopped>) {
        let Self { connection, opening } = self;
        let waiting = opening.as_ref().map(|opening| opening.waiting.clone()).unwrap_or_default();
        let ran = run(connection, &waiting, statements).await;
        if let Some(opening) = opening {
            opening.waiting.clear();
            if let Err(Stopped::Unopened(error)) = &ran {
                opening.failed = Some(error.clone());
            }
        }
        (connection, ran)
    }
}

impl<'c> From<&'c mut Connection> for Entry<'c> {
    /// Within a transaction that has begun.
    fn from(connection: &'c mut Connection) -> Self {
        Self { connection, opening: None }
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

/// Runs them in their order, up to the first that is refused or fails, behind what opens their transaction.
pub(super) async fn run(
    connection: &mut Connection,
    opening: &[&'static str],
    statements: &[Statement],
) -> Result<Vec<Did>, Stopped> {
    match dialect(connection) {
        Dialect::Sqlite => together(connection, opening, statements).await,
        Dialect::Postgres => one_by_one(connection, opening, statements).await,
    }
}

fn dialect(connection: &Connection) -> Dialect {
    if connection.backend_name() == Sqlite::NAME { Dialect::Sqlite } else { Dialect::Postgres }
}

/// One text, one way. `SQLite` may have run more than what is read here of a refused text: nothing that counts.
async fn together(
    connection: &mut Connection,
    opening: &[&'static str],
    statements: &[Statement],
) -> Result<Vec<Did>, Stopped> {
    let (text, values, kept) = joined(opening, statements);
    let query = sqlx::query_with(AssertSqlSafe(text), values).persistent(kept);
    let mut results = connection.fetch_many(query);
    let mut opened = 0;
    let (mut all, mut did) = (Vec::with_capacity(statements.len()), Did::default());
    while let Some(result) = results.next().await {
        match result {
            Err(error) if opened < opening.len() => return Err(Stopped::Unopened(error.into())),
            Err(error) => return Err(Stopped::Failed(all.len(), error)),
            Ok(Either::Left(_)) if opened < opening.len() => opened += 1,
            Ok(Either::Right(row)) => did.row = Some(row),
            Ok(Either::Left(result)) => {
                did.changed = result.rows_affected();
                if statements.get(all.len()).is_some_and(|statement| statement.is_refused(&did)) {
                    return Err(Stopped::Refused(all.len()));
                }
                all.push(std::mem::take(&mut did));
            }
        }
    }
    Ok(all)
}

/// The text of them all, with their values, and whether it is worth to be kept prepared.
fn joined(opening: &[&'static str], statements: &[Statement]) -> (String, AnyArguments, bool) {
    let mut text = String::with_capacity(1_024);
    for statement in opening {
        text.push_str(statement);
        text.push(';');
    }
    let mut values = AnyArguments::default();
    for statement in statements {
        renumbered(&statement.text, values.len(), &mut text);
        text.push(';');
        add(&mut values, &statement.values);
    }
    let kept = values.len() <= KEPT_VALUES_MAX;
    (text, values, kept)
}

/// The text, its values behind `before` others. No text of ours has a `$` that is no value.
fn renumbered(text: &str, before: usize, out: &mut String) {
    let mut parts = text.split('$');
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let (number, rest) = part.split_at(end);
        let number = number.parse::<usize>().unwrap_or_default() + before;
        // Writing to a string does not fail.
        write!(out, "${number}{rest}").unwrap_or_default();
    }
}

async fn one_by_one(
    connection: &mut Connection,
    opening: &[&'static str],
    statements: &[Statement],
) -> Result<Vec<Did>, Stopped> {
    for text in opening {
        connection.execute(*text).await.map_err(|error| Stopped::Unopened(error.into()))?;
    }
    let mut all = Vec::with_capacity(statements.len());
    for (at, statement) in statements.iter().enumerate() {
        let mut values = AnyArguments::default();
        add(&mut values, &statement.values);
        let kept = values.len() <= KEPT_VALUES_MAX;
        let query = sqlx::query_with(AssertSqlSafe(statement.text.to_string()), values).persistent(kept);
        let mut results = connection.fetch_many(query);
        let mut did = Did::default();
        while let Some(result) = results.next().await {
            match result.map_err(|error| Stopped::Failed(at, error))? {
                Either::Left(result) => did.changed = result.rows_affected(),
                Either::Right(row) => did.row = Some(row),
            }
        }
        if statement.is_refused(&did) {
            return Err(Stopped::Refused(at));
        }
        all.push(did);
    }
    Ok(all)
}

fn add(arguments: &mut AnyArguments, values: &[Value]) {
    for value in values {
        // What these become is plain data, which always can be.
        let added = match value {
            Value::Text(text) => arguments.add(text.clone()),
            Value::NoText => arguments.add(None::<String>),
            Value::Number(number) => arguments.add(*number),
        };
        added.expect("plain data");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_over_all_statements() {
        let one = Statement::new("update a set b = $2 where c = $1").bind("x").bind(1);
        let two = Statement::new("insert into d values ($1, $3, $2, $1)").bind("y").bind(None).bind(2);
        let (text, values, _) = joined(&["begin immediate"], &[one, two]);
        assert_eq!(
            text,
            "begin immediate;update a set b = $2 where c = $1;insert into d values ($3, $5, $4, $3);"
        );
        assert_eq!(values.len(), 5);
    }
}
