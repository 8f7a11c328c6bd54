//! `tools/list` and its neighbours: one page, short names, and everything a client needs to know at once.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::client::{Client, ERAS, gateway};

/// Longest name of a tool with its hand's in front: clients put `mcp__manyhands__` before it and rewrite what is
/// over 64.
const TOOL_NAME_MAX: usize = 48;

/// Design 2.2: descriptions under 2 KB, since older clients cut them there.
const DESCRIPTION_MAX: usize = 2_048;
const SESSION_TOOLS: [&str; 10] = [
    "session_create",
    "session_list",
    "session_get",
    "session_events",
    "session_emit",
    "hand_list",
    "hand_release",
    "hand_move",
    "hand_checkpoint",
    "hand_restore",
];
const READ_ONLY: [&str; 7] = [
    "session_list",
    "session_get",
    "session_events",
    "hand_list",
    "sandbox__read",
    "sandbox__glob",
    "sandbox__grep",
];
const DESTRUCTIVE: [&str; 3] = ["sandbox__bash", "sandbox__edit", "sandbox__write"];

#[tokio::test]
async fn all_tools_come_in_one_page_with_what_clients_go_by() -> Result<()> {
    let gateway = gateway().await?;
    let longest = "a-hand-with-a-long-name-";
    ensure!(gateway.cli(&["hand", "add", longest, "--kind", "sandbox"])?.status.success());
    for era in ERAS {
        let client = Client::owner(&gateway, era, "lists").await?;
        let list = client.result("tools/list", json!({})).await?;
        ensure!(list.get("nextCursor").is_none(), "{list}");
        let tools = list["tools"].as_array().context("tools")?;
        ensure!(tools.len() == SESSION_TOOLS.len() + 6 + 6, "{}", tools.len());
        for tool in tools {
            let name = tool["name"].as_str().context("a name")?;
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            ensure!(name.len() <= TOOL_NAME_MAX && name.chars().all(plain), "{name}");
            let about = tool["description"].as_str().context("a description")?;
            ensure!(!about.is_empty() && about.len() < DESCRIPTION_MAX, "{name}: {about}");
            ensure!(tool["_meta"]["anthropic/alwaysLoad"] == true, "{tool}");
            ensure!(tool["inputSchema"]["type"] == "object", "{tool}");
            ensure!(tool["inputSchema"]["additionalProperties"] == false, "{tool}");
            let reads = READ_ONLY.contains(&name)
                || ["read", "glob", "grep"].iter().any(|end| name.ends_with(&format!("__{end}")));
            ensure!(tool["annotations"]["readOnlyHint"] == reads, "{tool}");
            ensure!(tool["annotations"]["openWorldHint"] == false, "{tool}");
            if DESTRUCTIVE.contains(&name) {
                ensure!(tool["annotations"]["destructiveHint"] == true, "{tool}");
            }
        }
        let named = |name: &str| tools.iter().any(|tool| tool["name"] == name);
        ensure!(SESSION_TOOLS.into_iter().all(named), "{list}");
        ensure!(named(&format!("{longest}__write")));
        let again = client.result("tools/list", json!({})).await?;
        ensure!(again["tools"] == list["tools"], "the order changes");

        for method in ["tools/list", "resources/templates/list", "prompts/list", "resources/list"] {
            for cursor in ["x", "", "sesn_x", "AAAA"] {
                let error = client.error(method, json!({ "cursor": cursor })).await?;
                ensure!(error["code"] == -32602, "{method} {cursor:?}: {error}");
            }
        }
    }
    let prefixed = format!("mcp__manyhands__{longest}__bash");
    ensure!(prefixed.len() <= 64, "{prefixed}");
    ensure!(!gateway.cli(&["hand", "add", &format!("{longest}x"), "--kind", "sandbox"])?.status.success());
    Ok(())
}

/// Every result of the stateless era says who answers, is complete, and private; no older one does.
#[tokio::test]
async fn results_are_stamped_in_the_stateless_era_only() -> Result<()> {
    let gateway = gateway().await?;
    for era in ERAS {
        let client = Client::owner(&gateway, era, "stamped").await?;
        client.ask("session_create", json!({})).await?;
        client.ask("session_emit", json!({ "type": "note.x" })).await?;
        let modern = era == super::client::Era::Modern;
        for (method, params, cached) in [
            ("tools/list", json!({}), true),
            ("prompts/list", json!({}), true),
            ("resources/list", json!({}), true),
            ("resources/templates/list", json!({}), true),
            ("resources/read", json!({ "uri": "session://stamped" }), true),
            ("tools/call", json!({ "name": "session_get" }), false),
            ("tools/call", json!({ "name": "session_get", "arguments": { "session": "-" } }), false),
            ("tools/call", json!({ "name": "sandbox__bash", "arguments": { "command": "true" } }), false),
            ("tools/call", json!({ "name": "sandbox__bash", "arguments": {} }), false),
        ] {
            let result = client.result(method, params.clone()).await?;
            let server = &result["_meta"]["io.modelcontextprotocol/serverInfo"];
            ensure!((server["name"] == "manyhands") == modern, "{era:?} {method} {params}: {result}");
            ensure!((result["resultType"] == "complete") == modern, "{era:?} {method} {params}: {result}");
            ensure!((result["cacheScope"] == "private") == (modern && cached), "{era:?} {method}: {result}");
            ensure!((result["ttlMs"] == 0) == (modern && cached), "{era:?} {method}: {result}");
        }
    }
    Ok(())
}

/// Row 44: what a client calls itself gives it nothing, and stands in the log as what it is.
#[tokio::test]
async fn a_client_that_calls_itself_admin_is_nobody_special() -> Result<()> {
    let gateway = gateway().await?;
    let alice = super::client::token(&gateway, "alice")?;
    Client::owner(&gateway, super::client::Era::Modern, "mine")
        .await?
        .ask("session_create", json!({ "name": "mine" }))
        .await?;
    for era in ERAS {
        let mut admin = Client::unconnected(&gateway.session_url("hers"), &alice, era).called("admin");
        if era == super::client::Era::Legacy {
            admin.initialize().await?;
        }
        admin.ask("session_emit", json!({ "type": "note.x" })).await?;
        let list = admin.ask("session_list", json!({})).await?;
        let names: Vec<&Value> =
            list["sessions"].as_array().context("sessions")?.iter().map(|one| &one["name"]).collect();
        ensure!(names == ["hers"], "{list}");
        let event = &admin.ask("session_events", json!({ "limit": 1 })).await?["events"][0];
        ensure!(
            event["by"] == json!({ "principal": "local:alice", "client": "admin/1", "via": "mcp" }),
            "{event}"
        );
    }
    Ok(())
}
