//! Clients that send or read as slowly as they can.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tests::gateway::{Gateway, Options};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::{address, commands_work, is_healthy, silent};

/// How long headers may take, and the least that a client is given.
const HEADERS: Duration = Duration::from_secs(10);
/// Within what time a connection must be closed, with headroom for a busy machine.
const CLOSED: Duration = Duration::from_secs(100);
/// How long a whole body may take.
const BODY: Duration = Duration::from_secs(30);

/// Sends `head`, then `x` each half second, until the other end closes. How long that took, and the first bytes of an
/// answer.
async fn trickle(
    stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    head: &str,
) -> Result<(Duration, String)> {
    let begun = Instant::now();
    let (mut read, mut write) = tokio::io::split(stream);
    let (mut said, mut piece) = (String::new(), vec![0; 1024]);
    let _ = write.write_all(head.as_bytes()).await;
    while begun.elapsed() < CLOSED {
        match timeout(Duration::from_millis(500), read.read(&mut piece)).await {
            Ok(Ok(0) | Err(_)) => return Ok((begun.elapsed(), said)),
            Ok(Ok(count)) => said.push_str(&String::from_utf8_lossy(&piece[..count])),
            Err(_) if write.write_all(b"x").await.is_err() => return Ok((begun.elapsed(), said)),
            Err(_) => {}
        }
    }
    anyhow::bail!("it is still open; it said {said:?}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_that_trickle_end_in_ten_seconds_and_bodies_in_thirty() -> Result<()> {
    let gateway = Gateway::start(Options::default()).await?;
    let tcp = async || TcpStream::connect(address(&gateway)?).await.map_err(anyhow::Error::from);
    let body = format!(
        "POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {}\r\naccept: application/json, \
         text/event-stream\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n",
        gateway.owner_token()?
    );
    let unix = UnixStream::connect(gateway.data().join("manyhands.sock")).await?;
    let (silent, started, header, owner, body) = tokio::join!(
        trickle_nothing(&gateway),
        trickle(tcp().await?, "GET /"),
        trickle(tcp().await?, "GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx-long: "),
        trickle(unix, "GET /about HTTP/1.1\r\nhost: x\r\nx-long: "),
        trickle(tcp().await?, &body),
    );
    for (what, (took, said)) in
        [("silent", silent?), ("a line", started?), ("a header", header?), ("the owner's", owner?)]
    {
        ensure!(took + Duration::from_secs(1) > HEADERS, "{what}: closed after {took:?}");
        ensure!(took < BODY || said.is_empty(), "{what}: {said}");
    }
    let (took, said) = body?;
    ensure!(took + Duration::from_secs(1) > BODY && said.starts_with("HTTP/1.1 408"), "{took:?}: {said}");
    is_healthy(&gateway).await?;
    commands_work(gateway.data()).await
}

async fn trickle_nothing(gateway: &Gateway) -> Result<(Duration, String)> {
    let begun = Instant::now();
    let mut stream = silent(gateway, 1).await?.remove(0);
    let mut said = Vec::new();
    timeout(CLOSED, stream.read_to_end(&mut said)).await?.ok();
    Ok((begun.elapsed(), String::from_utf8_lossy(&said).into_owned()))
}
