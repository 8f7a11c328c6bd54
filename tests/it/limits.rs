//! How large and how many things may be that go through the gateway to an MCP server and back.

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tests::fixture::{Fixture, offered};
use tests::gateway::{Gateway, Options};

use crate::mcp::client::{Client, ERAS, Era, text, token};

const MIB: usize = 1 << 20;
/// The most memory that the gateway may have had, in KiB, for results of 60 MiB.
const MEMORY_MAX_KIB: u64 = 1 << 20;

/// A gateway with the fixture server as a hand, and further settings.
async fn gateway(arguments: &[&str], settings: &str) -> Result<(Fixture, Gateway)> {
    gateway_of(arguments, settings, "").await
}

/// The same with further settings of the hand.
async fn gateway_of(arguments: &[&str], settings: &str, of_hand: &str) -> Result<(Fixture, Gateway)> {
    let fixture = Fixture::start(arguments).await?;
    let config =
        format!("{settings}\n[hands.fixture]\nkind = \"mcp\"\nurl = \"{}\"\n{of_hand}\n", fixture.url());
    let gateway = Gateway::start(Options::default().config(&config)).await?;
    offered(&gateway, "fixture").await?;
    Ok((fixture, gateway))
}

async fn client(gateway: &Gateway, era: Era) -> Result<Client> {
    Client::at(&format!("{}/mcp/hands/fixture", gateway.url()), &gateway.owner_token()?, era).await
}

/// The response to a call, read in one go.
async fn whole(client: &Client, era: Era, id: &Value, tool: &str, arguments: Value) -> Result<Value> {
    let mut params = json!({"name": tool, "arguments": arguments});
    let mut further = Vec::new();
    if era == Era::Modern {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": era.version(),
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        further = vec![("Mcp-Method", "tools/call"), ("Mcp-Name", tool)];
    }
    let body = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
    let answer = client.post(&body, &further).await?.text().await?;
    let data = answer.lines().filter_map(|line| line.strip_prefix("data:"));
    let mut messages =
        data.chain([answer.as_str()]).filter_map(|text| serde_json::from_str::<Value>(text).ok());
    let response = messages.find(|message| message["result"].is_object() || message["error"].is_object());
    response.with_context(|| format!("no response: {}", answer.chars().take(400).collect::<String>()))
}

fn start(message: &Value) -> String {
    message.to_string().chars().take(400).collect()
}

#[tokio::test]
async fn large_results_are_carried_and_memory_stays_bounded() -> Result<()> {
    let (_fixture, gateway) = gateway(&[], "").await?;
    for era in ERAS {
        let client = client(&gateway, era).await?;
        // The largest once: a debug build takes its time.
        let largest = if era == Era::Modern { 60 * MIB } else { 10 * MIB };
        for size in [MIB, 10 * MIB, largest] {
            let message = whole(&client, era, &json!(7), "big", json!({"bytes": size})).await?;
            let carried = text(&message["result"]).len();
            ensure!(carried == size, "{era:?} {size}: {carried} bytes, {}", start(&message));
        }
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.pid()))?;
    let high = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let high: u64 = high.trim().trim_end_matches(" kB").parse()?;
    ensure!(high < MEMORY_MAX_KIB, "the gateway had {high} KiB");
    Ok(())
}

#[tokio::test]
async fn large_arguments_are_refused_with_the_limit_and_carried_when_it_is_raised() -> Result<()> {
    let long = "x".repeat(5 * MIB);
    let (_fixture, small) = gateway(&[], "").await?;
    let raised = "[limits]\nbody_bytes = 8388608\n";
    let (_logged, logged) = gateway(&[], raised).await?;
    let (_large, large) = gateway_of(&[], raised, "log = false").await?;
    for era in ERAS {
        let arguments = json!({"text": long});
        // No JSON-RPC message: it is refused before anybody looks what it says.
        let refused = whole(&client(&small, era).await?, era, &json!(7), "echo", arguments.clone()).await;
        ensure!(format!("{refused:?}").contains("at most 4194304"), "the limit is not named: {refused:?}");
        let refused = whole(&client(&logged, era).await?, era, &json!(7), "echo", arguments.clone()).await?;
        ensure!(refused.to_string().contains("over the limit of 1048576"), "{era:?}: {}", start(&refused));
        let carried = whole(&client(&large, era).await?, era, &json!(7), "echo", arguments).await?;
        ensure!(text(&carried["result"]).len() == long.len(), "{era:?}: {}", start(&carried));
    }
    Ok(())
}

/// Two people with the same JSON-RPC ids, `1` and `"1"`: each answer goes to whoever asked.
#[tokio::test]
async fn every_answer_goes_to_its_asker() -> Result<()> {
    let (_fixture, gateway) = gateway(&[], "[limits]\nrunning_calls = 100\n").await?;
    let url = format!("{}/mcp/hands/fixture", gateway.url());
    let tokens = [gateway.owner_token()?, token(&gateway, "other")?];
    let asked = (0..100).map(|n| {
        let (url, token) = (&url, &tokens[n % 2]);
        async move {
            let era = ERAS[n / 2 % 2];
            let client = Client::at(url, token, era).await?;
            let id = if n % 3 == 0 { json!(1) } else { json!("1") };
            let mine = format!("答え {n}");
            let message = whole(&client, era, &id, "echo", json!({"text": mine})).await?;
            ensure!(message["id"] == id && text(&message["result"]) == mine, "{n}: {message}");
            Ok(())
        }
    });
    try_join_all(asked).await?;
    Ok(())
}

#[tokio::test]
async fn scripts_survive_every_boundary_between_chunks() -> Result<()> {
    for chunk in ["1", "2", "3", "5"] {
        for server in ["2026", "2025"] {
            let (_fixture, gateway) = gateway(&["--chunk", chunk, "--era", server], "").await?;
            for era in ERAS {
                let client = client(&gateway, era).await?;
                let said = "漢字 🧪 👩‍👩‍👧 e\u{301}";
                let result = client.call("echo", json!({"text": said})).await?;
                ensure!(text(&result) == said, "{chunk} {server} {era:?}: {result}");
            }
        }
    }
    Ok(())
}

/// What a client sends for the gateway alone stays there.
#[tokio::test]
async fn what_is_meant_for_the_gateway_reaches_no_server() -> Result<()> {
    for server in ["2026", "2025"] {
        let (_fixture, gateway) = gateway(&["--era", server], "").await?;
        for era in ERAS {
            let client = client(&gateway, era).await?.with_header("cookie", "crumbs=1")?;
            let client = client.with_header("x-secret", "hidden")?.called("client-of-the-test");
            let meta =
                json!({"vendor.example/kept": 1, "manyhands/session": "demo", "progressToken": "the-token"});
            let params = json!({"name": "whoami", "arguments": {}, "_meta": meta});
            let result = client.result("tools/call", params).await?;
            let seen = &result["structuredContent"];
            let all = seen.to_string();
            for secret in
                ["authorization", "cookie", "crumbs", "x-secret", "client-of-the-test", "the-token", "mh_"]
            {
                ensure!(!all.contains(secret), "{server} {era:?}: {secret} reached the server: {seen}");
            }
            ensure!(seen["meta"]["vendor.example/kept"] == 1, "{seen}");
            ensure!(seen["meta"].get("manyhands/session").is_none(), "{seen}");
        }
    }
    Ok(())
}
