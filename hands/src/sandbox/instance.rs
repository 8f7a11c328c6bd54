//! The gateway's side of one sandbox: starting it, keeping runners warm, seeing it die, ending it.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
    socketpair,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::call::{Background, Runner};
use super::cgroup::{Group, Hierarchies};
use super::enter::Spec;
use super::watch::{SetId, Watch};
use super::{SandboxConfig, owner, reap, refusal};
use crate::instances::Living;
use crate::posix::{Ended, Report};
use crate::{HandError, InstanceId, Lease, open_files};

/// How long a sandbox may take to start, on a machine under heavy load.
const START: Duration = Duration::from_secs(30);
/// How long a sandbox may take to end once its socket is closed, before it is killed.
const END: Duration = Duration::from_secs(3);
/// Most calls that run at once in an instance; more wait. Each takes two processes and what it starts.
const CALLS: usize = 32;
/// Most idle runners of an instance.
const SPARES: usize = 4;
/// Most bytes kept of what a sandbox's own processes report.
const REPORT: usize = 4 * 1024;
/// Pause before asking again when the control socket is full.
const RETRY: Duration = Duration::from_millis(5);

/// A running sandbox.
pub(super) struct Instance {
    pub(super) id: InstanceId,
    /// Most processes, for the sentence that says that they are used up.
    pub(super) processes: u64,
    pub(super) watch: Arc<Watch>,
    pub(super) group: Group,
    /// Closing it ends the sandbox.
    control: Mutex<Option<OwnedFd>>,
    spares: Mutex<Vec<Runner>>,
    /// Calls that may run at once.
    calls: Semaphore,
    why: OnceLock<String>,
    /// Fires when its outermost process is gone.
    gone: CancellationToken,
    report: Arc<Mutex<String>>,
    /// What to tell the next call.
    notices: Arc<Mutex<Vec<String>>>,
    tasks: TaskTracker,
}

/// Ends an instance whose maker stopped waiting for it: its own tasks would keep it for ever.
struct EndIfDropped(Option<Arc<Instance>>);

impl Drop for EndIfDropped {
    fn drop(&mut self) {
        if let Some(instance) = &self.0 {
            instance.lose("nobody waited for it to start");
            lock(&instance.control).take();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Instance {
    /// Starts a sandbox and waits until it can run a call.
    pub(super) async fn start(
        config: &SandboxConfig,
        hierarchies: &Hierarchies,
        lease: &Lease,
        tasks: &TaskTracker,
    ) -> Result<Arc<Self>, HandError> {
        refusal::check_places(&config.mounts)?;
        let work = lease.work.clone();
        let user = tokio::task::spawn_blocking(move || owner::prepare(&work))
            .await
            .map_err(|error| HandError::Io { doing: "making a work folder", source: error.into() })??;
        let group = hierarchies
            .make(&lease.instance, &config.limits)
            .map_err(|source| HandError::Io { doing: "making a cgroup", source })?;
        let (control, mut child) = match spawn(config, &spec(config, lease, user, &group)) {
            Ok(spawned) => spawned,
            Err(error) => {
                group.remove().await;
                return Err(error);
            }
        };
        let instance = Arc::new(Self {
            id: lease.instance.clone(),
            processes: config.limits.processes,
            watch: Watch::new(lease.work.clone(), SetId::Filtered, &config.limits),
            group,
            control: Mutex::new(Some(control)),
            spares: Mutex::default(),
            calls: Semaphore::new(CALLS),
            why: OnceLock::new(),
            gone: CancellationToken::new(),
            report: Arc::default(),
            notices: Arc::default(),
            tasks: tasks.clone(),
        });
        let drained = child
            .stderr
            .take()
            .map(|stderr| tasks.spawn(drain(stderr, instance.id.clone(), Arc::clone(&instance.report))));
        tasks.spawn(Arc::clone(&instance).wait(child, drained));
        tasks.spawn(Arc::clone(&instance.watch).run(instance.gone.clone()));
        let mut abandoned = EndIfDropped(Some(Arc::clone(&instance)));
        let first = instance.first_runner().await;
        abandoned.0 = None;
        match first {
            Ok(()) => Ok(instance),
            Err(error) => {
                instance.end("it did not start").await?;
                Err(error)
            }
        }
    }

    async fn first_runner(&self) -> Result<(), HandError> {
        // When it is gone already, the reasons are the same.
        let runner = self.new_runner().await;
        let ready = async {
            match runner {
                Ok(runner) => runner.ready().await,
                Err(_) => Ok(None),
            }
        };
        match timeout(START, ready).await {
            Ok(Ok(Some(runner))) => {
                self.keep(runner);
                Ok(())
            }
            Ok(_) => {
                // Its reasons come with its end.
                let _ = timeout(END, self.gone.cancelled()).await;
                Err(refusal::explain(&lock(&self.report)))
            }
            Err(_) => Err(HandError::Unavailable {
                why: format!("a sandbox did not start within {} s", START.as_secs()),
                remedy: "look at the load of this machine, then try again".into(),
            }),
        }
    }

    /// Waits for the end of the outermost process, however it comes.
    async fn wait(self: Arc<Self>, mut child: Child, drained: Option<tokio::task::JoinHandle<()>>) {
        let status = child.wait().await;
        // The rest of the sandbox may outlive a killed `bwrap`, but not the socket.
        lock(&self.control).take();
        if let Some(drained) = drained {
            let _ = timeout(END, drained).await;
        }
        let why = match status {
            Ok(status) => format!("the sandbox ended ({status})"),
            Err(error) => format!("the sandbox can't be watched any more ({error})"),
        };
        self.lose(why);
        self.group.remove().await;
        self.gone.cancel();
    }

    fn lose(&self, why: impl Into<String>) {
        let _ = self.why.set(why.into());
    }

    /// Waits until a call may start. The permit lasts as long as the call.
    pub(super) async fn turn(&self) -> Result<SemaphorePermit<'_>, HandError> {
        self.calls
            .acquire()
            .await
            .map_err(|_| HandError::Lost { may_have_run: false, why: self.why_lost().unwrap_or_default() })
    }

    /// A call could not start because no process can. When other calls run, it is theirs to end; otherwise
    /// the instance is ended, for nobody could use it any more.
    pub(super) async fn exhausted(&self) -> Result<Report, HandError> {
        let all = self.processes;
        if self.calls.available_permits() + 1 < CALLS {
            let doing = format!(
                "start while all {all} processes of the sandbox are in use; wait for its other calls"
            );
            return Ok(Report {
                ended: Ended::NotStarted { doing, error: Errno::AGAIN.into() },
                notes: Vec::new(),
            });
        }
        let why = format!("its background processes used up all {all} processes, so all were ended");
        self.end(&why).await?;
        Err(HandError::Lost { may_have_run: false, why })
    }

    /// What happened since the last call that it should be told.
    pub(super) fn notices(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.notices))
    }

    /// Waits a moment for the reason of what looks like a death.
    pub(super) async fn reason(&self) -> Option<String> {
        let _ = timeout(Duration::from_millis(500), self.gone.cancelled()).await;
        self.why_lost()
    }

    /// A runner that is likely to take a request at once.
    pub(super) async fn runner(&self) -> Result<Runner, HandError> {
        loop {
            let spare = lock(&self.spares).pop();
            match spare {
                Some(runner) if runner.alive() => return Ok(runner),
                Some(_) => {}
                None => return self.new_runner().await,
            }
        }
    }

    /// Takes back a runner that waits for its next request.
    pub(super) fn keep(&self, runner: Runner) {
        let mut spares = lock(&self.spares);
        if spares.len() < SPARES && self.why.get().is_none() {
            spares.push(runner);
        }
    }

    /// Lets a runner look after background processes until they end or the instance does.
    pub(super) fn leave(&self, mut runner: Runner) {
        let gone = self.gone.clone();
        let background = self.watch.background();
        let active = self.watch.active();
        let notices = Arc::clone(&self.notices);
        let most = self.processes / 2;
        self.tasks.spawn(async move {
            let _active = active;
            tokio::select! {
                // Hanging up makes the runner end what it looks after.
                () = background.cancelled() => {
                    lock(&notices).push("background processes were ended for going beyond a limit of the disk".into());
                }
                end = runner.ended_background() => if end == Background::TooMany {
                    lock(&notices).push(format!("background processes were ended for being more than {most}"));
                },
                () = gone.cancelled() => {}
            }
        });
    }

    /// Asks PID 1 for a runner, without waiting for it.
    async fn new_runner(&self) -> Result<Runner, HandError> {
        let io = |source: std::io::Error| HandError::Io { doing: "making a call's socket", source };
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(io)?;
        ours.set_nonblocking(true).map_err(io)?;
        loop {
            match self.send_to_init(&theirs) {
                Ok(()) => return UnixStream::from_std(ours).map(Runner::new).map_err(io),
                Err(Errno::AGAIN) => sleep(RETRY).await,
                Err(_) => {
                    let why = self.reason().await.unwrap_or_else(|| "the sandbox does not answer".into());
                    return Err(HandError::Lost { may_have_run: false, why });
                }
            }
        }
    }

    fn send_to_init(&self, call: &impl AsFd) -> Result<(), Errno> {
        let control = lock(&self.control);
        let Some(control) = control.as_ref() else { return Err(Errno::PIPE) };
        let fds = [call.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(control, &[IoSlice::new(b"c")], &mut ancillary, flags).map(|_| ())
    }
}

#[async_trait]
impl Living for Instance {
    fn why_lost(&self) -> Option<String> {
        self.why.get().cloned()
    }

    async fn end(&self, why: &str) -> Result<(), HandError> {
        self.lose(why);
        lock(&self.spares).clear();
        lock(&self.control).take();
        if timeout(END, self.gone.cancelled()).await.is_err() {
            if let Err(error) = reap::reap(std::slice::from_ref(&self.id)).await {
                tracing::warn!(instance = %self.id, %error, "ending a sandbox");
            }
            let _ = timeout(END, self.gone.cancelled()).await;
        }
        Ok(())
    }
}

/// What an instance's outermost process has to know.
fn spec(config: &SandboxConfig, lease: &Lease, user: Option<u32>, group: &Group) -> Spec {
    let limits = &config.limits;
    Spec {
        instance: lease.instance.0.clone(),
        program: config.program.clone(),
        bwrap: config.bwrap.clone(),
        work: lease.work.clone(),
        mounts: config.mounts.clone(),
        sockets: config.sockets.clone(),
        hidden: config.hidden.clone(),
        network: config.network,
        user,
        cgroups: group.doors(),
        data: (!group.limits_memory()).then_some(limits.memory),
        processes: limits.processes,
        file_size: limits.workspace,
        tmp: limits.tmp,
        open_files: open_files::former(),
    }
}

/// Spawns the process that becomes `bwrap`; its control socket.
fn spawn(config: &SandboxConfig, spec: &Spec) -> Result<(OwnedFd, Child), HandError> {
    let io = |doing| move |source: std::io::Error| HandError::Io { doing, source };
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|error| io("making a control socket")(error.into()))?;
    let json = serde_json::to_string(spec).map_err(|error| io("describing a sandbox")(error.into()))?;
    let child = Command::new(&config.program)
        .arg("sandbox-enter")
        .arg(json)
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .current_dir("/")
        .kill_on_drop(true)
        .spawn()
        .map_err(io("starting a sandbox"))?;
    Ok((ours, child))
}

/// Logs what the sandbox's own processes report and keeps its beginning.
async fn drain(stderr: ChildStderr, instance: InstanceId, report: Arc<Mutex<String>>) {
    let mut lines = BufReader::new(stderr.take(1 << 20));
    let mut line = Vec::new();
    while let Ok(1..) = lines.read_until(b'\n', &mut line).await {
        let text = String::from_utf8_lossy(&line);
        tracing::debug!(%instance, report = text.trim_end(), "sandbox");
        let mut report = lock(&report);
        if report.len() + text.len() <= REPORT {
            report.push_str(&text);
        }
        line.clear();
    }
}
