//! MCP servers behind `https://`: whom the gateway believes, and what it says of those that it does not.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use axum::http::{StatusCode, header};
use serde_json::{Value, json};
use tests::fixture::{Fixture, offered};
use tests::gateway::{Gateway, Options, command};
use tests::tls::{Authority, Door, Identity};
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use crate::mcp::client::{Client, ERAS, soon, text};

const HOST: &[&str] = &["localhost"];

/// A fixture server behind a door, and a folder with the file `ca.pem` that makes it believed.
struct Rig {
    authority: Authority,
    door: Door,
    folder: tempfile::TempDir,
    fixture: Fixture,
}

impl Rig {
    async fn new(fixture: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let authority = Authority::new("ours")?;
        authority.write(&folder.path().join("ca.pem"))?;
        let fixture = Fixture::start(fixture).await?;
        let door = Door::open(fixture.url(), authority.identity(HOST)?).await?;
        Ok(Self { authority, door, folder, fixture })
    }

    /// A hand of this name that is to believe what the file says.
    fn hand(&self, name: &str, url: &str, ca: Option<&str>) -> String {
        let ca = ca.map(|file| format!("ca = \"{}\"\n", self.folder.path().join(file).display()));
        format!("[hands.{name}]\nkind = \"mcp\"\nurl = \"{url}\"\n{}", ca.unwrap_or_default())
    }

    async fn gateway(&self, config: &str) -> Result<Gateway> {
        std::fs::write(self.folder.path().join("manyhands.toml"), config)?;
        Gateway::start(Options::default().data(&self.folder.path().join("data")).config(config)).await
    }
}

fn shown(gateway: &Gateway, hand: &str) -> Result<Value> {
    let shown = gateway.cli(&["hand", "show", hand, "--json"])?;
    ensure!(shown.status.success(), "{shown:?}");
    Ok(serde_json::from_slice(&shown.stdout)?)
}

/// What `doctor` says of this hand's server, beside a gateway or without one.
fn doctor(folder: &Path, hand: &str) -> Result<Value> {
    let file = folder.join("manyhands.toml");
    let said =
        command(&folder.join("nobodys")).arg("--config").arg(file).args(["doctor", "--json"]).output()?;
    let lines: Vec<Value> = serde_json::from_slice(&said.stdout).with_context(|| format!("{said:?}"))?;
    let subject = format!("hand {hand}, server");
    let line = lines.iter().find(|line| line["subject"] == *subject);
    Ok(line.with_context(|| format!("nothing of {subject} in {lines:#?}"))?.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_of_both_eras_are_used_over_tls() -> Result<()> {
    for era in ["2026", "2025"] {
        let rig = Rig::new(&["--era", era]).await?;
        let url = rig.door.url("/mcp");
        let gateway = rig.gateway(&rig.hand("web", &url, Some("ca.pem"))).await?;
        offered(&gateway, "web").await?;
        let line = doctor(rig.folder.path(), "web")?;
        ensure!(line["state"] == "ok" && line["found"].to_string().contains("answers, MCP 202"), "{line}");
        // Added by hand, the path is as seen from where it was typed.
        let added = command(gateway.data())
            .current_dir(rig.folder.path())
            .args(["--config", "manyhands.toml", "hand", "add", "more", "--url", &url, "--ca", "ca.pem"])
            .output()?;
        ensure!(added.status.success(), "{added:?}");
        ensure!(shown(&gateway, "more")?["config"]["ca"] == json!(rig.folder.path().join("ca.pem")));
        for client in ERAS {
            let client = Client::owner(&gateway, client, "tls").await?;
            for hand in ["web", "more"] {
                let result = client.call(&format!("{hand}__echo"), json!({"text": "安全"})).await?;
                ensure!(text(&result).contains("安全"), "{result}");
                // Streams and long answers, too.
                let result = client.call(&format!("{hand}__big"), json!({"bytes": 300_000})).await?;
                ensure!(text(&result).len() >= 300_000, "{}", text(&result).len());
            }
        }
    }
    Ok(())
}

/// What can't be believed is one sentence, the same everywhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_not_believed_is_told_why() -> Result<()> {
    let rig = Rig::new(&[]).await?;
    let (folder, good) = (rig.folder.path(), &rig.authority);
    Authority::new("theirs")?.write(&folder.join("other.pem"))?;
    std::fs::write(folder.join("none.pem"), "nothing\n")?;
    let door = async |identity: Identity| Door::open(rig.fixture.url(), identity).await;
    let (expired, strange) = (door(good.expired(HOST)?).await?, door(good.identity(&["a.example"])?).await?);
    let plain = rig.fixture.url().replace("http:", "https:");
    let file = |name: &str| folder.join(name).display().to_string();
    let cases = [
        (
            "other",
            rig.door.url("/mcp"),
            Some("other.pem"),
            format!("signed by nobody in its ca file {}", file("other.pem")),
        ),
        ("nobodys", rig.door.url("/mcp"), None, "signed by nobody whom this machine trusts".to_owned()),
        (
            "expired",
            expired.url("/mcp"),
            Some("ca.pem"),
            "its certificate expired at 2020-01-01T00:00:00Z".to_owned(),
        ),
        (
            "strange",
            strange.url("/mcp"),
            Some("ca.pem"),
            "is for a.example, and not for localhost".to_owned(),
        ),
        (
            "missing",
            rig.door.url("/mcp"),
            Some("gone.pem"),
            format!("its ca file {} can't be read", file("gone.pem")),
        ),
        ("empty", rig.door.url("/mcp"), Some("none.pem"), "holds no certificate".to_owned()),
        ("plain", plain, Some("ca.pem"), "does not speak TLS".to_owned()),
    ];
    let config: Vec<_> = cases.iter().map(|(name, url, ca, _)| rig.hand(name, url, *ca)).collect();
    let gateway = rig.gateway(&config.concat()).await?;
    for (hand, _, _, why) in &cases {
        soon(async || Ok(shown(&gateway, hand)?["state"] == "down")).await?;
        let down = shown(&gateway, hand)?["down"]["why"].to_string();
        let line = doctor(folder, hand)?;
        let called = gateway.cli(&["hand", "call", hand, "echo", "{}"])?;
        let called = String::from_utf8_lossy(&called.stderr).into_owned();
        eprintln!("{hand}: {}", called.trim());
        for said in [&down, &line["found"].to_string(), &called] {
            ensure!(
                said.contains(why.as_str()) && said.lines().count() == 1,
                "{hand}: {why:?} is not in {said}"
            );
        }
        ensure!(line["state"] == "missing" && line["remedy"].to_string().contains("ca"), "{line}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_says_it_too_and_a_new_file_is_read() -> Result<()> {
    let rig = Rig::new(&[]).await?;
    let gateway = rig.gateway(&rig.hand("web", &rig.door.url("/mcp"), Some("ca.pem"))).await?;
    offered(&gateway, "web").await?;
    for era in ERAS {
        let client = Client::owner(&gateway, era, "tls").await?;
        let call = async || client.call("web__echo", json!({"text": "x"})).await;
        ensure!(call().await?["isError"] != true);
        rig.door.show(rig.authority.expired(HOST)?);
        // A connection that was just cut may be met first.
        let expired = async || Ok(text(&call().await?).contains("its certificate expired at 2020-01-01"));
        soon(expired).await?;
        let refused = call().await?;
        ensure!(
            refused["isError"] == true && text(&refused).contains("correct its URL, headers or ca"),
            "{refused}"
        );
        // Another authority signs from now on, and its file takes the place of the former.
        let next = Authority::new("next")?;
        rig.door.show(next.identity(HOST)?);
        let unknown = async || Ok(text(&call().await?).contains("signed by nobody in its ca file"));
        soon(unknown).await?;
        next.write(&rig.folder.path().join("ca.pem"))?;
        soon(async || Ok(call().await?["isError"] != true)).await?;
        rig.authority.write(&rig.folder.path().join("ca.pem"))?;
        rig.door.show(rig.authority.identity(HOST)?);
        soon(async || Ok(call().await?["isError"] != true)).await?;
    }
    Ok(())
}

/// Neither from https to http nor to another place: what the configuration has for a server goes to no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirect_leads_nowhere() -> Result<()> {
    let rig = Rig::new(&[]).await?;
    let elsewhere = TcpListener::bind("127.0.0.1:0").await?;
    let port = elsewhere.local_addr()?.port();
    let (met, tasks) = (Arc::new(AtomicUsize::new(0)), TaskTracker::new());
    let meeting = met.clone();
    let listening = tasks.spawn(async move {
        while elsewhere.accept().await.is_ok() {
            meeting.fetch_add(1, Ordering::SeqCst);
        }
    });
    let mut doors = Vec::new();
    let mut config = String::new();
    for (name, to) in
        [("down", format!("http://127.0.0.1:{port}/mcp")), ("aside", format!("https://localhost:{port}/mcp"))]
    {
        let redirecting = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/mcp", redirecting.local_addr()?);
        let answer = move || {
            let to = to.clone();
            async move { (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)]) }
        };
        let router = axum::Router::new().route("/mcp", axum::routing::any(answer));
        tasks.spawn(async move { axum::serve(redirecting, router).await });
        let door = Door::open(&url, rig.authority.identity(HOST)?).await?;
        config += &rig.hand(name, &door.url("/mcp"), Some("ca.pem"));
        config += "headers = { X-Secret = { env = \"HOME\" } }\n";
        doors.push(door);
    }
    let gateway = rig.gateway(&config).await?;
    for hand in ["down", "aside"] {
        soon(async || Ok(shown(&gateway, hand)?["state"] == "down")).await?;
        let why = shown(&gateway, hand)?["down"]["why"].to_string();
        ensure!(why.contains("a redirect to http") && why.contains("not followed"), "{why}");
        let called = gateway.cli(&["hand", "call", hand, "echo", "{}"])?;
        ensure!(String::from_utf8_lossy(&called.stderr).contains("not followed"), "{called:?}");
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    ensure!(met.load(Ordering::SeqCst) == 0, "somebody was sent on");
    listening.abort();
    Ok(())
}

#[test]
fn a_ca_is_for_https() {
    let home = crate::cli::Home::new();
    let add = |url: &str| home.run(&["hand", "add", "x", "--url", url, "--ca", "ca.pem"]);
    add("http://127.0.0.1:9/mcp").refuses(1, &["ca is for a server with a url of https://"]);
    home.run(&["hand", "add", "x", "--ca", "ca.pem", "--", "true"]).refuses(2, &["--ca"]);
    add("https://127.0.0.1:9/mcp").refuses(1, &["ca.pem can't be read"]);
}
