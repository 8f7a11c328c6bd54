//! A thousand sessions that use a server of their own and are never used again: few servers at a time, and afterwards
//! nothing is left, whoever ended how.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};
use tests::gateway::{Gateway, Options};

use crate::crash::client::Client;
use crate::crash::truth::processes;

/// Sessions that come and go.
const SESSIONS: usize = 1000;
/// Instances that a principal may have.
const LIMIT: usize = 32;
/// The same where half of them may be on their way out: twice those that call at the same time.
const FEW: usize = 2 * CALLERS;
/// Sessions that call at the same time.
const CALLERS: usize = 8;
/// How long what was ended may take to go.
const PATIENCE: Duration = Duration::from_secs(30);

/// A place with a server of its own, so that its processes are told from all others.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    /// `command`: how the server at `{}` is started.
    fn new(command: &[&str]) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("mh-abandoned-").tempdir()?;
        let server = folder.path().join("server");
        symlink(tests::fixture::binary(), &server)?;
        let words = command.iter().map(|word| word.replace("{}", &server.display().to_string()));
        let toml = format!("[hands.s]\nkind = \"mcp\"\ncommand = {}\n", json!(words.collect::<Vec<_>>()));
        std::fs::write(folder.path().join("manyhands.toml"), toml)?;
        Ok(Self { folder })
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    async fn start(&self) -> Result<Gateway> {
        self.start_with(LIMIT).await
    }

    async fn start_with(&self, instances: usize) -> Result<Gateway> {
        let mut options = Options::default()
            .data(&self.data())
            .env("MANYHANDS_LIMITS_INSTANCES", &instances.to_string())
            .env("TMPDIR", &self.folder.path().join("tmp").display().to_string());
        std::fs::create_dir_all(self.folder.path().join("tmp"))?;
        options.args =
            vec!["--config".into(), self.folder.path().join("manyhands.toml").display().to_string()];
        let gateway = Gateway::start(options).await?;
        let start = Instant::now();
        loop {
            let shown = gateway.cli(&["hand", "show", "s", "--json"])?;
            let shown: Value = serde_json::from_slice(&shown.stdout)?;
            if shown["state"] == "ok" {
                return Ok(gateway);
            }
            ensure!(start.elapsed() < PATIENCE, "{shown}\n{}", gateway.stderr());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Processes of the server, and whatever was started with its path.
    fn servers(&self) -> Result<Vec<(u32, String)>> {
        processes(&[self.folder.path().join("server").display().to_string()])
    }

    /// Waits until no process, socket or temporary file is there.
    async fn is_clean(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            let (servers, files) = (self.servers()?, left(self.folder.path())?);
            if servers.is_empty() && files.is_empty() {
                return Ok(());
            }
            ensure!(start.elapsed() < PATIENCE, "left behind: {servers:?} {files:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Files that only a running gateway or server has.
fn left(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found: Vec<_> =
        std::fs::read_dir(folder.join("tmp"))?.map(|file| Ok(file?.path())).collect::<Result<_>>()?;
    let data = folder.join("data");
    found.extend(
        ["manyhands.sock", "work"].map(|name| data.join(name)).into_iter().filter(|path| path.exists()),
    );
    Ok(found)
}

/// Children of a process that have ended and that nobody has asked for.
fn zombies(of: u32) -> Result<usize> {
    let mut found = 0;
    for entry in std::fs::read_dir("/proc")? {
        let Ok(stat) = std::fs::read_to_string(entry?.path().join("stat")) else { continue };
        let Some((_, fields)) = stat.rsplit_once(") ") else { continue };
        let fields: Vec<_> = fields.split(' ').collect();
        found += usize::from(fields.first() == Some(&"Z") && fields.get(1) == Some(&of.to_string().as_str()));
    }
    Ok(found)
}

async fn call(client: &Client, session: &str) -> Result<()> {
    let result = client.tool(session, "s__echo", json!({"text": session}), None).await?;
    // Behind a note, when there was an instance before.
    let said = result["content"].as_array().and_then(|all| all.last()).context("nothing")?;
    ensure!(said["text"] == session, "{result}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_abandoned_sessions_leave_nothing() -> Result<()> {
    let place = Place::new(&["{}", "--stdio"])?;
    let mut gateway = place.start().await?;
    let (client, most, over) =
        (Client::of(&gateway)?, Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let mark = [place.folder.path().join("server").display().to_string()];
    let watching = {
        let (most, over) = (most.clone(), over.clone());
        tokio::task::spawn_blocking(move || {
            while !over.load(Ordering::SeqCst) {
                most.fetch_max(processes(&mark)?.len(), Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(5));
            }
            anyhow::Ok(())
        })
    };
    let begun = Instant::now();
    let calls = stream::iter(0..SESSIONS).map(|n| {
        let client = client.clone();
        async move { call(&client, &format!("abandoned-{n}")).await }
    });
    let called = calls.buffer_unordered(CALLERS).try_collect::<()>().await;
    over.store(true, Ordering::SeqCst);
    watching.await??;
    called.with_context(|| gateway.stderr())?;
    let (most, zombies) = (most.load(Ordering::SeqCst), zombies(gateway.pid())?);
    eprintln!("{SESSIONS} sessions in {:?}, at most {most} servers at a time", begun.elapsed());
    ensure!(most <= LIMIT && most > LIMIT / 2, "{most} servers at a time");
    ensure!(zombies == 0, "{zombies} zombies");
    // The first of them begins anew, and is told so.
    let again = client.tool("abandoned-0", "s__count", json!({}), None).await?;
    ensure!(again["content"].to_string().contains("started anew"), "{again}");
    gateway.stop()?;
    place.is_clean().await
}

/// With servers that take their time to end, each another: as many as call at once are on their way out, and each makes
/// room for one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_caller_finds_room_while_others_make_theirs() -> Result<()> {
    let place = Place::new(&["bash", "-c", "{} --stdio; sleep 0.$((RANDOM % 8))"])?;
    let mut gateway = place.start_with(FEW).await?;
    let client = Client::of(&gateway)?;
    let calls = stream::iter(0..20 * CALLERS).map(|n| {
        let client = client.clone();
        async move { call(&client, &format!("room-{n}")).await }
    });
    let called = calls.buffer_unordered(CALLERS).try_collect::<()>().await;
    called.with_context(|| gateway.stderr())?;
    gateway.stop()?;
    place.is_clean().await
}

/// Servers that do not end when their stdin does, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_outlives_a_killed_gateway_and_the_next_start() -> Result<()> {
    for command in [&["{}", "--stdio"][..], &["sh", "-c", "trap '' TERM HUP; {} --stdio; sleep 1000; : {}"]] {
        let place = Place::new(command)?;
        let mut gateway = place.start().await?;
        let client = Client::of(&gateway)?;
        for n in 0..4 {
            call(&client, &format!("killed-{n}")).await?;
        }
        let before = place.servers()?;
        ensure!(before.len() >= 4, "{before:?}");
        gateway.kill()?;
        let mut gateway = place.start().await?;
        let start = Instant::now();
        while place.servers()?.iter().any(|(pid, _)| before.iter().any(|(old, _)| old == pid)) {
            ensure!(start.elapsed() < PATIENCE, "left behind: {:?}", place.servers()?);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        call(&Client::of(&gateway)?, "killed-0").await.context("after the restart")?;
        gateway.stop()?;
        place.is_clean().await?;
    }
    Ok(())
}
