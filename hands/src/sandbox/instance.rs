//! The gateway's side of one sandbox: starting it, keeping runners warm, seeing it die, ending it.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
    socketpair,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::call::Runner;
use super::cgroup::{Group, Hierarchies};
use super::enter::Spec;
use super::watch::Watch;
use super::{SandboxConfig, owner, reap, refusal};
use crate::{HandError, InstanceId, Lease};

/// How long a sandbox may take to start, on a machine under heavy load.
const START: Duration = Duration::from_secs(30);
/// How long a sandbox may take to end once its socket is closed, before it is killed.
const END: Duration = Duration::from_secs(3);
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
    why: OnceLock<String>,
    /// Fires when its outermost process is gone.
    gone: CancellationToken,
    report: Arc<Mutex<String>>,
    tasks: TaskTracker,
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
            watch: Watch::new(lease.work.clone(), &config.limits),
            group,
            control: Mutex::new(Some(control)),
            spares: Mutex::default(),
            why: OnceLock::new(),
            gone: CancellationToken::new(),
            report: Arc::default(),
            tasks: tasks.clone(),
        });
        let drained = child
            .stderr
            .take()
            .map(|stderr| tasks.spawn(drain(stderr, instance.id.clone(), Arc::clone(&instance.report))));
        tasks.spawn(Arc::clone(&instance).wait(child, drained));
        tasks.spawn(Arc::clone(&instance.watch).run(instance.gone.clone()));
        match instance.first_runner().await {
            Ok(()) => Ok(instance),
            Err(error) => {
                instance.end("it did not start").await;
                Err(error)
            }
        }
    }

    async fn first_runner(&self) -> Result<(), HandError> {
        let mut runner = self.new_runner().await?;
        match timeout(START, runner.ready()).await {
            Ok(Ok(Some(()))) => {
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

    /// Why no call can run in it any more, if so.
    pub(super) fn why_lost(&self) -> Option<String> {
        self.why.get().cloned()
    }

    fn lose(&self, why: impl Into<String>) {
        let _ = self.why.set(why.into());
    }

    /// Lets no further call start, ends everything in it and waits for that. Idempotent.
    pub(super) async fn end(&self, why: &str) {
        self.lose(why);
        lock(&self.spares).clear();
        lock(&self.control).take();
        if timeout(END, self.gone.cancelled()).await.is_err() {
            if let Err(error) = reap::reap(std::slice::from_ref(&self.id)).await {
                tracing::warn!(instance = %self.id, %error, "ending a sandbox");
            }
            let _ = timeout(END, self.gone.cancelled()).await;
        }
    }

    /// Ends it because nothing can be started in it any more.
    pub(super) async fn exhausted(&self) -> HandError {
        let why =
            format!("its background processes used up all {} processes, so all were ended", self.processes);
        self.end(&why).await;
        HandError::Lost { may_have_run: false, why }
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
        self.tasks.spawn(async move {
            let _active = active;
            tokio::select! {
                // Hanging up makes the runner end what it looks after.
                () = background.cancelled() => {}
                () = runner.gone() => {}
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

/// What an instance's outermost process has to know.
fn spec(config: &SandboxConfig, lease: &Lease, user: Option<u32>, group: &Group) -> Spec {
    let limits = &config.limits;
    Spec {
        instance: lease.instance.0.clone(),
        program: config.program.clone(),
        work: lease.work.clone(),
        mounts: config.mounts.clone(),
        network: config.network,
        user,
        cgroups: group.doors(),
        data: (!group.limits_memory()).then_some(limits.memory),
        processes: (!group.limits_processes()).then_some(limits.processes),
        file_size: limits.workspace,
        tmp: limits.tmp,
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
