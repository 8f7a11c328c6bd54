//! An sshd of a test's own: a port, a host key and a home folder that nobody else has.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hands::InstanceId;
use hands::ssh::{Auth, HostKey, SshConfig};
use rustix::process::Pid;
use tempfile::TempDir;

use crate::hand::marked::{keepers_of, parent};
use crate::hand::rig::soon;

pub(in crate::hand) struct Server {
    pub(in crate::hand) folder: TempDir,
    pub(in crate::hand) port: u16,
    setting: &'static str,
    daemon: Option<Child>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Server {
    /// Starts one that lets its `user` key in, with one more line in its configuration.
    pub(in crate::hand) async fn start_with(setting: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["host", "user"] {
            make_key(&folder.path().join(name), "ed25519", "");
        }
        fs::copy(folder.path().join("user.pub"), folder.path().join("authorized")).unwrap();
        fs::create_dir(folder.path().join("home")).unwrap();
        let mut server = Self { folder, port: 0, setting, daemon: None };
        server.serve().await;
        server
    }

    /// Starts the daemon, on the port that it had before if it had one.
    pub(in crate::hand) async fn serve(&mut self) {
        if rustix::process::geteuid().is_root() {
            fs::create_dir_all("/run/sshd").unwrap();
        }
        // Between our look and the daemon's, somebody else may take the port.
        for _ in 0..10 {
            if self.port == 0 {
                self.port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            }
            let mut daemon = self.spawn();
            let port = self.port;
            for _ in 0..3000 {
                if TcpStream::connect(("127.0.0.1", port)).is_ok() && daemon.try_wait().unwrap().is_none() {
                    self.daemon = Some(daemon);
                    return;
                }
                if daemon.try_wait().unwrap().is_some() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let _ = daemon.kill();
            let _ = daemon.wait();
            self.port = 0;
        }
        panic!("sshd does not start: {}", fs::read_to_string(self.path("log")).unwrap_or_default());
    }

    fn spawn(&self) -> Child {
        let lines = [
            format!("ListenAddress 127.0.0.1:{}", self.port),
            format!("HostKey {}", self.path("host").display()),
            format!("AuthorizedKeysFile {}", self.path("authorized").display()),
            format!("SetEnv HOME={}", self.path("home").display()),
            "PidFile none\nUsePAM no\nStrictModes no\nPrintMotd no\nLogLevel VERBOSE".into(),
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password"
                .into(),
            // Rigs of many tests connect at once.
            "MaxStartups 1000".into(),
            self.setting.into(),
        ];
        fs::write(self.path("config"), lines.join("\n") + "\n").unwrap();
        let log = fs::File::create(self.path("log")).unwrap();
        let program =
            ["/usr/sbin/sshd", "/usr/local/sbin/sshd"].into_iter().find(|path| Path::new(path).exists());
        Command::new(program.expect("openssh-server is installed; `.ci/need test` does it"))
            .args(["-D", "-e", "-f"])
            .arg(self.path("config"))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    /// Ends the daemon; connections live on.
    pub(in crate::hand) fn stop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }

    pub(in crate::hand) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// How to reach it, with its host key pinned and the key that it lets in.
    pub(in crate::hand) fn config(&self) -> SshConfig {
        let auth = Auth::Key { file: self.path("user"), passphrase: None };
        let line = fs::read_to_string(self.path("host.pub")).unwrap();
        let mut config =
            SshConfig::new("127.0.0.1", user(), auth, HostKey::Accepted(vec![line.trim().into()]));
        config.port = self.port;
        config
    }
}

/// Makes a key pair.
pub(in crate::hand) fn make_key(path: &Path, kind: &str, passphrase: &str) {
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", kind, "-C", "test", "-N", passphrase, "-f"])
        .arg(path)
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert!(made.success());
}

fn user() -> String {
    let output = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The processes of the connections that hold an instance: the session's own, and where there is one its monitor.
pub(in crate::hand) fn connections_of(instance: &InstanceId) -> Vec<Pid> {
    let mut found = Vec::new();
    for keeper in keepers_of(instance) {
        let mut above = parent(keeper);
        while let Some(pid) = above {
            // Its title changes with every session, its name does not. The daemon itself is a child of ours.
            let name = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero())).unwrap_or_default();
            let over = parent(pid);
            if name.trim() != "sshd" || over == Some(rustix::process::getpid()) {
                break;
            }
            found.push(pid);
            above = over;
        }
    }
    found
}

/// Whether a process is there and no zombie.
pub(in crate::hand) fn is_running(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Waits until a port is free.
pub(in crate::hand) async fn is_closed(port: u16) {
    soon(|| TcpStream::connect(("127.0.0.1", port)).is_err()).await;
}
