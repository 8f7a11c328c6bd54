//! Pipes that nobody reads: standard error of a gateway whose hand is talkative, standard output of a client.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::fixture;
use tests::gateway::command;
use tokio::time::timeout;

use super::{HANGS, commands_work};
use crate::mcp::client::{Client, Era, soon, text};

/// The hands of which each says about 80 kB a second on its standard error, as much as is logged of one.
const TALKATIVE: [&str; 3] = ["one", "two", "three"];
/// What the kernel keeps of a pipe that nobody reads.
const PIPE: u64 = 60 << 10;
/// How long it goes on after that: long enough to fill the gateway's queue, too.
const MORE: Duration = Duration::from_secs(4);
/// What is said once there is room again.
const DROPPED: &str = "log lines were dropped: standard error was not read";

/// A gateway's process, killed with the test.
struct Process {
    child: Child,
    folder: TempDir,
}

impl Process {
    /// Its standard output and standard error are pipes.
    fn start(arguments: &[&str]) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("mh-").tempdir()?;
        let noise = "line=$(head -c 4000 /dev/zero | tr '\\0' x); while :; do n=0; while [ $n -lt 25 ]; do \
                     printf '%s\\n' \"$line\" >&2; n=$((n+1)); done; sleep 1; done &";
        let script = format!("{noise} exec {} --stdio", fixture::binary().display());
        let hands = TALKATIVE.map(|name| {
            format!("[hands.{name}]\nkind = \"mcp\"\ncommand = [\"sh\", \"-c\", {}]\n", json!(script))
        });
        let config = folder.path().join("manyhands.toml");
        std::fs::write(&config, hands.concat())?;
        let mut command = command(&folder.path().join("data"));
        command.arg("--config").arg(config).args(arguments);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        Ok(Self { child, folder })
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Waits until its standard error is full, and a while longer.
    async fn unread(&mut self) -> Result<()> {
        let stderr = self.child.stderr.as_ref().context("no standard error")?;
        let begun = Instant::now();
        while rustix::io::ioctl_fionread(stderr)? < PIPE {
            ensure!(begun.elapsed() < HANGS, "nothing fills the pipe");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        tokio::time::sleep(MORE).await;
        Ok(())
    }

    /// Reads its standard error until it says how much was dropped.
    async fn count_is_said(&mut self) -> Result<()> {
        let stderr = self.child.stderr.take().context("no standard error")?;
        let reading = tokio::task::spawn_blocking(move || {
            let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
            lines.find(|line| line.ends_with(DROPPED))
        });
        let line = timeout(HANGS, reading).await.context("the count is not said")??.context("it ended")?;
        let count: u64 = line.split(' ').next().context("no count")?.parse()?;
        ensure!(count > 0);
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Cleanly first: only the gateway itself takes its hands with it.
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        let _ = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::TERM));
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < HANGS {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client of `manyhands stdio`.
struct Piped {
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    next: u64,
}

impl Piped {
    fn of(process: &mut Process) -> Result<Self> {
        let (to, from) = (process.child.stdin.take(), process.child.stdout.take());
        Ok(Self { to: to.context("stdin")?, from: BufReader::new(from.context("stdout")?), next: 0 })
    }

    fn send(&mut self, method: &str, mut params: Value) -> Result<u64> {
        self.next += 1;
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": Era::Modern.version(),
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let message = json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params});
        writeln!(self.to, "{message}")?;
        Ok(self.next)
    }

    /// Calls a tool on a thread that may block, and gives itself back with the text of the result.
    async fn call(mut self, tool: &'static str, arguments: Value) -> Result<(Self, String)> {
        let calling = tokio::task::spawn_blocking(move || {
            let id = self.send("tools/call", json!({"name": tool, "arguments": arguments}))?;
            loop {
                let mut line = String::new();
                ensure!(self.from.read_line(&mut line)? > 0, "it has ended");
                let message: Value = serde_json::from_str(&line)?;
                if message["id"] == id {
                    return Ok((self, text(&message["result"]).to_owned()));
                }
            }
        });
        timeout(HANGS, calling).await.context("a call over stdio hangs")??
    }
}

/// Waits until the gateway knows what its hands offer.
async fn offered(data: &Path) -> Result<()> {
    for hand in TALKATIVE {
        soon(async || {
            let mut show = tokio::process::Command::from(command(data));
            show.args(["hand", "show", hand, "--json"]).stdin(Stdio::null()).kill_on_drop(true);
            let shown = timeout(HANGS, show.output()).await.context("`hand show` hangs")??;
            let shown: Value = serde_json::from_slice(&shown.stdout).unwrap_or_default();
            Ok(shown["tools"].as_array().is_some_and(|tools| !tools.is_empty()))
        })
        .await?;
    }
    Ok(())
}

/// Each of the talkative hands is called once, which starts it.
const ECHO: [&str; 3] = ["one__echo", "two__echo", "three__echo"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_reads_its_servers_errors_delays_nobody() -> Result<()> {
    let mut process = Process::start(&["stdio"])?;
    let mut client = Piped::of(&mut process)?;
    offered(&process.data()).await?;
    for tool in ECHO {
        client = client.call(tool, json!({"text": "begun"})).await?.0;
    }
    process.unread().await?;
    for n in 0..20 {
        let said;
        (client, said) = client.call(ECHO[n % ECHO.len()], json!({"text": format!("{n}")})).await?;
        ensure!(said == format!("{n}"), "{said}");
    }
    commands_work(&process.data()).await?;
    process.count_is_said().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_whose_errors_are_not_read_serves_on() -> Result<()> {
    let mut process = Process::start(&["serve", "--listen", "127.0.0.1:0"])?;
    let url = listening(&mut process).await?;
    let token = std::fs::read_to_string(process.data().join("owner.token"))?;
    let client = Client::at(&format!("{url}/mcp/sessions/demo"), token.trim(), Era::Modern).await?;
    offered(&process.data()).await?;
    for tool in ECHO {
        client.call(tool, json!({"text": "begun"})).await?;
    }
    process.unread().await?;
    for n in 0..20 {
        let call = client.call(ECHO[n % ECHO.len()], json!({"text": format!("{n}")}));
        let said = timeout(HANGS, call).await.context("a call over HTTP hangs")??;
        ensure!(text(&said) == format!("{n}"), "{said}");
    }
    commands_work(&process.data()).await?;
    process.count_is_said().await
}

/// Where it listens. Its standard output stays open, and is not read any further.
async fn listening(process: &mut Process) -> Result<String> {
    let stdout = process.child.stdout.take().context("no standard output")?;
    let reading = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).map(|_| line)
    });
    let line = timeout(HANGS, reading).await.context("it does not start")???;
    let url = line.trim().strip_prefix("listening on ").with_context(|| format!("{line:?}"))?;
    Ok(url.to_owned())
}

/// What a gateway that starts says on its standard output is for whoever reads it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_whose_output_is_full_serves() -> Result<()> {
    let folder = tempfile::Builder::new().prefix("mh-").tempdir()?;
    let data = folder.path().join("data");
    let (_reader, writer) = std::io::pipe()?;
    fill(&writer)?;
    let mut command = command(&data);
    command.args(["serve", "--listen", "127.0.0.1:0"]).current_dir(&folder);
    let child = command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::null()).spawn()?;
    let _process = Process { child, folder };
    let begun = Instant::now();
    while !data.join("manyhands.sock").exists() {
        ensure!(begun.elapsed() < HANGS, "it does not start");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let about = tests::gateway::run(&data, &["connect", "json"])?;
    let about: Value = serde_json::from_slice(&about.stdout)?;
    let url = about.to_string();
    let at = url.split("http://").nth(1).and_then(|rest| rest.split('/').next()).context("no address")?;
    let answer = timeout(HANGS, reqwest::get(format!("http://{at}/healthz"))).await.context("it hangs")??;
    ensure!(answer.status() == 200);
    Ok(())
}

/// Writes until nothing more goes in.
fn fill(writer: &std::io::PipeWriter) -> Result<()> {
    let flags = rustix::fs::fcntl_getfl(writer)?;
    rustix::fs::fcntl_setfl(writer, flags | rustix::fs::OFlags::NONBLOCK)?;
    let mut to = writer;
    while to.write(&[b'x'; 512]).is_ok() {}
    Ok(rustix::fs::fcntl_setfl(writer, flags)?)
}

/// It stalls itself, and nobody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_reads_its_answers_delays_nobody_else() -> Result<()> {
    let mut owner = Process::start(&["stdio"])?;
    let mut client = Piped::of(&mut owner)?.call("session_list", json!({})).await?.0;
    let data = owner.data();
    let sending = std::thread::spawn(move || {
        // Until the gateway reads no more of it, or is gone.
        while client.send("tools/list", json!({})).is_ok() {}
    });
    tokio::time::sleep(MORE).await;
    commands_work(&data).await?;
    another_works(&data).await?;
    commands_work(&data).await?;
    drop(owner);
    sending.join().map_err(|_| anyhow::anyhow!("the sender panicked"))
}

/// One that comes in through the owner.
async fn another_works(data: &Path) -> Result<()> {
    let mut other = command(data);
    other.args(["stdio", "--session", "other"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut other = Process { child: other.spawn()?, folder: tempfile::tempdir()? };
    let (client, said) = Piped::of(&mut other)?.call("session_list", json!({})).await?;
    ensure!(!said.is_empty());
    drop(client);
    Ok(())
}
