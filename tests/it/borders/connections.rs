//! Connections that send nothing, and a standard error that nobody reads.

mod limits;
mod slow;
mod unread;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tests::gateway::{Gateway, Options};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longer than anything here takes on a busy machine, and shorter than a hang.
const HANGS: Duration = Duration::from_mins(1);
/// The usual soft limit of open files.
const USUAL_FILES: u64 = 1_024;

/// A gateway that is started with the usual soft limit. Afterwards this process, which must hold many connections, has
/// all that it may have.
async fn usual(options: Options) -> Result<Gateway> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(USUAL_FILES), maximum })?;
    let gateway = Gateway::start(options).await;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    gateway
}

fn address(gateway: &Gateway) -> Result<&str> {
    gateway.url().strip_prefix("http://").context("an address")
}

/// Connections that send nothing.
async fn silent(gateway: &Gateway, count: usize) -> Result<Vec<TcpStream>> {
    let mut all = Vec::new();
    for n in 0..count {
        let connected = timeout(HANGS, TcpStream::connect(address(gateway)?)).await;
        all.push(connected.with_context(|| format!("connection {n} hangs"))??);
    }
    Ok(all)
}

/// What comes until the other end closes the connection.
async fn to_the_end(stream: &mut TcpStream) -> Result<String> {
    let mut all = Vec::new();
    // A reset is an end, too.
    let reading = async { while let Ok(1..) = stream.read_buf(&mut all).await {} };
    timeout(HANGS, reading).await.context("the connection is not closed")?;
    Ok(String::from_utf8_lossy(&all).into_owned())
}

async fn is_healthy(gateway: &Gateway) -> Result<()> {
    let answer = timeout(HANGS, reqwest::get(format!("{}/healthz", gateway.url()))).await;
    let answer = answer.context("/healthz hangs")??.text().await?;
    ensure!(answer == "ok\n", "{answer}");
    Ok(())
}

/// A command of the owner's answers in time.
async fn commands_work(data: &std::path::Path) -> Result<()> {
    let mut command = tokio::process::Command::from(tests::gateway::command(data));
    command.args(["session", "list"]).stdin(std::process::Stdio::null()).kill_on_drop(true);
    let output = timeout(HANGS, command.output()).await.context("`session list` hangs")??;
    ensure!(output.status.success(), "{output:?}");
    Ok(())
}
