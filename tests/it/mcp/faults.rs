//! A database that goes away under a running gateway: clear sentences with a reference, and nothing of its insides.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sqlx::postgres::PgConnectOptions;
use tests::gateway::{Gateway, Options};
use tests::postgres;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client::{Client, ERAS, soon, text};

/// Words that only the driver, the database or the code would use.
const INSIDES: [&str; 9] =
    ["sqlx", "ostgres", "socket", "pool", "os error", ".rs", "SELECT", "select ", "relation"];

trait Pipe: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Pipe for T {}

/// A cable to the database that can be pulled out: every connection breaks, and new ones are refused.
struct Cable {
    address: SocketAddr,
    pulled: CancellationToken,
    tasks: TaskTracker,
}

impl Cable {
    async fn lay(address: &str, server: PgConnectOptions) -> Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let (address, pulled, tasks) = (listener.local_addr()?, CancellationToken::new(), TaskTracker::new());
        let (stop, connections) = (pulled.clone(), tasks.clone());
        tasks.spawn(async move {
            while let Some(Ok((mut near, _))) = stop.run_until_cancelled(listener.accept()).await {
                let (server, stop) = (server.clone(), stop.clone());
                connections.spawn(async move {
                    let Ok(mut far) = dial(&server).await else { return };
                    stop.run_until_cancelled(copy_bidirectional(&mut near, &mut far)).await;
                });
            }
        });
        Ok(Self { address, pulled, tasks })
    }

    async fn pull(self) -> SocketAddr {
        self.pulled.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.address
    }
}

async fn dial(server: &PgConnectOptions) -> std::io::Result<Box<dyn Pipe>> {
    let folder = server
        .get_socket()
        .cloned()
        .or_else(|| server.get_host().starts_with('/').then(|| PathBuf::from(server.get_host())));
    Ok(match folder {
        Some(folder) => {
            Box::new(UnixStream::connect(folder.join(format!(".s.PGSQL.{}", server.get_port()))).await?)
        }
        None => Box::new(TcpStream::connect((server.get_host(), server.get_port())).await?),
    })
}

fn clear(said: &str) -> Result<()> {
    let leaked: Vec<_> = INSIDES.iter().filter(|word| said.contains(**word)).collect();
    ensure!(leaked.is_empty(), "{leaked:?} in {said:?}");
    ensure!(said.contains("the database does not answer: try again in a moment (reference "), "{said}");
    Ok(())
}

fn reference(said: &str) -> Option<&str> {
    let (_, rest) = said.split_once("(reference ")?;
    Some(rest.split_once(')')?.0)
}

/// What a tool, a list or a refused request says.
fn said(answer: &Value) -> &str {
    let result = text(&answer["result"]);
    answer["body"].as_str().or_else(|| answer["error"]["message"].as_str()).unwrap_or(result)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_database_the_gateway_says_so_and_comes_back_with_it() -> Result<()> {
    let database = postgres::database().await?;
    let server: PgConnectOptions = database.url().parse()?;
    let cable = Cable::lay("127.0.0.1:0", server.clone()).await?;
    let password = "";
    let url = format!("postgres://{}{password}@{}/{}", server.get_username(), cable.address, database.name());
    let gateway = Gateway::start(Options::default().env("MANYHANDS_DATABASE_URL", &url)).await?;
    let mut clients = Vec::new();
    for era in ERAS {
        let client = Client::owner(&gateway, era, "away").await?;
        client.call("sandbox__bash", json!({ "command": "true" })).await?;
        clients.push(client);
    }
    let address = cable.pull().await;
    let requests = clients.iter().flat_map(|client| {
        [
            ("tools/call", json!({ "name": "session_get", "arguments": {} })),
            ("tools/call", json!({ "name": "sandbox__bash", "arguments": { "command": "echo ran" } })),
            ("resources/read", json!({ "uri": "session://away/events" })),
            ("resources/list", json!({})),
        ]
        .map(|(method, params)| async move {
            let begun = Instant::now();
            let answer = client.request(method, params).await?;
            eprintln!("{:?} {method} after {:?}: {}", client.era, begun.elapsed(), said(&answer));
            anyhow::Ok(answer)
        })
    });
    for answer in futures_util::future::try_join_all(requests).await? {
        clear(said(&answer))?;
        let reference = reference(said(&answer)).context("a reference")?;
        ensure!(gateway.stderr().contains(reference), "{reference} is not in the log");
    }
    let ready = reqwest::get(format!("{}/readyz", gateway.url())).await?;
    ensure!(ready.status() == 503, "{}", ready.status());
    clear(&ready.text().await?)?;
    ensure!(reqwest::get(format!("{}/healthz", gateway.url())).await?.status() == 200);

    let _cable = Cable::lay(&address.to_string(), server).await?;
    let begun = Instant::now();
    soon(async || {
        let answer =
            clients[0].request("tools/call", json!({ "name": "session_get", "arguments": {} })).await?;
        Ok(answer["result"]["structuredContent"].is_object())
    })
    .await?;
    eprintln!("back {:?} after its database", begun.elapsed());
    let result = clients[0].call("sandbox__bash", json!({ "command": "echo again" })).await?;
    ensure!(text(&result).ends_with("again\n"), "{result}");
    ensure!(begun.elapsed() < Duration::from_secs(30));
    Ok(())
}
