//! The session tools, told right and told wrong.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::client::{Client, ERAS, Era, gateway, text};

#[tokio::test]
async fn the_session_tools_do_what_they_say() -> Result<()> {
    let gateway = gateway().await?;
    for era in ERAS {
        let name = format!("tools-{era:?}").to_lowercase();
        let client = Client::owner(&gateway, era, &name).await?;
        let result = client.call("session_create", json!({ "name": name })).await?;
        let id = result["structuredContent"]["id"].as_str().context("an id")?.to_owned();
        let uri = format!("session://{id}");
        let link = &result["content"][1];
        ensure!(link["type"] == "resource_link" && link["uri"] == uri.as_str(), "{result}");

        let nameless = client.ask("session_create", json!({})).await?;
        ensure!(nameless["name"].is_null() && nameless["last_seq"] == 1, "{nameless}");
        for (kind, fields) in [
            ("user.message", json!({ "content": "hello" })),
            ("agent.message", json!({ "content": [{ "type": "text", "text": "hi" }] })),
            ("user.interrupt", json!({})),
            ("note.plan", json!({ "data": { "step": 1, "why": { "deep": [1, 2.5, null] } } })),
        ] {
            let mut arguments = fields.clone();
            arguments["type"] = kind.into();
            let result = client.call("session_emit", arguments).await?;
            ensure!(result["content"][1]["uri"] == uri.as_str(), "{result}");
            let seq = &result["structuredContent"]["seq"];
            let event = client.read_json(&format!("{uri}/events/{seq}")).await?;
            ensure!(event["type"] == kind, "{event}");
            let same = |key: &str| fields.get(key).is_none_or(|value| event[key] == *value);
            ensure!(same("content"), "{event}");
            ensure!(kind != "note.plan" || event["why"] == json!({ "deep": [1, 2.5, null] }), "{event}");
        }
        let state = client.ask("session_get", json!({})).await?;
        ensure!(
            state["last_seq"] == 5 && state["hands"] == json!([]) && state["uri"] == uri.as_str(),
            "{state}"
        );
        ensure!(client.read_json(&uri).await? == state);

        client.call("sandbox__bash", json!({ "command": "true" })).await?;
        let hands = client.ask("hand_list", json!({})).await?;
        ensure!(hands["hands"][0]["name"] == "sandbox" && hands["hands"][0]["alive"] == true, "{hands}");
        ensure!(client.ask("session_get", json!({ "session": id })).await?["hands"] == json!(["sandbox"]));
        let released = client.ask("hand_release", json!({ "hand": "sandbox" })).await?;
        ensure!(released == json!({ "hand": "sandbox", "released": true }), "{released}");
        ensure!(client.ask("hand_release", json!({ "hand": "sandbox" })).await?["released"] == false);
        let list = client.ask("session_list", json!({})).await?;
        ensure!(list["sessions"][1]["id"] == id.as_str() && list["next"].is_null(), "{list}");
    }
    Ok(())
}

/// What is wrong, and what the sentence about it must contain.
#[rustfmt::skip]
fn wrong() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("session_create", json!({ "name": "Not Good" }), "a session name is 1 to 64 characters"),
        ("session_create", json!({ "name": "sesn_mine" }), "no name begins with sesn_"),
        ("session_create", json!({ "name": 5 }), "invalid type: integer"),
        ("session_create", json!({ "nome": "x" }), "unknown field `nome`"),
        ("session_list", json!({ "after": "yesterday" }), "`after` must be `next` of an earlier answer"),
        ("session_list", json!({ "limit": 5 }), "unknown field `limit`"),
        ("session_get", json!({ "session": "nonesuch" }), "session_list shows yours"),
        ("session_get", json!({ "session": "sesn_0190000000007000800000000000000a" }), "session_list shows yours"),
        ("session_get", json!({ "session": "../x" }), "a session name is"),
        ("session_events", json!({ "session": "nonesuch" }), "session_list shows yours"),
        ("session_events", json!({ "limit": 0 }), "from 1 to 1000"),
        ("session_events", json!({ "limit": 1001 }), "from 1 to 1000"),
        ("session_events", json!({ "limit": -1 }), "invalid value"),
        ("session_events", json!({ "after": -1 }), "0 or more"),
        ("session_events", json!({ "before": -7 }), "0 or more"),
        ("session_events", json!({ "after": "3" }), "invalid type: string"),
        ("session_events", json!({ "type": "note.x" }), "expected a sequence"),
        ("session_events", json!({ "type": vec!["a.b"; 33] }), "at most 32 types"),
        ("session_emit", json!({}), "missing field `type`"),
        ("session_emit", json!({ "type": "user.message" }), "needs content"),
        ("session_emit", json!({ "type": "user.message", "content": 7 }), "a text or a list of content blocks"),
        ("session_emit", json!({ "type": "user.message", "content": "x", "data": { "a": 1 } }), "takes content, not data"),
        ("session_emit", json!({ "type": "note.x", "data": { "seq": 1 } }), "written by the gateway"),
        ("session_emit", json!({ "type": "note.x", "data": [] }), "invalid type"),
        ("hand_list", json!({ "all": true }), "unknown field `all`"),
        ("hand_release", json!({}), "missing field `hand`"),
        ("hand_release", json!({ "hand": "nonesuch" }), "hand_list shows them"),
        ("hand_release", json!({ "hand": "sandbox", "session": "nonesuch" }), "session_list shows yours"),
    ]
}

#[tokio::test]
async fn a_wrong_argument_is_answered_in_one_sentence_that_says_what_is_right() -> Result<()> {
    let gateway = gateway().await?;
    for era in ERAS {
        let client = Client::owner(&gateway, era, "wrong").await?;
        client.ask("session_create", json!({ "name": "wrong" })).await?;
        for (tool, arguments, hint) in wrong() {
            let result = client.call(tool, arguments.clone()).await?;
            let said = text(&result);
            ensure!(result["isError"] == true && said.contains(hint), "{tool} {arguments}: {result}");
            ensure!(said.starts_with(tool) && said.lines().count() == 1 && said.len() < 400, "{said}");
        }
        let state = client.ask("session_get", json!({})).await?;
        ensure!(state["last_seq"] == 1, "something was written: {state}");
    }
    Ok(())
}

#[tokio::test]
async fn what_only_the_gateway_or_a_person_says_no_tool_says() -> Result<()> {
    let gateway = gateway().await?;
    let reserved = [
        "user.tool_confirmation",
        "user.x",
        "agent.thinking",
        "agent.tool_use",
        "agent.tool_result",
        "agent.thread_context_compacted",
        "session.created",
        "session.updated",
        "session.status_running",
        "session.status_rescheduled",
        "session.status_idle",
        "session.status_terminated",
        "session.error",
        "span.model_request_start",
        "span.model_request_end",
        "hand.provisioned",
        "hand.call_started",
        "hand.lost",
        "hand.released",
        "hand.moved",
        "vault.opened",
        "vault.x",
        "hand.x",
    ];
    let malformed = ["note", "", ".x", "note.", "a..b", "nöte.x", "note plan.x", &"a.b".repeat(50)];
    for era in ERAS {
        let client = Client::owner(&gateway, era, "emit").await?;
        for kind in reserved.iter().chain(&malformed) {
            let arguments = json!({ "type": kind, "content": "x" });
            let error =
                client.error("tools/call", json!({ "name": "session_emit", "arguments": arguments })).await?;
            ensure!(error["code"] == -32602, "{kind}: {error}");
            ensure!(
                error["message"].as_str().is_some_and(|said| said.contains("note.plan")),
                "{kind}: {error}"
            );
        }
        ensure!(client.call("session_get", json!({})).await?["isError"] == true, "a session was made");
    }
    Ok(())
}

#[tokio::test]
async fn slices_beyond_the_end_are_empty_and_archived_sessions_only_read() -> Result<()> {
    let gateway = gateway().await?;
    let client = Client::owner(&gateway, Era::Modern, "ends").await?;
    for _ in 0..3 {
        client.ask("session_emit", json!({ "type": "note.x" })).await?;
    }
    for (slice, events, more) in [
        (json!({ "after": 4 }), 0, false),
        (json!({ "after": 9_000_000_000_000_i64 }), 0, false),
        (json!({ "before": 0 }), 0, false),
        (json!({ "before": 1 }), 0, false),
        (json!({ "after": 3, "before": 4 }), 0, false),
        (json!({ "after": 4, "before": 2 }), 0, false),
        (json!({ "type": ["note.y"] }), 0, false),
        (json!({ "before": 9_000_000_000_000_i64 }), 4, false),
        (json!({ "after": 0, "limit": 2 }), 2, true),
        (json!({ "after": 2, "limit": 2 }), 2, false),
        (json!({ "limit": 3 }), 3, true),
    ] {
        let page = client.ask("session_events", slice.clone()).await?;
        let found = page["events"].as_array().context("events")?;
        ensure!(found.len() == events && page["has_more"] == more, "{slice}: {page}");
        ensure!(!more || page["next"].is_i64(), "{slice}: {page}");
    }
    ensure!(gateway.cli(&["session", "archive", "ends"])?.status.success());
    let refused = client.call("session_emit", json!({ "type": "note.x" })).await?;
    ensure!(refused["isError"] == true && text(&refused).contains("archived and read-only"), "{refused}");
    let refused = client.call("sandbox__bash", json!({ "command": "true" })).await?;
    ensure!(
        refused["isError"] == true && text(&refused).contains("The call did not run")
            || text(&refused).contains("the call did not run"),
        "{refused}"
    );
    ensure!(
        client.ask("session_events", json!({})).await?["events"].as_array().is_some_and(|all| all.len() == 5)
    );
    Ok(())
}
