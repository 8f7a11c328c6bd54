//! Group commit for SQLite: one thread, and nothing else, writes.
//!
//! Whatever waits when a transaction begins is committed together, each piece inside a savepoint of its own: one that
//! fails is rolled back alone. Nobody is told "done" before the common `commit` has returned, and when that fails,
//! everybody in the group is told so.
//!
//! Scripts, which are most of all that is written, run on the thread itself. Work that decides as it goes has a
//! connection of the driver that reads, too; the two take turns, so that neither ever waits for the other's lock.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::{AnyConnection, Connection as _, Executor as _};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;

use super::disk::Disk;
use super::error::is_no_space;
use super::open::SqliteFile;
use super::script::{Did, Script, Stopped};
use super::sqlite::Scripts;
use super::{Connection, DatabaseError, Signals, Work};

/// Most writes that wait; further ones wait to be let in.
const QUEUE_MAX: usize = 1_024;
/// Most writes in one transaction.
const GROUP_MAX: usize = 64;

/// What the thread writes with.
pub(super) struct Writers {
    pub(super) scripts: Scripts,
    /// None after a transaction failed: when the disk is full, SQLite ends it by itself, and the driver would never
    /// begin another.
    pub(super) work: Option<AnyConnection>,
    pub(super) file: SqliteFile,
    pub(super) disk: Arc<Disk>,
}

/// The way in to the thread.
pub(super) struct Queue {
    /// None once nothing more is let in.
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
}

enum Job {
    Script(Asked),
    Work(Box<dyn Piece>),
    /// Gives some of what is free in the file back to the disk.
    GiveBack(oneshot::Sender<Result<u64, DatabaseError>>),
}

/// A script, and who waits for it.
struct Asked {
    script: Script,
    reply: oneshot::Sender<Result<Vec<Did>, Stopped>>,
}

impl Queue {
    /// Starts the thread. It ends when the queue is closed or dropped, and whatever waits is written.
    pub(super) fn start(
        writers: Writers,
        signals: Arc<Signals>,
        tasks: &TaskTracker,
    ) -> Result<Self, DatabaseError> {
        let (jobs, waiting) = mpsc::channel(QUEUE_MAX);
        let (runtime, token) = (Handle::current(), tasks.token());
        let thread = std::thread::Builder::new().name("database-writer".to_owned());
        let started = thread.spawn(move || {
            let _running = token;
            write(writers, waiting, &signals, &runtime);
        });
        started.map_err(|source| DatabaseError::NoThread(Arc::new(source)))?;
        Ok(Self { jobs: Mutex::new(Some(jobs)) })
    }

    /// Runs a script in one of the next transactions.
    pub(super) async fn script(&self, script: Script) -> Result<Vec<Did>, Stopped> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Script(Asked { script, reply })).await?;
        answer.await.map_err(|_| DatabaseError::Closed)?
    }

    /// Runs `work` in one of the next transactions.
    pub(super) async fn work<F, T, E, A>(&self, work: F, committed: A) -> Result<T, E>
    where
        F: for<'c> FnOnce(&'c mut Connection) -> Work<'c, T, E> + Clone + Send + 'static,
        T: Send + 'static,
        E: std::error::Error + From<DatabaseError> + Send + 'static,
        A: FnOnce(&T) + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let piece = Wanted { work, committed: Some(committed), outcome: None, reply: Some(reply) };
        self.send(Job::Work(Box::new(piece))).await?;
        answer.await.map_err(|_| DatabaseError::Closed)?
    }

    /// Gives some of what is free in the file back to the disk. Returns how many pages are left.
    pub(super) async fn give_back(&self) -> Result<u64, DatabaseError> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::GiveBack(reply)).await?;
        answer.await.map_err(|_| DatabaseError::Closed)?
    }

    async fn send(&self, job: Job) -> Result<(), DatabaseError> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        jobs.ok_or(DatabaseError::Closed)?.send(job).await.map_err(|_| DatabaseError::Closed)
    }

    /// Lets nothing more in; what waits is still written.
    pub(super) fn close(&self) {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// The thread.
fn write(mut writers: Writers, mut waiting: mpsc::Receiver<Job>, signals: &Signals, runtime: &Handle) {
    let mut taken = Vec::with_capacity(GROUP_MAX);
    while waiting.blocking_recv_many(&mut taken, GROUP_MAX) > 0 {
        let mut jobs = taken.drain(..).peekable();
        while let Some(job) = jobs.next() {
            match job {
                Job::Script(first) => {
                    let mut group = vec![first];
                    while let Some(Job::Script(next)) = jobs.next_if(|job| matches!(job, Job::Script(_))) {
                        group.push(next);
                    }
                    commit_scripts(&mut writers, group, signals);
                }
                Job::Work(first) => {
                    let mut group = vec![first];
                    while let Some(Job::Work(next)) = jobs.next_if(|job| matches!(job, Job::Work(_))) {
                        group.push(next);
                    }
                    runtime.block_on(commit_work(&mut writers, group));
                }
                Job::GiveBack(reply) => {
                    reply.send(writers.scripts.give_back()).ok();
                }
            }
        }
    }
    if let Some(work) = writers.work
        && let Err(error) = runtime.block_on(work.close())
    {
        tracing::warn!(error = &error as &dyn std::error::Error, "the database did not close cleanly");
    }
}

fn commit_scripts(writers: &mut Writers, group: Vec<Asked>, signals: &Signals) {
    let mut done = run_scripts(&mut writers.scripts, &group.iter().collect::<Vec<_>>());
    let full = done.iter().enumerate().filter(|(_, done)| done.as_ref().is_err_and(|why| is_no_space(why)));
    let full: Vec<usize> = full.map(|(at, _)| at).collect();
    // What was not written can be, in the room of the reserve.
    if !full.is_empty() && writers.disk.give_up_reserve() {
        let again: Vec<_> = full.iter().map(|at| &group[*at]).collect();
        for (at, ran) in full.into_iter().zip(run_scripts(&mut writers.scripts, &again)) {
            done[at] = ran;
        }
    }
    for (Asked { script, reply }, done) in group.into_iter().zip(done) {
        if let Ok(all) = &done {
            script.publish(signals, all);
        }
        // A caller that no longer waits misses its answer, as it chose to.
        reply.send(done).ok();
    }
}

/// Runs scripts in one transaction. What became of each.
fn run_scripts(scripts: &mut Scripts, group: &[&Asked]) -> Vec<Result<Vec<Did>, Stopped>> {
    match scripts.commit(group.iter().map(|asked| &asked.script)) {
        Ok(done) => done,
        Err(error) => group.iter().map(|_| Err(Stopped::Transaction(error.clone()))).collect(),
    }
}

async fn commit_work(writers: &mut Writers, mut group: Vec<Box<dyn Piece>>) {
    let mut outcome = work_on(writers, &mut group).await;
    let full = outcome.as_ref().is_err_and(|why| is_no_space(why)) || group.iter().any(|one| one.is_full());
    if full && writers.disk.give_up_reserve() {
        // What was not written can be, in the room of the reserve.
        let (again, done): (Vec<_>, Vec<_>) =
            group.into_iter().partition(|piece| outcome.is_err() || piece.is_full());
        for mut piece in done {
            piece.answer(outcome.clone());
        }
        group = again;
        outcome = work_on(writers, &mut group).await;
    }
    for mut piece in group {
        piece.answer(outcome.clone());
    }
}

/// Commits a group. A connection whose transaction failed is given up for a new one.
async fn work_on(writers: &mut Writers, group: &mut [Box<dyn Piece>]) -> Result<(), DatabaseError> {
    let mut open = match writers.work.take() {
        Some(open) => open,
        None => writers.file.writer().await?,
    };
    let outcome = commit(&mut open, group).await;
    match outcome {
        Ok(()) => writers.work = Some(open),
        // What it did not commit goes with it.
        Err(_) => drop(open.close().await),
    }
    outcome
}

/// One transaction for the whole group. An error is everybody's: nothing of the group was kept.
async fn commit(connection: &mut AnyConnection, group: &mut [Box<dyn Piece>]) -> Result<(), DatabaseError> {
    connection.execute("begin immediate").await?;
    for piece in group {
        connection.execute("savepoint piece").await?;
        if piece.run(connection).await == Ran::Failed {
            connection.execute("rollback to piece").await?;
        }
        connection.execute("release piece").await?;
    }
    connection.execute("commit").await?;
    Ok(())
}

/// What became of a piece of work, before its transaction is committed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ran {
    Done,
    Failed,
}

/// A piece of work whose types the thread does not know.
trait Piece: Send {
    /// Runs it and keeps its outcome. Nothing of an earlier run was kept.
    fn run<'c>(&'c mut self, connection: &'c mut Connection) -> BoxFuture<'c, Ran>;
    /// Whether the disk had no room for it.
    fn is_full(&self) -> bool;
    /// Tells the caller: its own failure, else that of the transaction, else that it is done.
    fn answer(&mut self, transaction: Result<(), DatabaseError>);
}

struct Wanted<F, T, E, A> {
    work: F,
    committed: Option<A>,
    outcome: Option<Result<T, E>>,
    reply: Option<oneshot::Sender<Result<T, E>>>,
}

impl<F, T, E, A> Piece for Wanted<F, T, E, A>
where
    F: for<'c> FnOnce(&'c mut Connection) -> Work<'c, T, E> + Clone + Send + 'static,
    T: Send + 'static,
    E: std::error::Error + From<DatabaseError> + Send + 'static,
    A: FnOnce(&T) + Send + 'static,
{
    fn run<'c>(&'c mut self, connection: &'c mut Connection) -> BoxFuture<'c, Ran> {
        let work = self.work.clone();
        Box::pin(async move {
            // A panic is the caller's, not that of everybody else in the queue.
            let outcome = AssertUnwindSafe(async { work(connection).await })
                .catch_unwind()
                .await
                .unwrap_or_else(|_| Err(DatabaseError::Panicked.into()));
            let ran = if outcome.is_ok() { Ran::Done } else { Ran::Failed };
            self.outcome = Some(outcome);
            ran
        })
    }

    fn is_full(&self) -> bool {
        self.outcome.as_ref().is_some_and(|outcome| outcome.as_ref().is_err_and(|why| is_no_space(why)))
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
