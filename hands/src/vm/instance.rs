//! One machine with its disk: booting the first of a kind, beginning the others where that one stood.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;

use super::link::{ANSWER, Link};
use super::machine::{Begin, Lines, Machine, TEMPLATE, TURNS, lock};
use super::qmp::{Qmp, QmpError};
use super::seed::SEED;
use super::template::{self, Template};
use super::{Accel, Accelerator, Resolved, VmConfig};
use crate::instances::Living;
use crate::{HandError, InstanceId, Lease, Progress};

/// How long a guest may take to boot, emulated, on a machine under heavy load.
const BOOT: Duration = Duration::from_mins(5);
/// Pause between two looks whether a guest says anything.
const LOOK: Duration = Duration::from_millis(50);
/// The instance's disk, in its work folder.
const DISK: &str = "disk.qcow2";
/// Where the machine runs, in its work folder.
const RUN: &str = "machine";
/// Beside the templates, says that KVM does not work here, and how that was seen.
const NO_KVM: &str = "kvm-does-not-work";

/// A machine that runs, with the line to its agent.
pub(super) struct Instance {
    id: InstanceId,
    pub(super) machine: Arc<Machine>,
    /// Those that no command uses.
    pub(super) links: Mutex<Vec<Link>>,
    pub(super) control: tokio::sync::Mutex<UnixStream>,
    /// Commands that may begin.
    pub(super) calls: Semaphore,
    qmp: tokio::sync::Mutex<Qmp>,
    count: AtomicU64,
}

/// Why a machine is not there.
enum Failed {
    /// Under KVM, QEMU ended or its guest said nothing for as long as it may.
    Accelerated(HandError),
    Hand(HandError),
}

impl From<HandError> for Failed {
    fn from(error: HandError) -> Self {
        Self::Hand(error)
    }
}

impl Instance {
    /// Starts a machine of the lease.
    pub(super) async fn start(
        config: &VmConfig,
        lease: &Lease,
        progress: &dyn Progress,
        tasks: &TaskTracker,
    ) -> Result<Arc<Self>, HandError> {
        let accelerator = choose(config)?;
        let failed = match Self::start_with(config, accelerator, lease, progress, tasks).await {
            Err(Failed::Accelerated(error)) if config.accel == Accel::Auto => {
                tracing::warn!(%error, "machines are emulated from now on");
                remember(config, &error)?;
                Self::start_with(config, Accelerator::Tcg, lease, progress, tasks).await
            }
            other => other,
        };
        failed.map_err(|failed| match failed {
            Failed::Accelerated(error) | Failed::Hand(error) => error,
        })
    }

    async fn start_with(
        config: &VmConfig,
        accelerator: Accelerator,
        lease: &Lease,
        progress: &dyn Progress,
        tasks: &TaskTracker,
    ) -> Result<Arc<Self>, Failed> {
        let template = Template::open(config, accelerator)?;
        let resolved = Resolved { accelerator, initrd: template.initrd.clone() };
        if !template.state.exists() {
            progress.step("Booting the machine, once for all of its kind");
            // Others wait for the one that makes it, in whatever process they are.
            let _alone = template.alone().await?;
            if !template.state.exists() {
                make(config, &resolved, &template, &lease.instance, tasks).await?;
                if let Err(error) = template::sweep(&config.cache, &template) {
                    tracing::warn!(%error, "machines that nobody uses could not be removed");
                }
            }
        }
        let doing = |doing| move |source| HandError::Io { doing, source };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(lease.work.join(RUN))
            .map_err(doing("making a work folder"))?;
        let (disk, run) = (lease.work.join(DISK), lease.work.join(RUN));
        if !disk.exists() {
            make_disk(config, &disk).await?;
        }
        let link = run.join(TEMPLATE);
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(&template.state, &link).map_err(doing("naming a machine's state"))?;
        progress.step("Starting the machine");
        // By its name in the folder in which QEMU runs: the same for all.
        let disk = Path::new("..").join(DISK);
        let begun =
            Machine::start(config, &resolved, &lease.instance, &run, &disk, Begin::Template, tasks).await;
        let (machine, lines) = begun?;
        let abandoned = machine.killer().drop_guard();
        let disk = if config.image.is_some() { "image" } else { "disk" };
        match Self::take_over(&lease.instance, Arc::clone(&machine), lines, disk).await {
            Ok(instance) => {
                abandoned.disarm();
                Ok(Arc::new(instance))
            }
            Err(why) => {
                machine.end(&why).await;
                let remedy = format!("try again; if it stays so, delete {}", config.cache.display());
                Err(HandError::Unavailable { why: format!("the machine did not start: {why}"), remedy }
                    .into())
            }
        }
    }

    async fn take_over(
        id: &InstanceId,
        machine: Arc<Machine>,
        lines: Lines,
        disk: &str,
    ) -> Result<Self, String> {
        let Lines { mut qmp, work, control } = lines;
        qmp.run_incoming().await.map_err(|error| error.to_string())?;
        let mut links: Vec<_> = work.into_iter().map(Link::new).collect();
        let Some(first) = links.first_mut() else { return Err("it has no ports".into()) };
        let begun = async {
            first.tell("clock").await?;
            first.tell(disk).await
        };
        begun
            .await
            .map_err(|error| format!("its guest can't use its disk ({error}; {})", machine.last_words()))?;
        reseed(first).await.map_err(|error| format!("its guest can't renew its randomness ({error})"))?;
        Ok(Self {
            id: id.clone(),
            machine,
            links: Mutex::new(links),
            control: tokio::sync::Mutex::new(control),
            calls: Semaphore::new(TURNS as usize),
            qmp: tokio::sync::Mutex::new(qmp),
            count: AtomicU64::new(0),
        })
    }

    /// Names a call in the guest, as no other of any instance with this disk.
    pub(super) fn next_call(&self) -> String {
        format!("{}-{}", self.count.fetch_add(1, Ordering::Relaxed), self.id)
    }

    /// Keeps memory, devices and disk by a name, in the disk. Waits for a running command.
    pub(super) async fn checkpoint(&self, name: &str) -> Result<(), HandError> {
        self.while_idle(&format!("savevm {name}"), "keep").await
    }

    /// Brings them back.
    pub(super) async fn restore(&self, name: &str) -> Result<(), HandError> {
        let restored = self.while_idle(&format!("loadvm {name}"), "bring back").await;
        if let Err(HandError::Unavailable { why, .. }) = &restored {
            // QEMU leaves the machine standing: as it was, when there was nothing to bring back; else nobody knows how.
            let whole = why.contains("does not exist") && self.qmp.lock().await.run().await.is_ok();
            if !whole {
                let why = format!("it could not be brought back to an earlier state: {why}");
                self.machine.end(&why).await;
                return Err(HandError::Lost { may_have_run: true, why });
            }
        }
        restored
    }

    async fn while_idle(&self, command: &str, what: &str) -> Result<(), HandError> {
        // All turns: no command runs meanwhile.
        let _idle = self.calls.acquire_many(TURNS).await;
        if self.machine.why_lost().is_some() {
            return Err(HandError::Lost { may_have_run: false, why: self.machine.reason().await });
        }
        match self.qmp.lock().await.monitor(command).await {
            Ok(()) => self.renew().await,
            Err(QmpError::Refused(why)) => Err(HandError::Unavailable {
                why: format!("can't {what} the machine's state: {why}"),
                remedy: "use a name that was kept, and see that the disk has room".into(),
            }),
            Err(QmpError::Gone(_)) => {
                Err(HandError::Lost { may_have_run: true, why: self.machine.reason().await })
            }
        }
    }

    /// After a restore the guest's time and randomness are those of the checkpoint.
    async fn renew(&self) -> Result<(), HandError> {
        let abandoned = self.machine.killer().drop_guard();
        let link = lock(&self.links).pop();
        let lost = HandError::Lost { may_have_run: true, why: "its guest does not answer".into() };
        let Some(mut link) = link else { return Err(lost) };
        let renewed = async {
            link.tell("clock").await?;
            reseed(&mut link).await
        };
        renewed.await.map_err(|_| lost)?;
        lock(&self.links).push(link);
        abandoned.disarm();
        Ok(())
    }
}

#[async_trait]
impl Living for Instance {
    fn why_lost(&self) -> Option<String> {
        self.machine.why_lost()
    }

    /// What its commands wrote is on its disk since each of them ended.
    async fn end(&self, why: &str) -> Result<(), HandError> {
        self.machine.end(why).await;
        Ok(())
    }
}

/// Makes what the guest's kernel draws at random differ from what others draw that began with the same state.
async fn reseed(link: &mut Link) -> io::Result<()> {
    let mut seed = [0; SEED];
    getrandom::fill(&mut seed).map_err(io::Error::other)?;
    link.send("seed", &seed).await
}

/// Boots a machine, lets it stand where its agent waits for the first request, and keeps that.
async fn make(
    config: &VmConfig,
    resolved: &Resolved,
    template: &Template,
    instance: &InstanceId,
    tasks: &TaskTracker,
) -> Result<(), Failed> {
    let disk = template.folder.join(DISK);
    let _ = fs::remove_file(&disk);
    make_disk(config, &disk).await?;
    let begun =
        Machine::start(config, resolved, instance, &template.folder, Path::new(DISK), Begin::Boot, tasks)
            .await;
    let (machine, lines) = begun.map_err(|error| match resolved.accelerator {
        // A QEMU that ends at once says that KVM is not all that it should be here.
        Accelerator::Kvm => Failed::Accelerated(error),
        Accelerator::Tcg => Failed::Hand(error),
    })?;
    let abandoned = machine.killer().drop_guard();
    let Lines { mut qmp, work, control: _control } = lines;
    let mut links: Vec<_> = work.into_iter().map(Link::new).collect();
    let kept = match booted(config, resolved, &machine, &mut links).await {
        Ok(()) => qmp.write_state("state").await.map_err(|error| {
            let remedy = format!("see that the disk of {} has room", config.cache.display());
            HandError::Unavailable { why: format!("the machine's state can't be kept: {error}"), remedy }
                .into()
        }),
        Err(failed) => Err(failed),
    };
    drop(abandoned);
    machine.end("it has booted").await;
    kept?;
    fs::rename(template.folder.join("state"), &template.state)
        .and_then(|()| fs::remove_file(&disk))
        .map_err(|source| HandError::Io { doing: "keeping a machine's state", source })?;
    Ok(())
}

/// Waits for the agent.
async fn booted(
    config: &VmConfig,
    resolved: &Resolved,
    machine: &Machine,
    links: &mut [Link],
) -> Result<(), Failed> {
    let silence = async {
        let until = Instant::now() + config.silence;
        while Instant::now() < until || machine.heard() > 0 || resolved.accelerator == Accelerator::Tcg {
            sleep(LOOK).await;
        }
    };
    let all_ready = async {
        for link in links {
            link.ready().await?;
        }
        io::Result::Ok(())
    };
    let why = tokio::select! {
        ready = timeout(BOOT, all_ready) => match ready {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(_)) => machine.reason().await,
            Err(_) => format!("its guest is not ready after {} s", BOOT.as_secs()),
        },
        () = silence => return Err(Failed::Accelerated(silent(config))),
        () = machine.gone().cancelled() => machine.reason().await,
    };
    let last = machine.last_words();
    let error = HandError::Unavailable {
        why: format!("the machine does not boot: {why}; the last it said was \"{last}\""),
        remedy: "give a kernel for this kind of machine, and an initial file system as the settings say"
            .into(),
    };
    // A guest that speaks has its own reasons.
    let accelerated = resolved.accelerator == Accelerator::Kvm && machine.heard() == 0;
    Err(if accelerated { Failed::Accelerated(error) } else { Failed::Hand(error) })
}

async fn make_disk(config: &VmConfig, disk: &Path) -> Result<(), HandError> {
    let part = disk.with_extension("part");
    let made = Command::new(&config.qemu_img)
        .args(["create", "-q", "-f", "qcow2"])
        .args(
            config
                .image
                .iter()
                .flat_map(|image| ["-F".as_ref(), "qcow2".as_ref(), "-b".as_ref(), image.as_os_str()]),
        )
        .arg(&part)
        .args(config.image.is_none().then(|| config.disk_bytes.to_string()))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let unavailable =
        |why: String| HandError::Unavailable { why, remedy: "install Debian's qemu-utils".into() };
    let output = timeout(ANSWER, made)
        .await
        .map_err(|_| unavailable("qemu-img makes no disk".into()))?
        .map_err(|error| unavailable(format!("{} can't be run ({error})", config.qemu_img.display())))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let remedy = "see that the disk of the work folders has room".to_owned();
        return Err(HandError::Unavailable {
            why: format!("the machine's disk can't be made ({said})"),
            remedy,
        });
    }
    fs::rename(part, disk).map_err(|source| HandError::Io { doing: "making a machine's disk", source })
}

/// How machines run here.
pub(super) fn choose(config: &VmConfig) -> Result<Accelerator, HandError> {
    let opened = fs::OpenOptions::new().read(true).write(true).open(&config.kvm);
    match (config.accel, opened) {
        (Accel::Tcg, _) => Ok(Accelerator::Tcg),
        (Accel::Kvm, Ok(_)) => Ok(Accelerator::Kvm),
        (Accel::Kvm, Err(error)) => Err(HandError::Unavailable {
            why: format!("this machine has no KVM for the gateway ({}: {error})", config.kvm.display()),
            remedy: "set accel to auto or tcg, or let the gateway's user open that file".into(),
        }),
        (Accel::Auto, Ok(_)) if !config.cache.join(NO_KVM).exists() => Ok(Accelerator::Kvm),
        (Accel::Auto, _) => Ok(Accelerator::Tcg),
    }
}

fn remember(config: &VmConfig, error: &HandError) -> Result<(), HandError> {
    let text = format!("No machine ran under KVM: {error}. Delete this file to have it tried again.\n");
    fs::write(config.cache.join(NO_KVM), text)
        .map_err(|source: io::Error| HandError::Io { doing: "remembering that KVM does not work", source })
}

fn silent(config: &VmConfig) -> HandError {
    HandError::Unavailable {
        why: format!("the guest said nothing for {} s", config.silence.as_secs()),
        remedy: "set accel to tcg, or give a kernel that prints to its serial console".into(),
    }
}
