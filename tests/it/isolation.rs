//! One server that harms its own calls delays nothing else of the whole gateway: while its call waits, lists and the
//! calls of another hand come to their ends. What decides is the order in which things end, not how long they take.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tests::fixture::offered;
use tests::gateway::{Gateway, Options};
use tokio::task::JoinSet;

use crate::mcp::client::{Client, ERAS, Era, HANGS, text};

/// A gateway with the hands `bad` and `good`.
struct Rig {
    gateway: Gateway,
    client: Client,
    folder: tempfile::TempDir,
}

/// A call that waits.
struct Harm(JoinSet<Result<Value>>);

impl Harm {
    /// It waits still.
    fn waits(&mut self) -> Result<()> {
        let ended = self.0.try_join_next();
        ensure!(ended.is_none(), "it has ended: {ended:?}");
        Ok(())
    }

    /// Its answer.
    async fn answer(mut self) -> Result<Value> {
        self.0.join_next().await.context("it runs")??
    }
}

impl Rig {
    async fn start(bad: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("it/isolation/server.py");
        let server = |options: &[&str]| {
            let folder = folder.path().to_string_lossy().into_owned();
            let mut command = vec!["python3".to_owned(), script.to_string_lossy().into_owned(), folder];
            command.extend(options.iter().map(|&option| option.to_owned()));
            command
        };
        let hand = |name: &str, options: &[&str]| {
            format!("[hands.{name}]\nkind = \"mcp\"\ncommand = {:?}\n", server(options))
        };
        let config = hand("bad", bad) + &hand("good", &[]);
        let gateway = Gateway::start(Options::default().config(&config)).await?;
        offered(&gateway, "good").await?;
        let client = Client::owner(&gateway, Era::Modern, "isolation").await?;
        Ok(Self { gateway, client, folder })
    }

    /// Begins a call that does not end, and waits until the server is where it does harm. The process id of the server.
    async fn harm(&self, tool: &str) -> Result<(Harm, Pid)> {
        offered(&self.gateway, "bad").await?;
        let (client, name) = (self.client.clone(), format!("bad__{tool}"));
        let call = json!({"name": name, "arguments": {}});
        let mut running = JoinSet::new();
        running.spawn(async move { client.request("tools/call", call).await });
        Ok((Harm(running), self.noted(tool).await?))
    }

    /// Waits for what a server notes.
    async fn noted(&self, name: &str) -> Result<Pid> {
        let path = self.folder.path().join(name);
        let waiting = async {
            while !path.exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(HANGS, waiting).await;
        waited.with_context(|| format!("{name} is not noted; the gateway:\n{}", self.gateway.stderr()))?;
        Pid::from_raw(std::fs::read_to_string(path)?.parse()?).context("a process")
    }

    /// What must work all the time: in the session that waits, and in others that begin now, in both eras.
    async fn others_go_on(&self) -> Result<()> {
        let mut clients = vec![self.client.clone()];
        for era in ERAS {
            clients.push(Client::owner(&self.gateway, era, &format!("beside-{}", era.version())).await?);
        }
        for client in &clients {
            for round in 0..5 {
                let list = client.result("tools/list", json!({})).await?.to_string();
                ensure!(list.contains("good__echo"), "{list}");
                let words = format!("round {round}");
                let said = client.call("good__echo", json!({ "text": words })).await?;
                ensure!(text(&said) == words, "{said}");
            }
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_stopped_server() -> Result<()> {
    let rig = Rig::start(&[]).await?;
    let (mut call, server) = rig.harm("stop").await?;
    rig.others_go_on().await?;
    call.waits()?;
    kill_process(server, Signal::CONT)?;
    let answer = call.answer().await?;
    ensure!(text(&answer["result"]) == "went on", "{answer}");
    Ok(())
}

#[tokio::test]
async fn an_answer_of_a_hundred_megabytes() -> Result<()> {
    let rig = Rig::start(&[]).await?;
    let (mut call, _) = rig.harm("huge").await?;
    rig.others_go_on().await?;
    call.waits()?;
    rig.client.call("bad__go", json!({})).await?;
    let answer = call.answer().await?.to_string();
    ensure!(answer.contains("64 MiB"), "{answer:.1000}");
    Ok(())
}

#[tokio::test]
async fn a_flood_of_messages() -> Result<()> {
    let rig = Rig::start(&[]).await?;
    let (mut call, _) = rig.harm("flood").await?;
    rig.others_go_on().await?;
    call.waits()?;
    rig.client.call("bad__go", json!({})).await?;
    let answer = call.answer().await?;
    ensure!(text(&answer["result"]) == "after the flood", "{answer}");
    Ok(())
}

#[tokio::test]
async fn a_server_that_is_silent_when_it_is_greeted() -> Result<()> {
    let rig = Rig::start(&["silent"]).await?;
    rig.noted("silent").await?;
    rig.others_go_on().await?;
    let list = rig.client.result("tools/list", json!({})).await?.to_string();
    ensure!(!list.contains("bad__"), "it has been greeted: {list}");
    std::fs::write(rig.folder.path().join("speak"), "")?;
    offered(&rig.gateway, "bad").await?;
    let said = rig.client.call("bad__echo", json!({"text": "here"})).await?;
    ensure!(text(&said) == "here", "{said}");
    Ok(())
}
