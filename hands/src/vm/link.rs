//! The conversation with an agent in the guest: one request at a time over a port of its own.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// How long the agent may take for anything but a command, on a machine under heavy load that is emulated.
pub(super) const ANSWER: Duration = Duration::from_mins(2);
/// Longest line of an answer, in bytes.
const LINE: u64 = 64;
/// Most bytes of an answer.
const MOST: usize = 64 << 10;
/// Most bytes that are sent between two answers.
pub(super) const CHUNK: usize = 256 << 10;

/// A port.
pub(super) struct Link(BufReader<UnixStream>);

impl Link {
    pub(super) fn new(port: UnixStream) -> Self {
        Self(BufReader::new(port))
    }

    /// Waits until the agent says that it is there.
    pub(super) async fn ready(&mut self) -> io::Result<()> {
        self.expect("ready").await
    }

    /// Says one thing that is answered with `ok`.
    pub(super) async fn tell(&mut self, request: &str) -> io::Result<()> {
        self.say(request).await?;
        timeout(ANSWER, self.expect("ok")).await?
    }

    /// Appends bytes to a file of a call.
    pub(super) async fn put(&mut self, id: &str, file: &str, bytes: &[u8]) -> io::Result<()> {
        for chunk in bytes.chunks(CHUNK) {
            self.send(&format!("put {id} {file}"), chunk).await?;
        }
        Ok(())
    }

    /// Says one thing with bytes, at most [`CHUNK`], that is answered with `ok`.
    pub(super) async fn send(&mut self, request: &str, bytes: &[u8]) -> io::Result<()> {
        let sending = async {
            self.say(&format!("{request} {}", bytes.len())).await?;
            self.0.write_all(bytes).await?;
            self.expect("ok").await
        };
        timeout(ANSWER, sending).await?
    }

    /// Asks for bytes and waits for them, however long it takes. Not to be given up in the middle.
    pub(super) async fn get(&mut self, request: &str) -> io::Result<Vec<u8>> {
        self.say(request).await?;
        let length: usize = self.line().await?.parse().map_err(|_| strange())?;
        if length > MOST {
            return Err(strange());
        }
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).await?;
        Ok(bytes)
    }

    async fn say(&mut self, request: &str) -> io::Result<()> {
        self.0.write_all(format!("{request}\n").as_bytes()).await
    }

    async fn expect(&mut self, word: &str) -> io::Result<()> {
        if self.line().await? == word { Ok(()) } else { Err(strange()) }
    }

    async fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        if (&mut self.0).take(LINE).read_until(b'\n', &mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        String::from_utf8(line).map(|line| line.trim_end().to_owned()).map_err(|_| strange())
    }
}

fn strange() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the guest gives no sensible answer")
}
