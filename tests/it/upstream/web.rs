//! A scripted server over HTTP: it does what it is told, and writes down what it gets.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::Response;
use axum::{Router, routing};
use http::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;

use super::kit::Era;

/// The server; it ends with this.
pub(super) struct Web {
    address: SocketAddr,
    state: Arc<Inner>,
    serving: tokio::task::JoinHandle<()>,
}

pub(super) struct Inner {
    era: Mutex<Era>,
    got: Mutex<Vec<Value>>,
    sessions: AtomicU32,
    /// The newest session, the only one that is known.
    session: Mutex<Option<String>>,
    questions: Mutex<HashMap<String, oneshot::Sender<Value>>>,
    /// The stream for what belongs to no request.
    unsolicited: Mutex<Option<mpsc::Sender<Bytes>>>,
    /// How long that stream takes to open.
    pub(super) opening: Mutex<Duration>,
    /// Answers to come before all others, by method.
    pub(super) scripted: Mutex<HashMap<String, Vec<Value>>>,
    /// What `tools/list` shows.
    pub(super) tools: Mutex<Value>,
    tasks: TaskTracker,
}

impl Drop for Web {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl std::ops::Deref for Web {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.state
    }
}

impl Web {
    pub(super) async fn start(era: Era) -> Self {
        let tools = json!([
            {"name": "echo", "inputSchema": {"type": "object"}, "x": [1]},
            {"name": "region", "inputSchema": {"type": "object", "properties": {
                "where": {"type": "string", "x-mcp-header": "Region"},
                "deep": {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}}}}},
        ]);
        let state = Arc::new(Inner {
            era: Mutex::new(era),
            got: Mutex::default(),
            sessions: AtomicU32::new(0),
            session: Mutex::default(),
            questions: Mutex::default(),
            unsolicited: Mutex::default(),
            opening: Mutex::default(),
            scripted: Mutex::default(),
            tools: Mutex::new(tools),
            tasks: TaskTracker::new(),
        });
        let app = Router::new().route("/mcp", routing::any(serve)).with_state(Arc::clone(&state));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tasks = state.tasks.clone();
        let serving = tasks.spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, state, serving }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    pub(super) fn got(&self) -> Vec<Value> {
        self.got.lock().unwrap().clone()
    }

    /// Forgets the session, as a server that was started anew.
    pub(super) fn forget(&self) {
        *self.session.lock().unwrap() = None;
    }

    pub(super) fn script(&self, method: &str, result: Value) {
        self.scripted.lock().unwrap().entry(method.to_owned()).or_default().push(result);
    }
}

impl Inner {
    fn era(&self) -> Era {
        *self.era.lock().unwrap()
    }

    /// Ends the stream for what belongs to no request.
    pub(super) fn hang_up(&self) {
        *self.unsolicited.lock().unwrap() = None;
    }

    /// Says something that belongs to no request. Says whether anybody listened.
    pub(super) async fn say(&self, message: Value) -> bool {
        let stream = self.unsolicited.lock().unwrap().clone();
        match stream {
            Some(stream) => stream.send(event(&message)).await.is_ok(),
            None => false,
        }
    }

    /// Becomes a server of another era, as after an update.
    pub(super) fn become_of(&self, era: Era) {
        *self.era.lock().unwrap() = era;
    }
}

fn event(message: &Value) -> Bytes {
    Bytes::from(format!("event: message\ndata: {message}\n\n"))
}

async fn serve(State(state): State<Arc<Inner>>, method: Method, headers: HeaderMap, body: Bytes) -> Response {
    let shown: serde_json::Map<_, _> = headers
        .iter()
        .map(|(name, value)| (name.to_string(), json!(String::from_utf8_lossy(value.as_bytes()))))
        .collect();
    let mut message: Value = serde_json::from_slice(&body).unwrap_or_else(|_| json!({}));
    let mut noted = message.clone();
    noted["headers"] = Value::Object(shown);
    noted["verb"] = json!(method.as_str());
    state.got.lock().unwrap().push(noted);
    let session = headers.get("mcp-session-id").map(|id| id.to_str().unwrap().to_owned());
    let known = state.session.lock().unwrap().clone();
    if state.era() == Era::Modern && !headers.contains_key("mcp-method") && method == Method::POST {
        let id = message["id"].clone();
        let error = json!({"code": -32020, "message": "Mcp-Method is missing"});
        return json_answer(StatusCode::BAD_REQUEST, &json!({"jsonrpc": "2.0", "id": id, "error": error}));
    }
    let begins = message["method"] == "initialize";
    if state.era() == Era::Legacy && !begins {
        if session.is_none() {
            return plain(StatusCode::BAD_REQUEST, "no session");
        }
        if session != known {
            return plain(StatusCode::NOT_FOUND, "no such session");
        }
    }
    match method {
        Method::GET if headers.contains_key("last-event-id") => {
            let (stream, body) = stream();
            let id: Value = serde_json::from_str(headers["last-event-id"].to_str().unwrap()).unwrap();
            let answer = json!({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": "resumed"}]}});
            stream.send(event(&answer)).await.unwrap();
            return events(body);
        }
        Method::GET if state.era() == Era::Legacy => {
            let opening = *state.opening.lock().unwrap();
            tokio::time::sleep(opening).await;
            let (stream, body) = stream();
            *state.unsolicited.lock().unwrap() = Some(stream);
            return events(body);
        }
        Method::DELETE if state.era() == Era::Legacy => return plain(StatusCode::NO_CONTENT, ""),
        Method::POST => {}
        _ => return plain(StatusCode::METHOD_NOT_ALLOWED, ""),
    }
    if message.get("method").is_none() {
        let id = message["id"].as_str().unwrap_or_default();
        let asked = state.questions.lock().unwrap().remove(id);
        let answer =
            if message["result"].is_null() { message["error"].take() } else { message["result"].take() };
        asked.unwrap().send(answer).unwrap();
        return plain(StatusCode::ACCEPTED, "");
    }
    if message.get("id").is_none() {
        return plain(StatusCode::ACCEPTED, "");
    }
    request(&state, message).await
}

async fn request(state: &Arc<Inner>, message: Value) -> Response {
    let id = message["id"].clone();
    let method = message["method"].as_str().unwrap().to_owned();
    if let Some(answer) = scripted(state, &id, &method) {
        return answer;
    }
    let modern = state.era() == Era::Modern;
    match method.as_str() {
        "server/discover" if modern => result(
            &id,
            &json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {"listChanged": true}},
                "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "scripted", "version": "1"}},
            }),
        ),
        "initialize" if !modern => initialize(state, &id),
        "tools/list" => result(&id, &json!({"tools": *state.tools.lock().unwrap()})),
        "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" => result(&id, &json!({})),
        "subscriptions/listen" => {
            let (stream, body) = stream();
            let acknowledged =
                json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": {}});
            stream.send(event(&acknowledged)).await.unwrap();
            *state.unsolicited.lock().unwrap() = Some(stream);
            events(body)
        }
        "tools/call" | "resources/read" | "prompts/get"
            if method != "tools/call" || message["params"]["name"] == "echo" =>
        {
            let text = &message["params"]["arguments"]["text"];
            result(&id, &json!({"content": [{"type": "text", "text": text}], "unknown": {"kept": 1.5}}))
        }
        "tools/call" => {
            let (stream, body) = stream();
            let running = Arc::clone(state);
            state.tasks.spawn(async move { tool(&running, message, stream).await });
            events(body)
        }
        _ => {
            let error = json!({"code": -32601, "message": "no such method"});
            json_answer(StatusCode::NOT_FOUND, &json!({"jsonrpc": "2.0", "id": id, "error": error}))
        }
    }
}

/// Begins a session.
fn initialize(state: &Inner, id: &Value) -> Response {
    let session = format!("session-{}", state.sessions.fetch_add(1, Ordering::Relaxed));
    *state.session.lock().unwrap() = Some(session.clone());
    let begun = json!({
        "protocolVersion": "2025-06-18", "serverInfo": {"name": "scripted"},
        "capabilities": {"tools": {"listChanged": true}, "logging": {}, "resources": {"subscribe": true}},
    });
    let mut answer = result(id, &begun);
    answer.headers_mut().insert("mcp-session-id", session.parse().unwrap());
    answer
}

/// The answer that comes before all others.
fn scripted(state: &Inner, id: &Value, method: &str) -> Option<Response> {
    let mut scripted = state.scripted.lock().unwrap();
    let next = scripted.get_mut(method).filter(|all| !all.is_empty())?.remove(0);
    let Some(status) = next["status"].as_u64() else { return Some(result(id, &next)) };
    let status = StatusCode::try_from(u16::try_from(status).unwrap()).unwrap();
    let mut answer = plain(status, &next["body"].to_string());
    if let Some(to) = next["location"].as_str() {
        answer.headers_mut().insert("location", to.parse().unwrap());
    }
    Some(answer)
}

/// Asks on the stream of a call, or as a question that names none: that goes to whoever listens, if somebody does.
async fn ask(state: &Inner, stream: Option<&mpsc::Sender<Bytes>>) -> Value {
    let (sender, answer) = oneshot::channel();
    state.questions.lock().unwrap().insert("ask-0".to_owned(), sender);
    let question = json!({"jsonrpc": "2.0", "id": "ask-0", "method": "elicitation/create", "params": {"message": "name?"}});
    match stream {
        Some(stream) => stream.send(event(&question)).await.unwrap(),
        None => drop(state.say(question).await),
    }
    answer.await.unwrap()
}

/// Runs a tool whose answer is a stream.
async fn tool(state: &Inner, message: Value, stream: mpsc::Sender<Bytes>) {
    let (id, params) = (message["id"].clone(), &message["params"]);
    let arguments = &params["arguments"];
    let say = async |method: &str, params: Value| {
        let _ = stream.send(event(&json!({"jsonrpc": "2.0", "method": method, "params": params}))).await;
    };
    let text = |text: &str| json!({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}});
    let answer = match params["name"].as_str().unwrap() {
        "slow" => {
            stream.closed().await;
            state.got.lock().unwrap().push(json!({"closed": id}));
            return;
        }
        "progress" => {
            let token = &params["_meta"]["progressToken"];
            for step in [1, 2, 2, 1, 3] {
                say("notifications/progress", json!({"progressToken": token, "progress": step})).await;
            }
            say("notifications/progress", json!({"progressToken": 424_242, "progress": 99})).await;
            for level in ["debug", "info", "error"] {
                say("notifications/message", json!({"level": level, "data": level})).await;
            }
            text("done")
        }
        "ask" if state.era() == Era::Modern && params["inputResponses"].is_null() => {
            let question = json!({"method": "elicitation/create", "params": {"message": "name?"}});
            json!({"jsonrpc": "2.0", "id": id, "result": {
                "resultType": "input_required", "inputRequests": {"who": question}, "requestState": "s+/="}})
        }
        "ask" if state.era() == Era::Modern => {
            text(&json!([params["inputResponses"], params["requestState"]]).to_string())
        }
        name @ ("ask" | "ask aside") => {
            text(&ask(state, (name == "ask").then_some(&stream)).await.to_string())
        }
        "wrong" => {
            let other = json!({"jsonrpc": "2.0", "id": 1_000_000, "result": {"content": []}});
            stream.send(event(&other)).await.unwrap();
            text("mine")
        }
        "big" => text(&"x".repeat(usize::try_from(arguments["bytes"].as_u64().unwrap()).unwrap())),
        "flood" => {
            for _ in 0..arguments["count"].as_u64().unwrap() {
                say("notifications/message", json!({"level": "error", "data": "y".repeat(1000)})).await;
            }
            text("after the flood")
        }
        "pieces" => {
            for byte in event(&text(arguments["text"].as_str().unwrap())) {
                stream.send(Bytes::copy_from_slice(&[byte])).await.unwrap();
            }
            return;
        }
        "poll" => {
            let _ = stream.send(Bytes::from(format!("id: {id}\nretry: 10\ndata: \n\n"))).await;
            return;
        }
        "exit" => return,
        _ => {
            json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32602, "message": "no such tool", "data": {"tool": params["name"]}}})
        }
    };
    // Whoever asked may have gone away.
    let _ = stream.send(event(&answer)).await;
}

fn stream() -> (mpsc::Sender<Bytes>, mpsc::Receiver<Bytes>) {
    mpsc::channel(8)
}

fn events(body: mpsc::Receiver<Bytes>) -> Response {
    let body = futures_util::stream::unfold(body, |mut body| async move {
        let bytes = body.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(bytes), body))
    });
    Response::builder().header("content-type", "text/event-stream").body(Body::from_stream(body)).unwrap()
}

fn result(id: &Value, result: &Value) -> Response {
    json_answer(StatusCode::OK, &json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

fn json_answer(status: StatusCode, body: &Value) -> Response {
    let builder = Response::builder().status(status).header("content-type", "application/json");
    builder.body(Body::from(body.to_string())).unwrap()
}

fn plain(status: StatusCode, text: &str) -> Response {
    Response::builder().status(status).body(Body::from(text.to_owned())).unwrap()
}
