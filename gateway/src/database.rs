//! One database, SQLite or PostgreSQL, and the only way to write to it. Knows nothing of sessions.
//!
//! **Invariants:** [`Database::write`] answers `Ok` only after the transaction is durable; a failed piece of
//! work leaves nothing behind; a password in the database's URL is never shown.
//!
//! One SQL text serves both kinds (`$1`, `returning`, `on conflict`); the few texts that differ ask
//! [`Database::dialect`].

mod disk;
mod error;
mod listener;
mod open;
mod script;
mod signals;
mod sqlite;
mod vacuum;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use secrecy::SecretString;
use sqlx::{AnyConnection, AnyPool};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use disk::Disk;
pub use error::{DatabaseError, Failure, NoSpace};
pub use script::{Did, Script, Statement, Stopped, Value};
pub use signals::{CHANNEL, Signals, Subscription, notify};

/// The file of a SQLite database, in the data directory.
pub const SQLITE_FILE: &str = "manyhands.db";
/// Most connections that read SQLite at the same time.
const SQLITE_READERS_MAX: u32 = 4;
/// Most connections that write to PostgreSQL at the same time. Its own default allows 100 to everybody.
const POSTGRES_WRITERS_MAX: u32 = 12;
/// Most connections that read from PostgreSQL at the same time: others than those that write, so that writers that
/// wait for each other keep nobody from reading.
const POSTGRES_READERS_MAX: u32 = 6;
/// How often a transaction is tried that PostgreSQL gave up to resolve a conflict.
const ATTEMPTS_MAX: u32 = 5;

/// Work inside a transaction.
pub type Work<'c, T, E> = BoxFuture<'c, Result<T, E>>;

/// A connection inside a transaction.
pub type Connection = AnyConnection;

/// Where the database is.
#[derive(Clone, Debug)]
pub enum DatabaseConfig {
    /// SQLite, as [`SQLITE_FILE`] in this directory, which is made when missing.
    Directory(PathBuf),
    /// PostgreSQL at this URL: `postgres://user:password@host:port/database`. May hold a password.
    Url(SecretString),
}

/// Which kind of database it is, for the few texts that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// SQLite.
    Sqlite,
    /// PostgreSQL.
    Postgres,
}

/// An open database. Clones share it; [`Database::close`] ends it for all of them.
#[derive(Clone)]
pub struct Database {
    inner: Arc<Inner>,
}

struct Inner {
    reader: AnyPool,
    writer: Writer,
    signals: Arc<Signals>,
    tasks: TaskTracker,
    /// Stops the listener; also when the last clone is dropped without a close.
    stop: CancellationToken,
    _stop_on_drop: DropGuard,
}

enum Writer {
    Sqlite(Sqlite),
    Postgres(AnyPool),
}

/// What writes to SQLite, and what it writes on.
struct Sqlite {
    queue: Arc<writer::Queue>,
    disk: Arc<Disk>,
    /// Tells that there is something to give back to the disk.
    freed: Arc<Notify>,
}

impl Database {
    /// Opens the database, makes or upgrades its schema, and checks that it keeps what it acknowledges.
    pub async fn open(config: DatabaseConfig) -> Result<Self, DatabaseError> {
        sqlx::any::install_default_drivers();
        let tasks = TaskTracker::new();
        let stop = CancellationToken::new();
        let signals = Arc::new(Signals::default());
        let (reader, writer) = match config {
            DatabaseConfig::Directory(directory) => {
                let opened = open::sqlite(&directory, SQLITE_READERS_MAX).await?;
                let disk = Arc::clone(&opened.writers.disk);
                let queue = Arc::new(writer::Queue::start(opened.writers, Arc::clone(&signals), &tasks)?);
                let freed = Arc::new(Notify::new());
                // What an earlier process deleted, and had no time to give back.
                freed.notify_one();
                tasks.spawn(vacuum::give_back(Arc::clone(&queue), Arc::clone(&freed), stop.clone()));
                (opened.reader, Writer::Sqlite(Sqlite { queue, disk, freed }))
            }
            DatabaseConfig::Url(url) => {
                let opened = open::postgres(&url, POSTGRES_READERS_MAX, POSTGRES_WRITERS_MAX).await?;
                let listener = listener::connect(&url).await?;
                tasks.spawn(listener::listen(listener, url, Arc::clone(&signals), stop.clone()));
                (opened.reader, Writer::Postgres(opened.writer))
            }
        };
        let stop_on_drop = stop.clone().drop_guard();
        let inner = Inner { reader, writer, signals, tasks, stop, _stop_on_drop: stop_on_drop };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Runs a script in a transaction and answers once that is durable, or rolled back because a statement stopped it.
    ///
    /// On SQLite all writes go through one thread that commits what is waiting together. On PostgreSQL each is a
    /// transaction of its own, run again when the server gives it up to resolve a conflict. A caller that stops
    /// waiting does not undo what it asked for. Whoever the script tells hears of it even if the caller is gone by then.
    pub async fn run(&self, script: Script) -> Result<Vec<Did>, Stopped> {
        match &self.inner.writer {
            Writer::Sqlite(sqlite) => sqlite.queue.script(script).await,
            Writer::Postgres(pool) => {
                let script = Arc::new(script);
                let ran = transaction(pool, |connection| {
                    let script = Arc::clone(&script);
                    Box::pin(async move { script.run(connection).await })
                });
                let all = ran.await?;
                script.publish(&self.inner.signals, &all);
                Ok(all)
            }
        }
    }

    /// Runs `work`, which decides as it goes, in a transaction, as [`Database::run`] does a script. `work` waits for
    /// nothing but the connection.
    pub async fn write<F, T, E>(&self, work: F) -> Result<T, E>
    where
        F: for<'c> FnOnce(&'c mut Connection) -> Work<'c, T, E> + Clone + Send + 'static,
        T: Send + 'static,
        E: std::error::Error + From<DatabaseError> + Send + 'static,
    {
        self.write_then(work, |_| ()).await
    }

    /// [`Database::write`], with something quick to do right after the commit, even if the caller is gone by
    /// then (on PostgreSQL: if it still waits; there a `pg_notify` within the transaction tells for sure).
    pub async fn write_then<F, T, E, A>(&self, work: F, committed: A) -> Result<T, E>
    where
        F: for<'c> FnOnce(&'c mut Connection) -> Work<'c, T, E> + Clone + Send + 'static,
        T: Send + 'static,
        E: std::error::Error + From<DatabaseError> + Send + 'static,
        A: FnOnce(&T) + Send + 'static,
    {
        match &self.inner.writer {
            Writer::Sqlite(sqlite) => sqlite.queue.work(work, committed).await,
            Writer::Postgres(pool) => {
                let done = transaction(pool, |connection| work.clone()(connection)).await?;
                committed(&done);
                Ok(done)
            }
        }
    }

    /// Keeps so many bytes of the disk free of what begins something new. On PostgreSQL, whose disk is its own, nothing.
    pub fn keep_free(&self, bytes: u64) {
        if let Writer::Sqlite(sqlite) = &self.inner.writer {
            sqlite.disk.keep_free(bytes);
        }
    }

    /// Refuses what begins something new while less of the disk is free than is kept. What ends or deletes something
    /// does not ask. On PostgreSQL there is always room.
    pub fn check_disk(&self) -> Result<(), DatabaseError> {
        match &self.inner.writer {
            Writer::Sqlite(sqlite) => sqlite.disk.check(),
            Writer::Postgres(_) => Ok(()),
        }
    }

    /// The size of the disk in bytes, where it is known: not PostgreSQL's.
    pub fn disk_size(&self) -> Option<u64> {
        match &self.inner.writer {
            Writer::Sqlite(sqlite) => sqlite.disk.total().ok(),
            Writer::Postgres(_) => None,
        }
    }

    /// Much was deleted: its space is given back to the disk, in small steps beside all else.
    pub fn freed(&self) {
        if let Writer::Sqlite(sqlite) = &self.inner.writer {
            sqlite.freed.notify_one();
        }
    }

    /// Where to read. On SQLite these connections can't write.
    pub fn reader(&self) -> &AnyPool {
        &self.inner.reader
    }

    /// Which kind of database this is.
    pub fn dialect(&self) -> Dialect {
        match self.inner.writer {
            Writer::Sqlite(_) => Dialect::Sqlite,
            Writer::Postgres(_) => Dialect::Postgres,
        }
    }

    /// What changed, for those who wait for it: in this process, and on PostgreSQL in all that share it.
    pub fn signals(&self) -> &Arc<Signals> {
        &self.inner.signals
    }

    /// Finishes the writes that are waiting and closes every connection. Later calls fail as closed.
    pub async fn close(&self) {
        self.inner.stop.cancel();
        self.inner.tasks.close();
        match &self.inner.writer {
            Writer::Sqlite(sqlite) => sqlite.queue.close(),
            Writer::Postgres(pool) => pool.close().await,
        }
        self.inner.tasks.wait().await;
        self.inner.reader.close().await;
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("dialect", &self.dialect()).finish_non_exhaustive()
    }
}

/// Whether the SQLite database in a data directory gives back the space of what is deleted. None when there is none.
pub fn is_given_back(directory: &Path) -> Option<bool> {
    vacuum::is_given_back(&directory.join(SQLITE_FILE))
}

/// One transaction on PostgreSQL, tried again when the server gave it up to resolve a conflict.
async fn transaction<F, T, E>(pool: &AnyPool, work: F) -> Result<T, E>
where
    F: for<'c> Fn(&'c mut Connection) -> BoxFuture<'c, Result<T, E>>,
    E: std::error::Error + From<DatabaseError> + 'static,
{
    for _ in 1..ATTEMPTS_MAX {
        match attempt(pool, &work).await {
            Err(error) if error::is_conflict(&error) => {}
            done => return done,
        }
    }
    attempt(pool, &work).await
}

async fn attempt<F, T, E>(pool: &AnyPool, work: &F) -> Result<T, E>
where
    F: for<'c> Fn(&'c mut Connection) -> Work<'c, T, E>,
    E: From<DatabaseError>,
{
    let mut transaction = pool.begin().await.map_err(DatabaseError::from)?;
    let done = work(&mut transaction).await?;
    transaction.commit().await.map_err(DatabaseError::from)?;
    Ok(done)
}
