//! Questions of servers, in the way of the client's era.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::kit::{Running, count, events, start};
use super::scripted::until;
use crate::mcp::client::{Client, Era};

const BOTH: [&str; 2] = ["fx", "quiet"];

fn all() -> Value {
    json!({"elicitation": {}, "sampling": {}, "roots": {}})
}

fn questions() -> Value {
    json!({
        "name": {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": {"type": "object"}}},
        "roots": {"method": "roots/list"},
    })
}

fn answers() -> Value {
    json!({
        "name": {"action": "accept", "content": {"name": "me"}, "odd": 1},
        "roots": {"roots": [{"uri": "file:///x", "odd": 1}]},
    })
}

fn ask(hand: &str, rounds: usize) -> Value {
    json!({"name": format!("{hand}__ask"), "arguments": {"questions": questions(), "rounds": rounds}})
}

/// The request again, with answers.
fn retry(mut call: Value, state: &Value, answers: &Value) -> Value {
    call["requestState"] = state.clone();
    call["inputResponses"] = answers.clone();
    call
}

#[tokio::test]
async fn a_modern_client_comes_back_with_answers() -> Result<()> {
    let running = start().await?;
    for hand in BOTH {
        let client = running.client_at("/mcp/sessions/s", Era::Modern, all()).await?;
        let mut call = ask(hand, 2);
        call["_meta"] = json!({"claudecode/toolUseId": "tu"});
        let runs = running.seen().runs();
        let mut asked = client.result("tools/call", call.clone()).await?;
        for _ in 0..2 {
            assert_eq!(
                (&asked["resultType"], &asked["inputRequests"]),
                (&json!("input_required"), &questions())
            );
            let mut more = answers();
            more["unasked"] = json!({});
            asked = client.result("tools/call", retry(call.clone(), &asked["requestState"], &more)).await?;
        }
        assert_eq!(asked["structuredContent"], json!({"answers": [answers(), answers()]}));
        assert_eq!(asked["resultType"], "complete");
        assert_eq!(running.seen().runs(), runs + 1);
        assert_eq!(running.gateway.mcp.waiting(), 0);
        let events = events(&client, "s").await?;
        let logged = usize::from(hand == "fx");
        assert_eq!((count(&events, "agent.tool_use"), count(&events, "agent.tool_result")), (logged, logged));
    }
    Ok(())
}

#[tokio::test]
async fn a_legacy_client_is_asked_on_the_stream_of_its_call() -> Result<()> {
    let running = start().await?;
    for hand in BOTH {
        let client = running.client_at("/mcp/sessions/s", Era::Legacy, all()).await?;
        let mut stream = client.open("tools/call", ask(hand, 2)).await?;
        for _ in 0..2 {
            for key in ["name", "roots"] {
                let question = stream.next().await?.context("no question")?;
                assert_eq!(question["method"], questions()[key]["method"]);
                let message = &question["params"]["message"];
                assert_eq!(*message, questions()[key]["params"]["message"]);
                let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": answers()[key]});
                ensure!(client.post(&answer, &[]).await?.status() == 202);
            }
        }
        let result = stream.result().await?;
        assert_eq!(result["structuredContent"], json!({"answers": [answers(), answers()]}));
    }
    Ok(())
}

#[tokio::test]
async fn a_client_is_never_asked_what_it_can_not_answer() -> Result<()> {
    let running = start().await?;
    for era in [Era::Modern, Era::Legacy] {
        let client = running.client_at("/mcp/sessions/s", era, json!({"elicitation": {}})).await?;
        let result = client.result("tools/call", ask("fx", 1)).await?;
        assert_eq!(result["structuredContent"], json!({"answers": [{"incapable": "roots"}]}), "{era:?}");
        let client = running.client(era).await?;
        let result = client.result("prompts/get", json!({"name": "fx__greet"})).await?;
        assert_eq!(result["messages"][0]["content"]["text"], "nobody");
    }
    Ok(())
}

#[tokio::test]
async fn a_legacy_clients_error_reaches_the_server() -> Result<()> {
    let running = start().await?;
    let client = running.client_at("/mcp/sessions/s", Era::Legacy, all()).await?;
    let mut stream = client.open("tools/call", ask("fx", 1)).await?;
    let question = stream.next().await?.context("no question")?;
    let error = json!({"code": -1, "message": "no"});
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "error": error});
    ensure!(client.post(&answer, &[]).await?.status() == 202);
    assert_eq!(stream.result().await?["structuredContent"], json!({"answers": [{"refused": -1}]}));
    Ok(())
}

#[tokio::test]
async fn a_prompt_asks_as_a_tool_does() -> Result<()> {
    let running = start().await?;
    let client = running.client_at("/mcp/sessions/s", Era::Modern, all()).await?;
    let prompt = json!({"name": "fx__greet"});
    let asked = client.result("prompts/get", prompt.clone()).await?;
    assert_eq!(asked["inputRequests"]["who"]["method"], "elicitation/create");
    let who = json!({"who": {"action": "accept", "content": {"name": "me"}}});
    let again = client.result("prompts/get", retry(prompt, &asked["requestState"], &who)).await?;
    assert_eq!(again["messages"][0]["content"]["text"], "me");
    Ok(())
}

#[tokio::test]
async fn what_is_missing_is_asked_again() -> Result<()> {
    let running = start().await?;
    let client = running.client_at("/mcp/sessions/s", Era::Modern, all()).await?;
    let asked = client.result("tools/call", ask("fx", 1)).await?;
    let some = json!({"roots": answers()["roots"]});
    let again = client.result("tools/call", retry(ask("fx", 1), &asked["requestState"], &some)).await?;
    assert_eq!((&again["resultType"], &again["inputRequests"]), (&json!("input_required"), &questions()));
    assert_ne!(again["requestState"], asked["requestState"]);
    let end = client.result("tools/call", retry(ask("fx", 1), &again["requestState"], &answers())).await?;
    assert_eq!(end["structuredContent"]["answers"], json!([answers()]));
    assert_eq!(running.seen().runs(), 1);
    Ok(())
}

async fn refused(client: &Client, method: &str, params: Value) -> Result<()> {
    let error = client.error(method, params).await?;
    ensure!(error["code"] == -32602, "{error}");
    Ok(())
}

#[tokio::test]
async fn a_state_is_worth_something_to_its_owner_for_its_request_once() -> Result<()> {
    let running = start().await?;
    let client = running.client_at("/mcp/sessions/s", Era::Modern, all()).await?;
    let stranger = running.client_at("/mcp/sessions/s", Era::Modern, all()).await?;
    let asked = client.result("tools/call", ask("fx", 1)).await?;
    let state = asked["requestState"].as_str().context("no state")?.to_owned();
    let try_it = |call: Value, state: &str| retry(call, &json!(state), &answers());
    for n in [0, 20, state.len() / 2, state.len() - 1] {
        let mut bytes = state.clone().into_bytes();
        bytes[n] = if bytes[n] == b'x' { b'y' } else { b'x' };
        refused(&client, "tools/call", try_it(ask("fx", 1), &String::from_utf8(bytes)?)).await?;
    }
    refused(&client, "tools/call", try_it(ask("fx", 1), "")).await?;
    refused(&client, "tools/call", retry(ask("fx", 1), &json!(7), &answers())).await?;
    refused(&stranger, "tools/call", try_it(ask("fx", 1), &state)).await?;
    refused(&client, "tools/call", try_it(ask("fx", 3), &state)).await?;
    refused(&client, "tools/call", try_it(ask("quiet", 1), &state)).await?;
    refused(&client, "tools/call", try_it(json!({"name": "fx__echo", "arguments": {}}), &state)).await?;
    refused(&client, "prompts/get", try_it(json!({"name": "fx__greet"}), &state)).await?;
    refused(&client, "resources/read", try_it(json!({"uri": "fx+test://one"}), &state)).await?;
    let mut elsewhere = client.clone();
    elsewhere.url = format!("{}/mcp/sessions/other", running.url);
    refused(&elsewhere, "tools/call", try_it(ask("fx", 1), &state)).await?;
    assert_eq!(running.seen().runs(), 1);
    let end = client.result("tools/call", try_it(ask("fx", 1), &state)).await?;
    assert_eq!(end["structuredContent"]["answers"], json!([answers()]));
    refused(&client, "tools/call", try_it(ask("fx", 1), &state)).await?;
    assert_eq!(running.seen().runs(), 1);
    Ok(())
}

#[tokio::test]
async fn a_call_whose_client_does_not_come_back_is_cancelled() -> Result<()> {
    let running = start().await?;
    running.gateway.mcp.wait_for_clients(Duration::from_millis(300));
    let client = running.client_at("/mcp/sessions/s", Era::Modern, all()).await?;
    let asked = client.result("tools/call", ask("fx", 1)).await?;
    until(|| running.seen().cancelled() == 1 && running.gateway.calls.running() == 0).await;
    let late = retry(ask("fx", 1), &asked["requestState"], &answers());
    refused(&client, "tools/call", late).await?;
    let events = events(&client, "s").await?;
    let result = events.iter().find(|it| it["type"] == "agent.tool_result").context("no result")?;
    assert_eq!(result["outcome"], "cancelled");
    assert_eq!(running.seen().runs(), 1);
    Ok(())
}

/// Claude Code sends a call again whose answer it did not get; the call waits already.
#[tokio::test]
async fn a_resend_of_a_call_that_waits_is_asked_the_same() -> Result<()> {
    let running = start().await?;
    let client = running.client_at("/mcp/sessions/s", Era::Modern, all()).await?;
    let mut call = ask("fx", 1);
    call["_meta"] = json!({"claudecode/toolUseId": "tu"});
    let lost = client.result("tools/call", call.clone()).await?;
    let asked = client.result("tools/call", call.clone()).await?;
    assert_eq!(asked["inputRequests"], questions());
    refused(&client, "tools/call", retry(call.clone(), &lost["requestState"], &answers())).await?;
    let end = client.result("tools/call", retry(call, &asked["requestState"], &answers())).await?;
    assert_eq!(end["structuredContent"]["answers"], json!([answers()]));
    assert_eq!(running.seen().runs(), 1);
    Ok(())
}

#[tokio::test]
async fn a_principal_has_only_so_many_calls_that_wait() -> Result<()> {
    let running: Running = super::kit::start_with("limits.running_calls = 200").await?;
    let client = running.client_at("/mcp/sessions/s", Era::Modern, all()).await?;
    let first = client.result("tools/call", ask("quiet", 1)).await?;
    for n in 0..64 {
        let mut call = ask("quiet", 1);
        call["arguments"]["n"] = n.into();
        client.result("tools/call", call).await?;
    }
    until(|| running.seen().cancelled() == 1).await;
    assert_eq!(running.gateway.mcp.waiting(), 64);
    refused(&client, "tools/call", retry(ask("quiet", 1), &first["requestState"], &answers())).await?;
    running.stop().await
}
