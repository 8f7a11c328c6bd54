//! HTTP/1.1 by hand: any header, twice, in any spelling, with any bytes.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Nothing here takes a second; a minute means that it hangs.
const HANGS: Duration = Duration::from_mins(1);

/// A request as it will stand on the wire.
#[derive(Clone)]
pub(super) struct Request {
    method: &'static str,
    path: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

impl Request {
    pub(super) fn new(method: &'static str, path: &str) -> Self {
        Self { method, path: path.to_owned(), headers: Vec::new(), body: Vec::new() }
    }

    /// One more line of this header.
    pub(super) fn add(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    /// No such header.
    pub(super) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self
    }

    /// This header alone.
    pub(super) fn set(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.without(name).add(name, value)
    }

    pub(super) fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = body.as_ref().to_vec();
        self
    }

    pub(super) fn on(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    pub(super) fn method(mut self, method: &'static str) -> Self {
        self.method = method;
        self
    }

    fn bytes(&self, address: SocketAddr) -> Vec<u8> {
        let mut bytes = format!("{} {} HTTP/1.1\r\n", self.method, self.path).into_bytes();
        let has = |name: &str| self.headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
        if !has("host") {
            bytes.extend_from_slice(format!("Host: {address}\r\n").as_bytes());
        }
        if !has("content-length") && !has("transfer-encoding") {
            bytes.extend_from_slice(format!("Content-Length: {}\r\n", self.body.len()).as_bytes());
        }
        for (name, value) in &self.headers {
            bytes.extend_from_slice(&[name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
        bytes.extend_from_slice(b"Connection: close\r\n\r\n");
        bytes.extend_from_slice(&self.body);
        bytes
    }

    /// Sends it and reads the answer to its end.
    pub(super) async fn send(&self, address: SocketAddr) -> Answer {
        let mut open = self.open(address).await;
        let mut body = String::new();
        while let Some(line) = open.line().await {
            body.push_str(&line);
        }
        Answer { body, ..open.answer }
    }

    /// Sends it and reads the answer's head. The connection breaks when what is returned is dropped.
    pub(super) async fn open(&self, address: SocketAddr) -> Open {
        let stream = TcpStream::connect(address).await.expect("the server listens");
        let (read, mut write) = stream.into_split();
        let bytes = self.bytes(address);
        let mut reader = BufReader::new(read);
        // A server that answers before it has read everything may close: then writing fails, and the answer counts.
        let writing = async { drop(write.write_all(&bytes).await) };
        let (answer, ()) = tokio::join!(
            async { timeout(HANGS, head(&mut reader)).await.expect("an answer in time") },
            writing
        );
        Open { answer, reader, _write: write, rest: Vec::new() }
    }
}

/// An answer, without its body while that is still open.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The JSON-RPC message: the body, or the last event that has one.
    pub(super) fn message(&self) -> Option<Value> {
        let events = self.body.lines().filter_map(|line| line.strip_prefix("data:"));
        let mut messages = events.filter_map(|data| serde_json::from_str(data).ok());
        serde_json::from_str(&self.body).ok().or_else(|| messages.next_back())
    }

    /// The code of its JSON-RPC error.
    pub(super) fn code(&self) -> Option<i64> {
        self.message()?["error"]["code"].as_i64()
    }

    /// The first text of its tool result.
    pub(super) fn text(&self) -> Option<String> {
        Some(self.message()?["result"]["content"][0]["text"].as_str()?.to_owned())
    }
}

/// An answer whose body is read as it comes.
pub(super) struct Open {
    pub(super) answer: Answer,
    reader: BufReader<tokio::net::tcp::OwnedReadHalf>,
    _write: tokio::net::tcp::OwnedWriteHalf,
    rest: Vec<u8>,
}

impl Open {
    /// The next line of the body, or what is left of it.
    pub(super) async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(String::from_utf8_lossy(&line).into_owned());
            }
            match timeout(HANGS, self.chunk()).await.expect("the body goes on") {
                Some(chunk) => self.rest.extend_from_slice(&chunk),
                None if self.rest.is_empty() => return None,
                None => return Some(String::from_utf8_lossy(&std::mem::take(&mut self.rest)).into_owned()),
            }
        }
    }

    async fn chunk(&mut self) -> Option<Vec<u8>> {
        if self.answer.header("transfer-encoding") != Some("chunked") {
            let mut all = Vec::new();
            self.reader.read_to_end(&mut all).await.ok()?;
            return (!all.is_empty()).then_some(all);
        }
        let mut size = String::new();
        self.reader.read_line(&mut size).await.ok()?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        let mut chunk = vec![0; size + 2];
        self.reader.read_exact(&mut chunk).await.ok()?;
        chunk.truncate(size);
        (size > 0).then_some(chunk)
    }
}

async fn head(reader: &mut BufReader<tokio::net::tcp::OwnedReadHalf>) -> Answer {
    let mut line = String::new();
    reader.read_line(&mut line).await.expect("a status line");
    let status = line.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default();
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).await.expect("a header");
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    Answer { status, headers, body: String::new() }
}
