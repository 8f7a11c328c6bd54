//! A repeated call is one call (design 2.2, "A repeated call").

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tests::gateway::{Gateway, Options};

use super::client::{Client, ERAS, Era, gateway, soon, text, token};

const REPLAYED: &str = "manyhands/replayed";

fn key(key: &str) -> Value {
    json!({ "manyhands/callKey": key })
}

fn tool_use(id: &str) -> Value {
    json!({ "claudecode/toolUseId": id })
}

/// Counts its runs, slowly.
fn counting(file: &str) -> String {
    format!("echo x >> {file}; sleep 1; wc -l < {file}")
}

async fn asked(client: &Client) -> Result<usize> {
    let page = client.ask("session_events", json!({ "type": ["agent.tool_use"] })).await?;
    Ok(page["events"].as_array().map(Vec::len).unwrap_or_default())
}

async fn run(client: &Client, command: &str, meta: Value) -> Result<Value> {
    client.bash(command, meta).await?.result().await
}

#[tokio::test]
async fn a_repeat_joins_the_call_while_it_runs_and_gets_its_outcome_afterwards() -> Result<()> {
    let gateway = gateway().await?;
    for (era, meta) in ERAS.into_iter().flat_map(|era| [(era, key("k1")), (era, tool_use("toolu_1"))]) {
        let kind = if meta == key("k1") { "key" } else { "use" };
        let name = format!("repeat-{kind}-{era:?}").to_lowercase();
        let client = Client::owner(&gateway, era, &name).await?;
        let command = counting("runs");
        let (first, second) = tokio::try_join!(run(&client, &command, meta.clone()), async {
            tokio::time::sleep(Duration::from_millis(400)).await;
            run(&client, &command, meta.clone()).await
        })?;
        ensure!(text(&first) == "1\n" && text(&second) == "1\n", "{name}: {first} {second}");
        let again = run(&client, &command, meta.clone()).await?;
        ensure!(text(&again) == "1\n" && again["_meta"][REPLAYED] == true, "{name}: {again}");
        ensure!(first["_meta"].get(REPLAYED).is_none(), "{name}: {first}");
        ensure!(again["_meta"]["manyhands/seq"] == first["_meta"]["manyhands/seq"], "{name}");
        ensure!(asked(&client).await? == 1, "{name}");

        let other = client.bash("echo other", meta.clone()).await?.answer().await?;
        if kind == "key" {
            ensure!(other["error"]["code"] == -32602, "{name}: {other}");
            let said = other["error"]["message"].as_str().unwrap_or_default();
            ensure!(said.contains("a new call needs a new key"), "{said}");
            let arguments = json!({ "path": "runs" });
            let params = json!({ "name": "sandbox__read", "arguments": arguments, "_meta": meta.clone() });
            ensure!(client.error("tools/call", params).await?["code"] == -32602, "{name}: another tool");
            ensure!(asked(&client).await? == 1, "{name}");
        } else {
            ensure!(text(&other["result"]) == "other\n", "{name}: {other}");
            // And the first is still known.
            let third = run(&client, &command, meta.clone()).await?;
            ensure!(text(&third) == "1\n" && third["_meta"][REPLAYED] == true, "{name}: {third}");
            ensure!(asked(&client).await? == 2, "{name}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_key_is_one_of_its_principal_and_session() -> Result<()> {
    let gateway = gateway().await?;
    let (one, two) = (
        Client::owner(&gateway, Era::Modern, "one").await?,
        Client::owner(&gateway, Era::Modern, "two").await?,
    );
    let alice = Client::at(&gateway.session_url("one"), &token(&gateway, "alice")?, Era::Modern).await?;
    for client in [&one, &two, &alice] {
        let result = run(client, "echo x >> runs; wc -l < runs", key("shared")).await?;
        ensure!(text(&result) == "1\n" && result["_meta"].get(REPLAYED).is_none(), "{result}");
    }
    for (bad, why) in [(json!(7), "a number"), (json!(""), "empty"), (json!("k".repeat(257)), "too long")] {
        let meta = json!({ "manyhands/callKey": bad });
        let answer = one.bash("true", meta).await?.answer().await?;
        ensure!(answer["error"]["code"] == -32602, "{why}: {answer}");
    }
    Ok(())
}

#[tokio::test]
async fn a_key_outlives_the_gateway_and_even_an_unknown_outcome() -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let data = scratch.path().join("data");
    let options = || {
        let quick = Options::default().data(&data).env("MANYHANDS_NODES_HEARTBEAT_MS", "200");
        quick.env("MANYHANDS_NODES_DEAD_AFTER_MS", "1000")
    };
    let mut gateway = Gateway::start(options()).await?;
    let client = Client::owner(&gateway, Era::Modern, "kept").await?;
    let first = run(&client, "echo x >> runs; cat runs", key("settled")).await?;
    let cut_off = "echo y >> runs; sleep 1000";
    let running = client.bash(cut_off, key("cut off")).await?;
    soon(async || {
        let page = client.ask("session_events", json!({ "type": ["hand.call_started"] })).await?;
        Ok(page["events"].as_array().is_some_and(|events| events.len() == 2))
    })
    .await?;
    gateway.kill()?;
    drop((running, gateway));

    let gateway = Gateway::start(options()).await?;
    let client = Client::owner(&gateway, Era::Legacy, "kept").await?;
    let again = run(&client, "echo x >> runs; cat runs", key("settled")).await?;
    ensure!(again["content"] == first["content"] && again["_meta"][REPLAYED] == true, "{again}");
    let unknown = run(&client, cut_off, key("cut off")).await?;
    eprintln!("the brain is told: {}", text(&unknown));
    ensure!(unknown["isError"] == true && unknown["_meta"]["manyhands/outcome"] == "unknown", "{unknown}");
    ensure!(unknown["_meta"][REPLAYED] == true, "{unknown}");
    let runs = client.call("sandbox__read", json!({ "path": "runs" })).await?;
    ensure!(text(&runs).matches('y').count() == 1, "it ran again: {runs}");
    Ok(())
}

/// What an `_meta` of a result says of the call: where it stands in the log.
#[tokio::test]
async fn a_result_says_where_it_stands() -> Result<()> {
    let gateway = gateway().await?;
    for era in ERAS {
        let client = Client::owner(&gateway, era, "stands").await?;
        let result = run(&client, "echo here", json!({})).await?;
        let (session, seq) = (&result["_meta"]["manyhands/session"], &result["_meta"]["manyhands/seq"]);
        let session = session.as_str().context("a session")?;
        let event = client.read_json(&format!("{session}/events/{seq}")).await?;
        ensure!(event["type"] == "agent.tool_result" && event["content"] == result["content"], "{event}");
    }
    Ok(())
}
