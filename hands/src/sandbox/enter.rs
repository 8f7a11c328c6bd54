//! What runs between the gateway and `bwrap`: a process of one thread that puts itself under the
//! instance's limits, gives up the gateway's user where that is root, and becomes `bwrap`.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};

use super::covers::Shape;
use super::init::PROGRAM;
use super::refusal::Lack;
use super::stage::Source;
use super::{Access, Mount, Network, WORKSPACE, hidden, seccomp, share, stage};
use crate::open_files;

/// The user and group that commands see themselves as.
const INSIDE: u32 = 1000;
/// Bytes of `/dev/shm`.
const SHARED_MEMORY: u64 = 64 * 1024 * 1024;
/// Processor seconds that one process may use: a bound where no cgroup divides the processors.
const PROCESSOR_SECONDS: u64 = 2 * 60 * 60;
/// Environment of every call.
const ENVIRONMENT: [(&str, &str); 9] = [
    ("HOME", WORKSPACE),
    ("USER", "hand"),
    ("LOGNAME", "hand"),
    ("SHELL", "/bin/bash"),
    ("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"),
    ("LANG", "C.UTF-8"),
    ("TERM", "dumb"),
    ("PAGER", "cat"),
    ("GIT_PAGER", "cat"),
];
/// Goes before a refusal that has its own words, in JSON.
pub(super) const REFUSED: &str = "refused ";
/// Bytes of the file system that covers a folder. Nothing can be written to it.
const COVER: u64 = 4096;
/// Parts of `/etc` that programs need to run and that hold nothing of this machine's owner.
const ETC: &[&str] = &[
    "alternatives",
    "bash.bashrc",
    "bash_completion.d",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "default/locale",
    "emacs",
    "ethertypes",
    "fonts",
    "gai.conf",
    "groff",
    "host.conf",
    "inputrc",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "java-25-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "lsb-release",
    "magic",
    "magic.mime",
    "manpath.config",
    "maven",
    "mime.types",
    "networks",
    "os-release",
    "perl",
    "pki",
    "profile",
    "profile.d",
    "protocols",
    "python3",
    "python3.10",
    "python3.11",
    "python3.12",
    "python3.13",
    "python3.14",
    "rpc",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "vim",
];
/// What used to be folders of their own beside `/usr`.
const OUTSIDE_USR: &[&str] = &["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// Everything that the process needs to know, as one JSON argument.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Spec {
    /// Marks every process of the instance.
    pub(super) instance: String,
    /// Our own program.
    pub(super) program: PathBuf,
    /// bubblewrap.
    pub(super) bwrap: PathBuf,
    /// Becomes `/workspace`.
    pub(super) work: PathBuf,
    /// What else it sees of this machine.
    pub(super) mounts: Vec<Mount>,
    /// Sockets in them that are not covered, by their paths inside.
    pub(super) sockets: Vec<PathBuf>,
    /// What no mount shows.
    pub(super) hidden: Vec<PathBuf>,
    /// Whether it has this machine's network.
    pub(super) network: Network,
    /// The user to become, when we are root.
    pub(super) user: Option<u32>,
    /// Files to write one's process id to: the instance's cgroups.
    pub(super) cgroups: Vec<PathBuf>,
    /// Bytes of data a process may have, when no cgroup limits memory.
    pub(super) data: Option<u64>,
    /// Most processes.
    pub(super) processes: u64,
    /// Most bytes of one file.
    pub(super) file_size: u64,
    /// Bytes of `/tmp`.
    pub(super) tmp: u64,
    /// Open files of a process unless it raises that itself. `None`: the most that it may have.
    pub(super) open_files: Option<u64>,
}

/// A step that failed, and why. Goes to the gateway over standard error.
#[derive(Debug, thiserror::Error)]
pub(super) enum EnterError {
    #[error("reading the sandbox's description: {0}")]
    Spec(#[from] serde_json::Error),
    #[error("{step} {}: {source}", path.display())]
    Path { step: &'static str, path: PathBuf, source: io::Error },
    #[error("{step}: {source}")]
    Step { step: &'static str, source: io::Error },
    #[error("compiling the system call filter: {0}")]
    Filter(#[from] seccompiler::BackendError),
    #[error("{REFUSED}{}", serde_json::to_string(.0).unwrap_or_default())]
    Refused(Lack),
}

impl From<Lack> for EnterError {
    fn from(lack: Lack) -> Self {
        Self::Refused(lack)
    }
}

/// Becomes `bwrap`, or says on standard error why it can't.
pub(super) fn main(spec: &str) -> ExitCode {
    let error = match enter(spec) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    eprintln!("manyhands: {error}");
    ExitCode::FAILURE
}

fn enter(spec: &str) -> Result<Infallible, EnterError> {
    let spec: Spec = serde_json::from_str(spec)?;
    for group in &spec.cgroups {
        fs::write(group, "0").map_err(at("joining the cgroup", group))?;
    }
    limit_resources(&spec).map_err(step("setting resource limits"))?;
    let hidden = if spec.mounts.is_empty() {
        Vec::new()
    } else {
        hidden::appearances(&spec.hidden).map_err(step("looking where mounts are"))?
    };
    let places = match spec.user {
        Some(user) => stage::as_user(&spec, user, &hidden)?,
        None => stage::as_we_are(&spec, &hidden)?,
    };
    let mut files = Vec::new();
    let arguments = arguments(&spec, &places, &mut files)?;
    let source = Command::new(&spec.bwrap).args(arguments).exec();
    Err(EnterError::Step { step: "running bwrap", source })
}

/// Names a step in its error.
pub(super) fn step<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> EnterError {
    move |source| EnterError::Step { step, source: source.into() }
}

/// Names a step and the path it was about in its error.
pub(super) fn at<E: Into<io::Error>>(step: &'static str, path: &Path) -> impl FnOnce(E) -> EnterError {
    move |source| EnterError::Path { step, path: path.to_owned(), source: source.into() }
}

fn limit_resources(spec: &Spec) -> io::Result<()> {
    let limits = [
        (Resource::Core, Some(0)),
        (Resource::Fsize, Some(spec.file_size)),
        (Resource::Cpu, Some(PROCESSOR_SECONDS)),
        (Resource::Data, spec.data),
    ];
    let shared =
        share::LIMITS.map(|(resource, _, most)| (resource, Some(share::at_most_half(resource, most))));
    for (resource, most) in limits.into_iter().chain(shared) {
        let Some(most) = most else { continue };
        // Never above what we were given: only root may raise it.
        let ours = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let most = Some(most.min(ours));
        setrlimit(resource, Rlimit { current: most, maximum: most })?;
    }
    spec.open_files.map_or(Ok(()), open_files::put_back)
}

/// The command line of `bwrap`. Pushes files that it reads to `files`: they must live until then.
fn arguments(
    spec: &Spec,
    places: &stage::Places,
    files: &mut Vec<OwnedFd>,
) -> Result<Vec<OsString>, EnterError> {
    let mut list = Arguments(Vec::new());
    list.add(&["--unshare-user", "--disable-userns", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]);
    list.add(&["--unshare-cgroup-try", "--cap-drop", "ALL", "--new-session", "--as-pid-1"]);
    // PID 1 gives them up before anything else runs.
    for (_, capability) in share::CAPABILITIES {
        list.add(&["--cap-add", capability]);
    }
    let inside = INSIDE.to_string();
    list.add(&["--uid", &inside, "--gid", &inside, "--hostname", "sandbox"]);
    if spec.network == Network::None {
        list.add(&["--unshare-net"]);
    }
    list.system();
    list.etc(spec.network, files)?;
    list.add(&["--proc", "/proc", "--dev", "/dev"]);
    list.add(&["--size", &SHARED_MEMORY.to_string(), "--perms", "1777", "--tmpfs", "/dev/shm"]);
    list.add(&["--remount-ro", "/dev"]);
    list.add(&["--size", &spec.tmp.to_string(), "--perms", "1777", "--tmpfs", "/tmp"]);
    list.add(&["--dir", "/var", "--symlink", "/tmp", "/var/tmp", "--symlink", "/run", "/var/run"]);
    list.add(&["--ro-bind", &text(&places.program), PROGRAM]);
    list.add(&["--bind", &text(&places.work), WORKSPACE]);
    for (mount, source) in spec.mounts.iter().zip(&places.mounts) {
        list.mount(mount, source)?;
    }
    list.add(&["--remount-ro", "/", "--chdir", WORKSPACE, "--clearenv"]);
    for (name, value) in ENVIRONMENT {
        list.add(&["--setenv", name, value]);
    }
    for program in seccomp::programs()? {
        let fd = list.file("--add-seccomp-fd", &program)?;
        files.push(fd);
    }
    list.add(&["--", PROGRAM, "sandbox-init", &spec.instance, &spec.processes.to_string()]);
    Ok(list.0)
}

struct Arguments(Vec<OsString>);

impl Arguments {
    fn add(&mut self, arguments: &[&str]) {
        self.0.extend(arguments.iter().map(OsString::from));
    }

    /// A mount, and right behind it its covers: what is mounted in it later may hide their places.
    fn mount(&mut self, mount: &Mount, source: &Source) -> Result<(), EnterError> {
        let read_only = mount.access == Access::ReadOnly;
        let (root, covers) = match source {
            Source::Staged(path) => {
                self.add(&[if read_only { "--ro-bind" } else { "--bind" }, &text(path), &text(&mount.at)]);
                return Ok(());
            }
            Source::Open(root, covers) => (root, covers),
        };
        fcntl_setfd(root, FdFlags::empty()).map_err(step("handing on a mount"))?;
        let bind = if read_only { "--ro-bind-fd" } else { "--bind-fd" };
        self.add(&[bind, &root.as_raw_fd().to_string(), &text(&mount.at)]);
        for cover in covers {
            let place = mount.at.join(&cover.below);
            match cover.shape {
                Shape::File => self.add_with(&["--ro-bind", "/dev/null"], &place),
                Shape::Folder => {
                    self.add_with(&["--size", &COVER.to_string(), "--perms", "0555", "--tmpfs"], &place);
                    self.add_with(&["--remount-ro"], &place);
                }
            }
        }
        Ok(())
    }

    /// Options that end with a path, which may be no text.
    fn add_with(&mut self, arguments: &[&str], path: &Path) {
        self.add(arguments);
        self.0.push(path.as_os_str().to_owned());
    }

    /// An option that reads `content` from a file without a name.
    fn file(&mut self, option: &str, content: &[u8]) -> Result<OwnedFd, EnterError> {
        let fd = memory_file(content).map_err(step("making a file in memory"))?;
        self.add(&[option, &fd.as_raw_fd().to_string()]);
        Ok(fd)
    }

    /// The programs of this machine, as they are.
    fn system(&mut self) {
        self.add(&["--ro-bind", "/usr", "/usr"]);
        for &path in OUTSIDE_USR {
            match fs::read_link(path) {
                Ok(target) => self.add(&["--symlink", &text(&target), path]),
                Err(_) => self.add(&["--ro-bind-try", path, path]),
            }
        }
    }

    /// A `/etc` that names nobody of this machine.
    fn etc(&mut self, network: Network, files: &mut Vec<OwnedFd>) -> Result<(), EnterError> {
        for name in ETC {
            let path = format!("/etc/{name}");
            self.add(&["--ro-bind-try", &path, &path]);
        }
        let passwd = format!(
            "root:x:0:0:root:/:/usr/sbin/nologin\nhand:x:{INSIDE}:{INSIDE}:hand:{WORKSPACE}:/bin/bash\n\
             nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
        );
        let group = format!("root:x:0:\nhand:x:{INSIDE}:\nnogroup:x:65534:\n");
        let mut own = vec![
            ("/etc/passwd", passwd.into_bytes()),
            ("/etc/group", group.into_bytes()),
            ("/etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n".to_vec()),
            ("/etc/hostname", b"sandbox\n".to_vec()),
        ];
        match network {
            Network::None => {
                own.push(("/etc/hosts", b"127.0.0.1 localhost sandbox\n::1 localhost\n".to_vec()));
            }
            Network::Host => {
                // Read, not bound: it is often a link into /run, which the sandbox does not have.
                for path in ["/etc/hosts", "/etc/resolv.conf"] {
                    own.push((path, fs::read(path).unwrap_or_default()));
                }
            }
        }
        for (path, content) in own {
            let fd = self.file("--ro-bind-data", &content)?;
            self.add(&[path]);
            files.push(fd);
        }
        Ok(())
    }
}

/// A readable file without a name that `bwrap` inherits.
fn memory_file(content: &[u8]) -> io::Result<OwnedFd> {
    let fd = memfd_create("manyhands", MemfdFlags::empty())?;
    let mut file = File::from(fd);
    file.write_all(content)?;
    seek(&file, SeekFrom::Start(0))?;
    Ok(OwnedFd::from(file))
}

/// Paths come from JSON, so they are UTF-8 already.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
