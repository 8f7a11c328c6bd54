//! Bad input, a line each: what is sent, and what has to come back. The first column is the row of the project's
//! bad-input table; then what is wrong, the request, the HTTP status and the JSON-RPC code.

use gateway::mcp::wire::WireSettings;
use serde_json::{Value, json};
use tests::gateway::{Gateway, Options};

use super::fixture::{Target, start};
use super::raw::Request;

type Make = fn(&Target) -> Request;
type Row = (&'static str, &'static str, Make, u16, Option<i64>);

const VERSION: &str = "MCP-Protocol-Version";
const PARSE: Option<i64> = Some(-32700);
const INVALID: Option<i64> = Some(-32600);
const NO_METHOD: Option<i64> = Some(-32601);
const PARAMS: Option<i64> = Some(-32602);
const HEADER: Option<i64> = Some(-32020);
const UNSUPPORTED: Option<i64> = Some(-32022);

/// Nothing of this may run a tool.
#[rustfmt::skip]
const REFUSED: &[Row] = &[
    ("1", "foreign Host", |t| t.call().add("Host", "evil.example.com"), 403, None),
    ("1", "Host with a user", |t| t.call().add("Host", "evil@localhost"), 400, None),
    ("1", "no Host", |t| t.call().add("Host", ""), 400, None),
    ("1", "two Hosts", |t| t.call().add("Host", "localhost").add("Host", "localhost"), 400, None),
    ("1", "foreign authority in the request line", |t| t.call().on("http://evil.example.com/mcp").add("Host", "localhost"), 403, None),
    ("2", "foreign Origin", |t| t.call().add("Origin", "http://evil.example"), 403, None),
    ("2", "Origin null", |t| t.call().add("Origin", "null"), 403, None),
    ("2", "Origin that only begins like ours", |t| t.call().add("Origin", "http://localhost.evil.example"), 403, None),
    ("2", "empty Origin", |t| t.call().add("Origin", ""), 403, None),
    ("2", "two Origins, one of them ours", |t| t.call().add("Origin", "http://localhost").add("Origin", "http://evil.example"), 403, None),
    ("3", "preflight from a foreign Origin", |t| t.call().method("OPTIONS").add("Origin", "http://evil.example").body(""), 403, None),
    ("3", "preflight from ours", |t| t.call().method("OPTIONS").add("Origin", "http://localhost:3000").body(""), 405, None),
    ("4", "Mcp-Name names another tool", |t| t.call().set("Mcp-Name", "other"), 400, HEADER),
    ("4", "Mcp-Method names another method", |t| t.call().set("Mcp-Method", "tools/list"), 400, HEADER),
    ("4", "Mcp-Method in capitals", |t| t.call().set("Mcp-Method", "TOOLS/CALL"), 400, HEADER),
    ("4", "no Mcp-Name", |t| t.call().without("Mcp-Name"), 400, HEADER),
    ("4", "no Mcp-Method", |t| t.call().without("Mcp-Method"), 400, HEADER),
    ("5", "Mcp-Name twice, equal", |t| t.call().add("Mcp-Name", &t.tool), 400, HEADER),
    ("5", "Mcp-Name twice, different", |t| t.call().add("Mcp-Name", "other"), 400, HEADER),
    ("5", "Mcp-Method twice", |t| t.call().add("Mcp-Method", "tools/call"), 400, HEADER),
    ("6", "version twice, the newer first", |t| t.call().add(VERSION, "2025-11-25"), 400, HEADER),
    ("6", "version twice, the older first", |t| t.call().set(VERSION, "2025-11-25").add(VERSION, "2026-07-28"), 400, HEADER),
    ("7", "header older than _meta", |t| t.call().set(VERSION, "2025-11-25"), 400, HEADER),
    ("7", "no header, but _meta", |t| t.call().without(VERSION), 400, HEADER),
    ("8", "downgrade in _meta and header, lying name", |t| t.call_but("2026-07-28", "2025-11-25").set(VERSION, "2025-11-25").set("Mcp-Name", "other"), 400, UNSUPPORTED),
    ("8", "downgrade in _meta and header, honest name", |t| t.call_but("2026-07-28", "2025-11-25").set(VERSION, "2025-11-25"), 400, UNSUPPORTED),
    ("9", "a version of the future", |t| t.call_but("2026-07-28", "2099-01-01").set(VERSION, "2099-01-01"), 400, UNSUPPORTED),
    ("9", "a version of the past", |t| t.call_but("2026-07-28", "1900-01-01").set(VERSION, "1900-01-01"), 400, UNSUPPORTED),
    ("9", "a version of the future, in the header alone", |t| t.post(&json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" })).add(VERSION, "2099-01-01"), 400, UNSUPPORTED),
    ("10", "no _meta", |t| t.call_but("\"_meta\"", "\"_other\""), 400, PARAMS),
    ("10", "no capabilities in _meta", |t| t.call_but("/clientCapabilities", "/other"), 400, PARAMS),
    ("10", "_meta is no object", |t| t.call().body(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{}","_meta":[]}}}}"#, t.tool)), 200, PARAMS),
    ("11", "Mcp-Name in base64 without its padding", |t| t.call().set("Mcp-Name", "=?base64?ZWNobw?="), 400, HEADER),
    ("11", "Mcp-Name in base64 with its marker in capitals", |t| t.call().set("Mcp-Name", "=?BASE64?ZWNobw==?="), 400, HEADER),
    ("11", "Mcp-Name in base64 that is not UTF-8", |t| t.call().set("Mcp-Name", "=?base64?/w==?="), 400, HEADER),
    ("11", "Mcp-Name not ASCII", |t| t.call().set("Mcp-Name", "échö"), 400, HEADER),
    ("11", "Mcp-Name with a tab", |t| t.call().set("Mcp-Name", "ec\tho"), 400, HEADER),
    // The HTTP parser refuses it before the guard could, and has no JSON-RPC to say it with.
    ("11", "Mcp-Name with a control character", |t| t.call().set("Mcp-Name", b"ec\x01ho"), 400, None),
    ("13", "Mcp-Name on a list", |t| t.modern("tools/list", json!({})).add("Mcp-Name", &t.tool), 400, HEADER),
    ("13", "Mcp-Name, but no name", |t| t.call_but("\"name\"", "\"nome\""), 400, HEADER),
    ("14", "name twice", |t| t.call_but("\"name\":", "\"name\":\"other\",\"name\":"), 400, INVALID),
    ("14", "name twice, once escaped", |t| t.call_but("\"name\":", "\"n\\u0061me\":\"other\",\"name\":"), 400, INVALID),
    ("14", "method twice", |t| t.call_but("\"method\":", "\"method\":\"tools/list\",\"method\":"), 400, INVALID),
    ("14", "params twice", |t| t.call_but("\"params\":", "\"params\":{},\"params\":"), 400, INVALID),
    ("14", "id twice", |t| t.call_but("\"id\":", "\"id\":2,\"id\":"), 400, INVALID),
    ("14", "jsonrpc twice", |t| t.call_but("\"jsonrpc\":", "\"jsonrpc\":\"2.0\",\"jsonrpc\":"), 400, INVALID),
    ("14", "_meta twice", |t| t.call_but("\"_meta\":", "\"_meta\":{},\"_meta\":"), 400, INVALID),
    ("14", "a version in _meta twice", |t| t.call_but("\"io.modelcontextprotocol/protocolVersion\":", "\"io.modelcontextprotocol/protocolVersion\":\"2025-11-25\",\"io.modelcontextprotocol/protocolVersion\":"), 400, INVALID),
    ("14", "arguments twice", |t| t.call_but("\"arguments\":", "\"arguments\":{},\"arguments\":"), 400, INVALID),
    ("14", "an argument twice", |t| t.call_but("\"arguments\":{", "\"arguments\":{\"x\":1,\"x\":2,"), 400, INVALID),
    ("14", "a key twice deep inside an argument", |t| t.call_but("\"arguments\":{", "\"arguments\":{\"x\":[[{\"y\":{\"z\":1,\"z\":1}}]],"), 400, INVALID),
    ("14", "a key twice in a member without a meaning", |t| t.call_but("\"id\":", "\"other\":{\"a\":1,\"a\":1},\"id\":"), 400, INVALID),
    ("15", "malformed JSON", |t| t.call().body("{\"jsonrpc\":"), 400, PARSE),
    ("15", "something behind the message", |t| t.call_but("}}", "}} {}"), 400, PARSE),
    ("15", "nothing", |t| t.call().body(""), 400, PARSE),
    ("15", "not UTF-8", |t| t.call().body(b"{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"tools/list\"}"), 400, PARSE),
    ("15", "half a surrogate", |t| t.call_but("\"id\":1", "\"id\":\"\\ud800\""), 400, PARSE),
    ("15", "a number that no number can hold", |t| t.call_but("\"id\":1", "\"id\":1e999"), 400, PARSE),
    ("15", "a NUL", |t| t.call_but("\"id\":1", "\"id\":1\0"), 400, PARSE),
    ("15", "a batch", |t| t.call().body("[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]"), 400, INVALID),
    ("15", "a string", |t| t.call().body("\"tools/call\""), 400, INVALID),
    ("15", "id null", |t| t.call_but("\"id\":1", "\"id\":null"), 400, INVALID),
    ("15", "id 1.5", |t| t.call_but("\"id\":1", "\"id\":1.5"), 400, INVALID),
    ("15", "id {}", |t| t.call_but("\"id\":1", "\"id\":{}"), 400, INVALID),
    ("15", "id true", |t| t.call_but("\"id\":1", "\"id\":true"), 400, INVALID),
    ("15", "id beyond 64 bits", |t| t.call_but("\"id\":1", "\"id\":18446744073709551615"), 400, INVALID),
    ("15", "jsonrpc 1.0", |t| t.call_but("\"2.0\"", "\"1.0\""), 400, INVALID),
    ("15", "no jsonrpc", |t| t.call_but("\"jsonrpc\"", "\"jsonrcp\""), 400, INVALID),
    ("15", "method is no string", |t| t.call_but("\"tools/call\"", "[\"tools/call\"]"), 400, INVALID),
    ("15", "params are an array", |t| t.call().body("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":[]}"), 400, INVALID),
    ("15", "request and response at once", |t| t.call_but("\"id\":1", "\"id\":1,\"result\":{}"), 400, INVALID),
    ("15", "20000 arrays deep", |t| t.call_but("\"id\":1", &format!("\"id\":{}1{}", "[".repeat(20_000), "]".repeat(20_000))), 400, INVALID),
    ("15", "20000 objects deep in an argument", |t| t.call_but("\"arguments\":{", &format!("\"arguments\":{{\"x\":{}1{},", "{\"a\":".repeat(20_000), "}".repeat(20_000))), 400, INVALID),
    ("15", "20000 arrays deep and never closed", |t| t.call().body("[".repeat(20_000)), 400, INVALID),
    ("16", "a body over the limit", |t| t.call_but("\"arguments\":{", &format!("\"arguments\":{{\"x\":\"{}\",", "x".repeat(5 << 20))), 413, None),
    ("16", "a body over the limit that says nothing of it", |t| t.call().add("Transfer-Encoding", "chunked").body(format!("{:x}\r\n{}\r\n0\r\n\r\n", 5 << 20, " ".repeat(5 << 20))), 413, None),
    ("16", "more headers than there is a use for", |t| (0..200).fold(t.call(), |call, n| call.add(&format!("X-{n}"), "x")), 431, None),
    ("16", "a header larger than there is a use for", |t| t.call().add("X-Large", "x".repeat(100_000)), 431, None),
    ("17", "Accept without the stream", |t| t.call().set("Accept", "application/json"), 406, None),
    ("17", "Accept without JSON", |t| t.call().set("Accept", "text/event-stream"), 406, None),
    ("17", "Accept of anything", |t| t.call().set("Accept", "*/*"), 406, None),
    ("17", "Content-Type text/plain", |t| t.call().set("Content-Type", "text/plain"), 415, None),
    ("17", "Content-Type twice", |t| t.call().add("Content-Type", "text/plain"), 400, HEADER),
    ("18", "modern ping", |t| t.modern("ping", json!({})), 404, NO_METHOD),
    ("18", "modern resources/subscribe", |t| t.modern("resources/subscribe", json!({ "uri": "test://x" })), 404, NO_METHOD),
    ("18", "modern resources/unsubscribe", |t| t.modern("resources/unsubscribe", json!({ "uri": "test://x" })), 404, NO_METHOD),
    ("18", "unknown method", |t| t.modern("tools/destroy", json!({})), 404, NO_METHOD),
    ("19", "modern logging/setLevel", |t| t.modern("logging/setLevel", json!({ "level": "info" })), 404, NO_METHOD),
    ("20", "modern GET", |t| t.call().method("GET").body(""), 405, None),
    ("20", "modern GET with a session", |t| t.call().method("GET").add("Mcp-Session-Id", "x").body(""), 405, None),
    ("20", "modern DELETE", |t| t.call().method("DELETE").body(""), 405, None),
    ("20", "PUT", |t| t.call().method("PUT"), 405, None),
    ("21", "a response by a modern client", |t| t.call().without("Mcp-Method").without("Mcp-Name").body("{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}"), 400, INVALID),
    ("23", "missing resource", |t| t.modern("resources/read", json!({ "uri": "test://x" })), 200, PARAMS),
    ("27", "legacy, unknown session", |t| t.legacy("no-such-session", "tools/call", &t.call_params()), 404, None),
    ("27", "legacy, unreadable session", |t| t.legacy("é", "tools/call", &t.call_params()), 404, None),
    ("27", "legacy, no session", |t| t.legacy("", "tools/call", &t.call_params()).without("Mcp-Session-Id"), 400, None),
    ("27", "legacy GET, unknown session", |t| t.bare("GET", "no-such-session"), 404, None),
    ("27", "legacy GET, no session", |t| t.bare("GET", "").without("Mcp-Session-Id"), 400, None),
    ("27", "legacy DELETE, unknown session", |t| t.bare("DELETE", "no-such-session"), 404, None),
    ("27", "legacy DELETE, no session", |t| t.bare("DELETE", "").without("Mcp-Session-Id"), 400, None),
    ("27", "legacy initialize with an unknown session", |t| t.initialize("2025-11-25").add("Mcp-Session-Id", "no-such-session"), 404, None),
    ("-", "a request that nobody vouched for", |t| t.call().set("Authorization", "Bearer nobody"), 500, None),
    ("-", "name is a number", |t| t.call_but(&format!("\"name\":\"{}\"", t.tool), "\"name\":5").without("Mcp-Name"), 200, PARAMS),
    ("-", "arguments are an array", |t| t.modern("tools/call", json!({ "name": t.tool, "arguments": [1] })), 200, PARAMS),
    ("-", "initialize without clientInfo", |t| t.post(&json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": { "protocolVersion": "2025-11-25", "capabilities": {} } })), 200, PARAMS),
];

/// All of this runs the tool, once.
#[rustfmt::skip]
const SERVED: &[(&str, &str, Make)] = &[
    ("1", "Host by name and port", |t| t.call().add("Host", format!("localhost:{}", t.address.port()))),
    ("1", "Host in capitals", |t| t.call().add("Host", "LOCALHOST")),
    ("1", "Host as IPv6", |t| t.call().add("Host", "[::1]:80")),
    ("2", "no Origin", |t| t.call()),
    ("2", "Origin of this machine", |t| t.call().add("Origin", "http://localhost:6274")),
    ("4", "header names in other cases", |t| t.call().without("Mcp-Method").add("MCP-METHOD", "tools/call")),
    ("10", "no clientInfo", |t| t.call_but("/clientInfo", "/other")),
    ("11", "Mcp-Name in base64", |t| t.call().set("Mcp-Name", format!("=?base64?{}?=", base64(&t.tool)))),
    ("14", "the same key in different objects", |t| t.call_but("\"arguments\":{", "\"arguments\":{\"x\":{\"a\":1},\"y\":{\"a\":1},")),
    ("15", "an id in text", |t| t.call_but("\"id\":1", "\"id\":\"1\"")),
    ("15", "an integer with a point", |t| t.call_but("\"id\":1", "\"id\":1.0")),
    ("15", "90 deep in an argument", |t| t.call_but("\"arguments\":{", &format!("\"arguments\":{{\"x\":{}1{},", "[".repeat(90), "]".repeat(90)))),
    ("16", "a body just under the limit", |t| t.call_but("\"arguments\":{", &format!("\"arguments\":{{\"x\":\"{}\",", "x".repeat(4_190_000)))),
    ("30", "modern, with a session that never was", |t| t.call().add("Mcp-Session-Id", "no-such-session")),
    ("44", "a client that calls itself admin", |t| t.call_but("\"name\":\"test\"", "\"name\":\"admin\"")),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_is_refused_and_runs_nothing() {
    let fixture = start(WireSettings::default()).await;
    let target = &fixture.target;
    let mut wrong = Vec::new();
    for (row, what, request, status, code) in REFUSED {
        let answer = request(target).send(target.address).await;
        if (answer.status, answer.code()) != (*status, *code) {
            wrong.push(format!("row {row}, {what}: {status} {code:?} was to come, {answer:?} came"));
        }
        assert_eq!(fixture.seen.runs(), 0, "row {row}, {what}: the tool ran; before that: {wrong:#?}");
        assert!(answer.header("access-control-allow-origin").is_none(), "row {row}, {what}: {answer:?}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The same rows at the real gateway, where the token is checked in front.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateway_itself_refuses_and_serves_the_same() -> anyhow::Result<()> {
    let gateway = Gateway::start(Options::default()).await?;
    let target = Target {
        address: gateway.url().trim_start_matches("http://").parse()?,
        path: "/mcp/sessions/rows".into(),
        other_path: "/mcp".into(),
        token: gateway.owner_token()?,
        other_token: String::new(),
        tool: "sandbox__bash".into(),
        arguments: json!({ "command": "true" }),
    };
    let mut wrong = Vec::new();
    for (row, what, request, status, code) in REFUSED {
        // Nobody vouches for a token that is unknown.
        let status = if *status == 500 { 401 } else { *status };
        let answer = request(&target).send(target.address).await;
        if (answer.status, answer.code()) != (status, *code) {
            wrong.push(format!("row {row}, {what}: {status} {code:?} was to come, {answer:?} came"));
        }
        assert!(answer.header("access-control-allow-origin").is_none(), "row {row}, {what}: {answer:?}");
    }
    let sessions = String::from_utf8(gateway.cli(&["session", "list", "--json"])?.stdout)?;
    assert!(!sessions.contains("rows"), "something was called: {sessions}");
    for (row, what, request) in SERVED {
        let answer = request(&target).send(target.address).await;
        if answer.status != 200 || answer.text().is_none() {
            wrong.push(format!("row {row}, {what}: {answer:?}"));
        }
    }
    let header = target.call().add("Mcp-Param-Command", "true").send(target.address).await;
    if (header.status, header.code()) != (400, HEADER) {
        wrong.push(format!("row 12, a header for an argument that wants none: {header:?}"));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_only_unusual_is_served() {
    let fixture = start(WireSettings::default()).await;
    let target = &fixture.target;
    for (index, (row, what, request)) in SERVED.iter().enumerate() {
        let answer = request(target).send(target.address).await;
        assert!(answer.status == 200 && answer.text().is_some(), "row {row}, {what}: {answer:?}");
        assert_eq!(fixture.seen.runs(), index + 1, "row {row}, {what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsupported_version_is_answered_with_those_that_are() {
    let fixture = start(WireSettings::default()).await;
    let target = &fixture.target;
    let asked = |version| target.call_but("2026-07-28", version).set(VERSION, version);
    let data = |answer: super::raw::Answer| answer.message().map(|message| message["error"]["data"].clone());
    let unknown = data(asked("2099-01-01").send(target.address).await).expect("a message");
    assert_eq!(unknown["requested"], "2099-01-01");
    assert!(
        unknown["supported"].as_array().is_some_and(|all| all.contains(&json!("2026-07-28"))),
        "{unknown}"
    );
    let legacy = data(asked("2025-06-18").send(target.address).await).expect("a message");
    assert_eq!(legacy["supported"], json!(["2026-07-28"]), "in _meta no legacy version can be named");
}

/// Row 12. Arguments that a tool wants repeated in headers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_arguments_must_be_the_same() {
    let fixture = start(WireSettings::default()).await;
    let target = &fixture.target;
    let call =
        |arguments: Value| target.modern("tools/call", json!({ "name": "routed", "arguments": arguments }));
    let eu = || call(json!({ "region": "eu" }));
    let refused = [
        ("absent", eu()),
        ("wrong", eu().add("Mcp-Param-Region", "us")),
        ("twice", eu().add("Mcp-Param-Region", "eu").add("Mcp-Param-Region", "eu")),
        ("invalid base64", eu().add("Mcp-Param-Region", "=?base64?ZXU?=")),
        ("for no argument", call(json!({})).add("Mcp-Param-Region", "eu")),
        ("for null", call(json!({ "region": null })).add("Mcp-Param-Region", "eu")),
        ("not declared", eu().add("Mcp-Param-Region", "eu").add("Mcp-Param-Other", "x")),
        ("not declared, of a tool without any", target.call().add("Mcp-Param-Other", "x")),
        ("another number", call(json!({ "count": 42 })).add("Mcp-Param-Count", "43")),
        ("no number", call(json!({ "count": 42 })).add("Mcp-Param-Count", "x")),
        (
            "another large number",
            call(json!({ "count": 9_007_199_254_740_993_i64 })).add("Mcp-Param-Count", "9007199254740992"),
        ),
        ("nested", call(json!({ "deep": { "on": true } })).add("Mcp-Param-On", "false")),
    ];
    for (what, request) in refused {
        let answer = request.send(target.address).await;
        assert_eq!((answer.status, answer.code()), (400, HEADER), "{what}: {answer:?}");
    }
    assert_eq!(fixture.seen.runs(), 0);
    let served = [
        ("the same", eu().add("Mcp-Param-Region", "eu")),
        ("in base64", eu().add("mcp-param-region", "=?base64?ZXU=?=")),
        ("neither", call(json!({}))),
        ("null and no header", call(json!({ "region": null }))),
        ("the same number in another spelling", call(json!({ "count": 42 })).add("Mcp-Param-Count", "42.0")),
        ("nested", call(json!({ "deep": { "on": true } })).add("Mcp-Param-On", "true")),
    ];
    for (what, request) in served {
        let answer = request.send(target.address).await;
        assert!(answer.text().is_some(), "{what}: {answer:?}");
    }
    let session = target.session().await;
    let legacy = || {
        target.legacy(&session, "tools/call", &json!({ "name": "routed", "arguments": { "region": "eu" } }))
    };
    let answer = legacy().send(target.address).await;
    assert!(answer.text().is_some(), "absent, before there were any: {answer:?}");
    let answer = legacy().add("Mcp-Param-Region", "us").send(target.address).await;
    assert_eq!((answer.status, answer.code()), (400, HEADER), "wrong, before there were any: {answer:?}");
    assert_eq!(fixture.seen.runs(), 7);
}

/// Row 44. Who calls is what the layer in front says, nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_handler_hears_who_calls() {
    let fixture = start(WireSettings::default()).await;
    let target = &fixture.target;
    let who = target.modern("tools/call", json!({ "name": "who" }));
    assert_eq!(who.send(target.address).await.text().as_deref(), Some("local:alice"));
    assert_eq!(target.as_other(who).send(target.address).await.text().as_deref(), Some("local:bob"));
    let session = target.session().await;
    let who = target.legacy(&session, "tools/call", &json!({ "name": "who" }));
    assert_eq!(who.send(target.address).await.text().as_deref(), Some("local:alice"));
}

fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let groups = text.as_bytes().chunks(3).map(|group| {
        let bits =
            group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        let digit = |n: usize| char::from(DIGITS[(bits >> (18 - 6 * n) & 63) as usize]);
        (0..4).map(|n| if n <= group.len() { digit(n) } else { '=' }).collect::<String>()
    });
    groups.collect()
}
