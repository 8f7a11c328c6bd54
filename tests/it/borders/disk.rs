//! A principal that fills the disk.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use hands::disk::space;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::gateway::{Gateway, Options, binary, command};

use crate::mcp::client::{Client, Era, text};

const MIB: u64 = 1 << 20;
/// The size of a small disk, in MiB.
const SMALL: u64 = 64;
/// Bytes of text in one event of a flood.
const PIECE: usize = 900_000;
/// The longest that giving space back may take: ten times what it does on two busy cores.
const GIVEN_BACK: Duration = Duration::from_mins(2);

/// A gateway whose data directory is a disk of [`SMALL`] MiB, in a mount namespace of its own.
struct SmallDisk {
    home: TempDir,
    gateway: Child,
    url: String,
}

impl SmallDisk {
    /// Keeps `free` MiB free.
    fn start(free: u64, further: &[(&str, &str)]) -> Result<Self> {
        let home = tempfile::Builder::new().prefix("mh-").tempdir()?;
        std::fs::create_dir(home.path().join("data"))?;
        let mut unshare = command(&home.path().join("data"));
        let clean: Vec<_> =
            unshare.get_envs().map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned))).collect();
        unshare = Command::new("unshare");
        for (name, value) in clean {
            match value {
                Some(value) => unshare.env(name, value),
                None => unshare.env_remove(name),
            };
        }
        if !geteuid().is_root() {
            unshare.arg("--map-root-user");
        }
        let script =
            format!("mount -t tmpfs -o size={SMALL}m tmpfs data && exec \"$0\" serve --listen 127.0.0.1:0");
        let mut gateway = unshare
            .args(["--mount", "bash", "-c", &script])
            .arg(binary())
            .env("MANYHANDS_LIMITS_FREE_DISK_MIB", free.to_string())
            .envs(further.iter().copied())
            .current_dir(home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(home.path().join("log"))?)
            .spawn()?;
        let mut line = String::new();
        BufReader::new(gateway.stdout.take().context("no output")?).read_line(&mut line)?;
        let url = line.trim().strip_prefix("listening on ").map(str::to_owned);
        let url =
            url.with_context(|| std::fs::read_to_string(home.path().join("log")).unwrap_or_default())?;
        Ok(Self { home, gateway, url })
    }

    /// A path of the data directory, as this process can reach it.
    fn data(&self, name: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.gateway.id()));
        let data = self.home.path().join("data");
        root.join(data.strip_prefix("/").unwrap_or(&data)).join(name)
    }

    fn free(&self) -> Result<u64> {
        Ok(space(&self.data(""))?.free)
    }

    fn log_bytes(&self) -> Result<u64> {
        Ok(std::fs::metadata(self.data("manyhands.db"))?.len())
    }

    /// Runs a program where the disk is.
    fn run(&self, program: &[&str]) -> Result<Output> {
        let mut enter = Command::new("nsenter");
        enter.args(["--target", &self.gateway.id().to_string(), "--mount"]);
        if !geteuid().is_root() {
            enter.args(["--user", "--preserve-credentials"]);
        }
        enter.args(program).env("MANYHANDS_DATA", self.home.path().join("data"));
        Ok(enter.stdin(Stdio::null()).output()?)
    }

    /// What a command of the gateway's prints; it must succeed.
    fn cli(&self, args: &[&str]) -> Result<String> {
        let program = binary();
        let out = self.run(&[&[program.to_str().context("a path")?], args].concat())?;
        ensure!(out.status.success(), "{args:?}: {out:?}");
        Ok(String::from_utf8(out.stdout)?)
    }

    fn token(&self, name: &str) -> Result<String> {
        let said = self.cli(&["token", "new", name])?;
        Ok(said.split_whitespace().find(|word| word.starts_with("mh_")).context("no token")?.to_owned())
    }

    async fn client(&self, token: &str, session: &str) -> Result<Client> {
        Client::at(&format!("{}/mcp/sessions/{session}", self.url), token, Era::Modern).await
    }

    /// Whether every page of the database is where it belongs.
    fn ensure_whole(&self) -> Result<()> {
        let script = "import sqlite3, sys\nprint(sqlite3.connect(sys.argv[1]).execute('pragma integrity_check').fetchall())";
        let file = self.home.path().join("data/manyhands.db");
        let out = self.run(&["python3", "-c", script, file.to_str().context("a path")?])?;
        let said = String::from_utf8_lossy(&out.stdout);
        ensure!(said.trim() == "[('ok',)]", "{out:?}");
        Ok(())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Cleanly: only the gateway itself can take its sandboxes with it.
        if let Some(pid) = i32::try_from(self.gateway.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.gateway.wait();
    }
}

fn note(bytes: usize) -> Value {
    json!({ "type": "note.x", "data": { "text": "x".repeat(bytes) } })
}

/// Emits until it is refused: how often it was not, and the sentence.
async fn flood(client: &Client) -> Result<(usize, String)> {
    for emitted in 0..200 {
        let result = client.call("session_emit", note(PIECE)).await?;
        if result["isError"] == true {
            return Ok((emitted, text(&result).to_owned()));
        }
    }
    anyhow::bail!("180 MB went to a disk of {SMALL} MiB")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_ends_at_its_quota_and_leaves_others_their_room() -> Result<()> {
    let disk = SmallDisk::start(8, &[])?;
    let attacker = disk.client(&disk.token("attacker")?, "flood").await?;
    let other = disk.client(&disk.token("other")?, "work").await?;
    let (emitted, why) = flood(&attacker).await?;
    ensure!(why.contains("limits.stored_bytes"), "{why}");
    let bytes = u64::try_from(emitted * PIECE)?;
    // An eighth of the disk, and the event that went beyond it.
    ensure!(bytes <= SMALL * MIB / 8 + MIB, "{bytes}");
    other.ask("session_emit", note(10)).await?;
    let ran = other.call("sandbox__bash", json!({ "command": "echo hello > file; cat file" })).await?;
    ensure!(text(&ran) == "hello\n", "{ran}");
    ensure!(disk.free()? > 8 * MIB, "{}", disk.free()?);
    disk.ensure_whole()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_emptied_by_deleting() -> Result<()> {
    let kept = 16;
    let disk = SmallDisk::start(kept, &[("MANYHANDS_LIMITS_STORED_BYTES", "1000000000000")])?;
    let attacker = disk.client(&disk.token("attacker")?, "flood").await?;
    let other = disk.client(&disk.token("other")?, "work").await?;
    other.ask("session_emit", note(10)).await?;
    let running = other.bash("sleep 15; echo settled", json!({})).await?;
    let empty = disk.free()?;
    let (_, why) = flood(&attacker).await?;
    ensure!(why.contains("limits.free_disk_mib") && why.contains("session delete"), "{why}");
    ensure!(disk.free()? > (kept - 4) * MIB, "the flood took what is kept free: {} are left", disk.free()?);
    // Others begin nothing either, and are told the same. What runs is settled, from what is kept.
    for refused in [
        other.call("session_emit", note(10)).await?,
        other.call("sandbox__bash", json!({ "command": "true" })).await?,
    ] {
        ensure!(refused["isError"] == true && text(&refused).contains("limits.free_disk_mib"), "{refused}");
    }
    let settled = running.result().await?;
    ensure!(text(&settled) == "settled\n", "{settled}");

    // Somebody else takes the rest.
    let fill = disk.data("fill");
    let full = Command::new("head").args(["-c", "1G", "/dev/zero"]).stdout(File::create(&fill)?).output()?;
    ensure!(!full.status.success() && disk.free()? == 0, "{} are free", disk.free()?);
    let before = disk.log_bytes()?;
    let released = other.call("hand_release", json!({ "hand": "sandbox" })).await?;
    ensure!(released["isError"] != true, "{released}");
    for done in ["archive", "delete"] {
        disk.cli(&["session", done, "flood", "--principal", "local:attacker"])?;
    }
    given_back(|| Ok(disk.log_bytes()? < 2 * MIB)).await?;
    std::fs::remove_file(&fill)?;
    let (after, free) = (disk.log_bytes()?, disk.free()?);
    ensure!(before > 20 * MIB && after < 2 * MIB, "{before} → {after}");
    ensure!(free + 8 * MIB > empty, "{free} are free, and {empty} were before");
    ensure!(
        std::fs::metadata(disk.data("manyhands.db-wal"))?.len() <= 8 * MIB,
        "the write-ahead log stays large"
    );
    // The reserve is there again with the next that begins.
    tokio::time::sleep(Duration::from_secs(1)).await;
    attacker.ask("session_emit", note(10)).await?;
    ensure!(disk.data("reserve").exists(), "the reserve is not made again");
    disk.ensure_whole()
}

/// Waits until it is so.
async fn given_back(mut so: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = std::time::Instant::now();
    while !so()? {
        ensure!(start.elapsed() < GIVEN_BACK, "the space does not come back");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Runs SQL on a database that no gateway has open.
fn sql(data: &Path, statements: &str) -> Result<String> {
    let script = "import sqlite3, sys\nopen = sqlite3.connect(sys.argv[1], isolation_level=None)\n\
                  for text in sys.argv[2].split(';'): print(open.execute(text).fetchall())";
    let out = Command::new("python3")
        .args(["-c", script])
        .arg(data.join("manyhands.db"))
        .arg(statements)
        .output()?;
    ensure!(out.status.success(), "{out:?}");
    Ok(String::from_utf8(out.stdout)?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_of_before_is_converted_and_gives_back() -> Result<()> {
    let home = tempfile::Builder::new().prefix("mh-").tempdir()?;
    let mut gateway = Gateway::start(Options::default().data(home.path())).await?;
    let client = Client::owner(&gateway, Era::Modern, "old").await?;
    for _ in 0..10 {
        client.ask("session_emit", note(PIECE)).await?;
    }
    gateway.stop()?;
    drop(gateway);
    sql(home.path(), "pragma auto_vacuum = 0;vacuum;pragma journal_mode = wal")?;
    let doctor = |data: &Path| -> Result<String> {
        let out = command(data).args(["doctor"]).output()?;
        let said = String::from_utf8(out.stdout)?;
        Ok(said.lines().find(|line| line.contains("database:")).context(said.clone())?.to_owned())
    };
    ensure!(doctor(home.path())?.starts_with("weaker"), "{}", doctor(home.path())?);

    let gateway = Gateway::start(Options::default().data(home.path())).await?;
    ensure!(doctor(home.path())?.starts_with("ok"), "{}", doctor(home.path())?);
    let file = home.path().join("manyhands.db");
    ensure!(std::fs::metadata(&file)?.len() > 8 * MIB);
    let out = gateway.cli(&["session", "delete", "old"])?;
    ensure!(out.status.success(), "{out:?}");
    given_back(|| Ok(std::fs::metadata(&file)?.len() < 2 * MIB)).await
}
