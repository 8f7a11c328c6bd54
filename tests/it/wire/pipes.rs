//! MCP on a pair of pipes. Row 45, both eras from the first byte, and the end of input.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gateway::mcp::wire::stdio;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::fixture::{Seen, Server};

/// Nothing here takes a second; a minute means that it hangs.
const HANGS: Duration = Duration::from_mins(1);

struct Client {
    to: WriteHalf<DuplexStream>,
    from: Lines<BufReader<ReadHalf<DuplexStream>>>,
    seen: Arc<Seen>,
    cancel: CancellationToken,
    tasks: TaskTracker,
}

impl Client {
    fn start() -> Self {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let (from, to) = tokio::io::split(ours);
        let (reader, writer) = tokio::io::split(theirs);
        let (seen, cancel, tasks) = (Arc::<Seen>::default(), CancellationToken::new(), TaskTracker::new());
        let server = Server { seen: seen.clone() };
        let stop = cancel.clone();
        tasks.spawn(
            async move { stdio::serve(reader, writer, server, stop).await.expect("it ends in order") },
        );
        tasks.close();
        Self { to, from: BufReader::new(from).lines(), seen, cancel, tasks }
    }

    async fn line(&mut self, line: impl AsRef<[u8]>) {
        let line = [line.as_ref(), b"\n"].concat();
        timeout(HANGS, self.to.write_all(&line)).await.expect("it reads").expect("it is there");
    }

    async fn say(&mut self, method: &str, id: Option<i64>, params: Value) {
        let mut message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        if let Some(id) = id {
            message["id"] = json!(id);
        }
        self.line(message.to_string()).await;
    }

    async fn hear(&mut self) -> Value {
        let line = timeout(HANGS, self.from.next_line()).await.expect("it answers").expect("it is there");
        serde_json::from_str(&line.expect("a line")).expect("JSON")
    }

    /// The error code of the next answer, which must be to this id.
    async fn error(&mut self, id: Value) -> i64 {
        let answer = self.hear().await;
        assert_eq!(answer["id"], id, "{answer}");
        answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("an error: {answer}"))
    }

    /// Opens the legacy era.
    async fn initialize(&mut self) {
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
        self.say("initialize", Some(0), params).await;
        assert_eq!(self.hear().await["result"]["protocolVersion"], "2025-11-25");
        self.say("notifications/initialized", None, json!({})).await;
    }

    /// A call that must come back right.
    async fn calls(&mut self, params: Value) {
        self.say("tools/call", Some(7), params).await;
        let answer = self.hear().await;
        assert_eq!(
            (&answer["id"], &answer["result"]["content"][0]["type"]),
            (&json!(7), &json!("text")),
            "{answer}"
        );
    }

    async fn ended(&self) {
        timeout(HANGS, self.tasks.wait()).await.expect("it ends");
    }
}

fn echo() -> Value {
    json!({ "name": "echo", "arguments": { "text": "hello" } })
}

fn modern(mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    params
}

#[tokio::test]
async fn a_probe_latches_nothing() {
    let mut client = Client::start();
    client.say("server/discover", Some(1), modern(json!({}))).await;
    assert!(client.hear().await["result"]["supportedVersions"].is_array());
    client.say("notifications/cancelled", None, json!({ "requestId": 1 })).await;
    client.initialize().await;
    client.calls(echo()).await;
}

/// Its answers wait in memory until it reads: at some time it has to, before it is listened to again.
#[tokio::test]
async fn a_client_that_does_not_read_is_not_read_from() {
    let mut client = Client::start();
    let call = modern(echo());
    let mut taken = 0;
    while timeout(Duration::from_secs(5), client.say("tools/call", Some(taken), call.clone())).await.is_ok() {
        taken += 1;
        assert!(taken < 20_000, "none of the answers was read");
    }
    assert!(taken > 256, "{taken} were taken");
    for _ in 0..taken {
        client.hear().await;
    }
}

#[tokio::test]
async fn a_modern_client_needs_no_handshake() {
    let mut client = Client::start();
    client.calls(modern(echo())).await;
    client.say("ping", Some(2), modern(json!({}))).await;
    assert_eq!(client.error(json!(2)).await, -32601);
    client.say("logging/setLevel", Some(3), modern(json!({ "level": "info" }))).await;
    assert_eq!(client.error(json!(3)).await, -32601);
    client.say("notifications/cancelled", None, json!({ "requestId": 99 })).await;
    client.calls(modern(echo())).await;
}

#[tokio::test]
async fn a_downgrade_in_meta_runs_nothing() {
    let mut client = Client::start();
    let mut params = modern(echo());
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2025-11-25");
    client.say("tools/call", Some(1), params).await;
    assert_eq!(client.error(json!(1)).await, -32022);
    client.say("tools/call", Some(2), echo()).await;
    assert_eq!(client.error(json!(2)).await, -32602, "neither era: no _meta, no initialize");
    assert_eq!(client.seen.runs(), 0);
    client.initialize().await;
    let again = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
    client.say("initialize", Some(3), again).await;
    assert_eq!(client.error(json!(3)).await, -32600);
    client.calls(echo()).await;
}

#[tokio::test]
async fn stray_messages_at_first_are_survived() {
    let mut client = Client::start();
    client.say("notifications/initialized", None, json!({})).await;
    client.say("notifications/no-such-thing", None, json!({})).await;
    client.line(r#"{"jsonrpc":"2.0","id":4,"result":{}}"#).await;
    client.line(r#"{"jsonrpc":"2.0","id":4,"error":{"code":1,"message":"x"}}"#).await;
    client.line("").await;
    client.line("\r").await;
    client.say("ping", Some(5), json!({})).await;
    assert_eq!(client.hear().await["id"], 5);
    client.initialize().await;
    client.calls(echo()).await;
}

/// Before the first request and after it: every line that is no message is answered, and the next one is read.
#[tokio::test]
async fn lines_that_are_no_messages_are_answered() {
    let mut client = Client::start();
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}1{}}}"#,
        "[".repeat(20_000),
        "]".repeat(20_000)
    );
    let long = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"echo","x":"{}"}}}}"#,
        "x".repeat(17 << 20)
    );
    let mut bad: Vec<(Vec<u8>, i64, Value)> = vec![
        (b"{\"jsonrpc\":".to_vec(), -32700, Value::Null),
        (b"hello".to_vec(), -32700, Value::Null),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\0\"}".to_vec(), -32700, Value::Null),
        (b"\xff\xfe{}".to_vec(), -32700, Value::Null),
        (b"[]".to_vec(), -32600, Value::Null),
        (br#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#.to_vec(), -32600, Value::Null),
        (br#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#.to_vec(), -32600, Value::Null),
        (br#"{"jsonrpc":"1.0","id":8,"method":"ping"}"#.to_vec(), -32600, json!(8)),
        (
            br#"{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"a","name":"echo"}}"#.to_vec(),
            -32600,
            Value::Null,
        ),
        (br#"{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":5}}"#.to_vec(), -32602, json!(8)),
    ];
    bad.push((deep.into_bytes(), -32600, Value::Null));
    bad.push((long.into_bytes(), -32600, Value::Null));
    for (line, code, id) in &bad {
        client.line(line).await;
        let shown = String::from_utf8_lossy(&line[..line.len().min(100)]).into_owned();
        assert_eq!(client.error(id.clone()).await, *code, "{shown}");
    }
    client.initialize().await;
    for (line, code, id) in &bad {
        client.line(line).await;
        assert_eq!(client.error(id.clone()).await, *code);
    }
    assert_eq!(client.seen.runs(), 0);
    client.calls(echo()).await;
}

#[tokio::test]
async fn a_long_line_within_the_limit_is_served() {
    let mut client = Client::start();
    client.initialize().await;
    client.calls(json!({ "name": "who", "arguments": { "x": "x".repeat(15 << 20) } })).await;
}

/// `printf … | manyhands stdio`: what was asked is answered, the last line without its end too, then it is over.
#[tokio::test]
async fn the_end_of_input_lets_running_calls_finish() {
    let mut client = Client::start();
    let slow = modern(json!({ "name": "slow", "arguments": { "ms": 500 } }));
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": slow }).to_string();
    client.to.write_all(call.as_bytes()).await.expect("it is there");
    client.to.shutdown().await.expect("it is there");
    assert_eq!(client.hear().await["result"]["content"][0]["text"], "rested");
    client.ended().await;
}

/// A subscription never ends of itself; it must not hold the end up.
#[tokio::test]
async fn the_end_of_input_ends_subscriptions_at_once() {
    let mut client = Client::start();
    client
        .say(
            "subscriptions/listen",
            Some(1),
            modern(json!({ "notifications": { "toolsListChanged": true } })),
        )
        .await;
    assert_eq!(client.hear().await["method"], "notifications/subscriptions/acknowledged");
    let begun = Instant::now();
    client.to.shutdown().await.expect("it is there");
    client.ended().await;
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn nothing_said_is_no_error() {
    let mut client = Client::start();
    client.to.shutdown().await.expect("it is there");
    client.ended().await;
    let client = Client::start();
    client.cancel.cancel();
    client.ended().await;
}
