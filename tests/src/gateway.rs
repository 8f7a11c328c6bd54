//! The real gateway as a child process, on a port and a data directory of its own.
//!
//! The binary is the one beside the test binary in cargo's target directory; nextest builds it first
//! (`.config/nextest.toml`).

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long a start may take, ten times what a debug build needs on two busy cores.
const START_LIMIT: Duration = Duration::from_secs(30);

/// How long a clean shutdown may take before the process is killed.
const STOP_LIMIT: Duration = Duration::from_secs(45);

/// Line 1 of the gateway's standard output begins so; its address follows.
const LISTENING: &str = "listening on ";

/// How a gateway is started. `Options::default()` is what a person gets who types `manyhands`.
#[derive(Debug, Default, Clone)]
pub struct Options {
    /// Further arguments behind `serve`, such as `--no-auth`.
    pub args: Vec<String>,
    /// Further environment, such as `MANYHANDS_DATABASE_URL`. None of ours is inherited.
    pub env: Vec<(String, String)>,
    /// An existing data directory to start on; it stays. None: a new one that goes with the `Gateway`.
    pub data: Option<PathBuf>,
    /// What `manyhands.toml` says. None: there is no such file.
    pub config: Option<String>,
    /// The folder that it is started in. None: that of the tests.
    pub folder: Option<PathBuf>,
}

impl Options {
    /// One more argument.
    #[must_use]
    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// One more environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With a `manyhands.toml`.
    #[must_use]
    pub fn config(mut self, text: &str) -> Self {
        self.config = Some(text.to_owned());
        self
    }

    /// Starts on this data directory and leaves it behind.
    #[must_use]
    pub fn data(mut self, data: &Path) -> Self {
        self.data = Some(data.to_owned());
        self
    }
}

/// A running gateway. Dropping it shuts it down cleanly, or kills it when that takes too long.
#[derive(Debug)]
pub struct Gateway {
    child: Child,
    data: PathBuf,
    log: PathBuf,
    url: String,
    _scratch: TempDir,
}

impl Gateway {
    /// Starts the binary and returns when it has said where it listens.
    pub async fn start(options: Options) -> Result<Self> {
        tokio::task::spawn_blocking(move || Self::start_blocking(&options)).await?
    }

    /// The same from a thread that may block.
    pub fn start_blocking(options: &Options) -> Result<Self> {
        let scratch = tempfile::Builder::new().prefix("manyhands-test-").tempdir()?;
        let data = options.data.clone().unwrap_or_else(|| scratch.path().join("data"));
        let log = scratch.path().join("stderr.log");
        let mut command = command(&data);
        if let Some(folder) = &options.folder {
            command.current_dir(folder);
        }
        if let Some(text) = &options.config {
            let path = scratch.path().join("manyhands.toml");
            fs::write(&path, text)?;
            command.arg("--config").arg(path);
        }
        let mut child = command
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(&options.args)
            .envs(options.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("{} does not start", binary().display()))?;
        let first_line = first_line(&mut child)?;
        let mut gateway = Self { child, data, log, url: String::new(), _scratch: scratch };
        match first_line.as_deref().and_then(|line| line.strip_prefix(LISTENING)) {
            Some(url) => url.trim().clone_into(&mut gateway.url),
            None => bail!("the gateway did not start; it said {first_line:?} and\n{}", gateway.stderr()),
        }
        Ok(gateway)
    }

    /// `http://127.0.0.1:PORT`, without a slash at the end.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The endpoint that `connect` hands out for this session.
    pub fn session_url(&self, session: &str) -> String {
        format!("{}/mcp/sessions/{session}", self.url)
    }

    /// The data directory.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The owner's bearer token, as the first start left it.
    pub fn owner_token(&self) -> Result<String> {
        let path = self.data.join("owner.token");
        let token =
            fs::read_to_string(&path).with_context(|| format!("no owner token at {}", path.display()))?;
        Ok(token.trim().to_owned())
    }

    /// Everything the gateway has logged so far.
    pub fn stderr(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Runs a command of the same binary on the same data directory, such as `["session", "list", "--json"]`.
    pub fn cli(&self, args: &[&str]) -> Result<Output> {
        run(&self.data, args)
    }

    /// Sends a signal to the gateway's process alone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("not a process id")?;
        Ok(kill_process(pid, signal)?)
    }

    /// `kill -9`, and waits until it is gone. The data directory stays as it was left while `self` lives.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits for an end that was asked for by a signal. Its exit code, none when a signal ended it; fails when it
    /// takes longer than `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<i32>> {
        match wait(&mut self.child, limit)? {
            Some(status) => Ok(status.code()),
            None => bail!("the gateway did not end within {limit:?}:\n{}", self.stderr()),
        }
    }

    /// A clean shutdown; fails when it takes longer than 45 s or ends with another code than 0.
    pub fn stop(&mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        match wait(&mut self.child, STOP_LIMIT)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => bail!("the gateway ended with {status}:\n{}", self.stderr()),
            None => bail!("the gateway did not end within {STOP_LIMIT:?}:\n{}", self.stderr()),
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Cleanly first: only the gateway itself can take its sandboxes with it.
        if matches!(self.child.try_wait(), Ok(None)) && self.signal(Signal::TERM).is_ok() {
            let _ = wait(&mut self.child, STOP_LIMIT);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The binary beside this test binary: `target/PROFILE/deps/it-…` → `target/PROFILE/manyhands`.
pub fn binary() -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    let profile = test.parent().and_then(Path::parent).unwrap_or(Path::new("."));
    profile.join("manyhands")
}

/// The binary with this data directory and nothing of ours in its environment, ready for arguments.
#[expect(clippy::disallowed_methods, reason = "the tests are a program of their own")]
pub fn command(data: &Path) -> Command {
    let mut command = Command::new(binary());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MANYHANDS_") {
            command.env_remove(name);
        }
    }
    command.env("MANYHANDS_DATA", data);
    command
}

/// Runs one command on a data directory to its end, with an empty standard input.
pub fn run(data: &Path, args: &[&str]) -> Result<Output> {
    Ok(command(data).args(args).stdin(Stdio::null()).output()?)
}

/// None when the process closed its output without a line.
fn first_line(child: &mut Child) -> Result<Option<String>> {
    let stdout = child.stdout.take().ok_or_else(|| anyhow!("no standard output"))?;
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
        let _ = send.send(lines.next());
        // Reads on, so that the gateway never meets a closed pipe.
        lines.for_each(drop);
    });
    receive.recv_timeout(START_LIMIT).or_else(|_| {
        child.kill()?;
        child.wait()?;
        bail!("the gateway said nothing within {START_LIMIT:?}")
    })
}

fn wait(child: &mut Child, limit: Duration) -> Result<Option<std::process::ExitStatus>> {
    let start = Instant::now();
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(Some(status)),
            None if start.elapsed() > limit => return Ok(None),
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}
