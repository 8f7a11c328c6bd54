//! What the benchmark measures the gateway against: `bench-peer echo` is an MCP server with one tool, in both eras;
//! `bench-peer proxy HOST:PORT` is the floor, a reverse proxy that never looks at a body. Both say on the first line
//! where they listen, and end with their standard input.

use std::convert::Infallible;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use http::{Request, Uri};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let serve = async {
        match arguments.as_slice() {
            ["echo"] => echo(listener).await,
            ["proxy", to] => proxy(listener, to).await,
            other => bail!("echo, or proxy HOST:PORT; not {other:?}"),
        }
    };
    let mut rest = Vec::new();
    let mut stdin = tokio::io::stdin();
    tokio::select! {
        served = serve => served,
        _ = stdin.read_to_end(&mut rest) => Ok(()),
    }
}

#[derive(Clone)]
struct Echo(Tool);

impl Echo {
    fn new() -> Result<Self> {
        let schema =
            json!({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]});
        let Value::Object(schema) = schema else { bail!("no schema") };
        Ok(Self(Tool::new("echo", "Returns its text argument.", Arc::new(schema))))
    }
}

impl ServerHandler for Echo {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(vec![self.0.clone()]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let text = request.arguments.as_ref().and_then(|arguments| arguments.get("text")?.as_str());
        Ok(CallToolResult::success(vec![ContentBlock::text(text.unwrap_or_default())]).into())
    }
}

async fn echo(listener: TcpListener) -> Result<()> {
    let echo = Echo::new()?;
    let config = StreamableHttpServerConfig::default().with_json_response(true);
    let service = StreamableHttpService::new(
        move || Ok(echo.clone()),
        Arc::new(LocalSessionManager::default()),
        config,
    );
    let tasks = TaskTracker::new();
    loop {
        let stream = accept(&listener).await?;
        let service = service.clone();
        let handle = service_fn(move |request: Request<Incoming>| {
            let service = service.clone();
            async move { Ok::<_, Infallible>(service.handle(request).await) }
        });
        tasks.spawn(async move {
            http1::Builder::new().timer(TokioTimer::new()).serve_connection(stream, handle).await
        });
    }
}

async fn proxy(listener: TcpListener, to: &str) -> Result<()> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Client<_, Incoming> =
        Client::builder(TokioExecutor::new()).pool_max_idle_per_host(256).build(connector);
    let (to, tasks): (Arc<str>, _) = (Arc::from(to), TaskTracker::new());
    loop {
        let stream = accept(&listener).await?;
        let (client, to) = (client.clone(), to.clone());
        let handle = service_fn(move |request: Request<Incoming>| {
            let (client, to) = (client.clone(), to.clone());
            async move { anyhow::Ok(client.request(readdressed(request, &to)?).await?) }
        });
        tasks.spawn(async move { http1::Builder::new().serve_connection(stream, handle).await });
    }
}

fn readdressed(mut request: Request<Incoming>, to: &str) -> Result<Request<Incoming>> {
    let path = request.uri().path_and_query().context("a path")?.clone();
    *request.uri_mut() = Uri::builder().scheme("http").authority(to).path_and_query(path).build()?;
    request.headers_mut().remove(http::header::HOST);
    Ok(request)
}

async fn accept(listener: &TcpListener) -> Result<TokioIo<TcpStream>> {
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok(TokioIo::new(stream))
}
