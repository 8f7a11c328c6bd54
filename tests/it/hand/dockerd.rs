//! A real Docker daemon of a test's own, and a root file system for it that is made on the spot.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

/// What a daemon writes to its log when it could not start.
const LOG: &str = "log";

/// A daemon on a socket of its own, with a data root of its own and no network. Dropping it ends it and all of its
/// containers.
pub(crate) struct Dockerd {
    child: Child,
    folder: TempDir,
}

impl Dockerd {
    /// Starts one and waits until it answers.
    pub(crate) async fn start() -> Self {
        assert!(rustix::process::geteuid().is_root(), "dockerd needs root: run these tests as root");
        let folder = tempfile::Builder::new().prefix("manyhands-dockerd-").tempdir().unwrap();
        let child = spawn(folder.path());
        let daemon = Self { child, folder };
        daemon.wait().await;
        daemon
    }

    /// Its address, as in `DOCKER_HOST`.
    pub(crate) fn host(&self) -> String {
        format!("unix://{}", self.folder.path().join("socket").display())
    }

    /// Kills it, and nothing that it started.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it anew after it was killed.
    pub(crate) async fn restart(&mut self) {
        // Its containerd dies with it, a moment later than its record may be read.
        for left in ["pid", "socket", "exec/containerd/containerd.pid", "exec/containerd/containerd.sock"] {
            let _ = fs::remove_file(self.folder.path().join(left));
        }
        self.child = spawn(self.folder.path());
        self.wait().await;
    }

    /// What `docker` prints.
    pub(crate) fn docker(&self, arguments: &[&str]) -> String {
        let output = Command::new("/usr/bin/docker")
            .args(["--host", &self.host()])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }

    async fn wait(&self) {
        for _ in 0..6000 {
            if self
                .docker(&["version", "--format", "{{.Server.Version}}"])
                .starts_with(|c: char| c.is_ascii_digit())
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let log = fs::read_to_string(self.folder.path().join(LOG)).unwrap_or_default();
        panic!("dockerd did not start:\n{log}");
    }
}

fn spawn(folder: &Path) -> Child {
    let log = fs::File::options().create(true).append(true).open(folder.join(LOG)).unwrap();
    let at = |name: &str| folder.join(name).display().to_string();
    Command::new("/usr/sbin/dockerd")
        .args(["--host", &format!("unix://{}", at("socket"))])
        .args(["--data-root", &at("data"), "--exec-root", &at("exec"), "--pidfile", &at("pid")])
        .args(["--bridge=none", "--iptables=false", "--ip6tables=false"])
        .args(["--exec-opt", "native.cgroupdriver=cgroupfs"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .process_group(0)
        .spawn()
        .unwrap()
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
const MAKE: &str = r#"
set -eu
root=$1/root
mkdir -p "$root/usr/bin" "$root/usr/lib" "$root/usr/lib64" "$root/tmp" "$root/etc" "$root/workspace"
chmod 1777 "$root/tmp"
ln -s usr/bin "$root/bin"; ln -s usr/lib "$root/lib"; ln -s usr/lib64 "$root/lib64"
for name in bash sh cat chmod cut date dirname du env find grep head id ls mkdir mktemp mv nohup od ps readlink \
  realpath rm rmdir seq setsid sleep sort stat sync tail tar touch tr true truncate uname uniq wc yes chown dd kill; do
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
pub(crate) fn rootfs() -> PathBuf {
    made("gnu", MAKE)
}

/// A root file system with sh and busybox.
pub(crate) fn busybox() -> PathBuf {
    made("busybox", MAKE_BUSYBOX)
}

/// The tar, made once for all tests.
fn made(name: &str, script: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let mut hasher = DefaultHasher::new();
    script.hash(&mut hasher);
    let tar = folder.join(format!("rootfs-{name}-{:016x}.tar", hasher.finish()));
    if !tar.exists() {
        let making = tempfile::tempdir_in(folder).unwrap();
        let made = Command::new("sh").args(["-c", script, "sh"]).arg(making.path()).status().unwrap();
        assert!(made.success());
        // Whoever is last: they are alike.
        fs::rename(making.path().join("rootfs.tar"), &tar).unwrap();
    }
    tar
}
