//! Hands that one gateway adds and removes, as clients of another on the same PostgreSQL see them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tests::fixture::Fixture;
use tests::gateway::Gateway;
use tests::postgres;

use crate::crash::takeover::on;
use crate::crash::truth::{Reader, of};
use crate::mcp::client::{Client, ERAS, Era, Stream, soon};

const TOOLS: &str = "notifications/tools/list_changed";

#[derive(PartialEq)]
enum Now {
    There,
    Gone,
}

/// A client that was there before, and what it is told.
struct Watching {
    client: Client,
    stream: Stream,
}

impl Watching {
    async fn new(gateway: &Gateway, era: Era) -> Result<Self> {
        let client = Client::owner(gateway, era, &format!("seen-{era:?}").to_lowercase()).await?;
        let mut stream = client.listen(&[]).await?;
        while stream.within(Duration::from_millis(400)).await?.is_some() {}
        Ok(Self { client, stream })
    }

    /// Waits until it has been told of the tool's coming or going.
    async fn told(&mut self, tool: &str, is: Now) -> Result<()> {
        loop {
            let message = self.stream.next().await?.context("the stream ended")?;
            if message["method"] == TOOLS && self.has(tool).await? == (is == Now::There) {
                return Ok(());
            }
        }
    }

    async fn has(&self, tool: &str) -> Result<bool> {
        let list = self.client.result("tools/list", json!({})).await?;
        Ok(list["tools"].as_array().context("tools")?.iter().any(|one| one["name"] == tool))
    }
}

fn hand(gateway: &Gateway, args: &[&str]) -> Result<()> {
    let done = gateway.cli(&[&["hand"], args].concat())?;
    ensure!(done.status.success(), "{args:?}: {done:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_another_gateway_see_hands_come_and_go_within_a_second() -> Result<()> {
    let database = postgres::database().await?;
    let reader = Reader::url(database.url()).await?;
    let first = Gateway::start(on(&database)).await?;
    let second = Gateway::start(on(&database)).await?;
    let fixture = Fixture::start(&[]).await?;
    for era in ERAS {
        let mut watching = Watching::new(&second, era).await?;
        for (name, tool, add) in [
            ("box", "box__bash", &["--kind", "sandbox"][..]),
            ("web", "web__echo", &["--url", fixture.url()]),
        ] {
            hand(&first, &[&["add", name], add].concat())?;
            let begun = Instant::now();
            watching.told(tool, Now::There).await?;
            eprintln!("{era:?}: {name} was told and listed {:?} after it was added", begun.elapsed());
            ensure!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        }
        let answer = watching.client.call("web__echo", json!({"text": "far"})).await?;
        ensure!(answer["isError"] != true, "{answer}");
        watching.client.call("box__bash", json!({"command": "true"})).await?;
        let session = format!("seen-{era:?}").to_lowercase();
        for (name, tool) in [("box", "box__bash"), ("web", "web__echo")] {
            hand(&first, &["remove", name])?;
            let begun = Instant::now();
            watching.told(tool, Now::Gone).await?;
            eprintln!("{era:?}: {name} was told and listed {:?} after it was removed", begun.elapsed());
            ensure!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        }
        let refused =
            watching.client.request("tools/call", json!({"name": "box__bash", "arguments": {}})).await?;
        ensure!(refused["error"]["code"] == -32602, "{refused}");
        // What it held of them has ended, as if it had removed them itself.
        reader.until(&session, |events| of(events, "hand.released").len() == 2).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_removed_and_added_again_is_another_one() -> Result<()> {
    let database = postgres::database().await?;
    let reader = Reader::url(database.url()).await?;
    let first = Gateway::start(on(&database)).await?;
    hand(&first, &["add", "box", "--kind", "sandbox"])?;
    let second = Gateway::start(on(&database)).await?;
    let client = Client::owner(&second, Era::Modern, "again").await?;
    client.call("box__bash", json!({"command": "true"})).await?;
    hand(&first, &["remove", "box"])?;
    hand(&first, &["add", "box", "--kind", "sandbox"])?;
    reader.until("again", |events| of(events, "hand.released").len() == 1).await?;
    soon(async || Ok(client.call("box__bash", json!({"command": "true"})).await.is_ok())).await?;
    // Either gateway removes it, whichever added it; and one of its name is refused by both.
    let twice = second.cli(&["hand", "add", "box", "--kind", "sandbox"])?;
    ensure!(String::from_utf8_lossy(&twice.stderr).contains("exists already"), "{twice:?}");
    hand(&second, &["remove", "box"])?;
    soon(async || Ok(!first.cli(&["hand", "show", "box"])?.status.success())).await
}

/// A gateway that was not told, since its connection for that was lost, looks for itself once it has one again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_missed_is_caught_up() -> Result<()> {
    let database = postgres::database().await?;
    let reader = Reader::url(database.url()).await?;
    let second = Gateway::start(on(&database)).await?;
    let mut watching = Watching::new(&second, Era::Modern).await?;
    let silently = "insert into hand (name, config, created_at) values ('quiet', $1, 'then')";
    let config = json!({"kind": "sandbox"}).to_string();
    reader
        .database
        .write(move |connection| {
            Box::pin(async move {
                sqlx::query(silently).bind(config).execute(connection).await?;
                Ok::<_, gateway::database::DatabaseError>(())
            })
        })
        .await?;
    ensure!(!watching.has("quiet__bash").await?, "nobody told");
    let cut = "select count(pg_terminate_backend(pid)) from pg_stat_activity
        where datname = current_database() and query ilike 'listen%' and pid <> pg_backend_pid()";
    let cut: i64 = sqlx::query_scalar(cut).fetch_one(reader.database.reader()).await?;
    ensure!(cut >= 1, "{cut} connections listen");
    watching.told("quiet__bash", Now::There).await?;
    let shown = second.cli(&["hand", "show", "quiet", "--json"])?;
    let shown: Value = serde_json::from_slice(&shown.stdout)?;
    ensure!(shown["origin"] == "added", "{shown}");
    Ok(())
}
