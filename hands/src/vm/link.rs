//! The conversation with the agent in the guest: one request at a time over its first serial port, and what to kill
//! over the second.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// How long the agent may take for anything but a command, on a machine under heavy load that is emulated.
pub(super) const ANSWER: Duration = Duration::from_mins(2);
/// Longest line of an answer, in bytes.
const LINE: u64 = 64;
/// Most bytes that an answer may announce: the agent sends up to 64 KiB.
const MOST: usize = 64 << 10;
/// Bytes that are sent at once: what a serial port of Linux holds when nobody reads.
const CHUNK: usize = 4096;

/// Both ports.
pub(super) struct Link {
    work: BufReader<UnixStream>,
    control: UnixStream,
}

impl Link {
    pub(super) fn new(work: UnixStream, control: UnixStream) -> Self {
        Self { work: BufReader::new(work), control }
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
            self.say(&format!("put {id} {file} {}", chunk.len())).await?;
            self.work.write_all(chunk).await?;
            timeout(ANSWER, self.expect("ok")).await??;
        }
        Ok(())
    }

    /// Asks for bytes and waits for them, however long it takes. Not to be given up in the middle.
    pub(super) async fn get(&mut self, request: &str) -> io::Result<Vec<u8>> {
        self.say(request).await?;
        bytes(&mut self.work).await
    }

    /// Both halves of a conversation while a command runs: what it prints, and the port by which it is killed.
    pub(super) fn split(&mut self) -> (Printing<'_>, &mut UnixStream) {
        (Printing(&mut self.work), &mut self.control)
    }

    async fn say(&mut self, request: &str) -> io::Result<()> {
        self.work.write_all(format!("{request}\n").as_bytes()).await
    }

    async fn expect(&mut self, word: &str) -> io::Result<()> {
        if line(&mut self.work).await? == word { Ok(()) } else { Err(strange()) }
    }
}

/// What a running command prints.
pub(super) struct Printing<'a>(&'a mut BufReader<UnixStream>);

impl Printing<'_> {
    /// Waits for the next of it. Not to be given up in the middle.
    pub(super) async fn more(&mut self, id: &str) -> io::Result<Vec<u8>> {
        self.0.write_all(format!("more {id}\n").as_bytes()).await?;
        bytes(self.0).await
    }
}

async fn bytes(from: &mut BufReader<UnixStream>) -> io::Result<Vec<u8>> {
    let length: usize = line(from).await?.parse().map_err(|_| strange())?;
    if length > MOST {
        return Err(strange());
    }
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes).await?;
    Ok(bytes)
}

async fn line(from: &mut BufReader<UnixStream>) -> io::Result<String> {
    let mut line = Vec::new();
    if from.take(LINE).read_until(b'\n', &mut line).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    String::from_utf8(line).map(|line| line.trim_end().to_owned()).map_err(|_| strange())
}

fn strange() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the guest gives no sensible answer")
}
