//! One QEMU process: its command line, its sockets, its end.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::keeper::KEEP;
use super::qmp::{Qmp, QmpError};
use super::{Resolved, VmConfig};
use crate::{HandError, InstanceId, open_files};

/// Commands that run at once in a machine; more wait. Each has a port of its own.
pub(super) const TURNS: u32 = 8;
/// The same, as a number of ports.
const WORKERS: usize = TURNS as usize;
/// What the sockets of a machine are called, in the folder in which it runs, the workers' first.
pub(super) const SOCKETS: [&str; 3 + WORKERS] =
    ["work0", "work1", "work2", "work3", "work4", "work5", "work6", "work7", "qmp", "console", "control"];
/// What a state to begin with is called there.
pub(super) const TEMPLATE: &str = "template";
/// What goes before an instance's name in its QEMU's `-name`.
pub(super) const NAME: &str = "manyhands-";
/// The option that names the kernel. Its path is opened by who becomes QEMU.
pub(super) const KERNEL: &str = "-kernel";
/// How long QEMU may take until its sockets are there, on a machine under heavy load.
const START: Duration = Duration::from_mins(1);
/// How long a killed machine may take to be gone.
const END: Duration = Duration::from_secs(10);
/// Pause between two looks for a socket.
const LOOK: Duration = Duration::from_millis(10);
/// Most bytes kept of what the guest's kernel and QEMU print.
const TAIL: usize = 8192;
/// How a line of the guest's begins that is not its kernel's. See `init.sh`.
const OURS: &str = "manyhands: ";

/// A running machine.
pub(super) struct Machine {
    kill: CancellationToken,
    why: OnceLock<String>,
    gone: CancellationToken,
    /// What QEMU prints.
    words: Arc<Mutex<Tail>>,
    /// What the guest's kernel prints.
    console: Arc<Mutex<Tail>>,
    /// Where its sockets are.
    folder: PathBuf,
}

/// What the gateway holds of a machine that it talks to.
pub(super) struct Lines {
    pub(super) qmp: Qmp,
    pub(super) work: Vec<UnixStream>,
    pub(super) control: UnixStream,
}

/// How a machine begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// As when a computer is switched on.
    Boot,
    /// With the state that lies in its folder.
    Template,
}

/// The last of what was printed.
#[derive(Default)]
struct Tail {
    text: Vec<u8>,
    heard: u64,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    /// Starts QEMU in `folder` with the disk `disk`.
    pub(super) async fn start(
        config: &VmConfig,
        resolved: &Resolved,
        instance: &InstanceId,
        folder: &Path,
        disk: &Path,
        begin: Begin,
        tasks: &TaskTracker,
    ) -> Result<(Arc<Self>, Lines), HandError> {
        let io = |doing| move |source: io::Error| HandError::Io { doing, source };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(io("making a machine's folder"))?;
        remove_sockets(folder);
        let (hold, held) = std::os::unix::net::UnixStream::pair().map_err(io("making a socket"))?;
        let mut child = Command::new(&config.program)
            .args([KEEP, &instance.0, &open_files::former().unwrap_or_default().to_string()])
            .arg(&config.qemu)
            .args(arguments(config, resolved, disk, begin))
            .stdin(Stdio::from(OwnedFd::from(held)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .current_dir(folder)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(io("starting a machine"))?;
        let machine = Arc::new(Self {
            kill: CancellationToken::new(),
            why: OnceLock::new(),
            gone: CancellationToken::new(),
            words: Arc::default(),
            console: Arc::default(),
            folder: folder.to_owned(),
        });
        let drained =
            child.stderr.take().map(|stderr| tasks.spawn(keep_tail(stderr, Arc::clone(&machine.words))));
        tasks.spawn(Arc::clone(&machine).watch(child, hold, drained));
        // Ends it when nobody waits for it to start.
        let abandoned = machine.kill.clone().drop_guard();
        match machine.connect(folder, tasks).await {
            Ok(lines) => {
                abandoned.disarm();
                Ok((machine, lines))
            }
            Err(why) => {
                machine.end(&why).await;
                let remedy = "look at the machine's settings, then try again".to_owned();
                Err(HandError::Unavailable { why: format!("the machine did not start: {why}"), remedy })
            }
        }
    }

    async fn connect(&self, folder: &Path, tasks: &TaskTracker) -> Result<Lines, String> {
        let folder = File::open(folder).map_err(|error| error.to_string())?;
        let connecting = async {
            let mut sockets = Vec::new();
            for name in SOCKETS {
                // By way of the folder's descriptor: a socket's own path may be too long for the system.
                let path = PathBuf::from(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()));
                sockets.push(loop {
                    match UnixStream::connect(&path).await {
                        Ok(socket) => break socket,
                        Err(_) => sleep(LOOK).await,
                    }
                });
            }
            sockets
        };
        let sockets = tokio::select! {
            sockets = connecting => sockets,
            () = self.gone.cancelled() => return Err(self.why_lost().unwrap_or_default()),
            () = sleep(START) => return Err(format!("QEMU is not there after {} s", START.as_secs())),
        };
        let mut work = sockets;
        let others = work.split_off(WORKERS);
        let Ok([qmp, console, control]) = <[UnixStream; 3]>::try_from(others) else {
            return Err("QEMU has other sockets".into());
        };
        tasks.spawn(keep_tail(console, Arc::clone(&self.console)));
        let qmp = match Qmp::new(qmp).await {
            Ok(qmp) => qmp,
            Err(QmpError::Gone(_)) => return Err(self.reason().await),
            Err(error) => return Err(error.to_string()),
        };
        Ok(Lines { qmp, work, control })
    }

    /// Waits for its end, however it comes. `hold` is what holds it up.
    async fn watch(
        self: Arc<Self>,
        mut child: Child,
        hold: std::os::unix::net::UnixStream,
        drained: Option<tokio::task::JoinHandle<()>>,
    ) {
        let mut hold = Some(hold);
        let status = tokio::select! {
            status = child.wait() => status,
            () = self.kill.cancelled() => {
                hold.take();
                match timeout(END, child.wait()).await {
                    Ok(status) => status,
                    Err(_) => {
                        let _ = child.start_kill();
                        child.wait().await
                    }
                }
            }
        };
        drop(hold);
        if let Some(drained) = drained {
            let _ = timeout(END, drained).await;
        }
        // Its keeper does so too, but may have been killed.
        remove_sockets(&self.folder);
        let said = lock(&self.words).last_line();
        self.lose(match status {
            Ok(_) if !said.is_empty() => format!("the machine ended ({said})"),
            Ok(_) => "the machine ended".to_owned(),
            Err(error) => format!("the machine can't be watched any more ({error})"),
        });
        self.gone.cancel();
    }

    /// Why nothing can run in it any more, if so.
    pub(super) fn why_lost(&self) -> Option<String> {
        self.why.get().cloned()
    }

    fn lose(&self, why: impl Into<String>) {
        let _ = self.why.set(why.into());
    }

    /// Waits a moment for the reason of what looks like a death.
    pub(super) async fn reason(&self) -> String {
        let _ = timeout(Duration::from_secs(1), self.gone.cancelled()).await;
        self.why_lost().unwrap_or_else(|| "the machine does not answer".into())
    }

    /// Ends it, without waiting.
    pub(super) fn killer(&self) -> CancellationToken {
        self.kill.clone()
    }

    /// Whether it is over.
    pub(super) fn gone(&self) -> &CancellationToken {
        &self.gone
    }

    /// Ends it and waits for that. Idempotent.
    pub(super) async fn end(&self, why: &str) {
        self.lose(why);
        self.kill.cancel();
        if timeout(2 * END, self.gone.cancelled()).await.is_err() {
            tracing::warn!("a machine does not end");
        }
    }

    /// How many bytes the guest's kernel has printed.
    pub(super) fn heard(&self) -> u64 {
        lock(&self.console).heard
    }

    /// The last line that the guest's kernel printed.
    pub(super) fn last_words(&self) -> String {
        lock(&self.console).last_line()
    }
}

impl Tail {
    fn add(&mut self, bytes: &[u8]) {
        self.heard += bytes.len() as u64;
        self.text.extend_from_slice(bytes);
        let over = self.text.len().saturating_sub(TAIL);
        self.text.drain(..over);
    }

    fn last_line(&self) -> String {
        let text = String::from_utf8_lossy(&self.text);
        let printable = |line: &str| line.chars().filter(|c| !c.is_control()).collect::<String>();
        let mut lines: Vec<_> = text.lines().map(printable).filter(|line| !line.trim().is_empty()).collect();
        // What our own first process says comes before the kernel's words on its end.
        let ours = lines.iter().rposition(|line| line.starts_with(OURS));
        lines.truncate(ours.map_or(lines.len(), |ours| ours + 1));
        lines.pop().unwrap_or_default()
    }
}

/// Leaves no socket of a machine that has ended.
fn remove_sockets(folder: &Path) {
    for socket in SOCKETS {
        let _ = std::fs::remove_file(folder.join(socket));
    }
}

async fn keep_tail(mut from: impl AsyncRead + Unpin, tail: Arc<Mutex<Tail>>) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        lock(&tail).add(&bytes[..count]);
    }
}

/// QEMU's arguments. All that changes them is in the name of a template.
fn arguments(config: &VmConfig, resolved: &Resolved, disk: &Path, begin: Begin) -> Vec<String> {
    let (accel, cpu) = resolved.accelerator.arguments();
    // Memory is written to a file by a program that QEMU starts; otherwise it starts none.
    let spawn = if begin == Begin::Boot { "allow" } else { "deny" };
    // A comma in a value is written twice.
    let file = |path: &Path| path.display().to_string().replace(',', ",,");
    let mut arguments: Vec<String> = [
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
        "-machine",
        &format!("pc,accel={accel}"),
        "-cpu",
        cpu,
        "-m",
        &config.memory_mib.to_string(),
        "-smp",
        &config.cpus.to_string(),
        KERNEL,
        &config.kernel.display().to_string(),
        "-initrd",
        &resolved.initrd.display().to_string(),
        "-append",
        "console=ttyS0 panic=-1 rdinit=/manyhands/init",
        "-sandbox",
        &format!("on,obsolete=deny,elevateprivileges=deny,resourcecontrol=deny,spawn={spawn}"),
        "-drive",
        &format!("if=none,id=disk,format=qcow2,file={}", file(disk)),
        "-device",
        "virtio-blk-pci,drive=disk",
        "-mon",
        "chardev=qmp,mode=control",
        "-serial",
        "chardev:console",
        "-device",
        &format!("virtio-serial-pci,id=ports,max_ports={}", WORKERS + 2),
    ]
    .map(str::to_owned)
    .into();
    for socket in SOCKETS {
        arguments.extend(["-chardev".into(), format!("socket,id={socket},path={socket},server=on,wait=off")]);
        if !matches!(socket, "qmp" | "console") {
            let port = format!("virtserialport,bus=ports.0,chardev={socket},name={socket}");
            arguments.extend(["-device".into(), port]);
        }
    }
    if begin == Begin::Template {
        arguments.extend(["-incoming".into(), "fd:0".into()]);
    }
    arguments
}
