//! A container of a Docker daemon, hardened, with a persistent `/workspace`.
//!
//! ```text
//! gateway ──attached to──> keeper, the container's main process: a shell that ends what a call started
//!    └────── one exec per call ──────> wrapper ──> bash -lc
//! ```
//!
//! **Invariant:** nothing in the container lives longer than the gateway's connection to its keeper: the keeper
//! ends with it, the container ends with the keeper, and the daemon removes what has ended. What gets past that, such
//! as a daemon that was killed, is found by its labels.

mod call;
mod checkpoint;
mod copy;
mod doctor;
mod engine;
mod entries;
mod filter;
mod image;
mod instance;
mod keeper;
mod place;
mod scan;
mod swap;
mod tls;
mod volume;
mod window;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::{Mutex, watch};

pub use self::doctor::inspect;

use self::engine::Engine;
use self::instance::Instance;
use crate::instances::Instances;
use crate::posix::{Posix, Surroundings};
use crate::sandbox::{Limits, WORKSPACE};
use crate::{
    Call, CallContext, Checkpoints, FarWork, Files, Hand, HandError, Handle, InstanceId, Lease, Outcome,
    Progress, Tool,
};

/// Where a Docker daemon listens when nobody says otherwise.
pub const DEFAULT_HOST: &str = "unix:///var/run/docker.sock";

/// What a container is made of.
#[derive(Clone, Debug)]
pub struct ContainerConfig {
    /// Names this gateway: a label of all that it makes.
    pub node: String,
    /// The daemon, as in `DOCKER_HOST`: `unix:///path` or `tcp://host:port`.
    pub host: String,
    /// What a daemon behind `tcp://` is spoken to with. Without it, in the clear.
    pub tls: Option<Tls>,
    /// What the container is made of.
    pub image: Image,
    /// The OCI runtime, such as `runsc` or `kata`; the daemon's default when there is none.
    pub runtime: Option<String>,
    /// Whether there is a network.
    pub network: Network,
    /// Where `/workspace` is.
    pub workspace: Workspace,
    /// Whether anything but `/workspace` and `/tmp` may be written.
    pub root: Root,
    /// What runs commands; the image must have it.
    pub shell: ShellName,
    /// What it may use.
    pub limits: Limits,
}

impl ContainerConfig {
    /// A hardened container of `image` on this machine's daemon, for the gateway named `node`.
    pub fn new(node: impl Into<String>, image: Image) -> Self {
        Self {
            node: node.into(),
            host: DEFAULT_HOST.into(),
            tls: None,
            image,
            runtime: None,
            network: Network::None,
            workspace: Workspace::Bind,
            root: Root::ReadOnly,
            shell: ShellName::Bash,
            limits: Limits::default(),
        }
    }
}

/// Files that a daemon's TLS needs, PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Whom to believe that it is the daemon.
    pub ca: PathBuf,
    /// Our certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// What a container is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// An image by its name, pulled when it is missing.
    Named(String),
    /// A tar of a root file system on this machine, plain or compressed by gzip, imported when it is missing.
    Rootfs(PathBuf),
}

/// A container's network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// Nothing but a loopback of its own.
    None,
    /// The daemon's network of this name, such as `bridge`.
    Named(String),
}

/// Where `/workspace` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workspace {
    /// The lease's work folder: for a daemon on this machine, which sees the same files.
    Bind,
    /// A volume of the daemon's that is named after the work folder and outlives the container. Its size is limited by
    /// nothing but the daemon's disk.
    Volume,
}

/// Whether the root file system may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// It may not.
    ReadOnly,
    /// It may; what is written goes with the container.
    Writable,
}

/// What runs commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShellName {
    /// `bash -lc`.
    Bash,
    /// `sh -c`.
    Sh,
}

impl ShellName {
    fn name(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Sh => "sh",
        }
    }
}

/// A kind of hand that gives each lease a container.
pub struct Container {
    shared: Arc<Shared>,
    posix: Posix,
}

/// What the tasks of a hand share.
struct Shared {
    config: ContainerConfig,
    engine: Arc<Engine>,
    /// What is being done before a container can be made, such as pulling an image, while it is.
    news: watch::Sender<Option<String>>,
    /// Locked while the image is looked for, so that it is pulled once.
    image: Mutex<()>,
    instances: Instances<Instance>,
}

impl Container {
    /// A hand that has made nothing yet.
    pub fn new(config: ContainerConfig) -> Self {
        let posix = Posix::new(surroundings(&config));
        let shared = Shared {
            engine: Arc::new(Engine::new(&config)),
            news: watch::Sender::new(None),
            image: Mutex::default(),
            instances: Instances::new("its container"),
            config,
        };
        Self { shared: Arc::new(shared), posix }
    }
}

#[async_trait]
impl Hand for Container {
    async fn tools(&self) -> Result<Vec<Tool>, HandError> {
        Ok(self.posix.tools())
    }

    /// Goes on when nobody waits any more: a container that is half made could not be ended.
    async fn provision(&self, lease: &Lease, progress: &dyn Progress) -> Result<Handle, HandError> {
        let (shared, lease) = (Arc::clone(&self.shared), lease.clone());
        let mut making = self.shared.instances.tasks.spawn(async move {
            Box::pin(shared.instances.provision(&lease, Instance::start(&shared, &lease))).await
        });
        // Whoever comes while an image is on its way hears of it as well.
        let mut news = self.shared.news.subscribe();
        news.mark_changed();
        loop {
            tokio::select! {
                biased;
                made = &mut making => {
                    return made.map_err(|error| HandError::Io { doing: "making a container", source: error.into() })?;
                }
                Ok(()) = news.changed() => if let Some(step) = &*news.borrow_and_update() {
                    progress.step(step);
                },
            }
        }
    }

    async fn execute(
        &self,
        handle: &Handle,
        call: &Call,
        context: CallContext,
    ) -> Result<Outcome, HandError> {
        let instance = self.shared.instances.get(handle).await?;
        self.posix.execute(&instance, call, &context).await
    }

    fn alive(&self, handle: &Handle) -> bool {
        self.shared.instances.alive(handle)
    }

    async fn release(&self, handle: Handle) -> Result<(), HandError> {
        self.shared.instances.release(&handle).await
    }

    async fn reap(&self, instances: &[InstanceId]) -> Result<(), HandError> {
        for instance in instances {
            self.release(Handle { instance: instance.clone() }).await?;
        }
        instance::reap(&self.shared.engine, instances).await
    }

    async fn shutdown(&self) {
        self.shared.instances.shutdown().await;
    }

    fn files(&self) -> Option<&dyn Files> {
        Some(self)
    }

    fn checkpoints(&self) -> Option<&dyn Checkpoints> {
        Some(self)
    }

    fn far_work(&self) -> Option<&dyn FarWork> {
        (self.shared.config.workspace == Workspace::Volume).then_some(self)
    }

    fn about(&self) -> Value {
        about(&self.shared.config)
    }
}

#[async_trait]
impl FarWork for Container {
    async fn remove(&self, work: &Path) -> Result<(), HandError> {
        volume::discard(&self.shared.config, &self.shared.engine, work).await
    }
}

fn about(config: &ContainerConfig) -> Value {
    let limits = &config.limits;
    json!({
        "kind": "container",
        "isolation": "a container: own namespaces, no capabilities, no new privileges, a system call filter",
        "runtime": config.runtime,
        "image": match &config.image {
            Image::Named(name) => name.clone(),
            Image::Rootfs(tar) => tar.display().to_string(),
        },
        "daemon": config.host,
        "network": match &config.network {
            Network::None => "none",
            Network::Named(name) => name,
        },
        "workspace": match config.workspace {
            Workspace::Bind => "a folder of this machine",
            Workspace::Volume => "a volume of the daemon",
        },
        "root": match config.root {
            Root::ReadOnly => "read-only",
            Root::Writable => "writable, lost with the container",
        },
        "limits": {
            "memory_bytes": limits.memory,
            "processes": limits.processes,
            "millicpus": limits.millicpus,
            "workspace_bytes": (config.workspace == Workspace::Bind).then_some(limits.workspace),
            "tmp_bytes": limits.tmp,
            "output_bytes": limits.output,
        },
    })
}

/// What the tools say about the world they work in.
fn surroundings(config: &ContainerConfig) -> Surroundings {
    Surroundings {
        shell: config.shell.name(),
        workspace: WORKSPACE.into(),
        writable: [WORKSPACE, "/tmp"].map(PathBuf::from).to_vec(),
        mounts: Vec::new(),
        network: match config.network {
            Network::None => "no network",
            Network::Named(_) => "a network",
        },
        output: config.limits.output,
    }
}
