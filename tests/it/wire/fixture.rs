//! A small MCP server of our own behind the guard, and who may call it. The rows can be pointed at another server by
//! another [`Target`].

#![expect(deprecated, reason = "setLevel is legacy, and so are clients")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request as HttpRequest;
use axum::middleware::{self, Next};
use gateway::access::Principal;
use gateway::mcp::wire::{self, RawHandler, WireSettings};
use http::StatusCode;
use http::request::Parts;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult, LoggingLevel,
    LoggingMessageNotificationParam, PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse,
    ServerCapabilities, ServerConfig, SetLevelRequestParams, SubscriptionFilter, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::raw::Request;

/// A server, whom it knows, and a tool of its that can be called.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) address: SocketAddr,
    /// The endpoint.
    pub(super) path: String,
    /// Another endpoint of the same server.
    pub(super) other_path: String,
    /// Whose token the requests carry.
    pub(super) token: String,
    /// The token of somebody else.
    pub(super) other_token: String,
    /// A tool, and arguments that are right for it.
    pub(super) tool: String,
    pub(super) arguments: Value,
}

impl Target {
    /// A POST with everything that both eras want but what they do not share.
    pub(super) fn post(&self, body: &Value) -> Request {
        Request::new("POST", &self.path)
            .add("Authorization", format!("Bearer {}", self.token))
            .add("Accept", "application/json, text/event-stream")
            .add("Content-Type", "application/json")
            .body(body.to_string())
    }

    /// A right request of 2026-07-28.
    pub(super) fn modern(&self, method: &str, params: Value) -> Request {
        let name = ["name", "uri", "taskId"].iter().find_map(|key| params[key].as_str().map(str::to_owned));
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": with_meta(params) });
        let request = self.post(&body).add("MCP-Protocol-Version", "2026-07-28").add("Mcp-Method", method);
        match name {
            Some(name) => request.add("Mcp-Name", name),
            None => request,
        }
    }

    /// A right call of the tool.
    pub(super) fn call(&self) -> Request {
        self.modern("tools/call", self.call_params())
    }

    pub(super) fn call_params(&self) -> Value {
        json!({ "name": self.tool, "arguments": self.arguments })
    }

    /// A right call of the tool, but for a text that is replaced in its body, where it stands last.
    pub(super) fn call_but(&self, old: &str, new: &str) -> Request {
        let body = json!({
            "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": with_meta(self.call_params()),
        });
        let text = body.to_string();
        let at = text.rfind(old).unwrap_or_else(|| panic!("{old} is not in {text}"));
        self.call().body([&text[..at], new, &text[at + old.len()..]].concat())
    }

    pub(super) fn initialize(&self, version: &str) -> Request {
        self.post(&json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": version, "capabilities": {}, "clientInfo": { "name": "test", "version": "1" },
        }}))
    }

    /// Opens a legacy session.
    pub(super) async fn session(&self) -> String {
        let answer = self.initialize("2025-11-25").send(self.address).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.header("mcp-session-id").expect("a session").to_owned()
    }

    /// A request in a legacy session.
    pub(super) fn legacy(&self, session: &str, method: &str, params: &Value) -> Request {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        self.post(&body).add("MCP-Protocol-Version", "2025-11-25").add("Mcp-Session-Id", session)
    }

    /// A GET or DELETE in a legacy session.
    pub(super) fn bare(&self, method: &'static str, session: &str) -> Request {
        self.legacy(session, "", &Value::Null).method(method).without("Content-Type").body("")
    }

    /// The same, with the other one's token.
    pub(super) fn as_other(&self, request: Request) -> Request {
        request.set("Authorization", format!("Bearer {}", self.other_token))
    }
}

fn with_meta(mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
    });
    params
}

/// What the fixture's tools did.
#[derive(Default)]
pub(super) struct Seen {
    runs: AtomicUsize,
    finished: AtomicUsize,
    cancelled: AtomicUsize,
}

impl Seen {
    /// How many calls were begun.
    pub(super) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    /// How many slow calls came to their end.
    pub(super) fn finished(&self) -> usize {
        self.finished.load(Ordering::SeqCst)
    }

    /// How many slow calls were cancelled.
    pub(super) fn cancelled(&self) -> usize {
        self.cancelled.load(Ordering::SeqCst)
    }
}

/// The running fixture; it ends when it is dropped.
pub(super) struct Fixture {
    pub(super) target: Target,
    pub(super) seen: Arc<Seen>,
    pub(super) cancel: CancellationToken,
    /// Everything that runs for it.
    pub(super) tasks: TaskTracker,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// Starts the fixture server.
pub(super) async fn start(settings: WireSettings) -> Fixture {
    let (cancel, tasks, seen) = (CancellationToken::new(), TaskTracker::new(), Arc::<Seen>::default());
    let server = Server { seen: seen.clone() };
    let settings = WireSettings { input_schemas: Arc::new(|_, name| schema(name)), ..settings };
    let mcp = wire::service(move || server.clone(), settings, &cancel, &tasks, &TaskTracker::new());
    let router = Router::new()
        .route_service("/mcp", mcp.clone())
        .route_service("/mcp/other", mcp)
        .layer(middleware::from_fn(authenticate));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let stop = cancel.clone().cancelled_owned();
    tasks.spawn(async move { axum::serve(listener, router).with_graceful_shutdown(stop).await });
    let target = Target {
        address,
        path: "/mcp".into(),
        other_path: "/mcp/other".into(),
        token: "alice".into(),
        other_token: "bob".into(),
        tool: "echo".into(),
        arguments: json!({ "text": "hello" }),
    };
    Fixture { target, seen, cancel, tasks }
}

/// A token is its owner's name.
async fn authenticate(mut request: HttpRequest, next: Next) -> axum::response::Response {
    let token =
        request.headers().get("authorization").and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    match token.map(str::to_owned) {
        Some(name) if name == "nobody" => {}
        Some(name) => drop(request.extensions_mut().insert(Principal(format!("local:{name}")))),
        None => return axum::response::IntoResponse::into_response(StatusCode::UNAUTHORIZED),
    }
    next.run(request).await
}

fn schema(tool: &str) -> Option<Arc<Map<String, Value>>> {
    let properties = match tool {
        "echo" => json!({ "text": { "type": "string" } }),
        "routed" => json!({
            "region": { "type": "string", "x-mcp-header": "Region" },
            "count": { "type": "integer", "x-mcp-header": "Count" },
            "deep": { "type": "object", "properties": { "on": { "type": "boolean", "x-mcp-header": "On" } } },
        }),
        "slow" => json!({ "ms": { "type": "integer" } }),
        "who" | "shout" => json!({}),
        _ => return None,
    };
    json!({ "type": "object", "properties": properties }).as_object().cloned().map(Arc::new)
}

/// The server of the tests.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) seen: Arc<Seen>,
}

/// It answers nothing as JSON.
impl RawHandler for Server {}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(
            ServerCapabilities::builder().enable_tools().enable_resources().enable_logging().build(),
        )
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = ["echo", "routed", "slow", "who"]
            .map(|name| Tool::new(name, name, schema(name).unwrap_or_default()));
        Ok(ListToolsResult::with_all_items(tools.to_vec()))
    }

    async fn call_tool(
        &self,
        call: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.seen.runs.fetch_add(1, Ordering::SeqCst);
        let arguments = call.arguments.unwrap_or_default();
        let text = match &*call.name {
            "who" => {
                let parts = context.extensions.get::<Parts>();
                let principal = parts.and_then(|parts| parts.extensions.get::<Principal>());
                principal.map_or_else(|| "nobody".into(), ToString::to_string)
            }
            "slow" => {
                let nap = Duration::from_millis(arguments["ms"].as_u64().unwrap_or_default());
                tokio::select! {
                    () = tokio::time::sleep(nap) => { self.seen.finished.fetch_add(1, Ordering::SeqCst); }
                    () = context.ct.cancelled() => { self.seen.cancelled.fetch_add(1, Ordering::SeqCst); }
                }
                if arguments.contains_key("fail") {
                    return Err(ErrorData::invalid_params("it was to fail", None));
                }
                "rested".into()
            }
            "shout" => {
                for _ in 0..arguments["times"].as_u64().unwrap_or_default() {
                    let bytes = arguments["bytes"].as_u64().unwrap_or_default();
                    let data = json!("x".repeat(usize::try_from(bytes).unwrap_or_default()));
                    let message = LoggingMessageNotificationParam::new(LoggingLevel::Info, data);
                    drop(context.peer.notify_logging_message(message).await);
                }
                "shouted".into()
            }
            "echo" | "routed" => Value::Object(arguments).to_string(),
            other => return Err(ErrorData::invalid_params(format!("no tool {other}"), None)),
        };
        Ok(CallToolResponse::Complete(CallToolResult::success(vec![ContentBlock::text(text)])))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        Err(ErrorData::resource_not_found("no such resource", Some(json!({ "uri": request.uri }))))
    }

    async fn set_level(
        &self,
        _: SetLevelRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }
}
