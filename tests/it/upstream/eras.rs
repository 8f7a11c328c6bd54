//! Which era a server speaks, and what it is told in it.

use std::time::Duration;

use hands::Hand;
use hands::mcp::{McpFace, Reply};
use hands::upstream::{Limits, Protocol, Reach, Trust};
use serde_json::json;

use super::kit::{Era, PAIRS, Rig, Way, call, config, quiet, script, soon, text};
use super::web::Web;

#[tokio::test]
async fn both_eras_are_found_out_over_both_transports() {
    for (way, era) in PAIRS {
        let rig = Rig::new(way, era).await;
        let outcome = rig.call("echo", json!({"text": "hello"})).await;
        assert_eq!(text(&outcome), "hello", "{way:?} {era:?}");
        let Some(Reply::Result(result)) = outcome.reply else { panic!() };
        assert_eq!(result["unknown"], json!({"kept": 1.5}), "what we don't know is kept");
        soon(|| !rig.hand.catalogue().tools.is_empty()).await;
        let catalogue = rig.hand.catalogue();
        assert_eq!(catalogue.tools[0]["x"], json!([1]));
        assert_eq!(catalogue.server["name"], "scripted");
        let version = match (way, era) {
            (_, Era::Modern) => "2026-07-28",
            (Way::Http, Era::Legacy) => "2025-06-18",
            (Way::Stdio, Era::Legacy) => "2025-11-25",
        };
        assert_eq!(catalogue.version, version);
        assert_eq!(rig.got_of("initialize").len(), usize::from(era == Era::Legacy));
        assert_eq!(rig.got_of("notifications/initialized").len(), usize::from(era == Era::Legacy));
        rig.end().await;
    }
}

#[tokio::test]
async fn a_server_that_exits_on_the_probe_is_asked_the_old_way_at_once_the_next_time() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::of(config(script(&folder, &["exit"])), folder);
    assert_eq!(text(&rig.call("echo", json!({"text": "old"})).await), "old");
    rig.hand.release(rig.handle().await).await.unwrap();
    assert_eq!(text(&rig.call("echo", json!({"text": "again"})).await), "again");
    assert_eq!(rig.got_of("server/discover").len(), 1);
    assert_eq!(rig.got_of("initialize").len(), 2);
    rig.end().await;
}

/// On a busy machine a stateless server may begin so late that it finds both questions at once.
#[tokio::test]
async fn a_stateless_server_that_refuses_to_be_asked_the_old_way_may_still_answer_the_first_question() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { probe: Duration::from_millis(300), ..Limits::default() };
    let rig = Rig::limited(config(script(&folder, &["modern", "dozing"])), folder, limits);
    assert_eq!(text(&rig.call("echo", json!({"text": "awake"})).await), "awake");
    assert_eq!(rig.got_of("initialize").len(), 1);
    soon(|| rig.hand.catalogue().version == "2026-07-28").await;
    rig.end().await;
}

#[tokio::test]
async fn a_fixed_era_is_not_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut legacy = config(script(&folder, &["legacy"]));
    legacy.protocol = Protocol::Legacy;
    let rig = Rig::of(legacy, folder);
    rig.call("echo", json!({"text": "x"})).await;
    assert!(rig.got_of("server/discover").is_empty());
    rig.end().await;

    let web = Web::start(Era::Legacy).await;
    let mut modern = config(Reach::Http { url: web.url(), headers: Vec::new(), trust: Trust::Machine });
    modern.protocol = Protocol::Modern;
    let rig = Rig::of(modern, tempfile::tempdir().unwrap());
    let refused = rig.try_call("echo", json!({"text": "x"}), quiet()).await.unwrap_err();
    assert!(refused.to_string().contains("status 400: no session"), "{refused}");
    rig.end().await;
}

#[tokio::test]
async fn a_stateless_server_is_told_everything_with_each_request() {
    let rig = Rig::new(Way::Http, Era::Modern).await;
    let handle = rig.handle().await;
    let recorder = std::sync::Arc::<super::kit::Recorder>::default();
    let arguments = json!({"where": "köln", "deep": {"n": 42}});
    rig.call("echo", json!({"text": "x"})).await;
    soon(|| !rig.hand.catalogue().tools.is_empty()).await;
    rig.hand.execute(&handle, &call("region", arguments), recorder.context(Some("warning"))).await.unwrap();
    let request = hands::mcp::Request {
        method: "resources/read".to_owned(),
        params: serde_json::from_value(json!({"uri": "test://ä", "_meta": {"theirs": 1}})).unwrap(),
    };
    rig.hand.request(&handle, request, quiet()).await.unwrap();

    let called = rig.got_of("tools/call").pop().unwrap();
    let headers = &called["headers"];
    assert_eq!(headers["mcp-protocol-version"], "2026-07-28");
    assert_eq!(headers["mcp-method"], "tools/call");
    assert_eq!(headers["mcp-name"], "region");
    assert_eq!(headers["mcp-param-region"], "=?base64?a8O2bG4=?=");
    assert_eq!(headers["mcp-param-n"], "42");
    assert_eq!(headers["x-configured"], "yes");
    assert_eq!(headers["accept"], "application/json, text/event-stream");
    let meta = &called["params"]["_meta"];
    assert_eq!(meta["vendor/key"], 1);
    assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    assert_eq!(meta["io.modelcontextprotocol/clientInfo"]["name"], "manyhands");
    assert_eq!(
        meta["io.modelcontextprotocol/clientCapabilities"],
        json!({"elicitation": {"form": {}}, "sampling": {}})
    );
    assert_eq!(meta["io.modelcontextprotocol/logLevel"], "warning");
    assert_eq!(meta["progressToken"], called["id"], "a token of ours");
    let read = rig.got_of("resources/read").pop().unwrap();
    assert_eq!(read["headers"]["mcp-name"], "=?base64?dGVzdDovL8Ok?=");
    assert_eq!(read["params"]["_meta"]["theirs"], json!(null));
    rig.end().await;
}

#[tokio::test]
async fn a_legacy_session_is_begun_used_renewed_once_and_ended() {
    let rig = Rig::new(Way::Http, Era::Legacy).await;
    rig.call("echo", json!({"text": "x"})).await;
    let called = rig.got_of("tools/call").pop().unwrap();
    assert_eq!(called["headers"]["mcp-session-id"], "session-0");
    assert_eq!(called["headers"]["mcp-protocol-version"], "2025-06-18");
    assert_eq!(called["headers"]["mcp-method"], json!(null));
    rig.web.as_ref().unwrap().forget();
    assert_eq!(text(&rig.call("echo", json!({"text": "renewed"})).await), "renewed");
    assert_eq!(rig.got_of("tools/call").pop().unwrap()["headers"]["mcp-session-id"], "session-1");
    rig.hand.release(rig.handle().await).await.unwrap();
    let ended = rig.got().into_iter().filter(|message| message["verb"] == "DELETE").collect::<Vec<_>>();
    assert_eq!(ended.len(), 1);
    assert_eq!(ended[0]["headers"]["mcp-session-id"], "session-1");
    rig.end().await;
}

#[tokio::test]
async fn a_server_that_changes_its_era_is_asked_anew() {
    let rig = Rig::new(Way::Http, Era::Modern).await;
    let web = rig.web.as_ref().unwrap();
    for era in [Era::Modern, Era::Legacy, Era::Modern] {
        web.become_of(era);
        assert_eq!(text(&rig.call("echo", json!({"text": "x"})).await), "x", "{era:?}");
    }
    rig.end().await;
}

#[tokio::test]
async fn a_tool_whose_headers_changed_is_listed_again_and_called_once_more() {
    let rig = Rig::new(Way::Http, Era::Modern).await;
    let web = rig.web.as_ref().unwrap();
    rig.hand.refresh().await.unwrap();
    let properties = json!({"text": {"type": "string", "x-mcp-header": "Text"}});
    *web.tools.lock().unwrap() =
        json!([{"name": "echo", "inputSchema": {"type": "object", "properties": properties}}]);
    web.script(
        "tools/call",
        json!({"status": 400, "body": {
        "jsonrpc": "2.0", "id": null, "error": {"code": -32020, "message": "Mcp-Param-Text is missing"}}}),
    );
    assert_eq!(text(&rig.call("echo", json!({"text": "x"})).await), "x");
    let calls = rig.got_of("tools/call");
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[1]["headers"]["mcp-param-text"], "x");
    rig.end().await;
}

#[tokio::test]
async fn a_legacy_stream_that_ends_early_goes_on_where_it_was() {
    let rig = Rig::new(Way::Http, Era::Legacy).await;
    assert_eq!(text(&rig.call("poll", json!({})).await), "resumed");
    assert_eq!(rig.got_of("tools/call").len(), 1);
    rig.end().await;
}

#[tokio::test]
async fn what_was_known_is_there_before_the_server_and_a_real_change_is_told_once() {
    let rig = Rig::new(Way::Http, Era::Modern).await;
    rig.hand.refresh().await.unwrap();
    let known = rig.hand.catalogue();
    let web = rig.web.as_ref().unwrap();
    let reach = Reach::Http { url: web.url(), headers: Vec::new(), trust: Trust::Machine };
    let again = hands::upstream::Upstream::new(config(reach), (*known).clone());
    assert_eq!(again.tools().await.unwrap().len(), 2);
    let changes = again.changes();
    again.refresh().await.unwrap();
    assert!(!changes.has_changed().unwrap(), "nothing is new");
    *web.tools.lock().unwrap() = json!([]);
    again.refresh().await.unwrap();
    assert!(changes.has_changed().unwrap());
    again.shutdown().await;
    rig.end().await;
}
