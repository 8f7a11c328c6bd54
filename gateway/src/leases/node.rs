//! Processes that share a database: who is alive, and who is this.
//!
//! A process lives as long as its row's `beat` grows. Every process watches the others by its own monotonic
//! clock, so clocks that disagree harm nothing. Earlier starts of the same data directory are dead at once:
//! whoever starts holds the directory's lock.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use serde::Serialize;
use sqlx::Row as _;
use tokio::sync::Mutex;

use crate::clock;
use crate::database::{Database, DatabaseError};

/// How much of a data directory's name is part of its processes' names: 48 random bits of it.
const HOME_CHARS: usize = 12;
/// The lease that names the data directory that a database was first used with.
const FIRST_HOME: &str = "home/first";

/// Names a process: new at every start, and when it was counted dead and goes on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct NodeId(pub String);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name this process goes by now, shared with those who write it into the log.
#[derive(Clone)]
pub struct Me(Arc<RwLock<NodeId>>);

impl Me {
    /// A process by a fresh name, which lives in the data directory named `home`.
    pub fn new(home: &str) -> Self {
        Self(Arc::new(RwLock::new(fresh(home))))
    }

    /// The name.
    pub fn id(&self) -> NodeId {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn rename(&self, id: NodeId) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = id;
    }
}

fn fresh(home: &str) -> NodeId {
    NodeId(format!("{}{}", prefix(home), clock::id().simple()))
}

/// What the names of all processes of a data directory begin with, so that they are known for its own even when
/// nothing but an event names them any more.
fn prefix(home: &str) -> String {
    let end = home.chars().count().saturating_sub(HOME_CHARS);
    format!("node_{}_", home.chars().skip(end).collect::<String>())
}

/// Whether this process still counts as alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// It does.
    Counted,
    /// Somebody counted it dead and settled what it had begun.
    TakenOver,
}

/// The processes on one database, seen from this one.
pub struct Nodes {
    database: Database,
    me: Me,
    home: String,
    host: String,
    dead_after: Duration,
    seen: Mutex<Seen>,
}

/// What this process last saw of the others.
struct Seen {
    /// When it looked.
    at: Instant,
    /// Their beats, and since when they stand still.
    beats: HashMap<String, (i64, Instant)>,
}

impl Nodes {
    /// Enters this process, which lives in the data directory named `home`, and counts earlier starts of it dead.
    pub async fn join(
        database: Database,
        me: Me,
        home: String,
        host: String,
        dead_after: Duration,
    ) -> Result<Self, DatabaseError> {
        let seen = Mutex::new(Seen { at: Instant::now(), beats: HashMap::new() });
        let nodes = Self { database, me, home, host, dead_after, seen };
        nodes.enter(&nodes.me.id()).await?;
        Ok(nodes)
    }

    /// This process.
    pub fn me(&self) -> NodeId {
        self.me.id()
    }

    /// The data directory that this process lives in.
    pub fn home(&self) -> &str {
        &self.home
    }

    /// Whether this data directory is the first that the database was used with: who asks first, is. That is kept as
    /// a lease that nobody ever takes over, for rows of processes come and go.
    pub async fn is_first_home(&self) -> Result<bool, DatabaseError> {
        let home = self.home.clone();
        let first: String = self
            .database
            .write(move |connection| {
                Box::pin(async move {
                    sqlx::query(
                        "insert into lease (subject, node, epoch) values ($1, $2, 0)
                         on conflict (subject) do nothing",
                    )
                    .bind(FIRST_HOME)
                    .bind(home)
                    .execute(&mut *connection)
                    .await?;
                    let first = sqlx::query_scalar("select node from lease where subject = $1")
                        .bind(FIRST_HOME)
                        .fetch_one(connection)
                        .await?;
                    Ok::<_, DatabaseError>(first)
                })
            })
            .await?;
        Ok(first == self.home)
    }

    /// Whether the process `id` lives, or lived, in this process's data directory. Its row may be long gone.
    pub(super) fn is_of_this_home(&self, id: &str) -> bool {
        id.starts_with(&prefix(&self.home))
    }

    async fn enter(&self, id: &NodeId) -> Result<(), DatabaseError> {
        let (id, home, host) = (id.0.clone(), self.home.clone(), self.host.clone());
        self.database
            .write(move |connection| {
                Box::pin(async move {
                    sqlx::query("update node set status = 'dead' where home = $1 and status = 'alive'")
                        .bind(home.clone())
                        .execute(&mut *connection)
                        .await?;
                    // Who holds nothing and lives no more is told apart from nobody: its row may go.
                    sqlx::query(
                        "delete from node where status <> 'alive' and id not in (select node from instance)",
                    )
                    .execute(&mut *connection)
                    .await?;
                    sqlx::query(
                        "insert into node (id, home, host, started_at, status) values ($1, $2, $3, $4, 'alive')",
                    )
                    .bind(id)
                    .bind(home)
                    .bind(host)
                    .bind(clock::now().to_string())
                    .execute(&mut *connection)
                    .await?;
                    Ok::<_, DatabaseError>(())
                })
            })
            .await
    }

    /// Who counts as alive, this process included.
    pub async fn alive(&self) -> Result<BTreeSet<String>, DatabaseError> {
        let alive: Vec<String> = sqlx::query_scalar("select id from node where status = 'alive'")
            .fetch_all(self.database.reader())
            .await?;
        Ok(alive.into_iter().collect())
    }

    /// One sign of life.
    pub async fn beat(&self) -> Result<Beat, DatabaseError> {
        let id = self.me.id().0;
        let rows = self
            .database
            .write(move |connection| {
                Box::pin(async move {
                    let done =
                        sqlx::query("update node set beat = beat + 1 where id = $1 and status = 'alive'")
                            .bind(id)
                            .execute(&mut *connection)
                            .await?;
                    Ok::<_, DatabaseError>(done.rows_affected())
                })
            })
            .await?;
        Ok(if rows == 0 { Beat::TakenOver } else { Beat::Counted })
    }

    /// Goes on under a new name after a take-over. Whatever the old name held must be gone by now. The row comes
    /// before the name, so that nothing is ever begun under a name that does not count as alive.
    pub async fn rejoin(&self) -> Result<NodeId, DatabaseError> {
        let new = fresh(&self.home);
        self.enter(&new).await?;
        self.me.rename(new.clone());
        Ok(new)
    }

    /// Looks at the others, and counts those dead that have been silent for too long. A process that could not look
    /// for as long, because it was frozen or the database was away, can't tell, and begins to watch anew.
    pub async fn watch(&self) -> Result<(), DatabaseError> {
        let me = self.me.id().0;
        let rows = sqlx::query("select id, beat from node where status = 'alive' and id <> $1")
            .bind(me)
            .fetch_all(self.database.reader())
            .await?;
        let mut seen = self.seen.lock().await;
        if seen.at.elapsed() >= self.dead_after {
            seen.beats.clear();
        }
        let mut now = HashMap::with_capacity(rows.len());
        for row in rows {
            let (id, beat): (String, i64) = (row.try_get("id")?, row.try_get("beat")?);
            let since = match seen.beats.get(&id) {
                Some((known, since)) if *known == beat => *since,
                _ => Instant::now(),
            };
            if since.elapsed() >= self.dead_after {
                self.count_dead(id, beat).await?;
            } else {
                now.insert(id, (beat, since));
            }
        }
        *seen = Seen { at: Instant::now(), beats: now };
        Ok(())
    }

    async fn count_dead(&self, id: String, beat: i64) -> Result<(), DatabaseError> {
        tracing::warn!(node.id = id, "a gateway process has been silent for too long and counts as dead");
        self.database
            .write(move |connection| {
                Box::pin(async move {
                    // Not if it moved while we looked.
                    sqlx::query(
                        "update node set status = 'dead' where id = $1 and beat = $2 and status = 'alive'",
                    )
                    .bind(id)
                    .bind(beat)
                    .execute(&mut *connection)
                    .await?;
                    Ok::<_, DatabaseError>(())
                })
            })
            .await
    }

    /// A clean end: what this process had is free at once.
    pub async fn leave(&self) -> Result<(), DatabaseError> {
        let id = self.me.id().0;
        self.database
            .write(move |connection| {
                Box::pin(async move {
                    sqlx::query("update node set status = 'stopped' where id = $1 and status = 'alive'")
                        .bind(id)
                        .execute(&mut *connection)
                        .await?;
                    Ok::<_, DatabaseError>(())
                })
            })
            .await
    }
}
