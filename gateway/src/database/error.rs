//! What can go wrong with the database, in words that say what to do.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::ffi::{SQLITE_CONSTRAINT_PRIMARYKEY, SQLITE_CONSTRAINT_UNIQUE};
use sqlx::postgres::PgDatabaseError;
use sqlx::sqlite::SqliteError;

/// Why the database did not do as told. Cheap to clone: everybody in a failed group gets it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The URL is of no database we know. Its text is not shown.
    #[error(
        "the database URL is not understood: give postgres://user@host/database, or none for SQLite (its text is \
         not shown, it may hold a password)"
    )]
    BadUrl,
    /// The data directory can't be made or used.
    #[error("the data directory {} can't be used ({source}): make it writable or choose another", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: Arc<io::Error>,
    },
    /// The path can't be given to SQLite.
    #[error("the data directory {} is not UTF-8, which the database needs: choose another", .0.display())]
    PathNotText(PathBuf),
    /// The file is something else.
    #[error("{} is not a database, or is damaged: move it away or choose another data directory", .0.display())]
    NotADatabase(PathBuf),
    /// The file can't be opened.
    #[error("{} can't be opened ({source}): make it readable and writable, or choose another data directory", path.display())]
    CannotOpen {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Arc<sqlx::Error>,
    },
    /// PostgreSQL does not answer.
    #[error("PostgreSQL at {at} does not answer ({source}): start it, or correct the database URL")]
    Unreachable {
        /// Host and port, or socket.
        at: String,
        /// Why.
        source: Arc<sqlx::Error>,
    },
    /// PostgreSQL answers, and refuses.
    #[error(
        "PostgreSQL at {at} refuses ({reason}): correct the database URL, or make that user and database"
    )]
    Refused {
        /// Host and port, or socket.
        at: String,
        /// In the server's words.
        reason: String,
    },
    /// The schema has migrations that this program does not know.
    #[error(
        "this database was made by a newer manyhands (migration {0} is unknown here): upgrade this program or use \
         another database"
    )]
    Newer(i64),
    /// A migration is not the one that was applied.
    #[error(
        "migration {0} of this database differs from the one this program has: use the program that made it, or \
         another database"
    )]
    Changed(i64),
    /// A migration did not go through.
    #[error("migration {version} of the database failed ({source})")]
    Migration {
        /// Which.
        version: i64,
        /// Why.
        source: Arc<sqlx::Error>,
    },
    /// The database may forget what it acknowledged.
    #[error(
        "the database setting {setting} is {found}, so an acknowledged event could be lost: set it to {needed}"
    )]
    Weak {
        /// Its name.
        setting: &'static str,
        /// Its value.
        found: String,
        /// What it should be.
        needed: &'static str,
    },
    /// The disk is full.
    #[error("the disk of the database is full and nothing was written: free some space on it")]
    Full(#[source] NoSpace),
    /// What is kept free of the disk would be used.
    #[error(
        "only {free} are free on the disk of the database, of which {kept} are kept free (limits.free_disk_mib), and \
         nothing was written: free some space on it, or delete sessions with `manyhands session delete`"
    )]
    Low {
        /// What is free.
        free: String,
        /// What is kept.
        kept: String,
    },
    /// It can be read, not written.
    #[error("the database is read-only and nothing was written: make its files writable for this user")]
    ReadOnly,
    /// Somebody else holds it.
    #[error("the database is locked by another process: end that one, or try again")]
    Locked,
    /// PostgreSQL has gone away, or has no connection left.
    #[error("the database does not answer ({0}): try again once it does")]
    Gone(#[source] Arc<sqlx::Error>),
    /// There is no thread for what writes.
    #[error("the database can't be written ({0}): this machine or user has too many threads")]
    NoThread(Arc<io::Error>),
    /// It was closed, at the end of this process.
    #[error("the database has been closed")]
    Closed,
    /// Work inside a transaction panicked; nothing of it was kept.
    #[error("a database write failed inside this program; nothing of it was kept")]
    Panicked,
    /// It failed otherwise.
    #[error("the database failed ({0})")]
    Failed(#[source] Arc<sqlx::Error>),
    /// SQLite failed otherwise, under a script.
    #[error("the database failed ({0})")]
    FailedScript(#[source] Arc<rusqlite::Error>),
}

/// That there was no room on the disk: by this, the writer knows such a failure in whatever error it is.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no space is left")]
pub struct NoSpace;

/// Why a statement of a script failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A unique index has such a row.
    #[error("{source}")]
    Taken {
        /// PostgreSQL names the index; SQLite, in a sentence, its columns.
        index: String,
        /// All of it.
        source: DatabaseError,
    },
    /// The database said this, when a trigger refused for example.
    #[error("{source}")]
    Said {
        /// In its words.
        message: String,
        /// All of it.
        source: DatabaseError,
    },
    /// It failed otherwise.
    #[error(transparent)]
    Other(DatabaseError),
}

impl DatabaseError {
    /// Whether it failed for want of disk space.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full(_) | Self::Low { .. })
    }

    /// The error as the driver gave it, when there is one.
    pub fn driver(&self) -> Option<&sqlx::Error> {
        match self {
            Self::Failed(source)
            | Self::Gone(source)
            | Self::Unreachable { source, .. }
            | Self::CannotOpen { source, .. }
            | Self::Migration { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<sqlx::Error> for DatabaseError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => return Self::Closed,
            sqlx::Error::Configuration(_) => return Self::BadUrl,
            sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::Tls(_) => {
                return Self::Gone(Arc::new(error));
            }
            _ => {}
        }
        if let Some(Code::Postgres("57P01" | "57P02" | "57P03" | "53300")) = code(&error) {
            return Self::Gone(Arc::new(error));
        }
        code(&error).as_ref().and_then(named).unwrap_or_else(|| Self::Failed(Arc::new(error)))
    }
}

/// What a code stands for, if it says all that there is to say.
fn named(code: &Code<'_>) -> Option<DatabaseError> {
    match code {
        Code::SqliteShmSize | Code::Sqlite(13) | Code::Postgres("53100") => {
            Some(DatabaseError::Full(NoSpace))
        }
        Code::Sqlite(8) | Code::Postgres("25006") => Some(DatabaseError::ReadOnly),
        Code::Sqlite(5 | 6) => Some(DatabaseError::Locked),
        _ => None,
    }
}

impl From<rusqlite::Error> for DatabaseError {
    fn from(error: rusqlite::Error) -> Self {
        let code = error.sqlite_error().map(|error| sqlite_code(error.extended_code));
        code.as_ref().and_then(named).unwrap_or_else(|| Self::FailedScript(Arc::new(error)))
    }
}

impl From<Failure> for DatabaseError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Taken { source, .. } | Failure::Said { source, .. } | Failure::Other(source) => source,
        }
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        let Some(refusal) = error.as_database_error() else { return Self::Other(error.into()) };
        let message = refusal.message().to_owned();
        if refusal.is_unique_violation() {
            let index = refusal.constraint().map_or(message, str::to_owned);
            return Self::Taken { index, source: error.into() };
        }
        Self::Said { message, source: error.into() }
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        let rusqlite::Error::SqliteFailure(code, Some(message)) = &error else {
            return Self::Other(error.into());
        };
        let (code, message) = (code.extended_code, message.clone());
        if matches!(code, SQLITE_CONSTRAINT_UNIQUE | SQLITE_CONSTRAINT_PRIMARYKEY) {
            return Self::Taken { index: message, source: error.into() };
        }
        Self::Said { message, source: error.into() }
    }
}

/// `SQLITE_IOERR_SHMSIZE`.
const SQLITE_IOERR_SHMSIZE: i32 = 4_874;

/// A database's own name for an error.
pub(super) enum Code<'a> {
    /// Primary result code: <https://sqlite.org/rescode.html>.
    Sqlite(i32),
    /// There is no room on the disk for the write-ahead log's index: the only I/O error that says so.
    SqliteShmSize,
    /// SQLSTATE: <https://www.postgresql.org/docs/15/errcodes-appendix.html>.
    Postgres(&'a str),
}

/// The code of an error, when the database itself raised it.
pub(super) fn code(error: &sqlx::Error) -> Option<Code<'_>> {
    let error = error.as_database_error()?;
    if let Some(error) = error.try_downcast_ref::<PgDatabaseError>() {
        return Some(Code::Postgres(error.code()));
    }
    error.try_downcast_ref::<SqliteError>()?;
    Some(sqlite_code(error.code()?.parse().ok()?))
}

fn sqlite_code(extended: i32) -> Code<'static> {
    if extended == SQLITE_IOERR_SHMSIZE { Code::SqliteShmSize } else { Code::Sqlite(extended & 0xff) }
}

/// Whether the disk had no room.
pub(super) fn is_no_space(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<NoSpace>() || error.downcast_ref::<DatabaseError>().is_some_and(full) {
            return true;
        }
        next = error.source();
    }
    false
}

fn full(error: &DatabaseError) -> bool {
    matches!(error, DatabaseError::Full(_))
}

/// Whether PostgreSQL gave the transaction up to resolve a conflict, so that trying again may work.
pub(super) fn is_conflict(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let driver = error
            .downcast_ref::<sqlx::Error>()
            .or_else(|| error.downcast_ref::<Arc<sqlx::Error>>().map(AsRef::as_ref));
        if let Some(driver) = driver {
            return matches!(code(driver), Some(Code::Postgres("40001" | "40P01")));
        }
        next = error.source();
    }
    false
}
