//! The connection to SQLite that runs scripts: on the thread of whoever calls it, without a driver's thread in between,
//! because what a small write costs beside the disk is mostly the way to such a thread and back.

use std::path::Path;

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OpenFlags, ToSql, TransactionBehavior};

use super::error::{Failure, NoSpace, is_no_space};
use super::script::{Did, Script, Statement, Stopped, Value};
use super::{DatabaseError, open, vacuum};

/// Statements kept prepared: an append of each length up to a few events, with all that can go along.
const PREPARED_MAX: usize = 64;

/// The largest that the write-ahead log stays once it has been copied into the file, in bytes.
pub(super) const LOG_BYTES_KEPT: u32 = 4 << 20;

/// An open connection whose commits are durable.
pub(super) struct Scripts {
    connection: Connection,
}

impl Scripts {
    /// Opens a file that is a database already. Blocks.
    pub(super) fn open(file: &Path) -> Result<Self, DatabaseError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(file, flags)?;
        connection.set_prepared_statement_cache_capacity(PREPARED_MAX);
        connection.pragma_update(None, "synchronous", "full")?;
        connection.pragma_update(None, "journal_size_limit", LOG_BYTES_KEPT)?;
        let mode = connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
        let synchronous = connection.pragma_query_value(None, "synchronous", |row| row.get(0))?;
        open::check_sqlite(mode, synchronous)?;
        Ok(Self { connection })
    }

    /// One transaction for all of them, in which each goes through or leaves nothing behind. An error is everybody's:
    /// nothing was kept. Blocks.
    pub(super) fn commit<'a>(
        &mut self,
        scripts: impl ExactSizeIterator<Item = &'a Script>,
    ) -> Result<Vec<Result<Vec<Did>, Stopped>>, DatabaseError> {
        let alone = scripts.len() == 1;
        let mut transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut done = Vec::with_capacity(scripts.len());
        for script in scripts {
            if alone {
                let ran = run(&transaction, script);
                if ran.is_err() {
                    // Dropped, it is rolled back.
                    return Ok(vec![ran]);
                }
                done.push(ran);
                continue;
            }
            let savepoint = transaction.savepoint()?;
            let ran = run(&savepoint, script);
            // One that is not committed is rolled back. That fails when the disk is full, whereupon SQLite has ended
            // the transaction by itself.
            let kept = if ran.is_ok() { savepoint.commit() } else { savepoint.finish() };
            if kept.is_err() && ran.as_ref().is_err_and(|stopped| is_no_space(stopped)) {
                return Err(DatabaseError::Full(NoSpace));
            }
            kept?;
            done.push(ran);
        }
        transaction.commit()?;
        Ok(done)
    }

    /// Gives some free pages back to the disk, as far as nobody reads what is before that. Returns how many are left.
    /// Blocks.
    pub(super) fn give_back(&mut self) -> Result<u64, DatabaseError> {
        if self.free_pages()? <= vacuum::PAGES_KEPT {
            return Ok(0);
        }
        let text = format!("pragma incremental_vacuum({})", vacuum::PAGES_AT_ONCE);
        let mut vacuum = self.connection.prepare(&text)?;
        // A step is a page.
        let mut pages = vacuum.raw_query();
        while pages.next()?.is_some() {}
        drop(pages);
        drop(vacuum);
        self.copy_log("passive")?;
        self.free_pages()
    }

    fn free_pages(&self) -> Result<u64, DatabaseError> {
        let free: i64 = self.connection.pragma_query_value(None, "freelist_count", |row| row.get(0))?;
        Ok(u64::try_from(free).unwrap_or_default())
    }

    /// Has space given back from now on in a file from before that was usual: it is written anew. Blocks, as long as
    /// copying the file takes.
    pub(super) fn convert(&mut self) -> Result<(), DatabaseError> {
        self.connection.execute_batch("pragma auto_vacuum = incremental; vacuum")?;
        self.copy_log("truncate")
    }

    /// Whether space is given back.
    pub(super) fn gives_back(&self) -> Result<bool, DatabaseError> {
        let mode: i64 = self.connection.pragma_query_value(None, "auto_vacuum", |row| row.get(0))?;
        Ok(mode != 0)
    }

    /// Copies the write-ahead log into the file, which is cut to its size with that.
    fn copy_log(&self, how: &str) -> Result<(), DatabaseError> {
        let copied = self.connection.query_row(&format!("pragma wal_checkpoint({how})"), [], |_| Ok(()));
        Ok(copied?)
    }
}

fn run(connection: &Connection, script: &Script) -> Result<Vec<Did>, Stopped> {
    let mut all = Vec::with_capacity(script.statements().len());
    for (at, statement) in script.statements().iter().enumerate() {
        let did = one(connection, statement).map_err(|error| Stopped::Failed(at, Failure::from(error)))?;
        if statement.is_refused(&did) {
            return Err(Stopped::Refused(at));
        }
        all.push(did);
    }
    Ok(all)
}

fn one(connection: &Connection, statement: &Statement) -> Result<Did, rusqlite::Error> {
    if statement.is_kept() {
        let mut prepared = connection.prepare_cached(statement.text())?;
        step(connection, &mut prepared, statement.values())
    } else {
        step(connection, &mut connection.prepare(statement.text())?, statement.values())
    }
}

fn step(
    connection: &Connection,
    prepared: &mut rusqlite::Statement<'_>,
    values: &[Value],
) -> Result<Did, rusqlite::Error> {
    for at in 1..=prepared.parameter_count() {
        // To SQLite `$2` is a name, and its place that of its first use.
        let name = prepared.parameter_name(at).and_then(|name| name.strip_prefix('$'));
        let number = name.and_then(|number| number.parse::<usize>().ok());
        let value = number.and_then(|number| values.get(number.checked_sub(1)?));
        let missing = || rusqlite::Error::InvalidParameterCount(values.len(), at);
        prepared.raw_bind_parameter(at, value.ok_or_else(missing)?)?;
    }
    let mut did = Did::default();
    let mut rows = prepared.raw_query();
    while let Some(row) = rows.next()? {
        did.gave_row = true;
        did.number = row.get(0).ok();
    }
    drop(rows);
    did.changed = connection.changes();
    Ok(did)
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::Text(text) => text.as_str().into(),
            Self::NoText => ToSqlOutput::Borrowed(ValueRef::Null),
            Self::Number(number) => (*number).into(),
        })
    }
}
