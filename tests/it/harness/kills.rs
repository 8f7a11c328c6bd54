//! `kill -9` of the real gateway while its loop works with hands of three kinds: two sandboxes, an MCP server on pipes,
//! and a game console. Another start goes on, and nothing happens twice in any of them.
//!
//! How often is set by `MANYHANDS_TEST_KILLS`, for longer runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gateway::session::Event;
use serde_json::{Value, json};
use tests::gateway::{Gateway, Options};
use tests::postgres;
use tokio_util::task::TaskTracker;

use super::crash::{CALLS, dice, times};
use super::rig::{field, lines, rests, said};
use crate::crash::client::Client;
use crate::crash::truth::{self, Reader};

/// Pictures of the game for which each call holds a button, of which one more or less is counted.
const HELD: u64 = 8;
/// The hand of each call.
const HANDS: [&str; CALLS] =
    ["one", "two", "server", "game", "one", "server", "two", "game", "one", "server", "two", "game"];

/// What the gateways need, which come one after the other.
struct Place {
    folder: tempfile::TempDir,
    options: Options,
}

impl Place {
    /// The brain follows a script and takes its time. What the server is sent is written down on its way.
    fn new(database: Option<&str>) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let game = folder.path().join("game.gb");
        std::fs::write(&game, tests::game::game())?;
        let (sent, server) = (folder.path().join("sent"), tests::fixture::binary());
        let command = format!("tee -a '{}' | '{}' --stdio", sent.display(), server.display());
        let hands = json!({
            "one": {"kind": "sandbox"},
            "two": {"kind": "sandbox"},
            "server": {"kind": "mcp", "command": ["sh", "-c", command]},
            "game": {"kind": "emulator", "rom": game},
        });
        let options = Options::default()
            .env("MANYHANDS_BRAIN_MODEL", "scripted/demo")
            .env("MANYHANDS_BRAIN_TOKEN_MS", "15")
            .env("MANYHANDS_NODES_HEARTBEAT_MS", "200")
            .env("MANYHANDS_NODES_DEAD_AFTER_MS", "1000")
            .config(&crate::kinds::rig::toml(&hands)?)
            .data(&folder.path().join("data"));
        let options = match database {
            Some(url) => options.env("MANYHANDS_DATABASE_URL", url),
            None => options,
        };
        Ok(Self { folder, options })
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The texts of all calls that have reached the server.
    fn sent(&self) -> Vec<String> {
        let messages = lines(&self.folder.path().join("sent")).into_iter();
        let messages = messages.filter_map(|line| serde_json::from_str::<Value>(&line).ok());
        let calls = messages.filter(|message| message["method"] == "tools/call");
        calls.filter_map(|call| call["params"]["arguments"]["text"].as_str().map(str::to_owned)).collect()
    }
}

/// Twelve calls. `round` tells what a server that knows no session is sent.
fn script(round: usize) -> String {
    let mut script = "@say Let me see.\n".to_owned();
    for (n, hand) in HANDS.iter().enumerate() {
        let (tool, input) = match *hand {
            "server" => ("echo", json!({"text": format!("{round}-{n}")})),
            "game" => ("press", json!({"buttons": ["a"], "frames": HELD})),
            _ => {
                let command = format!("echo {n} >> /workspace/log; sleep 0.05; echo did {n}");
                ("bash", json!({"command": command}))
            }
        };
        script += &format!("@call {hand}__{tool} {input}\n");
        if n % 2 == 1 {
            script += "@then\n@say Going on, and on, and on.\n";
        }
    }
    script + "@say All done."
}

/// How often the calls of a hand ended in which way.
fn outcomes(events: &[Event], hand: &str) -> BTreeMap<String, u64> {
    let mut outcomes = BTreeMap::new();
    let uses =
        events.iter().filter(|event| field(event, "hand.name") == hand && event.kind() == "agent.tool_use");
    for id in uses.map(|event| event.id.to_string()) {
        let result = events
            .iter()
            .find(|event| event.kind() == "agent.tool_result" && field(event, "tool_use_id") == id.as_str());
        let outcome = result.and_then(|event| field(event, "outcome").as_str()).unwrap_or("none");
        *outcomes.entry(outcome.to_owned()).or_default() += 1;
    }
    outcomes
}

/// What happened is what the log says: all that is `ok`, nothing twice, and of what is `unknown` perhaps some.
async fn check(place: &Place, client: &Client, round: usize, events: &[Event]) -> Result<()> {
    let session = format!("round-{round}");
    let told = |hand: &str, outcome: &str| outcomes(events, hand).get(outcome).copied().unwrap_or(0);
    let fits = |hand: &str, happened: u64| {
        let (sure, open) = (told(hand, "ok"), told(hand, "unknown"));
        ensure!((sure..=sure + open).contains(&happened), "{hand}: {happened} of {sure} and {open} unknown");
        Ok(())
    };
    let mut did = place.sent();
    did.retain(|text| text.starts_with(&format!("{round}-")));
    fits("server", did.len() as u64)?;
    for hand in ["one", "two"] {
        let cat = json!({"command": "cat /workspace/log 2>/dev/null || true"});
        let logged = text(&client.tool(&session, &format!("{hand}__bash"), cat, None).await?);
        let numbers = logged.lines().filter(|line| line.parse::<usize>().is_ok());
        let before = did.len();
        did.extend(numbers.map(|n| format!("{round}-{n}")));
        fits(hand, (did.len() - before) as u64)?;
    }
    let all = did.len();
    did.sort_unstable();
    did.dedup();
    ensure!(did.len() == all, "something ran twice: {did:?}");

    let (sure, open) = (told("game", "ok"), told("game", "unknown"));
    let read = client.tool(&session, "game__read_memory", json!({"address": "0xc001"}), None).await?;
    let read = text(&read);
    let byte = read.split_once("c001: ").and_then(|(_, byte)| byte.get(..2));
    let pressed = u64::from_str_radix(byte.with_context(|| read.clone())?, 16)?;
    let range = sure * (HELD - 1)..=(sure + open) * (HELD + 1);
    ensure!(range.contains(&pressed), "the button was down for {pressed} pictures, not {range:?}: {read}");
    println!(
        "round {round}: {:?}, {all} had their effect beside {pressed} pictures",
        truth::outcomes(events)
    );
    Ok(())
}

/// A block begins a line: the first may be a note on the instance, in front of what the call printed.
fn text(result: &Value) -> String {
    let texts = result["content"].as_array().into_iter().flatten();
    texts.filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
}

/// The real gateway, killed while its loop is at work, and started again.
async fn kills(database: Option<&str>, reader: impl AsyncFn(&Path) -> Result<Reader>) -> Result<()> {
    let place = Place::new(database)?;
    let seed = u64::from_le_bytes(gateway::clock::secret());
    println!("seed {seed}");
    let (mut dice, mut unknown) = (dice(seed), 0);
    for round in 0..times("MANYHANDS_TEST_KILLS", 3) {
        let session = format!("round-{round}");
        let mut gateway = Gateway::start(place.options.clone()).await?;
        let reader = reader(&place.data()).await?;
        let asked = {
            let (data, session) = (place.data(), session.clone());
            TaskTracker::new().spawn_blocking(move || {
                tests::gateway::run(&data, &["run", "--session", &session, &script(round)])
            })
        };
        reader.until(&session, |events| events.iter().any(|event| event.kind() == "user.message")).await?;
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_millis(dice(1_200))).await;
            gateway.kill()?;
            gateway = Gateway::start(place.options.clone()).await?;
        }
        asked.await??;
        let events = reader.until(&session, |events| rests(events) == ["end_turn"]).await?;
        truth::check(&events).with_context(|| format!("round {round}, seed {seed}"))?;
        ensure!(said(&events).last().is_some_and(|last| last.ends_with("All done.")), "{:?}", said(&events));
        let outcomes = truth::outcomes(&events);
        ensure!(outcomes.values().sum::<usize>() == CALLS, "{outcomes:?}");
        let client = Client::of(&gateway)?;
        check(&place, &client, round, &events)
            .await
            .with_context(|| format!("round {round}, seed {seed}"))?;
        unknown += outcomes.get("unknown").copied().unwrap_or(0);
        gateway.stop()?;
    }
    println!("{unknown} outcomes that nobody knows");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_goes_on_with_its_sessions_on_sqlite() -> Result<()> {
    kills(None, async |data: &Path| Reader::directory(data).await).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_goes_on_with_its_sessions_on_postgresql() -> Result<()> {
    let database = postgres::database().await?;
    kills(Some(database.url()), async |_: &Path| Reader::url(database.url()).await).await
}
