//! A virtual machine: QEMU with a kernel and an initial file system, and a disk of its own.
//!
//! ```text
//! gateway ── one socket ──> manyhands vm-keep ──starts──> QEMU ── serial ports ──> an agent in the guest ──> sh
//!    ├── cache: a machine of this kind that has booted, made once
//!    └── work folder: the disk of the instance, with what is kept by name in it
//! ```
//!
//! **Invariant:** a machine lives no longer than the gateway's end of its keeper's socket. It has no network and none
//! of this machine's files. What a command wrote to `/workspace` is on the instance's disk when the command's end is
//! told. Guests are trusted with nothing: what the agent says is checked for length and form.

mod instance;
mod keeper;
mod link;
mod machine;
mod qmp;
mod seed;
mod shell;
mod template;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use self::instance::Instance;
use crate::instances::Instances;
use crate::posix::{Posix, Surroundings};
use crate::sandbox::{CopyError, Finding, State, copy};
use crate::{
    Call, CallContext, Checkpoints, Files, Hand, HandError, Handle, InstanceId, Lease, Outcome, Progress,
    Tool, orphans,
};

/// Where the disk is in the guest.
const WORKSPACE: &str = "/workspace";
/// Most bytes of one copy out of a machine.
const MOST_COPIED: u64 = 4 << 30;

/// What a machine is made of.
#[derive(Clone, Debug)]
pub struct VmConfig {
    /// Our own program: it must answer to the hidden commands of [`dispatch`].
    pub program: PathBuf,
    /// QEMU for this kind of machine. A bare name is looked for in the gateway's `PATH`.
    pub qemu: PathBuf,
    /// What makes disks.
    pub qemu_img: PathBuf,
    /// The guest's kernel: Linux 5.14 or newer for x86-64, with a serial console and cgroups.
    pub kernel: PathBuf,
    /// Its initial file system: `sh`, `stty`, `mke2fs` and the usual small programs. `/etc/manyhands-boot` in it, if
    /// there, is run first, to load modules.
    pub initrd: PathBuf,
    /// A qcow2 image with a Linux system on its whole disk or on a partition of it, in which commands run. It is never
    /// written to: each instance has an overlay of it. Without one, commands run in the initial file system, and
    /// `/workspace` is the disk.
    pub image: Option<PathBuf>,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Processors.
    pub cpus: u8,
    /// The disk, in bytes, where there is no image, which says so itself. It takes room as it is written to.
    pub disk_bytes: u64,
    /// What one call may print, in bytes.
    pub output: usize,
    /// How it is run.
    pub accel: Accel,
    /// How long a guest under KVM may say nothing.
    pub silence: Duration,
    /// Where KVM is.
    pub kvm: PathBuf,
    /// The folder for what is made once for all machines of a kind.
    pub cache: PathBuf,
}

impl VmConfig {
    /// A small machine.
    pub fn new(program: PathBuf, kernel: PathBuf, initrd: PathBuf, cache: PathBuf) -> Self {
        Self {
            program,
            qemu: "qemu-system-x86_64".into(),
            qemu_img: "qemu-img".into(),
            kernel,
            initrd,
            image: None,
            memory_mib: 256,
            cpus: 1,
            disk_bytes: 2 << 30,
            output: 4 << 20,
            accel: Accel::Auto,
            silence: Duration::from_secs(30),
            kvm: "/dev/kvm".into(),
            cache,
        }
    }
}

/// How machines are to be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accel {
    /// By KVM where it works, else emulated. A guest that is silent under KVM is remembered.
    Auto,
    /// By KVM.
    Kvm,
    /// Emulated.
    Tcg,
}

/// How a machine is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accelerator {
    Kvm,
    Tcg,
}

impl Accelerator {
    /// What QEMU calls it, and the processor that goes with it.
    fn arguments(self) -> (&'static str, &'static str) {
        match self {
            Self::Kvm => ("kvm", "host"),
            Self::Tcg => ("tcg", "max"),
        }
    }
}

/// What was found out about a machine before it is started.
struct Resolved {
    accelerator: Accelerator,
    initrd: PathBuf,
}

/// A kind of hand that gives each lease a virtual machine.
pub struct Vm {
    config: VmConfig,
    posix: Posix,
    instances: Instances<Instance>,
}

impl Vm {
    /// A hand that has made nothing yet.
    pub fn new(mut config: VmConfig) -> Self {
        // QEMU runs in a folder of its own.
        let VmConfig { kernel, initrd, cache, image, .. } = &mut config;
        for path in [kernel, initrd, cache].into_iter().chain(image) {
            if let Ok(absolute) = std::path::absolute(&*path) {
                *path = absolute;
            }
        }
        let posix = Posix::new(Surroundings {
            shell: "sh",
            workspace: WORKSPACE.into(),
            writable: vec![WORKSPACE.into(), "/tmp".into()],
            mounts: Vec::new(),
            network: "no network",
            output: config.output,
        });
        Self { config, posix, instances: Instances::new("its machine") }
    }
}

#[async_trait]
impl Hand for Vm {
    async fn tools(&self) -> Result<Vec<Tool>, HandError> {
        Ok(self.posix.tools())
    }

    async fn provision(&self, lease: &Lease, progress: &dyn Progress) -> Result<Handle, HandError> {
        let make = Instance::start(&self.config, lease, progress, &self.instances.tasks);
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
        orphans::end("-name", machine::NAME, instances).await?;
        // A keeper that is well tidies up and ends by itself.
        orphans::wait(keeper::KEEP, "", instances).await;
        orphans::end(keeper::KEEP, "", instances).await
    }

    async fn shutdown(&self) {
        self.instances.shutdown().await;
    }

    fn files(&self) -> Option<&dyn Files> {
        Some(self)
    }

    fn checkpoints(&self) -> Option<&dyn Checkpoints> {
        Some(self)
    }

    fn about(&self) -> Value {
        let config = &self.config;
        json!({
            "kind": "vm",
            "isolation": "a virtual machine by QEMU, which may start nothing and gain no privilege",
            "network": "none",
            "accel": config.accel,
            "kernel": config.kernel,
            "image": config.image,
            "checkpoints": "memory and disk, by name",
            "calls_at_once": machine::TURNS,
            "limits": {
                "memory_mib": config.memory_mib,
                "cpus": config.cpus,
                "disk_bytes": config.disk_bytes,
                "output_bytes": config.output,
            },
        })
    }
}

#[async_trait]
impl Files for Vm {
    async fn copy_in(
        &self,
        handle: &Handle,
        to: &str,
        archive: Box<dyn AsyncRead + Send + Unpin>,
        cancel: &CancellationToken,
    ) -> Result<(), CopyError> {
        copy::copy_in(&*self.instances.get(handle).await?, to, archive, cancel).await
    }

    async fn copy_out(
        &self,
        handle: &Handle,
        from: &str,
        archive: &mut (dyn AsyncWrite + Send + Unpin),
        moved: &(dyn Fn(u64) + Send + Sync),
        cancel: &CancellationToken,
    ) -> Result<u64, CopyError> {
        let instance = self.instances.get(handle).await?;
        copy::copy_out(&*instance, from, MOST_COPIED, archive, moved, cancel).await
    }
}

#[async_trait]
impl Checkpoints for Vm {
    async fn checkpoint(&self, handle: &Handle, name: &str) -> Result<(), HandError> {
        check(name)?;
        self.instances.get(handle).await?.checkpoint(name).await
    }

    async fn restore(&self, handle: &Handle, name: &str) -> Result<(), HandError> {
        check(name)?;
        self.instances.get(handle).await?.restore(name).await
    }
}

/// Whether it is a name: QEMU's monitor takes it as a word.
fn check(name: &str) -> Result<(), HandError> {
    let fits = name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    if fits && !name.starts_with('-') && (1..=32).contains(&name.len()) {
        return Ok(());
    }
    Err(HandError::Unavailable {
        why: "a state's name is 1 to 32 small letters, digits and dashes, and begins with no dash".into(),
        remedy: "use such a name".into(),
    })
}

/// Looks at everything that machines need.
pub async fn inspect(config: &VmConfig) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (subject, program, package) in
        [("qemu", &config.qemu, "qemu-system-x86"), ("qemu-img", &config.qemu_img, "qemu-utils")]
    {
        let ran = tokio::process::Command::new(program).arg("--version").kill_on_drop(true).output().await;
        let (state, found, remedy) = match ran {
            Ok(output) if output.status.success() => {
                let said =
                    String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned();
                (State::Fine, said, None)
            }
            Ok(_) => (State::Missing, format!("{} fails", program.display()), Some(package)),
            Err(error) => {
                (State::Missing, format!("{} can't be run ({error})", program.display()), Some(package))
            }
        };
        let remedy = remedy.map(|package| format!("install Debian's {package}"));
        findings.push(Finding { subject, state, found, remedy });
    }
    let image = config.image.iter().map(|image| ("image", image));
    for (subject, path) in [("kernel", &config.kernel), ("initrd", &config.initrd)].into_iter().chain(image) {
        let (state, found, remedy) = match std::fs::File::open(path) {
            Ok(_) => (State::Fine, path.display().to_string(), None),
            Err(error) => {
                let remedy = format!("give the path of a {subject} that the gateway's user may read");
                (State::Missing, format!("{} can't be read ({error})", path.display()), Some(remedy))
            }
        };
        findings.push(Finding { subject, state, found, remedy });
    }
    findings.push(acceleration(config));
    findings
}

fn acceleration(config: &VmConfig) -> Finding {
    let subject = "acceleration";
    match instance::choose(config) {
        Ok(Accelerator::Kvm) => Finding { subject, state: State::Fine, found: "by KVM".into(), remedy: None },
        Ok(Accelerator::Tcg) => Finding {
            subject,
            state: State::Weaker,
            found: "machines are emulated, some ten times slower than with KVM".into(),
            remedy: (config.accel == Accel::Auto).then(|| {
                format!("let the gateway's user open {}, where guests run under it", config.kvm.display())
            }),
        },
        Err(HandError::Unavailable { why, remedy }) => {
            Finding { subject, state: State::Missing, found: why, remedy: Some(remedy) }
        }
        Err(error) => Finding { subject, state: State::Missing, found: error.to_string(), remedy: None },
    }
}

/// Answers the hidden commands by which our own program holds machines, and `None` to any other. To be called in `main`
/// before any thread is started: it may replace the process.
///
/// `arguments` are those after the program's name: `vm-keep INSTANCE QEMU …` or `vm-become KEEPER QEMU …`.
pub fn dispatch(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    keeper::dispatch(arguments.into_iter().collect())
}
