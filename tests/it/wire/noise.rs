//! Random bytes and mutated messages: the guard never panics, and nothing runs that is not a right call.

use gateway::mcp::wire::WireSettings;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::Value;

use super::fixture::{Fixture, start};

/// How many requests each property is tried with.
const CASES: u32 = 300;

/// Tries `bodies` as the body of a call, in either era; with `right`, whether one of them would be a right call.
/// Returns how many ran.
fn try_all(bodies: impl Strategy<Value = Vec<u8>>, right: fn(&[u8]) -> bool) -> usize {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let (fixture, session) = runtime.block_on(async {
        let fixture = start(WireSettings::default()).await;
        let session = fixture.target.session().await;
        (fixture, session)
    });
    let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    let tried = runner.run(&bodies, |body| {
        runtime.block_on(one(&fixture, &session, &body, right));
        Ok(())
    });
    tried.unwrap_or_else(|failure| panic!("{failure}"));
    let ran = fixture.seen.runs();
    let still = runtime.block_on(fixture.target.call().send(fixture.target.address));
    assert!(still.text().is_some(), "after all that it still serves: {still:?}");
    ran
}

async fn one(fixture: &Fixture, session: &str, body: &[u8], right: fn(&[u8]) -> bool) {
    let target = &fixture.target;
    let legacy = target.post(&Value::Null).add("Mcp-Session-Id", session);
    for request in [target.call(), legacy] {
        let before = fixture.seen.runs();
        let answer = request.body(body).send(target.address).await;
        let ran = fixture.seen.runs() - before;
        assert!([200, 202, 400, 404].contains(&answer.status), "{answer:?}");
        assert!(ran == 0 || right(body), "{} ran: {answer:?}", String::from_utf8_lossy(body));
        if answer.status == 400 {
            assert!(answer.code().is_some(), "a refusal says why: {answer:?}");
        }
    }
}

#[test]
fn random_bytes_run_nothing() {
    assert_eq!(try_all(proptest::collection::vec(any::<u8>(), 0..200), |_| false), 0);
}

#[test]
fn random_json_runs_nothing() {
    let leaf =
        prop_oneof![Just("null".to_owned()), Just("2.0".into()), "-?[0-9]{1,25}", "\"[a-z/\\\\0-9]{0,8}\""];
    let key =
        prop_oneof![Just("jsonrpc"), Just("id"), Just("params"), Just("_meta"), Just("result"), Just("x")];
    let json = leaf.prop_recursive(6, 60, 6, move |inner| {
        let entry = (key.clone(), inner.clone()).prop_map(|(key, value)| format!("\"{key}\":{value}"));
        prop_oneof![
            proptest::collection::vec(inner, 0..4).prop_map(|items| format!("[{}]", items.join(","))),
            proptest::collection::vec(entry, 0..6).prop_map(|entries| format!("{{{}}}", entries.join(","))),
        ]
    });
    assert_eq!(try_all(json.prop_map(String::into_bytes), |_| false), 0);
}

/// A right call with some bytes changed, dropped or put in. It may still be one: then every reader must agree that it
/// is, so the test reads it with another one.
#[test]
fn a_mutated_call_runs_only_if_it_is_still_one() {
    const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello","n":[1,{"a":null}]},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;
    let byte = prop_oneof![
        any::<u8>(),
        Just(b'"'),
        Just(b'{'),
        Just(b'}'),
        Just(b','),
        Just(b':'),
        Just(b'\\'),
        Just(b'1')
    ];
    let change = (0..CALL.len(), 0..3_u8, byte);
    let mutated = proptest::collection::vec(change, 1..4).prop_map(|changes| {
        let mut bytes = CALL.as_bytes().to_vec();
        for (at, kind, byte) in changes {
            let at = at.min(bytes.len() - 1);
            match kind {
                0 => bytes[at] = byte,
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, byte),
            }
        }
        bytes
    });
    let ran = try_all(mutated, |body| {
        let Ok(message) = serde_json::from_slice::<Value>(body) else { return false };
        let id = &message["id"];
        message["jsonrpc"] == "2.0"
            && message["method"] == "tools/call"
            && (id.is_string() || id.as_f64().is_some_and(|id| id.fract() == 0.0))
            && message["params"]["name"].is_string()
    });
    assert!(ran > 0, "a change inside a text leaves it a call");
}
