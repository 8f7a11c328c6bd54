//! Response headers come within a second or so, however long the tool is silent, and closing means what it meant.

use std::time::{Duration, Instant};

use gateway::mcp::wire::WireSettings;
use serde_json::{Value, json};

use super::fixture::{Fixture, start};
use super::raw::{Open, Request};
use super::sessions::until;

/// How long the silent call takes. The whole gateway has its own test with 90 s.
const SILENT: Duration = Duration::from_secs(5);
/// Until when there have to be headers.
const HEADERS: Duration = Duration::from_secs(2);

fn slow(ms: u128, fail: Value) -> Value {
    let mut arguments = json!({ "ms": ms });
    if !fail.is_null() {
        arguments["fail"] = fail;
    }
    json!({ "name": "slow", "arguments": arguments })
}

fn is_stream(open: &Open) -> bool {
    let answer = &open.answer;
    answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"))
        && answer.header("x-accel-buffering") == Some("no")
        && answer.header("cache-control") == Some("no-cache")
}

/// All of an event stream: (comments, messages).
async fn rest(mut open: Open) -> (Vec<String>, Vec<Value>) {
    let (mut comments, mut messages) = (Vec::new(), Vec::new());
    while let Some(line) = open.line().await {
        if line.starts_with(':') {
            comments.push(line);
        } else if let Some(data) = line.strip_prefix("data:") {
            messages.extend(serde_json::from_str(data.trim()));
        }
    }
    (comments, messages)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_call_has_its_headers_in_both_eras() {
    let keep_alive = Duration::from_secs(1);
    let fixture = start(WireSettings { keep_alive, ..WireSettings::default() }).await;
    let target = &fixture.target;
    let session = target.session().await;
    let call = slow(SILENT.as_millis(), Value::Null);
    let modern = target.modern("tools/call", call.clone());
    for request in [modern, target.legacy(&session, "tools/call", &call)] {
        let begun = Instant::now();
        let open = request.open(target.address).await;
        assert!(begun.elapsed() < HEADERS, "headers after {:?}", begun.elapsed());
        assert!(open.answer.status == 200 && is_stream(&open), "{:?}", open.answer);
        let (comments, messages) = rest(open).await;
        assert!(begun.elapsed() >= SILENT);
        assert!(comments.len() >= 3, "kept alive: {comments:?}");
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert_eq!(messages[0]["result"]["content"][0]["text"], "rested");
        assert_eq!(messages[0]["id"], 1);
    }
}

/// An error that comes in time has its status; one that comes late is a message on the stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_error_comes_on_the_stream() {
    let fixture =
        start(WireSettings { patience: Duration::from_millis(200), ..WireSettings::default() }).await;
    let target = &fixture.target;
    let late = target.modern("tools/call", slow(1000, json!(true))).open(target.address).await;
    assert!(late.answer.status == 200 && is_stream(&late));
    let (_, messages) = rest(late).await;
    assert_eq!(messages.len(), 1);
    assert_eq!((messages[0]["id"].clone(), messages[0]["error"]["code"].clone()), (json!(1), json!(-32602)));
    let early = target.modern("tools/destroy", json!({})).send(target.address).await;
    assert_eq!((early.status, early.code()), (404, Some(-32601)));
    let quick = target.call().send(target.address).await;
    assert_eq!(quick.header("content-type"), Some("application/json"), "a plain result needs no stream");
}

/// Row 42, modern: closing the stream cancels, before and after it was opened early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_a_modern_stream_cancels() {
    let fixture = start(WireSettings::default()).await;
    let target = &fixture.target;
    let request = target.modern("tools/call", slow(60_000, Value::Null));
    drop(request.open(target.address).await);
    until(&fixture, |fixture| fixture.seen.cancelled() == 1).await;
    give_up_before_headers(&fixture, &request).await;
    until(&fixture, |fixture| fixture.seen.cancelled() == 2).await;
    assert_eq!(fixture.seen.finished(), 0);
}

/// Row 42, legacy: it does not, another stream can go on where it broke, and `notifications/cancelled` cancels.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_a_legacy_stream_does_not_cancel() {
    let fixture = start(WireSettings::default()).await;
    let target = &fixture.target;
    let session = target.session().await;
    let mut open = target.legacy(&session, "tools/call", &slow(1500, Value::Null)).open(target.address).await;
    let id = event_id(&mut open).await;
    drop(open);
    let resume = target.bare("GET", &session).add("Last-Event-ID", &id);
    let resumed = resume.send(target.address).await;
    assert_eq!(fixture.seen.finished(), 1, "it went on to the end");
    assert_eq!(resumed.text().as_deref(), Some("rested"), "{resumed:?}");
    let running =
        target.legacy(&session, "tools/call", &slow(60_000, Value::Null)).open(target.address).await;
    until(&fixture, |fixture| fixture.seen.runs() == 2).await;
    let cancel =
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } });
    let cancel = target.post(&cancel).add("Mcp-Session-Id", &session).send(target.address).await;
    assert_eq!(cancel.status, 202);
    until(&fixture, |fixture| fixture.seen.cancelled() == 1).await;
    drop(running);
}

/// Sends a call whose client is gone before anything was answered.
async fn give_up_before_headers(fixture: &Fixture, request: &Request) {
    let runs = fixture.seen.runs();
    let sent = request.open(fixture.target.address);
    tokio::select! {
        _ = sent => panic!("it answers only after a second"),
        () = until(fixture, |fixture| fixture.seen.runs() > runs) => {}
    }
}

/// A legacy client whose connection breaks, and who comes back only when the answer is long there, still gets it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_nobody_heard_is_kept() {
    let fixture = start(WireSettings::default()).await;
    let target = &fixture.target;
    let session = target.session().await;
    let mut open = target.legacy(&session, "tools/call", &slow(500, Value::Null)).open(target.address).await;
    let id = event_id(&mut open).await;
    drop(open);
    until(&fixture, |fixture| fixture.seen.finished() == 1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let resume = target.bare("GET", &session).add("Last-Event-ID", &id);
    assert_eq!(resume.send(target.address).await.text().as_deref(), Some("rested"));
    let bob = target.as_other(resume).send(target.address).await;
    assert_eq!(bob.status, 404);
    // One who heard it is not told again.
    let mut heard = target.legacy(&session, "tools/call", &slow(1, Value::Null)).open(target.address).await;
    let id = event_id(&mut heard).await;
    rest(heard).await;
    let again = target.bare("GET", &session).add("Last-Event-ID", &id).send(target.address).await;
    assert_eq!((again.status, again.message()), (200, None));
}

/// Row 41. A client that stops reading is cut off; the calls of its own session do not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_holds_nobody_up() {
    let fixture = start(WireSettings::default()).await;
    let target = &fixture.target;
    let session = target.session().await;
    let news = target.bare("GET", &session).open(target.address).await;
    assert_eq!(news.answer.status, 200);
    // Far more than the buffers between here and there hold.
    let shout = json!({ "name": "shout", "arguments": { "times": 2000, "bytes": 20_000 } });
    let answer = target.legacy(&session, "tools/call", &shout).send(target.address).await;
    assert_eq!(answer.text().as_deref(), Some("shouted"));
    let echo = target.legacy(&session, "tools/call", &target.call_params()).send(target.address).await;
    assert!(echo.text().is_some(), "{echo:?}");
    let heard = rest(news).await.1.len();
    assert!(heard < 2000, "it was cut off, after {heard} messages");
}

async fn event_id(open: &mut Open) -> String {
    loop {
        let line = open.line().await.expect("a priming event");
        if let Some(id) = line.strip_prefix("id:") {
            return id.trim().to_owned();
        }
    }
}
