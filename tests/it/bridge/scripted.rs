//! A hand that is an MCP server and does what its arguments say.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use hands::mcp::{Catalogue, McpFace, Notice, Object, Reply, Request, RpcError, Unasked};
use hands::{Call, CallContext, Ending, Hand, HandError, Handle, InstanceId, Lease, Outcome, Progress, Tool};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

/// What it has seen.
#[derive(Default)]
pub(super) struct Seen {
    /// Calls and requests, in order.
    pub(super) asked: Mutex<Vec<Value>>,
    pub(super) runs: AtomicUsize,
    pub(super) cancelled: AtomicUsize,
}

impl Seen {
    pub(super) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    pub(super) fn cancelled(&self) -> usize {
        self.cancelled.load(Ordering::SeqCst)
    }

    pub(super) fn last(&self) -> Value {
        self.asked.lock().unwrap().last().cloned().unwrap_or_default()
    }
}

/// A resource that somebody follows, and where its updates go.
type Followers = Vec<(String, mpsc::Sender<String>)>;

/// The hand.
pub(super) struct Scripted {
    pub(super) seen: Arc<Seen>,
    catalogue: watch::Sender<Arc<Catalogue>>,
    changes: watch::Sender<u64>,
    followers: Mutex<Followers>,
}

pub(super) fn object(value: Value) -> Object {
    match value {
        Value::Object(object) => object,
        other => panic!("{other} is no object"),
    }
}

/// A result that no typed model keeps whole.
pub(super) fn odd() -> Value {
    json!({
        "content": [
            {"type": "text", "text": "hello", "unknown": {"deep": [1, null]}},
            {"type": "hologram", "shape": {"x": 1}},
            {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
            {"type": "resource_link", "uri": "test://one", "name": "one", "more": true},
            {"type": "resource", "resource": {"uri": "test://two", "text": "2", "odd": 1}},
        ],
        "structuredContent": {"n": 18_446_744_073_709_551_615_u64, "list": [1, 2.5, null]},
        "isError": false,
        "notInAnySpec": {"kept": true},
        "_meta": {"vendor/key": [1], "ui": {"resourceUri": "ui://panel"}},
    })
}

fn catalogue() -> Catalogue {
    let items = |items: Value| -> Vec<Arc<Object>> {
        items.as_array().into_iter().flatten().map(|item| Arc::new(object(item.clone()))).collect()
    };
    let schema = json!({"type": "object"});
    let tool = |name: &str| json!({"name": name, "description": name, "inputSchema": schema, "vendor": name});
    let names = ["odd", "structured", "news", "ask", "fail", "slow", "big", "who", "lost", "task", "echo"];
    let mut tools: Vec<Value> = names.iter().map(|name| tool(name)).collect();
    tools[1]["outputSchema"] = json!({"anyOf": [{"type": "object"}, {"type": "null"}]});
    tools[2]["outputSchema"] = json!({"type": "object"});
    tools.push(json!({
        "name": "region", "title": "Region", "icons": [{"src": "x"}], "execution": {"later": 1},
        "inputSchema": {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}},
        "_meta": {"ui": {"resourceUri": "ui://panel"}},
    }));
    Catalogue {
        version: "2026-07-28".to_owned(),
        server: object(json!({"name": "scripted", "version": "1"})),
        capabilities: object(json!({
            "tools": {}, "prompts": {}, "resources": {"subscribe": true}, "logging": {}, "completions": {},
            "extensions": {"io.modelcontextprotocol/tasks": {}, "io.modelcontextprotocol/ui": {}, "x/y": {}},
        })),
        instructions: Some("Do as it says.".to_owned()),
        tools: items(tools.into()),
        resources: items(json!([
            {"uri": "test://one", "name": "one", "odd": 1}, {"uri": "ui://panel", "name": "panel"},
        ])),
        templates: items(json!([{"uriTemplate": "test://t/{id}", "name": "t"}])),
        prompts: items(json!([{"name": "greet", "arguments": [{"name": "who"}], "odd": 1}, {"name": "a b"}])),
        seen_at: "2026-11-29T00:00:00Z".to_owned(),
        ..Catalogue::default()
    }
}

impl Scripted {
    pub(super) fn new() -> Self {
        Self {
            seen: Arc::default(),
            catalogue: watch::Sender::new(Arc::new(catalogue())),
            changes: watch::Sender::new(0),
            followers: Mutex::default(),
        }
    }

    /// Offers something else from now on.
    pub(super) fn change(&self, change: impl FnOnce(&mut Catalogue)) {
        let mut catalogue = Catalogue::clone(&self.catalogue.borrow());
        change(&mut catalogue);
        self.catalogue.send_replace(Arc::new(catalogue));
        self.changes.send_modify(|version| *version += 1);
    }

    /// Says that a resource was updated; to how many.
    pub(super) async fn update(&self, uri: &str) -> usize {
        let followers: Vec<_> = {
            let mut followers = self.followers.lock().unwrap();
            followers.retain(|(_, sender)| !sender.is_closed());
            followers.iter().filter(|(of, _)| of == uri).map(|(_, sender)| sender.clone()).collect()
        };
        for follower in &followers {
            let _ = follower.send(uri.to_owned()).await;
        }
        followers.len()
    }

    /// Loses everybody who follows, as a server does that dies.
    pub(super) fn forget_followers(&self) {
        self.followers.lock().unwrap().clear();
    }

    pub(super) fn followers(&self) -> usize {
        let mut followers = self.followers.lock().unwrap();
        followers.retain(|(_, sender)| !sender.is_closed());
        followers.len()
    }

    fn note(&self, what: &str, given: &Value, context: &CallContext) {
        let caller = &context.caller;
        self.seen.asked.lock().unwrap().push(json!({
            "what": what, "given": given, "capabilities": caller.capabilities, "log_level": caller.log_level,
            "meta": caller.meta,
        }));
    }

    async fn answer(&self, tool: &str, given: &Value, context: &CallContext) -> Result<Outcome, HandError> {
        Ok(match tool {
            "odd" => result(odd()),
            "echo" => result(json!({"content": [{"type": "text", "text": given["text"]}]})),
            "structured" => result(json!({"content": [], "structuredContent": given["value"]})),
            "big" => {
                let text = "x".repeat(usize::try_from(given["bytes"].as_u64().unwrap()).unwrap());
                result(json!({"content": [{"type": "text", "text": text}], "structuredContent": null}))
            }
            "who" => result(json!({"content": [], "structuredContent": self.seen.last()})),
            "news" => {
                for progress in [0, 50, 20, 100] {
                    let news = json!({"progress": progress, "total": 100, "message": format!("{progress}")});
                    context.progress.notice(Notice::Progress(object(news)));
                }
                let said = json!({"level": "info", "logger": "l", "data": {"a": 1}, "odd": 1});
                context.progress.notice(Notice::Log(object(said)));
                result(json!({"content": []}))
            }
            "fail" => {
                let error: RpcError = serde_json::from_value(given["error"].clone()).unwrap();
                Outcome { ending: Ending::Error, content: Vec::new(), reply: Some(Reply::Error(error)) }
            }
            "slow" => {
                context.cancel.cancelled().await;
                self.seen.cancelled.fetch_add(1, Ordering::SeqCst);
                Outcome::ended(Ending::Cancelled, "cancelled")
            }
            "ask" => return self.ask(given, context).await,
            "lost" => return Err(HandError::Lost { may_have_run: true, why: "it fell".to_owned() }),
            "task" => result(json!({
                "resultType": "task", "taskId": "t-1", "status": "working", "createdAt": "2026-11-29T00:00:00Z",
                "lastUpdatedAt": "2026-11-29T00:00:00Z", "ttlMs": null,
            })),
            "region" => result(json!({"content": []})),
            other => return Err(HandError::UnknownTool(other.to_owned())),
        })
    }

    /// Asks as often as `rounds` says, and answers what it was answered.
    async fn ask(&self, given: &Value, context: &CallContext) -> Result<Outcome, HandError> {
        let mut answers = Vec::new();
        for _ in 0..given["rounds"].as_u64().unwrap_or(1) {
            match context.ask.ask(object(given["questions"].clone())).await {
                Ok(answer) => answers.push(Value::Object(answer)),
                Err(Unasked::Incapable(missing)) => answers.push(json!({ "incapable": missing })),
                Err(Unasked::Refused(error)) => answers.push(json!({ "refused": error.code })),
                Err(Unasked::GivenUp) => {
                    self.seen.cancelled.fetch_add(1, Ordering::SeqCst);
                    return Ok(Outcome::ended(Ending::Cancelled, "nobody answered"));
                }
            }
        }
        Ok(result(json!({"content": [], "structuredContent": {"answers": answers}})))
    }
}

fn result(result: Value) -> Outcome {
    let failed = result["isError"] == true;
    let ending = if failed { Ending::Error } else { Ending::Ok };
    Outcome { ending, content: Vec::new(), reply: Some(Reply::Result(Arc::new(object(result)))) }
}

#[async_trait]
impl Hand for Scripted {
    async fn tools(&self) -> Result<Vec<Tool>, HandError> {
        Ok(Vec::new())
    }

    async fn provision(&self, lease: &Lease, _: &dyn Progress) -> Result<Handle, HandError> {
        Ok(Handle { instance: lease.instance.clone() })
    }

    async fn execute(&self, _: &Handle, call: &Call, context: CallContext) -> Result<Outcome, HandError> {
        let given = Value::Object(call.arguments.clone());
        self.note(&call.tool, &given, &context);
        self.seen.runs.fetch_add(1, Ordering::SeqCst);
        self.answer(&call.tool, &given, &context).await
    }

    fn alive(&self, _: &Handle) -> bool {
        true
    }

    async fn release(&self, _: Handle) -> Result<(), HandError> {
        Ok(())
    }

    async fn reap(&self, _: &[InstanceId]) -> Result<(), HandError> {
        Ok(())
    }

    fn mcp(&self) -> Option<&dyn McpFace> {
        Some(self)
    }

    fn about(&self) -> Value {
        json!({})
    }
}

#[async_trait]
impl McpFace for Scripted {
    fn catalogue(&self) -> Arc<Catalogue> {
        self.catalogue.borrow().clone()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn know(&self, _: &Arc<Catalogue>, _: Catalogue) -> Option<Arc<Catalogue>> {
        None
    }

    async fn refresh(&self) -> Result<(), HandError> {
        Ok(())
    }

    async fn request(&self, _: &Handle, request: Request, context: CallContext) -> Result<Reply, HandError> {
        let given = Value::Object(request.params);
        self.note(&request.method, &given, &context);
        let text = |key: &str| given[key].as_str().unwrap_or_default().to_owned();
        let answer = match (request.method.as_str(), text("uri").as_str(), text("name").as_str()) {
            ("resources/read", "test://one", _) => json!({
                "contents": [{"uri": "test://one", "text": "1", "odd": 1}], "ttlMs": 7, "cacheScope": "public",
            }),
            ("resources/read", "test://slow", _) => {
                context.cancel.cancelled().await;
                self.seen.cancelled.fetch_add(1, Ordering::SeqCst);
                return Ok(Reply::Error(RpcError { code: -32603, message: "gone".into(), data: None }));
            }
            ("resources/read", "test://old", _) => {
                return Ok(Reply::Error(RpcError { code: -32002, message: "no such".into(), data: None }));
            }
            ("resources/read", uri, _) => {
                let data = Some(json!({ "uri": uri }));
                return Ok(Reply::Error(RpcError { code: -32602, message: "no such".into(), data }));
            }
            ("prompts/get", _, "greet") => {
                let question =
                    json!({"who": {"method": "elicitation/create", "params": {"message": "Who?"}}});
                let who = match given["arguments"]["who"].as_str() {
                    Some(who) => json!(who),
                    None => match context.ask.ask(object(question)).await {
                        Ok(answers) => answers["who"]["content"]["name"].clone(),
                        Err(_) => json!("nobody"),
                    },
                };
                json!({"messages": [{"role": "user", "content": {"type": "text", "text": who, "odd": 1}}], "odd": 1})
            }
            ("completion/complete", _, _) => json!({
                "completion": {"values": ["x"], "odd": 1}, "asked": given["ref"],
            }),
            ("tasks/get", _, _) => json!({
                "taskId": given["taskId"], "status": "completed", "createdAt": "2026-11-29T00:00:00Z",
                "lastUpdatedAt": "2026-11-29T00:00:00Z", "ttlMs": null,
                "result": {"content": [{"type": "resource_link", "uri": "test://one", "name": "one"}]},
            }),
            ("tasks/update" | "tasks/cancel", _, _) => json!({}),
            _ => return Ok(Reply::Error(RpcError { code: -32601, message: "no".into(), data: None })),
        };
        Ok(Reply::Result(Arc::new(object(answer))))
    }

    async fn follow(&self, _: &Handle, uri: String, updates: mpsc::Sender<String>) -> Result<(), HandError> {
        self.followers.lock().unwrap().push((uri, updates));
        Ok(())
    }
}

/// Waits until `done` is so.
pub(super) async fn until(done: impl Fn() -> bool) {
    let waiting = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting).await.expect("it happens");
}
