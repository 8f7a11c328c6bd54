//! Commands on a device: shell protocol v2, one connection through the adb server for each.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_util::sync::CancellationToken;

use super::server::{Connection, ServerError};
use crate::posix::Streams;
use crate::remote::{Event, Line, OpenError, Reader, Tail, Writer, script};

/// Packets: a kind, four bytes of length (little endian), and as many bytes.
const HEADER: usize = 5;
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const EXIT: u8 = 3;
const CLOSE_STDIN: u8 = 4;
/// Most bytes of a packet that we send: what every adbd takes.
const MOST: usize = 4096;
/// Most bytes of a packet that a device may send.
const MOST_TAKEN: usize = 16 << 20;
/// Most bytes of an exit code and its newline after the mark.
const MOST_CODE: usize = 8;

/// The way to one device.
pub(super) struct AdbLine {
    server: SocketAddr,
    serial: String,
    broken: Arc<OnceLock<String>>,
    closed: CancellationToken,
}

impl AdbLine {
    pub(super) fn new(server: SocketAddr, serial: String) -> Self {
        Self { server, serial, broken: Arc::default(), closed: CancellationToken::new() }
    }
}

#[async_trait]
impl Line for AdbLine {
    async fn open(&self) -> Result<(Box<dyn Writer>, Box<dyn Reader>), OpenError> {
        let opened = async {
            let mut connection = Connection::to_device(self.server, &self.serial).await?;
            connection.request(&format!("shell,v2,raw:{}", script::COMMAND)).await?;
            Ok(connection.into_stream())
        };
        let stream = opened.await.map_err(|error: ServerError| {
            let _ = self.broken.set(error.to_string());
            OpenError::Broken
        })?;
        let (read, write) = stream.into_split();
        let reader = AdbReader {
            stream: read,
            buffer: BytesMut::new(),
            ready: VecDeque::new(),
            output: Tailed::plain(),
            error: Tailed::plain(),
            over: Over::No,
            broken: Arc::clone(&self.broken),
            closed: self.closed.clone(),
        };
        Ok((Box::new(AdbWriter(write)), Box::new(reader)))
    }

    async fn fence(&self) {
        // The end of a command is in its output, behind all that was printed before.
    }

    fn tail(&self) -> Tail {
        Tail::Printed
    }

    async fn close(&self) {
        let _ = self.broken.set("it was closed".to_owned());
        self.closed.cancel();
    }

    fn why_broken(&self) -> Option<String> {
        self.broken.get().cloned()
    }
}

struct AdbWriter(OwnedWriteHalf);

#[async_trait]
impl Writer for AdbWriter {
    async fn send(&mut self, mut bytes: Bytes) -> io::Result<()> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(MOST));
            self.0.write_all(&packet(STDIN, &piece)).await?;
        }
        Ok(())
    }

    async fn finish(&mut self) -> io::Result<()> {
        self.0.write_all(&packet(CLOSE_STDIN, &[])).await
    }
}

fn packet(kind: u8, bytes: &[u8]) -> BytesMut {
    let mut packet = BytesMut::with_capacity(HEADER + bytes.len());
    packet.put_u8(kind);
    packet.put_u32_le(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    packet.put_slice(bytes);
    packet
}

/// How far a channel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    No,
    /// The device said that its process is gone and that nothing is printed any more.
    Said,
}

struct AdbReader {
    stream: OwnedReadHalf,
    buffer: BytesMut,
    /// What is to be given next.
    ready: VecDeque<Event>,
    output: Tailed,
    error: Tailed,
    over: Over,
    broken: Arc<OnceLock<String>>,
    closed: CancellationToken,
}

#[async_trait]
impl Reader for AdbReader {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.over == Over::Said {
                return None;
            }
            match self.packet() {
                Ok(Some((kind, bytes))) => self.take(kind, &bytes),
                Ok(None) => {
                    self.buffer.reserve(HEADER + MOST);
                    let read = tokio::select! {
                        read = self.stream.read_buf(&mut self.buffer) => read,
                        () = self.closed.cancelled() => Ok(0),
                    };
                    if !matches!(read, Ok(1..)) {
                        return self.lost("the device went away");
                    }
                }
                Err(()) => return self.lost("the device does not speak shell protocol v2"),
            }
        }
    }

    fn expect(&mut self, mark: &str, streams: Streams) {
        self.output = Tailed::marked(mark);
        if streams == Streams::Separate {
            self.error = Tailed::marked(mark);
        }
    }
}

impl AdbReader {
    /// The next whole packet.
    fn packet(&mut self) -> Result<Option<(u8, Bytes)>, ()> {
        let Some((header, _)) = self.buffer.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [kind, length @ ..] = *header;
        let length = usize::try_from(u32::from_le_bytes(length)).map_err(|_| ())?;
        if length > MOST_TAKEN {
            return Err(());
        }
        if self.buffer.len() < HEADER + length {
            return Ok(None);
        }
        self.buffer.advance(HEADER);
        Ok(Some((kind, self.buffer.split_to(length).freeze())))
    }

    fn take(&mut self, kind: u8, bytes: &[u8]) {
        match kind {
            STDOUT => {
                let bytes = self.output.pass(bytes);
                self.give(Event::Output, bytes);
            }
            STDERR => {
                let bytes = self.error.pass(bytes);
                self.give(Event::Error, bytes);
            }
            EXIT => {
                let (output, error) = (self.output.rest(), self.error.rest());
                self.give(Event::Output, output);
                self.give(Event::Error, error);
                if self.output.code.is_none() {
                    self.ready.push_back(Event::Exit(bytes.first().copied().map_or(0, i32::from)));
                }
                self.ready.push_back(Event::End);
                self.over = Over::Said;
                return;
            }
            _ => return,
        }
        if self.error.is_over()
            && let Some(code) = self.output.new_code()
        {
            self.ready.push_back(Event::Exit(code));
        }
    }

    fn give(&mut self, kind: fn(Bytes) -> Event, bytes: Bytes) {
        if !bytes.is_empty() {
            self.ready.push_back(kind(bytes));
        }
    }

    fn lost(&mut self, why: &str) -> Option<Event> {
        self.over = Over::Said;
        let _ = self.broken.set(why.to_owned());
        None
    }
}

/// A stream out of which the wrapper's last words are taken.
struct Tailed {
    /// Empty where there are none.
    mark: Vec<u8>,
    /// What may be the beginning of the mark, or is the mark without all of what follows.
    held: BytesMut,
    code: Option<i32>,
    told: bool,
}

impl Tailed {
    fn plain() -> Self {
        Self { mark: Vec::new(), held: BytesMut::new(), code: None, told: false }
    }

    fn marked(mark: &str) -> Self {
        Self { mark: mark.as_bytes().to_vec(), ..Self::plain() }
    }

    /// Nothing of the command itself comes any more.
    fn is_over(&self) -> bool {
        self.mark.is_empty() || self.code.is_some()
    }

    /// The exit code, once.
    fn new_code(&mut self) -> Option<i32> {
        let code = self.code.filter(|_| !self.told);
        self.told |= code.is_some();
        code
    }

    /// What was held back for nothing.
    fn rest(&mut self) -> Bytes {
        self.held.split().freeze()
    }

    /// What of this is to be shown.
    fn pass(&mut self, bytes: &[u8]) -> Bytes {
        if self.is_over() {
            return Bytes::copy_from_slice(bytes);
        }
        self.held.extend_from_slice(bytes);
        let mut shown = BytesMut::new();
        while let Some(at) = self.held.iter().position(|byte| *byte == self.mark[0]) {
            shown.extend(self.held.split_to(at));
            let whole = self.held.len() >= self.mark.len();
            let same = self.held.iter().zip(&self.mark).all(|(held, mark)| held == mark);
            match (whole, same) {
                (false, true) => return shown.freeze(),
                (true, true) => match self.held[self.mark.len()..].iter().position(|byte| *byte == b'\n') {
                    Some(end) if end <= MOST_CODE => {
                        let said = self.held.split_to(self.mark.len() + end + 1);
                        let said = String::from_utf8_lossy(&said[self.mark.len()..]).trim().to_owned();
                        self.code = Some(said.parse().unwrap_or(0));
                        shown.extend(self.held.split());
                        return shown.freeze();
                    }
                    None if self.held.len() <= self.mark.len() + MOST_CODE => return shown.freeze(),
                    _ => shown.extend(self.held.split_to(1)),
                },
                (_, false) => shown.extend(self.held.split_to(1)),
            }
        }
        shown.extend(self.held.split());
        shown.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_found_however_it_is_cut_up() {
        let mark = "\u{1}0123 end";
        for (text, shown, code) in [
            ("\u{1}0123 end 7\n", "", Some(7)),
            ("out\u{1}0123 end 0\nlate", "outlate", Some(0)),
            ("\u{1}\u{1}0123 \u{1}01\n", "\u{1}\u{1}0123 \u{1}01\n", None),
            ("\u{1}0123 end for ever and ever\n", "\u{1}0123 end for ever and ever\n", None),
        ] {
            for size in 1..=text.len() {
                let mut tailed = Tailed::marked(mark);
                let mut seen = Vec::new();
                for piece in text.as_bytes().chunks(size) {
                    seen.extend(tailed.pass(piece));
                }
                seen.extend(tailed.rest());
                assert_eq!(
                    (String::from_utf8_lossy(&seen).as_ref(), tailed.code),
                    (shown, code),
                    "{text:?} by {size}"
                );
            }
        }
    }
}
