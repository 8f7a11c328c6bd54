//! Legacy sessions: whose they are, how many there may be, and when they end. Rows 26 to 30 and 41.

use std::time::Duration;

use gateway::mcp::wire::WireSettings;
use serde_json::{Value, json};

use super::fixture::{Fixture, Target, start};
use super::raw::{Answer, Request};

/// Row 26. Somebody else's session, and one's own at another endpoint, are like one that never was, to the byte.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_its_owners_at_its_endpoint() {
    let fixture = start(WireSettings::default()).await;
    let target = &fixture.target;
    let session = target.session().await;
    let ways: [fn(&Target, &str) -> Request; 6] = [
        |t, id| t.legacy(id, "tools/call", &t.call_params()),
        |t, id| t.legacy(id, "initialize", &initialize()),
        |t, id| {
            t.post(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))
                .add("Mcp-Session-Id", id)
        },
        |t, id| t.bare("GET", id),
        |t, id| t.bare("GET", id).add("Last-Event-ID", "0"),
        |t, id| t.bare("DELETE", id),
    ];
    for (way, request) in ways.iter().enumerate() {
        let unknown = request(target, "no-such-session").send(target.address).await;
        assert_eq!(unknown.status, 404, "way {way}");
        let foreign = target.as_other(request(target, &session)).send(target.address).await;
        let elsewhere = request(target, &session).on(&target.other_path).send(target.address).await;
        for answer in [foreign, elsewhere] {
            assert_eq!(shown(&answer), shown(&unknown), "way {way}");
        }
    }
    assert_eq!(fixture.seen.runs(), 0);
    let own = target.legacy(&session, "tools/call", &target.call_params()).send(target.address).await;
    assert!(own.text().is_some(), "after all that it is still there: {own:?}");
}

/// Row 27. DELETE ends a session; what comes after is unknown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_session_is_unknown() {
    let fixture = start(WireSettings::default()).await;
    let target = &fixture.target;
    let session = target.session().await;
    assert_eq!(target.bare("DELETE", &session).send(target.address).await.status, 202);
    let call = target.legacy(&session, "tools/call", &target.call_params()).send(target.address).await;
    let unknown = target.legacy("no-such-session", "tools/call", &json!({})).send(target.address).await;
    assert_eq!(call.status, 404);
    assert_eq!(target.bare("DELETE", &session).send(target.address).await.status, 404);
    assert_eq!(shown(&call).1, "Not Found: Session not found", "{unknown:?}");
}

/// Row 27. In a session, the version header is checked too, and in every era supplied headers must be true (row 8).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_must_be_true_in_a_session() {
    let fixture = start(WireSettings::default()).await;
    let target = &fixture.target;
    let session = target.session().await;
    let call = || target.legacy(&session, "tools/call", &target.call_params());
    let refused = [
        (call().set("MCP-Protocol-Version", "1999-01-01"), -32022),
        (call().add("Mcp-Name", "other"), -32020),
        (call().add("Mcp-Method", "tools/list"), -32020),
        (call().add("Mcp-Session-Id", &session), -32020),
    ];
    for (request, code) in refused {
        let answer = request.send(target.address).await;
        assert_eq!((answer.status, answer.code()), (400, Some(code)), "{answer:?}");
    }
    assert_eq!(fixture.seen.runs(), 0);
    for request in [call(), call().without("MCP-Protocol-Version"), call().add("Mcp-Name", &target.tool)] {
        let answer = request.send(target.address).await;
        assert!(answer.text().is_some(), "{answer:?}");
    }
}

/// Row 28. A flood of `initialize` meets a cap; others do not feel it, and a place that is given back can be taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn initialize_has_a_cap_per_principal() {
    let fixture = start(WireSettings { max_sessions: 8, ..WireSettings::default() }).await;
    let target = &fixture.target;
    let mut sessions = Vec::new();
    for _ in 0..300 {
        let answer = target.initialize("2025-11-25").send(target.address).await;
        if let Some(session) = answer.header("mcp-session-id") {
            sessions.push(session.to_owned());
            continue;
        }
        assert_eq!(answer.status, 429, "{answer:?}");
        assert!(answer.header("retry-after").is_some() && answer.code().is_some(), "{answer:?}");
    }
    assert_eq!(sessions.len(), 8);
    let bob = target.as_other(target.initialize("2025-11-25")).send(target.address).await;
    assert_eq!(bob.status, 200);
    assert_eq!(target.bare("DELETE", &sessions[0]).send(target.address).await.status, 202);
    target.session().await;
}

/// Row 28. What fails to become a session takes no place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_initialize_takes_no_place() {
    let fixture = start(WireSettings { max_sessions: 2, ..WireSettings::default() }).await;
    let target = &fixture.target;
    for _ in 0..10 {
        let refused = target.initialize("2025-11-25").set("Accept", "text/plain").send(target.address).await;
        assert_eq!(refused.status, 406);
        let refused = target
            .initialize("2025-11-25")
            .add("MCP-Protocol-Version", "2025-06-18")
            .send(target.address)
            .await;
        assert_eq!(refused.status, 400);
    }
    target.session().await;
    target.session().await;
}

/// Row 29. Whatever version `initialize` names, a legacy one is spoken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn initialize_negotiates_a_legacy_version() {
    let fixture = start(WireSettings::default()).await;
    let target = &fixture.target;
    for (asked, given) in [
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
    ] {
        let answer = target.initialize(asked).send(target.address).await;
        assert_eq!(
            answer.message().expect("a message")["result"]["protocolVersion"],
            given,
            "asked for {asked}"
        );
    }
}

/// Row 30. A session is initialized once; a modern request does not see it, whoever's it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_initialized_once() {
    let fixture = start(WireSettings::default()).await;
    let target = &fixture.target;
    let session = target.session().await;
    let again = target.initialize("2025-11-25").add("Mcp-Session-Id", &session).send(target.address).await;
    assert_eq!((again.status, again.code()), (400, Some(-32600)), "{again:?}");
    let modern = target.call().add("Mcp-Session-Id", &session);
    assert!(modern.send(target.address).await.text().is_some());
    assert!(target.as_other(modern).send(target.address).await.text().is_some());
}

/// Rows 39, 40, and clients that say stray things: accepted, without effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stray_messages_are_accepted_and_ignored() {
    let fixture = start(WireSettings::default()).await;
    let target = &fixture.target;
    let session = target.session().await;
    let stray = [
        json!({ "method": "notifications/cancelled", "params": { "requestId": 4711 } }),
        json!({ "method": "notifications/cancelled", "params": {} }),
        json!({ "method": "notifications/progress", "params": { "progressToken": "foreign", "progress": 1 } }),
        json!({ "method": "notifications/initialized" }),
        json!({ "method": "notifications/no-such-thing", "params": { "x": 1 } }),
        json!({ "id": 4711, "result": {} }),
        json!({ "id": 4711, "error": { "code": 1, "message": "x" } }),
    ];
    for mut message in stray {
        message["jsonrpc"] = json!("2.0");
        let request = target.post(&message).add("Mcp-Session-Id", &session);
        assert_eq!(request.send(target.address).await.status, 202, "{message}");
    }
    let cancelled =
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } });
    let modern = target
        .post(&cancelled)
        .add("MCP-Protocol-Version", "2026-07-28")
        .add("Mcp-Method", "notifications/cancelled");
    assert_eq!(modern.send(target.address).await.status, 202);
    let answer = target.legacy(&session, "tools/call", &target.call_params()).send(target.address).await;
    assert!(answer.text().is_some(), "{answer:?}");
}

/// Abandoned sessions end; one with a running call or an open stream is not abandoned.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_abandoned_sessions_expire() {
    let idle = Duration::from_millis(300);
    let fixture = start(WireSettings { session_idle: idle, ..WireSettings::default() }).await;
    let target = &fixture.target;
    let (abandoned, listening, working) =
        (target.session().await, target.session().await, target.session().await);
    let stream = target.bare("GET", &listening).open(target.address).await;
    assert_eq!(stream.answer.status, 200);
    // The client of this one goes away while its call runs, which in this era does not cancel it.
    let slow = json!({ "name": "slow", "arguments": { "ms": 3000 } });
    drop(target.legacy(&working, "tools/call", &slow).open(target.address).await);
    tokio::time::sleep(idle * 5).await;
    let ping = |session: &str| target.legacy(session, "ping", &json!({}));
    assert_eq!(ping(&abandoned).send(target.address).await.status, 404);
    assert_eq!(ping(&listening).send(target.address).await.status, 200);
    assert_eq!(ping(&working).send(target.address).await.status, 200);
    drop(stream);
    until(&fixture, |fixture| fixture.seen.finished() == 1).await;
    assert_eq!(fixture.seen.cancelled(), 0);
    tokio::time::sleep(idle * 5).await;
    for session in [listening, working] {
        assert_eq!(ping(&session).send(target.address).await.status, 404);
    }
}

/// Row 41. Listening streams have a cap per principal, in both eras together; a closed one gives its place back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listening_streams_have_a_cap_per_principal() {
    let fixture = start(WireSettings { max_streams: 3, ..WireSettings::default() }).await;
    let target = &fixture.target;
    let session = target.session().await;
    let listen =
        || target.modern("subscriptions/listen", json!({ "notifications": { "toolsListChanged": true } }));
    let mut open = Vec::new();
    for request in [target.bare("GET", &session), listen(), listen()] {
        let stream = request.open(target.address).await;
        assert_eq!(stream.answer.status, 200, "{:?}", stream.answer);
        open.push(stream);
    }
    for request in [target.bare("GET", &session), listen()] {
        let answer = request.send(target.address).await;
        assert!(answer.status == 429 && answer.header("retry-after").is_some(), "{answer:?}");
    }
    let others = target.as_other(listen()).open(target.address).await;
    assert_eq!(others.answer.status, 200);
    assert!(target.call().send(target.address).await.text().is_some(), "calls are not streams that listen");
    open.pop();
    for _ in 0..100 {
        let stream = listen().open(target.address).await;
        if stream.answer.status == 200 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("a closed stream does not give its place back");
}

/// A stop ends everything soon: open streams, running calls of both eras, answers that are kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_leaves_nothing_running() {
    let fixture =
        start(WireSettings { patience: Duration::from_millis(100), ..WireSettings::default() }).await;
    let target = &fixture.target;
    let session = target.session().await;
    let slow = |ms| json!({ "name": "slow", "arguments": { "ms": ms } });
    drop(target.legacy(&session, "tools/call", &slow(1)).open(target.address).await);
    let open = [
        target.bare("GET", &session).open(target.address).await,
        target.legacy(&session, "tools/call", &slow(600_000)).open(target.address).await,
        target.modern("tools/call", slow(600_000)).open(target.address).await,
        target.modern("subscriptions/listen", json!({ "notifications": {} })).open(target.address).await,
    ];
    until(&fixture, |fixture| fixture.seen.runs() == 3).await;
    fixture.cancel.cancel();
    fixture.tasks.close();
    tokio::time::timeout(Duration::from_secs(30), fixture.tasks.wait()).await.expect("everything ends");
    until(&fixture, |fixture| fixture.seen.cancelled() == 2).await;
    drop(open);
}

/// What a client can tell answers apart by.
fn shown(answer: &Answer) -> (u16, String, Vec<(String, String)>) {
    let headers = answer.headers.iter().filter(|(name, _)| name != "date").cloned().collect();
    (answer.status, answer.body.clone(), headers)
}

fn initialize() -> Value {
    json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" } })
}

/// Waits for what will soon be so.
pub(super) async fn until(fixture: &Fixture, so: impl Fn(&Fixture) -> bool) {
    for _ in 0..300 {
        if so(fixture) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("it did not become so within 30 s");
}
