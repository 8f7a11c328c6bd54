//! Opening: connections, settings read back, migrations.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use hands::disk::{shown, space};
use secrecy::{ExposeSecret, SecretString};
use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AnyConnection, AnyPool, AssertSqlSafe, ConnectOptions as _, Connection as _};

use super::disk::Disk;
use super::error::{Code, code, is_no_space};
use super::sqlite::{LOG_BYTES_KEPT, Scripts};
use super::writer::Writers;
use super::{DatabaseError, SQLITE_FILE};

static SQLITE: Migrator = sqlx::migrate!("../migrations/sqlite");
static POSTGRES: Migrator = sqlx::migrate!("../migrations/postgres");

/// How long a caller waits for a free connection, or for a database that does not answer.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection to PostgreSQL that nobody used for so long is tried before it is used: the server may have gone
/// away in the meantime, and be back.
const PING_AFTER: Duration = Duration::from_secs(1);
/// How often SQLite is asked to begin with its log while others begin, too: it does not wait there by itself.
const WAL_TRIES: u32 = 250;
/// The pause between two of these.
const WAL_PAUSE: Duration = Duration::from_millis(20);
/// How often the size of a file must be free for it to be written anew: once for the copy, once for the log of it.
const CONVERT_SIZES: u64 = 2;
/// How long PostgreSQL may take to answer at start.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// An open SQLite file.
pub(super) struct Sqlite {
    pub(super) reader: AnyPool,
    pub(super) writers: Writers,
}

/// A file that can be opened for writing, again and again.
pub(super) struct SqliteFile {
    path: PathBuf,
    options: AnyConnectOptions,
}

impl SqliteFile {
    /// A connection whose commits are durable.
    pub(super) async fn writer(&self) -> Result<AnyConnection, DatabaseError> {
        let failed = |error| sqlite_failure(&self.path, error);
        let mut writer = self.options.connect().await.map_err(failed)?;
        let prepared = prepare_writer(&mut writer).await.map_err(|error| match error {
            Prepare::Driver(error) => failed(error),
            Prepare::Named(error) => error,
        });
        or_closed(prepared, writer).await
    }
}

/// Opens, or makes, the SQLite file in `directory`.
pub(super) async fn sqlite(directory: &Path, readers: u32) -> Result<Sqlite, DatabaseError> {
    std::fs::create_dir_all(directory).map_err(|source| DatabaseError::Directory {
        path: directory.to_path_buf(),
        source: Arc::new(source),
    })?;
    let file = directory.join(SQLITE_FILE);
    // Made here, for this user alone; the files that SQLite puts beside it are as readable as it is. What is wrong
    // with it, SQLite says better.
    let _ = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&file);
    open_up(&file);
    let file = SqliteFile { options: sqlite_options(&file)?, path: file };
    let disk = Arc::new(Disk::new(directory));
    let writer = match migrated(&file).await {
        Err(error) if is_no_space(&error) && disk.give_up_reserve() => migrated(&file).await?,
        opened => opened?,
    };
    let reader = AnyPoolOptions::new()
        .max_connections(readers)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .test_before_acquire(false)
        .idle_timeout(None)
        .max_lifetime(None)
        .after_connect(|connection, _| {
            Box::pin(async move {
                sqlx::raw_sql("pragma query_only = on").execute(connection).await?;
                Ok(())
            })
        })
        .connect_lazy_with(file.options.clone());
    let scripts = tokio::task::spawn_blocking({
        let path = file.path.clone();
        move || {
            let mut scripts = Scripts::open(&path)?;
            convert(&mut scripts, &path);
            Ok::<_, DatabaseError>(scripts)
        }
    });
    // Whoever panics there has said so.
    let scripts = scripts.await.map_err(|_| DatabaseError::Panicked)??;
    Ok(Sqlite { reader, writers: Writers { scripts, work: Some(writer), file, disk } })
}

/// A connection that writes, to a file with every migration.
async fn migrated(file: &SqliteFile) -> Result<AnyConnection, DatabaseError> {
    let mut writer = file.writer().await?;
    let migrated = migrate_sqlite(&mut writer).await;
    or_closed(migrated, writer).await
}

/// Has a file from before it was usual give back the space of what is deleted, if the disk has room for that. Without,
/// all else works: that is said and not an error.
fn convert(scripts: &mut Scripts, file: &Path) {
    let size = std::fs::metadata(file).map_or(u64::MAX, |file| file.len());
    let needed = size.saturating_mul(CONVERT_SIZES);
    let free = space(file).map_or(0, |disk| disk.free);
    let converted = match scripts.gives_back() {
        Ok(false) if free < needed => {
            let needed = shown(needed);
            tracing::warn!(
                "the database keeps the space of what is deleted: start again with {needed} free on its disk"
            );
            return;
        }
        Ok(false) => scripts.convert(),
        other => other.map(drop),
    };
    if let Err(error) = converted {
        tracing::warn!(error = %error, "the database keeps the space of what is deleted");
    }
}

/// Makes the files that SQLite left beside `file` as open as it is. Those that it made while `file` was read-only stay
/// read-only, and would keep it so when it is no longer. What can't be changed, SQLite will complain of.
fn open_up(file: &Path) {
    let Ok(permissions) = std::fs::metadata(file).map(|metadata| metadata.permissions()) else { return };
    for beside in ["-wal", "-shm"] {
        let mut path = file.as_os_str().to_owned();
        path.push(beside);
        let _ = std::fs::set_permissions(path, permissions.clone());
    }
}

/// The connection, if what was done with it went well; else it is closed before anybody hears of it. One that is only
/// dropped is closed at some time or, when the program ends, never: then its files stay, as readable as the database was.
async fn or_closed(
    done: Result<(), DatabaseError>,
    open: AnyConnection,
) -> Result<AnyConnection, DatabaseError> {
    match done {
        Ok(()) => Ok(open),
        Err(error) => {
            // What is wrong is said already.
            let _ = open.close().await;
            Err(error)
        }
    }
}

/// Statements are not logged: they hold what users say.
fn quiet(url: &str) -> Result<AnyConnectOptions, DatabaseError> {
    Ok(AnyConnectOptions::from_str(url).map_err(|_| DatabaseError::BadUrl)?.disable_statement_logging())
}

fn sqlite_options(file: &Path) -> Result<AnyConnectOptions, DatabaseError> {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_path_buf());
    let text = file.to_str().ok_or_else(|| DatabaseError::PathNotText(file.clone()))?;
    quiet(&format!("sqlite://{}?mode=rwc", percent_encoded(text)))
}

/// A path as a URL's path: everything but the unreserved characters and `/` escaped (RFC 3986, 2.3).
fn percent_encoded(path: &str) -> String {
    let mut encoded = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte));
            }
            // Writing to a string does not fail.
            _ => write!(encoded, "%{byte:02X}").unwrap_or_default(),
        }
    }
    encoded
}

enum Prepare {
    Driver(sqlx::Error),
    Named(DatabaseError),
}

impl From<sqlx::Error> for Prepare {
    fn from(error: sqlx::Error) -> Self {
        Self::Driver(error)
    }
}

/// Durable and shared: a write-ahead log that is synced at each commit.
async fn prepare_writer(writer: &mut AnyConnection) -> Result<(), Prepare> {
    // Of a new file; an old one is converted.
    sqlx::raw_sql("pragma auto_vacuum = incremental").execute(&mut *writer).await?;
    let mut tries = 0..WAL_TRIES;
    let mode: String = loop {
        match sqlx::query_scalar("pragma journal_mode = wal").fetch_one(&mut *writer).await {
            Err(error) if is_busy(&error) && tries.next().is_some() => tokio::time::sleep(WAL_PAUSE).await,
            asked => break asked?,
        }
    };
    let kept = format!("pragma synchronous = full; pragma journal_size_limit = {LOG_BYTES_KEPT}");
    sqlx::raw_sql(AssertSqlSafe(kept)).execute(&mut *writer).await?;
    let synchronous: i64 = sqlx::query_scalar("pragma synchronous").fetch_one(&mut *writer).await?;
    check_sqlite(mode, synchronous).map_err(Prepare::Named)
}

/// Refuses what SQLite says of itself, if what it commits could be lost.
pub(super) fn check_sqlite(journal_mode: String, synchronous: i64) -> Result<(), DatabaseError> {
    if journal_mode != "wal" {
        return Err(DatabaseError::Weak { setting: "journal_mode", found: journal_mode, needed: "wal" });
    }
    // 2 is FULL, 3 EXTRA.
    if synchronous < 2 {
        let found = synchronous.to_string();
        return Err(DatabaseError::Weak { setting: "synchronous", found, needed: "full" });
    }
    Ok(())
}

/// Whether another process is just using the file. (`SQLITE_BUSY`, with all its causes.)
fn is_busy(error: &sqlx::Error) -> bool {
    matches!(code(error), Some(Code::Sqlite(5)))
}

/// A failure to open a file, told by what it is about.
fn sqlite_failure(file: &Path, error: sqlx::Error) -> DatabaseError {
    let path: PathBuf = file.to_path_buf();
    match code(&error) {
        Some(Code::Sqlite(26 | 11)) => DatabaseError::NotADatabase(path),
        Some(Code::Sqlite(14)) => DatabaseError::CannotOpen { path, source: Arc::new(error) },
        _ => error.into(),
    }
}

/// All migrations in one transaction, so that of two processes one waits for the other (sqlx locks nothing here).
async fn migrate_sqlite(writer: &mut AnyConnection) -> Result<(), DatabaseError> {
    let mut transaction = writer.begin_with("begin immediate").await?;
    SQLITE.run_direct(None, &mut *transaction, false).await.map_err(migration_failure)?;
    Ok(transaction.commit().await?)
}

/// Connections to PostgreSQL.
pub(super) struct Postgres {
    pub(super) reader: AnyPool,
    pub(super) writer: AnyPool,
}

/// Opens the PostgreSQL database at `url`.
pub(super) async fn postgres(
    url: &SecretString,
    readers: u32,
    writers: u32,
) -> Result<Postgres, DatabaseError> {
    let at = address(url)?;
    let options = quiet(url.expose_secret())?;
    // One connection by hand: a pool would go on trying in silence, and say only that it timed out.
    let connecting = tokio::time::timeout(CONNECT_TIMEOUT, options.connect()).await;
    let connected = connecting.unwrap_or_else(|_| Err(sqlx::Error::PoolTimedOut));
    let mut connection = connected.map_err(|error| postgres_failure(at, error))?;
    check_durability(&mut connection).await?;
    POSTGRES.run_direct(None, &mut connection, false).await.map_err(migration_failure)?;
    connection.close().await?;
    let pool = |connections| {
        AnyPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .test_before_acquire(false)
            .before_acquire(|connection, used| {
                Box::pin(async move {
                    if used.idle_for > PING_AFTER {
                        connection.ping().await?;
                    }
                    Ok(true)
                })
            })
            .connect_lazy_with(options.clone())
    };
    Ok(Postgres { reader: pool(readers), writer: pool(writers) })
}

/// Host and port of a URL, or its socket: all of it that may be shown.
pub(super) fn address(url: &SecretString) -> Result<String, DatabaseError> {
    let text = url.expose_secret();
    if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
        return Err(DatabaseError::BadUrl);
    }
    let options = PgConnectOptions::from_str(text).map_err(|_| DatabaseError::BadUrl)?;
    Ok(match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    })
}

/// A failure to connect, told by who said no.
pub(super) fn postgres_failure(at: String, error: sqlx::Error) -> DatabaseError {
    match error.as_database_error() {
        Some(refusal) => DatabaseError::Refused { at, reason: refusal.message().to_owned() },
        None => match error {
            sqlx::Error::Configuration(_) => DatabaseError::BadUrl,
            error => DatabaseError::Unreachable { at, source: Arc::new(error) },
        },
    }
}

async fn check_durability(connection: &mut AnyConnection) -> Result<(), DatabaseError> {
    let fsync: String = sqlx::query_scalar("show fsync").fetch_one(&mut *connection).await?;
    let commit: String = sqlx::query_scalar("show synchronous_commit").fetch_one(&mut *connection).await?;
    if fsync != "on" {
        return Err(DatabaseError::Weak { setting: "fsync", found: fsync, needed: "on" });
    }
    // `local` and the remote kinds all wait for this server's own disk.
    if commit == "off" {
        return Err(DatabaseError::Weak { setting: "synchronous_commit", found: commit, needed: "on" });
    }
    Ok(())
}

fn migration_failure(error: MigrateError) -> DatabaseError {
    match error {
        MigrateError::VersionMissing(version) => DatabaseError::Newer(version),
        MigrateError::VersionMismatch(version) => DatabaseError::Changed(version),
        MigrateError::ExecuteMigration(source, version) => match DatabaseError::from(source) {
            DatabaseError::Failed(source) => DatabaseError::Migration { version, source },
            named => named,
        },
        MigrateError::Execute(error) => error.into(),
        other => sqlx::Error::Migrate(Box::new(other)).into(),
    }
}
