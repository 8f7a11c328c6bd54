//! An sshd of a test's own: a port, a host key and a home folder that nobody else has.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use hands::ssh::{Auth, HostKey, SshConfig};
use tempfile::TempDir;

/// A daemon. Dropping it ends it; its connections live on.
pub struct Sshd {
    /// What it has: keys, configuration, log, home.
    pub folder: TempDir,
    /// Where it listens on 127.0.0.1.
    pub port: u16,
    setting: &'static str,
    daemon: Option<Child>,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Sshd {
    /// Starts one that lets its `user` key in.
    pub async fn start() -> Result<Self> {
        Self::start_with("").await
    }

    /// The same with one more line in its configuration.
    pub async fn start_with(setting: &'static str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        for name in ["host", "user"] {
            make_key(&folder.path().join(name), "ed25519", "")?;
        }
        fs::copy(folder.path().join("user.pub"), folder.path().join("authorized"))?;
        fs::create_dir(folder.path().join("home"))?;
        let mut server = Self { folder, port: 0, setting, daemon: None };
        server.serve().await?;
        Ok(server)
    }

    /// Starts the daemon, on the port that it had before if it had one.
    pub async fn serve(&mut self) -> Result<()> {
        if rustix::process::geteuid().is_root() {
            fs::create_dir_all("/run/sshd")?;
        }
        // Between our look and the daemon's, somebody else may take the port.
        for _ in 0..10 {
            if self.port == 0 {
                self.port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            }
            let mut daemon = self.spawn()?;
            let port = self.port;
            for _ in 0..3000 {
                if TcpStream::connect(("127.0.0.1", port)).is_ok() && daemon.try_wait()?.is_none() {
                    self.daemon = Some(daemon);
                    return Ok(());
                }
                if daemon.try_wait()?.is_some() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let _ = daemon.kill();
            let _ = daemon.wait();
            self.port = 0;
        }
        bail!("sshd does not start: {}", fs::read_to_string(self.path("log")).unwrap_or_default());
    }

    fn spawn(&self) -> Result<Child> {
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
        fs::write(self.path("config"), lines.join("\n") + "\n")?;
        let log = fs::File::create(self.path("log"))?;
        let program =
            ["/usr/sbin/sshd", "/usr/local/sbin/sshd"].into_iter().find(|path| Path::new(path).exists());
        let program = program.context("openssh-server is not installed; `.ci/need test` does it")?;
        let daemon = Command::new(program)
            .args(["-D", "-e", "-f"])
            .arg(self.path("config"))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()?;
        Ok(daemon)
    }

    /// Ends the daemon; connections live on.
    pub fn stop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }

    /// Has it say nothing to new connections, which it accepts, until it is told to go on.
    pub fn signal(&self, signal: rustix::process::Signal) -> Result<()> {
        let daemon = self.daemon.as_ref().context("it does not run")?;
        Ok(rustix::process::kill_process(rustix::process::Pid::from_child(daemon), signal)?)
    }

    /// A file in its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// How to reach it, with its host key pinned and the key that it lets in.
    pub fn config(&self) -> Result<SshConfig> {
        let auth = Auth::Key { file: self.path("user"), passphrase: None };
        let line = fs::read_to_string(self.path("host.pub"))?;
        let mut config =
            SshConfig::new("127.0.0.1", user()?, auth, HostKey::Accepted(vec![line.trim().into()]));
        config.port = self.port;
        Ok(config)
    }
}

/// Makes a key pair.
pub fn make_key(path: &Path, kind: &str, passphrase: &str) -> Result<()> {
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", kind, "-C", "test", "-N", passphrase, "-f"])
        .arg(path)
        .stdin(Stdio::null())
        .status()?;
    ensure!(made.success(), "ssh-keygen makes no {kind} key");
    Ok(())
}

fn user() -> Result<String> {
    let output = Command::new("id").arg("-un").output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
