//! A real Docker daemon of a test's own, and a root file system for it that is made on the spot.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::tls::Authority;

/// Debian's daemon: its folder is not in everybody's path.
const DOCKERD: &str = "/usr/sbin/dockerd";
/// Debian's client.
const DOCKER: &str = "/usr/bin/docker";
/// How long a daemon may take to start, on a machine that is busy with other tests.
const START_TIMEOUT: Duration = Duration::from_mins(2);
/// What a daemon writes to its log when it could not start.
const LOG: &str = "log";

/// A daemon on a socket of its own, with a data root of its own and no network. Dropping it ends it and all of its
/// containers.
pub struct Dockerd {
    child: Child,
    folder: TempDir,
    /// The port that it has behind TLS as well, if it has one.
    port: Option<u16>,
    /// Its further runtime, as `name=program`.
    runtime: Option<String>,
}

impl Dockerd {
    /// Starts one and waits until it answers.
    pub async fn start() -> Result<Self> {
        Self::start_in(folder()?, None, None).await
    }

    /// The same with a runtime of this name beside its own.
    pub async fn start_with_runtime(name: &str, program: &Path) -> Result<Self> {
        Self::start_in(folder()?, None, Some(format!("{name}={}", program.display()))).await
    }

    /// The same behind TLS, with [`Dockerd::pem`].
    pub async fn start_with_tls() -> Result<Self> {
        let folder = folder()?;
        certify(&folder.path().join("tls"))?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        Self::start_in(folder, Some(port), None).await
    }

    async fn start_in(folder: TempDir, port: Option<u16>, runtime: Option<String>) -> Result<Self> {
        let child = spawn(folder.path(), port, runtime.as_deref())?;
        let mut daemon = Self { child, folder, port, runtime };
        daemon.wait().await?;
        Ok(daemon)
    }

    /// Its address behind TLS, as in `DOCKER_HOST`.
    pub fn tls_host(&self) -> Result<String> {
        Ok(format!("tcp://127.0.0.1:{}", self.port.context("it has no TLS")?))
    }

    /// A file of a daemon behind TLS: `ca`, `client` and `client-key`; `other-ca`, `other` and `other-key`, which it does
    /// not believe.
    pub fn pem(&self, name: &str) -> PathBuf {
        self.folder.path().join("tls").join(name).with_extension("pem")
    }

    /// Its address, as in `DOCKER_HOST`.
    pub fn host(&self) -> String {
        format!("unix://{}", self.folder.path().join("socket").display())
    }

    /// Kills it, and nothing that it started.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts it anew after it was killed.
    pub async fn restart(&mut self) -> Result<()> {
        // Its containerd dies with it, a moment later than its record may be read.
        for left in ["pid", "socket", "exec/containerd/containerd.pid", "exec/containerd/containerd.sock"] {
            let _ = fs::remove_file(self.folder.path().join(left));
        }
        self.child = spawn(self.folder.path(), self.port, self.runtime.as_deref())?;
        self.wait().await
    }

    /// What `docker` prints, errors as well.
    pub fn docker(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("docker");
        // Debian's own, where there is another.
        if Path::new(DOCKER).exists() {
            command = Command::new(DOCKER);
        }
        let output = command.args(["--host", &self.host()]).args(arguments).stdin(Stdio::null()).output();
        output.map_or_else(
            |error| format!("docker can't be run: {error}"),
            |output| {
                [output.stdout, output.stderr]
                    .map(|text| String::from_utf8_lossy(&text).into_owned())
                    .concat()
            },
        )
    }

    async fn wait(&mut self) -> Result<()> {
        let until = Instant::now() + START_TIMEOUT;
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            if self
                .docker(&["version", "--format", "{{.Server.Version}}"])
                .starts_with(|c: char| c.is_ascii_digit())
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let log = fs::read_to_string(self.folder.path().join(LOG)).unwrap_or_default();
        bail!("dockerd did not start:\n{log}");
    }
}

fn folder() -> Result<TempDir> {
    ensure!(rustix::process::geteuid().is_root(), "dockerd needs root: run this as root");
    Ok(tempfile::Builder::new().prefix("manyhands-dockerd-").tempdir()?)
}

/// Makes two CAs, of which the first signs a server's and both sign a client's certificate.
fn certify(folder: &Path) -> Result<()> {
    fs::create_dir(folder)?;
    let pem = |name: &str| folder.join(name).with_extension("pem");
    for (ca, signs) in [("ca", &["server", "client"][..]), ("other-ca", &["other"])] {
        let authority = Authority::new(ca)?;
        authority.write(&pem(ca))?;
        for name in signs {
            authority.write_signed(&["127.0.0.1"], &pem(name), &pem(&format!("{name}-key")))?;
        }
    }
    Ok(())
}

fn spawn(folder: &Path, port: Option<u16>, runtime: Option<&str>) -> Result<Child> {
    let log = fs::File::options().create(true).append(true).open(folder.join(LOG))?;
    let at = |name: &str| folder.join(name).display().to_string();
    let mut command = Command::new(if Path::new(DOCKERD).exists() { DOCKERD } else { "dockerd" });
    if let Some(port) = port {
        command.args(["--tlsverify", "--host", &format!("tcp://127.0.0.1:{port}")]);
        for (flag, name) in [("--tlscacert", "ca"), ("--tlscert", "server"), ("--tlskey", "server-key")] {
            command.args([flag, &at(&format!("tls/{name}.pem"))]);
        }
    }
    if let Some(runtime) = runtime {
        command.args(["--add-runtime", runtime]);
    }
    command
        .args(["--host", &format!("unix://{}", at("socket"))])
        .args(["--data-root", &at("data"), "--exec-root", &at("exec"), "--pidfile", &at("pid")])
        .args(["--bridge=none", "--iptables=false", "--ip6tables=false"])
        .args(["--exec-opt", "native.cgroupdriver=cgroupfs"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .process_group(0)
        .spawn()
        .context("dockerd can't be started")
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        let left = self.docker(&["ps", "--all", "--quiet", "--no-trunc"]);
        for container in left.split_whitespace().filter(|id| id.len() == 64) {
            self.docker(&["rm", "--force", "--volumes", container]);
        }
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        for _ in 0..1000 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        // What it mounted for itself.
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let ours = self.folder.path().display().to_string();
        for at in mounts.lines().filter_map(|line| line.split(' ').nth(1)).filter(|at| at.starts_with(&ours))
        {
            let _ = Command::new("umount").args(["--lazy", at]).status();
        }
    }
}

/// Makes a tar of a root file system of this machine's own programs: what the six tools need, and what tests use.
/// Neither `tar` nor `cp` is among it.
const MAKE: &str = r#"
set -eu
root=$1/root
mkdir -p "$root/usr/bin" "$root/usr/lib" "$root/usr/lib64" "$root/tmp" "$root/etc" "$root/workspace"
chmod 1777 "$root/tmp"
ln -s usr/bin "$root/bin"; ln -s usr/lib "$root/lib"; ln -s usr/lib64 "$root/lib64"
for name in bash sh cat chmod cut date dirname du env find grep head id ln ls mkdir mkfifo mktemp mv nohup od ps perl readlink \
  realpath rm rmdir seq setsid sleep sort stat sync tail touch tr true truncate uname uniq wc yes chown dd kill; do
  file=$(command -v "$name") || continue
  case $file in /*) ;; *) file=/bin/$name ;; esac
  [ -x "$file" ] || file=/usr/bin/$name
  [ -x "$file" ] || continue
  cp -L "$file" "$root/usr/bin/$name"
  for library in $(ldd "$file" | grep -o '/[^ ]*'); do
    [ -e "$root$library" ] || { mkdir -p "$root${library%/*}"; cp -L "$library" "$root$library"; }
  done
done
tar -c -C "$root" -f "$1/rootfs.tar" .
"#;

/// One of nothing but busybox.
const MAKE_BUSYBOX: &str = r#"
set -eu
root=$1/root
mkdir -p "$root/bin" "$root/tmp" "$root/workspace"
chmod 1777 "$root/tmp"
cp "$(command -v busybox)" "$root/bin/busybox"
for name in $("$root/bin/busybox" --list); do
  [ "$name" = busybox ] || ln -s busybox "$root/bin/$name"
done
tar -c -C "$root" -f "$1/rootfs.tar" .
"#;

/// A root file system with bash and GNU tools.
pub fn rootfs() -> Result<PathBuf> {
    made("gnu", MAKE)
}

/// A root file system with sh and busybox.
pub fn busybox() -> Result<PathBuf> {
    made("busybox", MAKE_BUSYBOX)
}

/// The tar, made once for all that use it.
fn made(name: &str, script: &str) -> Result<PathBuf> {
    let binary = crate::gateway::binary();
    let folder = binary.parent().context("the binary is in a folder")?;
    let mut hasher = DefaultHasher::new();
    script.hash(&mut hasher);
    let tar = folder.join(format!("rootfs-{name}-{:016x}.tar", hasher.finish()));
    if !tar.exists() {
        let making = tempfile::tempdir_in(folder)?;
        let made = Command::new("sh").args(["-c", script, "sh"]).arg(making.path()).status()?;
        ensure!(made.success(), "the root file system {name} could not be made");
        // Whoever is last: they are alike.
        fs::rename(making.path().join("rootfs.tar"), &tar)?;
    }
    Ok(tar)
}
