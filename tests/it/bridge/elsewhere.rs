//! A client that comes back to another gateway on the same PostgreSQL than the one that asked it.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tests::fixture::{Fixture, offered};
use tests::gateway::Gateway;
use tests::postgres;

use crate::crash::takeover::on;
use crate::crash::truth::{Reader, of, outcomes};
use crate::mcp::client::{Client, Era, soon, text};

fn call(message: &str) -> Value {
    json!({"name": "web__test_elicitation", "arguments": {"message": message}})
}

fn answered(mut call: Value, state: &Value) -> Value {
    call["requestState"] = state.clone();
    call["inputResponses"] =
        json!({"answer": {"action": "accept", "content": {"username": "me", "email": "m@e"}}});
    call
}

fn client(gateway: &Gateway) -> Result<Client> {
    let client = Client::unconnected(&gateway.session_url("s"), &gateway.owner_token()?, Era::Modern);
    Ok(client.declaring(json!({"elicitation": {"form": {}}})))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_other_gateway_says_whose_call_it_is_and_runs_nothing() -> Result<()> {
    let database = postgres::database().await?;
    let reader = Reader::url(database.url()).await?;
    let fixture = Fixture::start(&[]).await?;
    let mut first = Gateway::start(on(&database)).await?;
    let second = Gateway::start(on(&database)).await?;
    let added = first.cli(&["hand", "add", "web", "--url", fixture.url()])?;
    ensure!(added.status.success(), "{added:?}");
    offered(&second, "web").await?;
    let (one, two) = (client(&first)?, client(&second)?);

    let asked = one.result("tools/call", call("Who?")).await?;
    ensure!(asked["resultType"] == "input_required", "{asked}");
    let state = &asked["requestState"];
    for _ in 0..2 {
        let error = two.error("tools/call", answered(call("Who?"), state)).await?;
        let said = error["message"].to_string();
        for part in
            ["begun on another gateway", "was not run again", "to the gateway that gave this requestState"]
        {
            ensure!(said.contains(part), "{part:?} is not in {said}");
        }
    }
    // Of another request it is worth nothing, and says nothing of where that is.
    let error = two.error("tools/call", answered(call("What?"), state)).await?;
    ensure!(error["message"].to_string().contains("not one that was given for this request"), "{error}");
    // Nothing of that was a use of it.
    let done = one.result("tools/call", answered(call("Who?"), state)).await?;
    ensure!(text(&done).contains("me") && done["isError"] != true, "{done}");
    let error = one.error("tools/call", answered(call("Who?"), state)).await?;
    ensure!(error["message"].to_string().contains("it was used"), "{error}");
    let events = reader.events("s").await?;
    for kind in ["agent.tool_use", "hand.call_started", "agent.tool_result"] {
        ensure!(of(&events, kind).len() == 1, "{kind}: {}", of(&events, kind).len());
    }

    // One whose gateway has died meanwhile has ended with it.
    let asked = one.result("tools/call", call("Still there?")).await?;
    first.kill()?;
    let gone = async || {
        let error = two.error("tools/call", answered(call("Still there?"), &asked["requestState"])).await?;
        Ok(error["message"].to_string().contains("that this call waited on is gone"))
    };
    soon(gone).await?;
    let ended = |events: &[gateway::session::Event]| of(events, "agent.tool_result").len() == 2;
    let events = reader.until("s", ended).await?;
    ensure!(outcomes(&events).get("unknown") == Some(&1), "{:?}", outcomes(&events));
    ensure!(of(&events, "hand.call_started").len() == 2);
    Ok(())
}
