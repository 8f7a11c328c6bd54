//! An instance on a machine that is reached by a line: over SSH, or through an adb server.
//!
//! Every command has a channel of its own, in which something that carries its mark waits until it is told to go: what is
//! given up before has not run, and what is given up later can be found. One more channel belongs to a *keeper*, a shell script that ends what
//! calls started, by a mark in the environment of all their processes, when it is told to, and all of it when the
//! line breaks: nothing of an instance lives longer than its keeper's channel, as far as its host still works.
//! On a host without `/proc` only the process group of a call is ended.
//!
//! **Invariant:** what goes to the host as a command line is one fixed line without a quote in it, whatever the login
//! shell is; everything else goes as input.

mod call;
mod feed;
mod files;
mod keeper;
mod reap;
pub(crate) mod script;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{Semaphore, SemaphorePermit, mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use self::files::Reached;
pub(crate) use self::reap::{reap, remove};

use self::keeper::{Keeper, Order};
use crate::instances::Living;
use crate::posix::{Posix, Streams, Surroundings};
use crate::{Call, CallContext, HandError, InstanceId, Lease, Outcome};

/// The name by which tools know the folder that persists, wherever it is on the host.
pub(crate) const WORKSPACE: &str = "/workspace";
/// How long a host may take to make an instance ready.
const START: Duration = Duration::from_mins(1);
/// How long the end of an instance may take.
const END: Duration = Duration::from_secs(10);

/// A way to run commands on one host.
#[async_trait]
pub(crate) trait Line: Send + Sync + 'static {
    /// Starts [`script::COMMAND`] in a channel of its own.
    async fn open(&self) -> Result<(Box<dyn Writer>, Box<dyn Reader>), OpenError>;

    /// Returns once all that was said on the host before has been given to the readers.
    async fn fence(&self);

    /// How a wrapper lets us know the end of its command.
    fn tail(&self) -> Tail;

    /// Breaks it. Idempotent.
    async fn close(&self);

    /// Why it broke by itself, if it did.
    fn why_broken(&self) -> Option<String>;
}

/// How the end of a command is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// The channel says it: the wrapper becomes the command.
    Channel,
    /// The wrapper prints it, for the channel would wait for background processes. See [`script::end_mark`].
    Printed,
}

/// Why no command could be started.
#[derive(Debug)]
pub(crate) enum OpenError {
    /// The host refuses one more, as the sentence says.
    Refused(String),
    /// The line is broken.
    Broken,
}

/// The input of a channel.
#[async_trait]
pub(crate) trait Writer: Send {
    /// Sends some bytes.
    async fn send(&mut self, bytes: Bytes) -> io::Result<()>;

    /// There is no more.
    async fn finish(&mut self) -> io::Result<()>;
}

/// What comes out of a channel.
#[async_trait]
pub(crate) trait Reader: Send {
    /// The next thing; `None` once the channel is gone. Loses nothing when it is dropped while it waits.
    async fn next(&mut self) -> Option<Event>;

    /// Tells what a [`Tail::Printed`] wrapper prints at the end: see [`script::end_mark`].
    fn expect(&mut self, _mark: &str, _streams: Streams) {}
}

/// Something that came out of a channel.
#[derive(Debug)]
pub(crate) enum Event {
    /// Standard output.
    Output(Bytes),
    /// Standard error.
    Error(Bytes),
    /// The command exited.
    Exit(i32),
    /// The command was ended by this signal; 0 when the host does not say which.
    Signal(i32),
    /// Nothing is printed any more.
    End,
}

/// What all instances of a hand have in common.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// What a person calls the host, in sentences.
    pub(crate) host: String,
    /// The folder for the work: absolute, or `~/…`.
    pub(crate) workspace: String,
    /// Most calls at once; others wait.
    pub(crate) calls: usize,
    /// Most channels that background processes keep open; those of the oldest are closed for newer ones.
    pub(crate) left: usize,
    /// What one call may print, in bytes.
    pub(crate) output: usize,
    /// Another folder in which files may be written: the host's for what need not last.
    pub(crate) scratch: &'static str,
    /// What network there is, in words.
    pub(crate) network: &'static str,
}

impl Terms {
    /// The folder that is for the work of this name alone, if there is one: up to where the name is in the path.
    fn folder_of(&self, work: &str) -> Option<String> {
        let (before, after) = self.workspace.split_once("{work}")?;
        let rest = after.split('/').next().unwrap_or_default();
        Some(format!("{before}{work}{rest}"))
    }
}

/// An instance.
pub(crate) struct Remote {
    line: Arc<dyn Line>,
    id: InstanceId,
    work: String,
    /// The real folder behind [`WORKSPACE`].
    folder: String,
    shell: &'static str,
    posix: Posix,
    calls: Semaphore,
    number: AtomicU64,
    orders: mpsc::Sender<Order>,
    left: Mutex<VecDeque<CancellationToken>>,
    most_left: usize,
    tasks: TaskTracker,
    why: OnceLock<String>,
    gone: CancellationToken,
}

impl Remote {
    /// Makes an instance ready. Whatever earlier instances of the same work left running is ended.
    pub(crate) async fn start(
        line: Arc<dyn Line>,
        terms: &Terms,
        lease: &Lease,
        tasks: &TaskTracker,
    ) -> Result<Arc<Self>, HandError> {
        let work = script::work_name(&lease.work);
        let closing = CloseIfDropped(Some((Arc::clone(&line), tasks.clone())));
        let starting = Keeper::start(&*line, terms, &lease.instance, &work);
        let started = timeout(START, starting).await.unwrap_or_else(|_| {
            Err(HandError::Unavailable {
                why: format!("{} did not make an instance ready within {} s", terms.host, START.as_secs()),
                remedy: "look at its load, then try again".into(),
            })
        });
        let keeper = match started {
            Ok(keeper) => closing.keep(keeper),
            Err(error) => {
                line.close().await;
                return Err(error);
            }
        };
        let (orders, taken) = mpsc::channel(64);
        let remote = Arc::new(Self {
            line,
            id: lease.instance.clone(),
            work,
            shell: keeper.shell,
            posix: Posix::new(surroundings(terms, keeper.shell, &keeper.folder)),
            folder: keeper.folder.clone(),
            calls: Semaphore::new(terms.calls),
            number: AtomicU64::new(1),
            orders,
            left: Mutex::default(),
            most_left: terms.left,
            tasks: tasks.clone(),
            why: OnceLock::new(),
            gone: CancellationToken::new(),
        });
        tasks.spawn(Arc::clone(&remote).keep(keeper, taken));
        Ok(remote)
    }

    /// Passes orders to the keeper and waits for its end, however it comes.
    async fn keep(self: Arc<Self>, mut keeper: Keeper, mut orders: mpsc::Receiver<Order>) {
        let mut waiting: HashMap<u64, oneshot::Sender<bool>> = HashMap::new();
        let mut quitting = false;
        loop {
            tokio::select! {
                order = orders.recv(), if !quitting => match order {
                    Some(Order::Kill { call, process, done }) => {
                        waiting.insert(call, done);
                        // Where it fails, its end comes on the other side.
                        let _ = keeper.kill(call, process).await;
                    }
                    Some(Order::Quit) | None => {
                        quitting = true;
                        let _ = keeper.quit().await;
                    }
                },
                said = keeper.said() => match said {
                    Some(keeper::Said::Done { call, all }) => {
                        if let Some(done) = waiting.remove(&call) {
                            let _ = done.send(all);
                        }
                    }
                    Some(keeper::Said::Swept) => {}
                    None => break,
                },
            }
        }
        let broken = self.line.why_broken();
        self.lose(broken.unwrap_or_else(|| "what looked after it on the host was killed".into()));
        self.line.close().await;
        self.gone.cancel();
    }

    fn lose(&self, why: impl Into<String>) {
        let _ = self.why.set(why.into());
    }

    /// Executes one of the six tools.
    pub(crate) async fn execute(&self, call: &Call, context: &CallContext) -> Result<Outcome, HandError> {
        self.posix.execute(self, &self.translated(call), context).await
    }

    /// A call with [`WORKSPACE`] in paths replaced by the real folder.
    fn translated(&self, call: &Call) -> Call {
        let mut call = call.clone();
        for name in ["path", "cwd", "pattern"] {
            let is_path = name != "pattern" || call.tool == "glob";
            if let Some(serde_json::Value::String(text)) = call.arguments.get_mut(name)
                && is_path
            {
                *text = self.real(text);
            }
        }
        call
    }

    /// A path as the host knows it.
    fn real(&self, path: &str) -> String {
        match path.strip_prefix(WORKSPACE) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{}{rest}", self.folder),
            _ => path.to_owned(),
        }
    }

    /// Where a path of a tool's is on the host: below the workspace unless it is absolute.
    pub(crate) fn place(&self, path: &str) -> String {
        let real = self.real(path);
        if real.starts_with('/') {
            real
        } else {
            format!("{}/{}", self.folder, real.trim_start_matches("./"))
        }
    }

    /// Listens to what nobody wants any more, until its end, the instance's, or that of too many such.
    fn leave(&self, listening: impl Future<Output = ()> + Send + 'static) {
        let (mine, gone) = (CancellationToken::new(), self.gone.clone());
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.retain(|other| !other.is_cancelled());
        if left.len() >= self.most_left
            && let Some(oldest) = left.pop_front()
        {
            oldest.cancel();
        }
        left.push_back(mine.clone());
        self.tasks.spawn(async move {
            tokio::select! {
                () = listening => {}
                () = mine.cancelled() => {}
                () = gone.cancelled() => {}
            }
            mine.cancel();
        });
    }

    /// What runs `bash` commands there.
    pub(crate) fn shell(&self) -> &'static str {
        self.shell
    }

    async fn turn(&self) -> Result<SemaphorePermit<'_>, HandError> {
        self.calls.acquire().await.map_err(|_| self.lost())
    }

    /// Nothing ran, for it is gone.
    fn lost(&self) -> HandError {
        HandError::Lost { may_have_run: false, why: self.why_lost().unwrap_or_else(|| "it is gone".into()) }
    }
}

#[async_trait]
impl Living for Remote {
    fn why_lost(&self) -> Option<String> {
        self.why.get().cloned().or_else(|| self.line.why_broken())
    }

    async fn end(&self, why: &str) -> Result<(), HandError> {
        self.lose(why);
        // Full only of orders that its end makes needless.
        let _ = self.orders.try_send(Order::Quit);
        if timeout(END, self.gone.cancelled()).await.is_err() {
            self.line.close().await;
            let _ = timeout(END, self.gone.cancelled()).await;
        }
        Ok(())
    }
}

/// Breaks a line whose instance nobody waits for any more, so that its keeper ends.
struct CloseIfDropped(Option<(Arc<dyn Line>, TaskTracker)>);

impl CloseIfDropped {
    fn keep<T>(mut self, made: T) -> T {
        self.0 = None;
        made
    }
}

impl Drop for CloseIfDropped {
    fn drop(&mut self) {
        if let Some((line, tasks)) = self.0.take() {
            tasks.spawn(async move { line.close().await });
        }
    }
}

/// What the tools say about the world they work in: `folder` is the real one.
pub(crate) fn surroundings(terms: &Terms, shell: &'static str, folder: &str) -> Surroundings {
    Surroundings {
        shell,
        workspace: folder.into(),
        writable: vec![folder.into(), terms.scratch.into()],
        mounts: Vec::new(),
        network: terms.network,
        output: terms.output,
    }
}

/// The six tools as they are listed, before anybody knows the host.
pub(crate) fn tools(terms: &Terms, shell: &'static str) -> Vec<crate::Tool> {
    let mut tools = Posix::new(surroundings(terms, shell, WORKSPACE)).tools();
    for tool in tools.iter_mut().filter(|tool| tool.name == "bash") {
        tool.description.push_str(
            " These tools call the folder /workspace; within a command it is $WORKSPACE, or use relative paths.",
        );
    }
    tools
}
