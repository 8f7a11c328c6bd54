//! Two principals: neither can tell what the other has, and neither's limits are the other's.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tests::gateway::{Gateway, Options};

use crate::mcp::client::{Client, ERAS, Era, Stream, gateway, soon, text, token};

const NO_SESSION: &str = "sesn_01900000000070008000000000000000";

/// The owner's client and Bob's, each at its own session of the same name.
async fn both(gateway: &Gateway, era: Era) -> Result<(Client, Client)> {
    let name = format!("bob-{era:?}").to_lowercase();
    let url = gateway.session_url("same");
    Ok((
        Client::at(&url, &gateway.owner_token()?, era).await?,
        Client::at(&url, &token(gateway, &name)?, era).await?,
    ))
}

/// Asks for a thing of the owner's and for one that is not there, and wants the same answer, to the byte.
async fn alike(
    bob: &Client,
    foreign: &str,
    unknown: &str,
    tool: &str,
    arguments: impl Fn(&str) -> Value,
) -> Result<()> {
    let [theirs, nothing] = [foreign, unknown]
        .map(|name| bob.request("tools/call", json!({ "name": tool, "arguments": arguments(name) })));
    let (theirs, nothing) = tokio::try_join!(theirs, nothing)?;
    let plain = |answer: &Value, name: &str| {
        let mut answer = answer.clone();
        answer["id"] = Value::Null;
        answer.to_string().replace(name, "NAME")
    };
    ensure!(plain(&theirs, foreign) == plain(&nothing, unknown), "{tool}: {theirs} {nothing}");
    ensure!(theirs["result"]["isError"] == true, "{tool}: {theirs}");
    Ok(())
}

#[tokio::test]
async fn sessions_and_instances_of_others_are_as_unknown_ones() -> Result<()> {
    let gateway = gateway().await?;
    for era in ERAS {
        let (owner, bob) = both(&gateway, era).await?;
        let hers = owner.call("sandbox__bash", json!({ "command": "echo owner > who; cat who" })).await?;
        ensure!(text(&hers).ends_with("owner\n"), "{hers}");
        let id = hers["_meta"]["manyhands/session"]
            .as_str()
            .and_then(|uri| uri.strip_prefix("session://"))
            .context("an id")?;
        for tool in ["session_get", "session_events"] {
            alike(&bob, id, NO_SESSION, tool, |name| json!({ "session": name })).await?;
        }
        alike(&bob, id, NO_SESSION, "session_emit", |name| json!({ "session": name, "type": "note.x" }))
            .await?;
        alike(&bob, id, NO_SESSION, "hand_release", |name| json!({ "session": name, "hand": "sandbox" }))
            .await?;
        // At its URL, too.
        let answers = [id, NO_SESSION].map(async |name| {
            let at = Client::at(&gateway.session_url(name), &bob.token, era).await?;
            let result = at.call("sandbox__bash", json!({ "command": "cat who" })).await?;
            anyhow::Ok(result.to_string().replace(name, "NAME"))
        });
        let answers = futures_util::future::try_join_all(answers).await?;
        ensure!(answers[0] == answers[1] && answers[0].contains("there is no session NAME"), "{answers:?}");
        // One name, two sessions, two workplaces.
        let his = bob.call("sandbox__bash", json!({ "command": "cat who || echo nothing" })).await?;
        ensure!(text(&his).ends_with("nothing\n"), "{his}");
        for (name, to) in [("to_session", true), ("session", false)] {
            alike(&bob, id, NO_SESSION, "hand_move", |foreign| {
                let mut arguments = json!({ "hand": "sandbox", name: foreign });
                if !to {
                    arguments["to_session"] = "same".into();
                }
                arguments
            })
            .await?;
        }
        ensure!(his["_meta"]["manyhands/session"] != hers["_meta"]["manyhands/session"]);
        // A cursor of hers is no more to him than any other.
        let mut refusals = Vec::new();
        for cursor in [id, NO_SESSION] {
            refusals.push(bob.error("resources/list", json!({ "cursor": cursor })).await?);
            let page = bob.ask("session_list", json!({ "after": cursor })).await?;
            ensure!(!page.to_string().contains(id), "{page}");
        }
        ensure!(refusals[0] == refusals[1] && refusals[0]["code"] == -32602, "{refusals:?}");
        let released = bob.ask("hand_release", json!({ "hand": "sandbox" })).await?;
        ensure!(released["released"] == true);
        ensure!(
            owner.ask("session_get", json!({})).await?["hands"] == json!(["sandbox"]),
            "his release ended hers"
        );
    }
    Ok(())
}

/// Row 26: an MCP session id in another's hands is worth what a made-up one is.
#[tokio::test]
async fn mcp_sessions_of_others_are_as_unknown_ones() -> Result<()> {
    let gateway = gateway().await?;
    let (owner, bob) = both(&gateway, Era::Legacy).await?;
    let answers = async |session: Option<String>| -> Result<Vec<(u16, String)>> {
        let mut client = bob.clone();
        client.mcp_session = session;
        let mut all = Vec::new();
        let call = client.open("tools/call", json!({ "name": "session_list", "arguments": {} })).await?;
        all.push(read(call).await?);
        all.push(read(client.get(&[]).await?).await?);
        all.push(read(client.get(&[("Last-Event-ID", "0/1")]).await?).await?);
        let gone = reqwest::Client::new().delete(&client.url).bearer_auth(&client.token);
        let gone =
            gone.header("Mcp-Session-Id", client.mcp_session.clone().unwrap_or_default()).send().await?;
        all.push((gone.status().as_u16(), gone.text().await?));
        Ok(all)
    };
    let hers = answers(owner.mcp_session.clone()).await?;
    let none = answers(Some("0190f0f0-0000-4000-8000-000000000000".to_owned())).await?;
    ensure!(hers == none && hers.iter().all(|(status, _)| *status == 404), "{hers:?} {none:?}");
    owner.result("tools/list", json!({})).await?;
    // Hers at another endpoint is none of that endpoint's.
    let mut elsewhere = owner.clone();
    elsewhere.url = gateway.session_url("elsewhere");
    ensure!(elsewhere.open("tools/list", json!({})).await?.status() == 404);
    Ok(())
}

async fn read(stream: Stream) -> Result<(u16, String)> {
    let status = stream.status();
    Ok((status, stream.answer().await?.to_string()))
}

/// A gateway with small limits, where the owner meets them and Bob notices nothing.
struct Limited {
    gateway: Gateway,
    owner: String,
    bob: Client,
}

impl Limited {
    async fn start(limits: &[(&str, &str)]) -> Result<Self> {
        let options = limits.iter().fold(Options::default(), |options, (name, limit)| {
            options.env(&format!("MANYHANDS_LIMITS_{name}"), limit)
        });
        let gateway = Gateway::start(options).await?;
        let (owner, bob) = (gateway.owner_token()?, token(&gateway, "bob")?);
        let bob = Client::at(&gateway.session_url("bob"), &bob, Era::Modern).await?;
        Ok(Self { gateway, owner, bob })
    }

    fn at(&self, session: &str) -> Client {
        Client::unconnected(&self.gateway.session_url(session), &self.owner, Era::Modern)
    }

    fn delete(&self, session: &str) -> Result<()> {
        let deleted = self.gateway.cli(&["session", "delete", session])?;
        ensure!(deleted.status.success(), "{deleted:?}");
        Ok(())
    }
}

/// The answer names the limit and says what to do.
fn refused(result: &Value, limit: &str, hint: &str) -> Result<()> {
    let said = text(result);
    eprintln!("{said}");
    ensure!(result["isError"] == true && said.contains(limit) && said.contains(hint), "{result}");
    Ok(())
}

async fn echo(client: &Client, word: &str) -> Result<()> {
    let result = client.call("sandbox__bash", json!({ "command": format!("echo {word}") })).await?;
    ensure!(text(&result).ends_with(&format!("{word}\n")), "{result}");
    Ok(())
}

#[tokio::test]
async fn instances_and_running_calls_are_limited_per_principal() -> Result<()> {
    let limited = Limited::start(&[("INSTANCES", "1"), ("RUNNING_CALLS", "2")]).await?;
    let (one, two) = (limited.at("one"), limited.at("two"));
    echo(&one, "first").await?;
    // The idle one makes room.
    echo(&two, "now").await?;

    let busy = two.bash("sleep 20", json!({})).await?;
    soon(async || {
        let second = one.call("sandbox__bash", json!({ "command": "true" })).await?;
        let full = second["isError"] == true;
        if full {
            refused(&second, "limits.instances", "cancel it")?;
            ensure!(text(&second).contains("The call did not run"), "{second}");
        }
        Ok(full)
    })
    .await?;
    echo(&limited.bob, "free").await?;
    let running = [busy, two.bash("sleep 20", json!({})).await?];
    let third = two.call("sandbox__bash", json!({ "command": "true" })).await?;
    refused(&third, "limits.running_calls", "cancel one")?;
    echo(&limited.bob, "free").await?;
    drop(running);
    soon(async || Ok(two.call("sandbox__bash", json!({ "command": "true" })).await?["isError"] != true)).await
}

#[tokio::test]
async fn sessions_and_stored_bytes_are_limited_per_principal() -> Result<()> {
    let limited = Limited::start(&[("SESSIONS", "2"), ("STORED_BYTES", "400000")]).await?;
    let (one, two, three) = (limited.at("one"), limited.at("two"), limited.at("three"));
    one.ask("session_create", json!({ "name": "one" })).await?;
    echo(&two, "two").await?;
    let note = json!({ "type": "note.x" });
    refused(&three.call("session_emit", note.clone()).await?, "limits.sessions", "manyhands session delete")?;
    let call = three.call("sandbox__bash", json!({ "command": "true" })).await?;
    refused(&call, "limits.sessions", "session delete")?;
    limited.bob.ask("session_create", json!({ "name": "more" })).await?;
    limited.delete("one")?;
    three.ask("session_emit", note.clone()).await?;

    let large = json!({ "type": "note.x", "data": { "text": "x".repeat(399_000) } });
    three.ask("session_emit", large).await?;
    refused(&three.call("session_emit", note.clone()).await?, "limits.stored_bytes", "session delete")?;
    // For calls it is asked once a second.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let full = two.call("sandbox__bash", json!({ "command": "echo x > ran" })).await?;
    refused(&full, "limits.stored_bytes", "session delete")?;
    ensure!(text(&full).contains("call did not run"), "{full}");
    limited.bob.ask("session_emit", note).await?;
    limited.delete("three")?;
    let ran = two.call("sandbox__bash", json!({ "command": "cat ran || echo none" })).await?;
    ensure!(text(&ran).ends_with("none\n"), "it did run: {ran}");
    Ok(())
}

#[tokio::test]
async fn mcp_sessions_are_limited_per_principal() -> Result<()> {
    let limited = Limited::start(&[("MCP_SESSIONS", "2")]).await?;
    let url = limited.gateway.session_url("two");
    let mut open = Vec::new();
    for _ in 0..2 {
        open.push(Client::at(&url, &limited.owner, Era::Legacy).await?);
    }
    let body = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "x", "version": "1" } } });
    let third = Client::unconnected(&url, &limited.owner, Era::Legacy).post(&body, &[]).await?;
    ensure!(third.status() == 429, "{}", third.status());
    let said = third.text().await?;
    ensure!(said.contains("limits.mcp_sessions") && said.contains("end one with DELETE"), "{said}");
    Client::at(&limited.bob.url, &limited.bob.token, Era::Legacy)
        .await?
        .result("tools/list", json!({}))
        .await?;
    Ok(())
}
