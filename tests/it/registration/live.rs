//! `manyhands.toml` read again: running clients see its hands come and go, without a restart.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde_json::json;
use tests::gateway::{Gateway, Options};

use crate::mcp::client::{Client, Era, Stream};

const TOOLS: &str = "notifications/tools/list_changed";
/// How long anything may take that is done in a moment.
const PATIENCE: Duration = Duration::from_secs(30);

/// A gateway whose configuration file changes, and a client that was there before.
struct Watched {
    gateway: Gateway,
    client: Client,
    stream: Stream,
    folder: tempfile::TempDir,
}

impl Watched {
    async fn start(toml: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("manyhands.toml");
        std::fs::write(&file, toml)?;
        let mut options = Options::default().data(&folder.path().join("data"));
        options.args = vec!["--config".into(), file.display().to_string()];
        let gateway = Gateway::start(options).await?;
        let client = Client::owner(&gateway, Era::Modern, "live").await?;
        let mut stream = client.listen(&[]).await?;
        while stream.within(Duration::from_millis(400)).await?.is_some() {}
        Ok(Self { gateway, client, stream, folder })
    }

    fn file(&self) -> std::path::PathBuf {
        self.folder.path().join("manyhands.toml")
    }

    /// As editors do: a new file takes the place of the old one.
    fn replace(&self, toml: &str) -> Result<()> {
        let new = self.folder.path().join(".manyhands.toml.swp");
        std::fs::write(&new, toml)?;
        Ok(std::fs::rename(&new, self.file())?)
    }

    /// Waits until the client has been told, and returns the hands it sees.
    async fn told(&mut self) -> Result<Vec<String>> {
        loop {
            let message = self.stream.next().await?.context("the stream ended")?;
            if message["method"] == TOOLS {
                return self.hands().await;
            }
        }
    }

    async fn hands(&self) -> Result<Vec<String>> {
        let list = self.client.result("tools/list", json!({})).await?;
        let names =
            list["tools"].as_array().context("tools")?.iter().filter_map(|tool| tool["name"].as_str());
        Ok(names.filter_map(|name| Some(name.strip_suffix("__bash")?.to_owned())).collect())
    }

    async fn logs(&self, parts: &[&str]) -> Result<()> {
        let start = Instant::now();
        while !parts.iter().all(|part| self.gateway.stderr().contains(part)) {
            ensure!(start.elapsed() < PATIENCE, "{parts:?} is not in\n{}", self.gateway.stderr());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

#[tokio::test]
async fn hands_of_the_file_come_and_go_within_a_second() -> Result<()> {
    let mut watched = Watched::start("[hands.one]\nkind = \"sandbox\"\n").await?;
    ensure!(watched.hands().await? == ["one"]);
    let (one, two) = ("[hands.one]\nkind = \"sandbox\"\n", "[hands.two]\nkind = \"sandbox\"\nidle_s = 60\n");
    for (how, toml, hands) in [
        ("replaced", format!("{one}{two}"), &["one", "two"][..]),
        ("written in place", two.to_owned(), &["two"]),
        ("replaced again", one.to_owned(), &["one"]),
    ] {
        let begun = Instant::now();
        if how == "written in place" {
            std::fs::write(watched.file(), &toml)?;
        } else {
            watched.replace(&toml)?;
        }
        // One hand that comes and one that goes are told apart.
        while watched.told().await? != hands {}
        let took = begun.elapsed();
        eprintln!("{how}: told and listed after {took:?}");
        ensure!(took < Duration::from_secs(1), "{how}: {took:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_changed_hand_lets_go_of_its_instances() -> Result<()> {
    let mut watched = Watched::start("[hands.one]\nkind = \"sandbox\"\n").await?;
    watched.client.call("one__bash", json!({"command": "echo kept > file"})).await?;
    watched.replace("[hands.one]\nkind = \"sandbox\"\nidle_s = 61\n")?;
    watched.told().await?;
    watched.logs(&["a hand is set up anew as manyhands.toml says"]).await?;
    let result = watched.client.call("one__bash", json!({"command": "cat file"})).await?;
    let said = result["content"].to_string();
    ensure!(said.contains("kept") && said.contains("had been released"), "{said}");
    Ok(())
}

#[tokio::test]
async fn sighup_reads_it_and_a_broken_one_changes_nothing() -> Result<()> {
    let watched = Watched::start("log = \"info\"\n[hands.one]\nkind = \"sandbox\"\n").await?;
    let line = format!("{}, line 2", watched.file().display());
    watched.replace("[hands.one]\nkind = \"sandbx\"\n")?;
    watched.logs(&["the configuration is left as it was", &line]).await?;
    watched.replace("\n[hands.one]\nkind = \"mcp\"\nurl = \"ftp://h\"\n")?;
    watched.logs(&[&line, "http:// or https://"]).await?;
    ensure!(watched.hands().await? == ["one"]);
    // One that is away for a moment is no empty one.
    std::fs::remove_file(watched.file())?;
    watched.logs(&["can't be read"]).await?;
    ensure!(watched.hands().await? == ["one"]);
    watched
        .replace("drain_s = 3\nlog = \"info\"\n[limits]\nstreams = 9\n[hands.one]\nkind = \"sandbox\"\n")?;
    watched.logs(&["drain_s, limits.streams", "started again"]).await?;
    let read = || watched.gateway.stderr().matches("the configuration was read again").count();
    let before = read();
    watched.gateway.signal(Signal::HUP)?;
    let start = Instant::now();
    while read() == before {
        ensure!(start.elapsed() < PATIENCE, "not read on SIGHUP");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ensure!(watched.hands().await? == ["one"]);
    Ok(())
}

#[tokio::test]
async fn one_name_in_both_places_leaves_the_added_one() -> Result<()> {
    let mut watched = Watched::start("[hands.one]\nkind = \"sandbox\"\n").await?;
    let added = watched.gateway.cli(&["hand", "add", "work", "--kind", "sandbox"])?;
    ensure!(added.status.success(), "{added:?}");
    while watched.told().await? != ["one", "work"] {}
    watched.replace("[hands.work]\nkind = \"sandbox\"\nidle_s = 5\n[hands.two]\nkind = \"sandbox\"\n")?;
    while watched.told().await? != ["two", "work"] {}
    watched.logs(&["two hands are named work", "hand add"]).await?;
    let shown = watched.gateway.cli(&["hand", "show", "work", "--json"])?;
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout)?;
    ensure!(shown["origin"] == "added" && shown["config"]["idle_s"] == 900, "{shown}");
    ensure!(Path::new(&watched.file()).exists());
    Ok(())
}
