//! One container: making it, seeing it die, ending it.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bollard::Docker;
use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::models::{ContainerCreateBody, HostConfig, HostConfigLogConfig, ResourcesUlimits};
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, InspectContainerOptions,
    ListContainersOptionsBuilder, RemoveContainerOptionsBuilder, StartContainerOptions,
};
use futures_util::{Stream, StreamExt};
use rustix::process::Resource;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::engine::{Engine, Lack, root, status, why_gone};
use super::keeper::{self, Keeper};
use super::{
    ContainerConfig, Network, Root, Shared, ShellName, Workspace, filter, image, place, volume, window,
};
use crate::instances::Living;
use crate::posix::{Ended, Report};
use crate::sandbox::watch::{SetId, Watch};
use crate::sandbox::{Limits, WORKSPACE, owner, share};
use crate::{HandError, InstanceId, Lease};

/// The label by which a container's instance is known.
pub(super) const INSTANCE: &str = "manyhands.instance";
/// The label by which a container's gateway is known.
pub(super) const NODE: &str = "manyhands.node";
/// How long a container may take from its start until its keeper says that it is ready, on a machine under load.
const START: Duration = Duration::from_mins(1);
/// How long a container may take to be removed.
const REMOVE: Duration = Duration::from_mins(1);
/// Pause between two looks at what ends.
const LOOK: Duration = Duration::from_millis(10);
/// Pause between two looks at background processes.
const BUSY: Duration = Duration::from_secs(2);
/// How long the end of a connection may be known before its reason is.
const REASON: Duration = Duration::from_secs(1);
/// Most calls that run at once in an instance; more wait. Each takes three processes and what it starts.
const CALLS: usize = 32;
/// Whoever works in the container when the gateway is root and the workspace is a volume.
const ORDINARY: u32 = 1000;

/// A running container.
pub(super) struct Instance {
    pub(super) docker: Docker,
    /// The container's id.
    pub(super) container: String,
    pub(super) user: String,
    pub(super) shell: ShellName,
    pub(super) keeper: Keeper,
    pub(super) watch: Option<Arc<Watch>>,
    /// What the containers are made with through which the daemon sees its workspace.
    pub(super) window: ContainerCreateBody,
    /// The container's name.
    pub(super) name: String,
    processes: u64,
    /// How many processes its memory limit had killed, in the keeper's words, when that was last asked.
    killed: Mutex<String>,
    calls: Semaphore,
    why: OnceLock<String>,
    /// Fires when the container can't be used any more.
    gone: CancellationToken,
    /// Whether somebody looks after background processes.
    lingering: AtomicBool,
    /// What to tell the next call.
    notices: Mutex<Vec<String>>,
    /// One checkpoint is made or brought back at a time: each clears what others left.
    pub(super) checkpoints: tokio::sync::Mutex<()>,
    pub(super) engine: Arc<Engine>,
    pub(super) tasks: TaskTracker,
}

/// What a container says.
type Output = Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>;

impl Instance {
    /// Makes a container and waits until it can run a call.
    pub(super) async fn start(shared: &Arc<Shared>, lease: &Lease) -> Result<Arc<Self>, HandError> {
        let config = &shared.config;
        let docker = shared.engine.docker().await?;
        let image = image::ensure(shared, &docker).await?;
        let user = user(config, lease, &docker, &image).await?;
        let mut lease = lease.clone();
        if config.workspace == Workspace::Bind {
            lease.work = place::fixed(&lease.work)?;
        }
        let lease = &lease;
        let body = body(config, lease, image, &user);
        let refused = |error: &Error| HandError::from(refusal(shared, error));
        let name = name(&lease.instance);
        let container = match create(&docker, &name, body.clone()).await {
            // What nobody waited for, or has not quite ended.
            Err(error) if status(&error) == Some(409) => {
                remove(&docker, &name).await.map_err(|error| refused(&error))?;
                create(&docker, &name, body.clone()).await
            }
            created => created,
        };
        let container = container.map_err(|error| refused(&error))?;
        let window = window::body(&body, volume::workspace(config, lease));
        match Self::attach(shared, lease, docker.clone(), &container, user, window).await {
            Ok(instance) => Ok(instance),
            Err(error) => {
                let _ = remove(&docker, &container).await;
                Err(error)
            }
        }
    }

    /// Starts a container that was made.
    async fn attach(
        shared: &Arc<Shared>,
        lease: &Lease,
        docker: Docker,
        container: &str,
        user: String,
        window: ContainerCreateBody,
    ) -> Result<Arc<Self>, HandError> {
        let refused = |error: Error| HandError::from(refusal(shared, &error));
        let config = &shared.config;
        let options = AttachContainerOptionsBuilder::new().stream(true).stdin(true).stdout(true).build();
        let attached = docker.attach_container(container, Some(options)).await.map_err(refused)?;
        docker.start_container(container, None::<StartContainerOptions>).await.map_err(refused)?;
        let (keeper, ready) = Keeper::new(attached.input);
        let bind = config.workspace == Workspace::Bind;
        let instance = Arc::new(Self {
            docker,
            container: container.to_owned(),
            user,
            shell: config.shell,
            keeper,
            watch: bind.then(|| Watch::new(lease.work.clone(), set_id(config), &config.limits)),
            window,
            name: name(&lease.instance),
            processes: config.limits.processes,
            killed: Mutex::default(),
            calls: Semaphore::new(CALLS),
            why: OnceLock::new(),
            gone: CancellationToken::new(),
            lingering: AtomicBool::new(false),
            notices: Mutex::default(),
            checkpoints: tokio::sync::Mutex::default(),
            engine: Arc::clone(&shared.engine),
            tasks: shared.instances.tasks.clone(),
        });
        shared.instances.tasks.spawn(Arc::clone(&instance).listen(attached.output));
        if let Some(watch) = &instance.watch {
            shared.instances.tasks.spawn(Arc::clone(watch).run(instance.gone.clone()));
        }
        let started = instance.check(timeout(START, ready).await.ok().and_then(Result::ok));
        if started.is_err() {
            instance.lose("it did not start");
            instance.keeper.hang_up().await;
        }
        started.map(|()| instance)
    }

    /// Whether the image has what is needed, by what the keeper said first.
    fn check(&self, ready: Option<String>) -> Result<(), HandError> {
        let lack = |why: String, remedy: &str| Err(Lack { why, remedy: remedy.into() }.into());
        let Some(ready) = ready else {
            let why = self.why_lost().unwrap_or_else(|| "it did not say that it is ready".into());
            return lack(format!("the container did not start: {why}"), "see what docker events shows");
        };
        let mut words = ready.split(' ').skip(1);
        let (bash, writable) = (words.next(), words.next());
        words.next().unwrap_or_default().clone_into(&mut lock(&self.killed));
        if self.shell == ShellName::Bash && bash != Some("yes") {
            return lack("the image has no bash".into(), "set the hand's shell to sh, or use another image");
        }
        if writable != Some("yes") {
            let why = format!("user {} of the container can't write to {WORKSPACE} and /tmp", self.user);
            return lack(why, "set the hand's workspace to volume where the daemon is remote or rootless");
        }
        Ok(())
    }

    /// Hears the keeper until the container ends, and finds out why it did.
    async fn listen(self: Arc<Self>, mut output: Output) {
        while let Some(Ok(said)) = output.next().await {
            if let LogOutput::StdOut { message } = said {
                self.keeper.hear(&message);
            }
        }
        let why = match self.docker.inspect_container(&self.container, None::<InspectContainerOptions>).await
        {
            Ok(found) => match found.state {
                Some(state) if state.oom_killed == Some(true) => {
                    "its container was ended by its memory limit".into()
                }
                Some(state) if state.running != Some(true) => {
                    format!("its container ended with exit code {}", state.exit_code.unwrap_or_default())
                }
                _ => "the connection to its container was cut".into(),
            },
            Err(error) => why_gone(&error).unwrap_or_else(|| root(&error)),
        };
        self.lose(why);
        self.keeper.hang_up().await;
        self.gone.cancel();
    }

    /// Lets no further call start.
    pub(super) fn lose(&self, why: impl Into<String>) {
        let _ = self.why.set(why.into());
    }

    /// Waits a moment for the reason of what looks like a death.
    pub(super) async fn reason(&self) -> Option<String> {
        let _ = timeout(REASON, self.gone.cancelled()).await;
        self.why_lost()
    }

    /// Whose the workspace is: user and group.
    pub(super) fn owner(&self) -> (u64, u64) {
        let (user, group) = self.user.split_once(':').unwrap_or((&self.user, ""));
        let number = |id: &str| id.parse().unwrap_or(u64::from(ORDINARY));
        (number(user), number(group))
    }

    /// Waits until a call may start. The permit lasts as long as the call.
    pub(super) async fn turn(&self) -> Result<SemaphorePermit<'_>, HandError> {
        self.calls
            .acquire()
            .await
            .map_err(|_| HandError::Lost { may_have_run: false, why: self.why_lost().unwrap_or_default() })
    }

    /// A call could not start because no process can. When other calls run, it is theirs to end; otherwise the
    /// instance is ended, for nobody could use it any more.
    pub(super) async fn exhausted(&self) -> Result<Report, HandError> {
        let all = self.processes;
        if self.calls.available_permits() + 1 < CALLS {
            let doing = format!(
                "start while all {all} processes of the container are in use; wait for its other calls"
            );
            let error = std::io::Error::from_raw_os_error(rustix::io::Errno::AGAIN.raw_os_error());
            return Ok(Report { ended: Ended::NotStarted { doing, error }, notes: Vec::new() });
        }
        let why = format!("its background processes used up all {all} processes, so all were ended");
        self.end(&why).await?;
        Err(HandError::Lost { may_have_run: false, why })
    }

    /// Whether the memory limit has killed a process since this was last asked.
    pub(super) async fn killed_for_memory(&self) -> Option<String> {
        let killed = self.keeper.ask("killed").await?;
        let before = std::mem::replace(&mut *lock(&self.killed), killed.clone());
        (before != killed).then(|| "a process was killed by the memory limit of the container".into())
    }

    /// What happened since the last call that it should be told.
    pub(super) fn notices(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.notices))
    }

    /// Keeps the watch of the work folder awake for as long as background processes live, and ends them when they go
    /// beyond a limit of the disk.
    pub(super) fn linger(self: &Arc<Self>) {
        let Some(watch) = self.watch.clone() else { return };
        if self.lingering.swap(true, Ordering::Relaxed) {
            return;
        }
        let instance = Arc::clone(self);
        self.tasks.spawn(async move {
            let _active = watch.active();
            let full = watch.background();
            loop {
                tokio::select! {
                    () = instance.gone.cancelled() => return,
                    () = full.cancelled() => {
                        let notice = "background processes were ended for going beyond a limit of the disk";
                        // Those of calls that run go with their calls.
                        if instance.calls.available_permits() == CALLS {
                            instance.keeper.ask("all").await;
                        }
                        lock(&instance.notices).push(notice.into());
                        break;
                    }
                    () = sleep(BUSY) => if instance.keeper.ask("busy").await.as_deref() != Some("yes") {
                        break;
                    },
                }
            }
            instance.lingering.store(false, Ordering::Relaxed);
        });
    }
}

#[async_trait]
impl Living for Instance {
    fn why_lost(&self) -> Option<String> {
        self.why.get().cloned()
    }

    async fn end(&self, why: &str) -> Result<(), HandError> {
        self.lose(why);
        let removed = remove(&self.docker, &self.container).await;
        self.keeper.hang_up().await;
        self.gone.cancel();
        if let Some(watch) = &self.watch {
            watch.finish().await;
        }
        removed.map_err(|error| self.engine.explain(&error).into())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A container's name.
fn name(instance: &InstanceId) -> String {
    format!("manyhands-{instance}")
}

/// Another runtime than the daemon's may have no use for a filter, as one with a kernel of its own.
fn set_id(config: &ContainerConfig) -> SetId {
    if config.runtime.is_none() { SetId::Filtered } else { SetId::TakenAway }
}

/// Who works in the container, in Docker's words. What is in the workspace is theirs from now on.
async fn user(
    config: &ContainerConfig,
    lease: &Lease,
    docker: &Docker,
    image: &str,
) -> Result<String, HandError> {
    let ours = || (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if config.workspace == Workspace::Bind {
        let work = lease.work.clone();
        let user = tokio::task::spawn_blocking(move || owner::prepare(&work))
            .await
            .map_err(|error| HandError::Io { doing: "making a work folder", source: error.into() })??;
        let (user, group) = user.map_or_else(ours, |user| (user, user));
        return Ok(format!("{user}:{group}"));
    }
    let user = match ours() {
        (0, _) => (ORDINARY, ORDINARY),
        ours => ours,
    };
    volume::prepare(config, docker, image, lease, user).await?;
    Ok(format!("{}:{}", user.0, user.1))
}

async fn create(docker: &Docker, name: &str, body: ContainerCreateBody) -> Result<String, Error> {
    let options = CreateContainerOptionsBuilder::new().name(name).build();
    Ok(docker.create_container(Some(options), body).await?.id)
}

/// Everything that a container is made with.
fn body(config: &ContainerConfig, lease: &Lease, image: String, user: &str) -> ContainerCreateBody {
    let command = ["sh", "-c", &keeper::script(), "manyhands-keeper"].map(str::to_owned);
    ContainerCreateBody {
        image: Some(image),
        user: Some(user.to_owned()),
        hostname: Some("container".into()),
        entrypoint: Some(command.to_vec()),
        cmd: Some(Vec::new()),
        env: Some(vec![format!("HOME={WORKSPACE}")]),
        working_dir: Some("/".into()),
        labels: Some(labels(config, lease)),
        // Its input ends with our connection, and it with its input.
        open_stdin: Some(true),
        stdin_once: Some(true),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(false),
        host_config: Some(host_config(config, lease)),
        ..ContainerCreateBody::default()
    }
}

fn labels(config: &ContainerConfig, lease: &Lease) -> HashMap<String, String> {
    let labels = [(INSTANCE, lease.instance.0.clone()), (NODE, config.node.clone())];
    labels.map(|(name, value)| (name.to_owned(), value)).into()
}

fn host_config(config: &ContainerConfig, lease: &Lease) -> HostConfig {
    let Limits { memory, processes, millicpus, tmp, .. } = config.limits;
    let number = |number: u64| Some(i64::try_from(number).unwrap_or(i64::MAX));
    HostConfig {
        mounts: Some(vec![volume::workspace(config, lease)]),
        tmpfs: Some([("/tmp".to_owned(), format!("rw,exec,nosuid,nodev,mode=1777,size={tmp}"))].into()),
        readonly_rootfs: Some(config.root == Root::ReadOnly),
        cap_drop: Some(vec!["ALL".into()]),
        security_opt: Some(vec!["no-new-privileges".into(), filter::option()]),
        network_mode: Some(match &config.network {
            Network::None => "none".into(),
            Network::Named(name) => name.clone(),
        }),
        memory: number(memory),
        // Memory and swap together: no swap.
        memory_swap: number(memory),
        pids_limit: number(processes),
        ulimits: Some(share::LIMITS.map(ulimit).to_vec()),
        nano_cpus: number(millicpus.saturating_mul(1_000_000)),
        runtime: config.runtime.clone(),
        // Reaps what loses its parent, and can't be killed from inside.
        init: Some(true),
        ipc_mode: Some("private".into()),
        auto_remove: Some(true),
        log_config: Some(HostConfigLogConfig { typ: Some("none".into()), config: None }),
        ..HostConfig::default()
    }
}

/// A limit of each process, in Docker's words.
fn ulimit((resource, name, most): (Resource, &str, u64)) -> ResourcesUlimits {
    let most = i64::try_from(share::at_most_half(resource, most)).ok();
    ResourcesUlimits { name: Some(name.to_owned()), soft: most, hard: most }
}

/// Why the daemon would not make or start a container.
fn refusal(shared: &Shared, error: &Error) -> Lack {
    let Error::DockerResponseServerError { message, .. } = error else {
        return shared.engine.explain(error);
    };
    let message = message.trim();
    if message.contains("nknown runtime") || message.contains("unknown or invalid runtime") {
        let runtime = shared.config.runtime.as_deref().unwrap_or_default();
        return Lack {
            why: format!("the Docker daemon has no runtime {runtime}"),
            remedy: "install it and name it in /etc/docker/daemon.json, or use another runtime for the hand"
                .into(),
        };
    }
    if message.contains("\"sh\": executable file not found") {
        return Lack {
            why: "the image has no shell".into(),
            remedy: "use an image that has sh and the usual commands for the hand".into(),
        };
    }
    if message.contains("bind source path does not exist") {
        return Lack {
            why: "the Docker daemon does not see the files of this machine".into(),
            remedy: "set the hand's workspace to volume".into(),
        };
    }
    Lack {
        why: format!("the Docker daemon refuses to make the container: {message}"),
        remedy: "see what manyhands doctor says".into(),
    }
}

/// Ends and removes a container and waits until it is gone.
pub(super) async fn remove(docker: &Docker, container: &str) -> Result<(), Error> {
    let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
    match docker.remove_container(container, Some(options)).await {
        Ok(()) => return Ok(()),
        Err(error) if status(&error) == Some(404) => return Ok(()),
        // Somebody else is at it: the daemon itself, when it has ended.
        Err(error) if status(&error) == Some(409) => {}
        Err(error) => return Err(error),
    }
    let going = async {
        loop {
            match docker.inspect_container(container, None::<InspectContainerOptions>).await {
                Ok(_) => sleep(LOOK).await,
                Err(error) if status(&error) == Some(404) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    };
    timeout(REMOVE, going).await.unwrap_or(Err(Error::RequestTimeoutError))
}

/// Ends and removes the containers of `instances`, whoever made them.
pub(super) async fn reap(engine: &Engine, instances: &[InstanceId]) -> Result<(), HandError> {
    let docker = engine.docker().await?;
    let explain = |error: Error| HandError::from(engine.explain(&error));
    let filters: HashMap<String, Vec<String>> = [("label".to_owned(), vec![INSTANCE.to_owned()])].into();
    let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
    for found in docker.list_containers(Some(options)).await.map_err(explain)? {
        let label = found.labels.as_ref().and_then(|labels| labels.get(INSTANCE));
        if let (Some(label), Some(id)) = (label, &found.id)
            && instances.iter().any(|instance| &instance.0 == label)
        {
            let gives = found.labels.as_ref().is_some_and(|labels| labels.contains_key(volume::GIVES));
            // Its volume is work that a session may come back to.
            if !gives || volume::finish(&docker, id).await.is_err() {
                remove(&docker, id).await.map_err(explain)?;
            }
        }
    }
    Ok(())
}
