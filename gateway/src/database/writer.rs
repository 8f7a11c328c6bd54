//! Group commit for SQLite: one task owns the only connection that writes.
//!
//! Whatever waits when a transaction begins is committed together, each piece of work inside a savepoint of its
//! own: one that fails is rolled back alone. What begins and ends transactions and savepoints goes to `SQLite` with the
//! statements behind it, so that a piece of work that is a script takes one way there. Nobody is told "done" before the common `commit` has returned, and
//! when that fails, everybody in the group is told so.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::{AnyConnection, Connection as _};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::open::SqliteFile;
use super::script::{Entry, Opening};
use super::{Connection, DatabaseError, Work};

/// Most writes that wait; further ones wait to be let in.
const QUEUE_MAX: usize = 1_024;
/// Most writes in one transaction.
const GROUP_MAX: usize = 64;
/// How a transaction begins: as the only one that writes.
const BEGIN: &str = "begin immediate";

/// The way in to the writer task.
pub(super) struct Queue {
    jobs: mpsc::Sender<Box<dyn Job>>,
    closed: CancellationToken,
}

impl Queue {
    /// Starts the task. It ends when the queue is closed or dropped.
    pub(super) fn start(connection: AnyConnection, file: SqliteFile, tasks: &TaskTracker) -> Self {
        let (jobs, waiting) = mpsc::channel(QUEUE_MAX);
        let closed = CancellationToken::new();
        tasks.spawn(write(connection, file, waiting, closed.clone()));
        Self { jobs, closed }
    }

    /// Runs `work` in one of the next transactions.
    pub(super) async fn run<F, T, E, A>(&self, work: F, committed: A) -> Result<T, E>
    where
        F: for<'c> FnOnce(Entry<'c>) -> Work<'c, T, E> + Send + 'static,
        T: Send + 'static,
        E: From<DatabaseError> + Send + 'static,
        A: FnOnce(&T) + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job = Asked { work: Some(work), committed: Some(committed), outcome: None, reply: Some(reply) };
        self.jobs.send(Box::new(job)).await.map_err(|_| DatabaseError::Closed)?;
        answer.await.map_err(|_| DatabaseError::Closed)?
    }

    /// Lets nothing more in; what waits is still written.
    pub(super) fn close(&self) {
        self.closed.cancel();
    }
}

/// The task.
async fn write(
    connection: AnyConnection,
    file: SqliteFile,
    mut waiting: mpsc::Receiver<Box<dyn Job>>,
    closed: CancellationToken,
) {
    let mut group = Vec::with_capacity(GROUP_MAX);
    let mut connection = Some(connection);
    loop {
        let taken = tokio::select! {
            biased;
            taken = waiting.recv_many(&mut group, GROUP_MAX) => taken,
            () = closed.cancelled(), if !waiting.is_closed() => {
                waiting.close();
                continue;
            }
        };
        if taken == 0 {
            break;
        }
        let outcome = commit_on(&mut connection, &file, &mut group).await;
        for mut job in group.drain(..) {
            job.answer(outcome.clone());
        }
    }
    if let Some(connection) = connection
        && let Err(error) = connection.close().await
    {
        tracing::warn!(error = &error as &dyn std::error::Error, "the database did not close cleanly");
    }
}

/// Commits a group. A connection whose transaction failed is given up for a new one: when the disk is full, `SQLite`
/// ends the transaction by itself, and the driver would never begin another.
async fn commit_on(
    connection: &mut Option<AnyConnection>,
    file: &SqliteFile,
    group: &mut [Box<dyn Job>],
) -> Result<(), DatabaseError> {
    let mut open = match connection.take() {
        Some(open) => open,
        None => file.writer().await?,
    };
    let outcome = commit(&mut open, group).await;
    match outcome {
        Ok(()) => *connection = Some(open),
        // What it did not commit goes with it.
        Err(_) => drop(open.close().await),
    }
    outcome
}

/// One transaction for the whole group. An error is everybody's: nothing of the group was kept.
async fn commit(connection: &mut AnyConnection, group: &mut [Box<dyn Job>]) -> Result<(), DatabaseError> {
    let alone = group.len() == 1;
    let mut opening = Opening::default();
    opening.push(BEGIN);
    for job in group {
        if !alone {
            opening.push("savepoint job");
        }
        let ran = job.run(connection, &mut opening).await;
        opening.check()?;
        match (ran, alone) {
            (Ran::Done, true) => {}
            (Ran::Done, false) => opening.push("release job"),
            // It did not come so far as to begin.
            (Ran::Failed, true) if opening.waits_for(BEGIN) => return Ok(()),
            (Ran::Failed, true) => {
                opening.push("rollback");
                return opening.send(connection).await;
            }
            (Ran::Failed, false) => {
                // Alone: when it fails, the transaction has ended, and a savepoint would begin another.
                opening.push("rollback to job");
                opening.push("release job");
                opening.send(connection).await?;
            }
        }
    }
    opening.push("commit");
    opening.send(connection).await
}

/// What became of a job, before its transaction is committed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ran {
    Done,
    Failed,
}

/// A piece of work whose types the task does not know.
trait Job: Send {
    /// Runs it, behind what opens its part of the transaction, and keeps its outcome.
    fn run<'c>(&'c mut self, connection: &'c mut Connection, opening: &'c mut Opening) -> BoxFuture<'c, Ran>;
    /// Tells the caller: its own failure, else that of the transaction, else that it is done.
    fn answer(&mut self, transaction: Result<(), DatabaseError>);
}

struct Asked<F, T, E, A> {
    work: Option<F>,
    committed: Option<A>,
    outcome: Option<Result<T, E>>,
    reply: Option<oneshot::Sender<Result<T, E>>>,
}

impl<F, T, E, A> Job for Asked<F, T, E, A>
where
    F: for<'c> FnOnce(Entry<'c>) -> Work<'c, T, E> + Send + 'static,
    T: Send + 'static,
    E: From<DatabaseError> + Send + 'static,
    A: FnOnce(&T) + Send + 'static,
{
    fn run<'c>(&'c mut self, connection: &'c mut Connection, opening: &'c mut Opening) -> BoxFuture<'c, Ran> {
        let work = self.work.take();
        Box::pin(async move {
            let Some(work) = work else { return Ran::Failed };
            // A panic is the caller's, not that of everybody else in the queue.
            let outcome = AssertUnwindSafe(async { work(Entry::new(connection, opening)).await })
                .catch_unwind()
                .await
                .unwrap_or_else(|_| Err(DatabaseError::Panicked.into()));
            let ran = if outcome.is_ok() { Ran::Done } else { Ran::Failed };
            self.outcome = Some(outcome);
            ran
        })
    }

    fn answer(&mut self, transaction: Result<(), DatabaseError>) {
        let outcome = match (self.outcome.take(), transaction) {
            (Some(Err(own)), _) => Err(own),
            (Some(Ok(done)), Ok(())) => {
                if let Some(committed) = self.committed.take() {
                    committed(&done);
                }
                Ok(done)
            }
            (_, Err(error)) => Err(error.into()),
            (None, Ok(())) => Err(DatabaseError::Closed.into()),
        };
        if let Some(reply) = self.reply.take() {
            // A caller that no longer waits misses its answer, as it chose to.
            reply.send(outcome).ok();
        }
    }
}
