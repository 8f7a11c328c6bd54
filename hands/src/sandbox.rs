//! A sandbox on this machine: `bubblewrap` around a shell, with a persistent `/workspace`.
//!
//! ```text
//! gateway ──spawns──> manyhands sandbox-enter ──becomes──> bwrap ──PID 1──> manyhands sandbox-init
//!    │                  limits, user, mounts              namespaces, seccomp        │ starts
//!    └───────────────── one socket per call, passed through PID 1 ──────────> call runner ──> bash -lc
//! ```
//!
//! **Invariant:** nothing in the sandbox lives longer than the gateway's end of the control socket:
//! PID 1 ends with it, and the kernel ends the rest. The gateway trusts nothing that comes out.

pub(crate) mod archive;
mod call;
mod cgroup;
mod children;
pub(crate) mod copy;
mod covers;
mod doctor;
mod enter;
mod hidden;
mod idmap;
mod init;
mod instance;
mod mounts;
pub(crate) mod owner;
mod reap;
mod refusal;
mod runner;
pub mod seccomp;
pub(crate) mod share;
mod stage;
mod unpack;
pub(crate) mod watch;
mod wire;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use self::archive::pack;
pub use self::copy::CopyError;
pub use self::doctor::{Finding, State, inspect};
pub use self::refusal::may_mount_at;
pub use self::unpack::Landing;

use self::cgroup::Hierarchies;
use self::instance::Instance;
use crate::disk::FREE_DISK;
use crate::instances::Instances;
use crate::posix::{Posix, Surroundings};
use crate::{Call, CallContext, Files, Hand, HandError, Handle, InstanceId, Lease, Outcome, Progress, Tool};

/// Where the instance's work folder is in the sandbox.
pub const WORKSPACE: &str = "/workspace";

/// Most mounts that a tool's description names: clients cut it off at 2 KB.
const MOST_NAMED: usize = 12;
/// Places that a mount can't take: the sandbox has something of its own there.
const TAKEN: [&str; 6] = ["/", WORKSPACE, "/etc", "/run", "/var", init::PROGRAM];
/// Places that nothing can be mounted below, either.
const SYSTEM: [&str; 9] = ["/usr", "/proc", "/sys", "/dev", "/tmp", "/bin", "/sbin", "/lib", "/lib64"];

/// What a sandbox is made of.
#[derive(Clone, Debug)]
pub struct SandboxConfig {
    /// Our own program: it must answer to the hidden commands of [`dispatch`].
    pub program: PathBuf,
    /// bubblewrap, version 0.8 or newer. A bare name is looked for in the gateway's `PATH`.
    pub bwrap: PathBuf,
    /// What else of this machine it shows.
    pub mounts: Vec<Mount>,
    /// Sockets in mounts that stay open to it, or folders whose sockets do, by their paths inside. All others on which
    /// somebody listens when an instance starts are covered.
    pub sockets: Vec<PathBuf>,
    /// Files and folders of this machine that no mount shows: the gateway's own.
    pub hidden: Vec<PathBuf>,
    /// Whether it has this machine's network.
    pub network: Network,
    /// What it may use.
    pub limits: Limits,
}

impl SandboxConfig {
    /// A sandbox with nothing but a work folder, under the usual limits.
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            bwrap: "bwrap".into(),
            mounts: Vec::new(),
            sockets: Vec::new(),
            hidden: Vec::new(),
            network: Network::None,
            limits: Limits::default(),
        }
    }
}

/// A file or folder of this machine shown in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Where it is on this machine, absolute and canonical: no link on its way is followed.
    pub host: PathBuf,
    /// Where it appears, absolute.
    pub at: PathBuf,
    /// What may be done with it.
    pub access: Access,
}

/// What may be done with a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Reading.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

/// A sandbox's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// Nothing but a loopback of its own.
    None,
    /// This machine's, loopback included.
    Host,
}

/// What one instance may use.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Memory of all its processes and of `/tmp`, in bytes. Without a cgroup: data of each process.
    pub memory: u64,
    /// Processes and threads.
    pub processes: u64,
    /// Processor time per time, in thousandths of a processor. Only with a cgroup. By default two
    /// processors, and on a small machine three quarters of what it has.
    pub millicpus: u64,
    /// `/workspace`, in bytes.
    pub workspace: u64,
    /// `/tmp`, in bytes.
    pub tmp: u64,
    /// What one call may print, in bytes.
    pub output: usize,
    /// What must be free on the disk of the work folder for a call to start, in bytes.
    pub free_disk: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: 2 << 30,
            processes: 512,
            millicpus: processors().saturating_mul(750).min(2000),
            workspace: 2 << 30,
            tmp: 512 << 20,
            output: 64 << 20,
            free_disk: FREE_DISK,
        }
    }
}

fn processors() -> u64 {
    std::thread::available_parallelism().map_or(1, |processors| processors.get() as u64)
}

/// A kind of hand that gives each lease a sandbox.
pub struct Sandbox {
    config: SandboxConfig,
    hierarchies: Hierarchies,
    posix: Posix,
    instances: Instances<Instance>,
}

impl Sandbox {
    /// A hand that has made nothing yet.
    pub fn new(config: SandboxConfig) -> Self {
        let posix = Posix::new(surroundings(&config));
        Self { config, hierarchies: Hierarchies::find(), posix, instances: Instances::new("its sandbox") }
    }
}

#[async_trait]
impl Hand for Sandbox {
    async fn tools(&self) -> Result<Vec<Tool>, HandError> {
        Ok(self.posix.tools())
    }

    async fn provision(&self, lease: &Lease, _: &dyn Progress) -> Result<Handle, HandError> {
        let make = Instance::start(&self.config, &self.hierarchies, lease, &self.instances.tasks);
        self.instances.provision(lease, make).await
    }

    async fn execute(
        &self,
        handle: &Handle,
        call: &Call,
        context: CallContext,
    ) -> Result<Outcome, HandError> {
        let instance = self.instances.get(handle).await?;
        self.posix.execute(&*instance, call, &context).await
    }

    fn alive(&self, handle: &Handle) -> bool {
        self.instances.alive(handle)
    }

    async fn release(&self, handle: Handle) -> Result<(), HandError> {
        self.instances.release(&handle).await
    }

    async fn reap(&self, instances: &[InstanceId]) -> Result<(), HandError> {
        reap::reap(instances).await
    }

    async fn shutdown(&self) {
        self.instances.shutdown().await;
    }

    fn files(&self) -> Option<&dyn Files> {
        Some(self)
    }

    fn about(&self) -> Value {
        let limits = &self.config.limits;
        json!({
            "kind": "sandbox",
            "isolation": "bubblewrap: own user, mount, PID, IPC, UTS and network namespaces, no capabilities, seccomp",
            "network": self.config.network,
            "mounts": self.config.mounts,
            "sockets": self.config.sockets,
            "limited_together": self.hierarchies.offered(),
            "limits": {
                "memory_bytes": limits.memory,
                "processes": limits.processes,
                "millicpus": limits.millicpus,
                "workspace_bytes": limits.workspace,
                "tmp_bytes": limits.tmp,
                "output_bytes": limits.output,
                "free_disk_bytes": limits.free_disk,
            },
        })
    }
}

/// Answers the two hidden commands by which our own program takes part in a sandbox, and `None` to any
/// other. To be called first in `main`, before any thread: it may replace the process.
///
/// `arguments` are those after the program's name: `sandbox-enter JSON`, `sandbox-init INSTANCE PROCESSES` or `sandbox-init --call PROCESSES`.
pub fn dispatch(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().take(3);
    let mut next = || arguments.next().and_then(|argument| argument.into_string().ok());
    match (next()?.as_str(), next(), next()) {
        ("sandbox-enter", Some(spec), None) => Some(enter::main(&spec)),
        ("sandbox-init", Some(role), background) if role == init::CALL => {
            Some(runner::main(background.and_then(|most| most.parse().ok())))
        }
        ("sandbox-init", Some(_), Some(processes)) => processes.parse().ok().map(init::main),
        _ => None,
    }
}

/// What runs commands: `bash` where this machine has it, for the sandbox shows the same programs.
fn shell() -> &'static str {
    if Path::new("/usr/bin/bash").exists() || Path::new("/bin/bash").exists() { "bash" } else { "sh" }
}

/// What the tools say about the world they work in.
fn surroundings(config: &SandboxConfig) -> Surroundings {
    let roots = [WORKSPACE, "/tmp"].map(PathBuf::from).into_iter();
    let writable = config.mounts.iter().filter(|mount| mount.access == Access::ReadWrite);
    let mut mounts: Vec<String> = config
        .mounts
        .iter()
        .take(MOST_NAMED)
        .map(|mount| {
            let how = if mount.access == Access::ReadOnly { " (read-only)" } else { "" };
            format!("{}{how}", mount.at.display())
        })
        .collect();
    if config.mounts.len() > MOST_NAMED {
        mounts.push(format!("{} more", config.mounts.len() - MOST_NAMED));
    }
    Surroundings {
        shell: shell(),
        workspace: WORKSPACE.into(),
        writable: roots.chain(writable.map(|mount| mount.at.clone())).collect(),
        mounts,
        network: match config.network {
            Network::None => "no network",
            Network::Host => "the network of the machine it runs on",
        },
        output: config.limits.output,
    }
}
