//! Server-sent events, as browsers read them (<https://html.spec.whatwg.org/multipage/server-sent-events.html>): lines
//! end with CR, LF or both, and what is unknown or malformed is ignored. An event that is not ended does not count.

#[cfg(test)]
mod tests;

use bytes::{Buf, Bytes};
use http_body_util::BodyExt;
use hyper::body::Incoming as Body;

use super::causes;

/// Most bytes of memory for a line that are kept from one to the next: 1 MiB.
const KEPT: usize = 1 << 20;
/// What may stand before the first line.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// One event. Its type is left out: nobody here has a use for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sse {
    /// Its lines of data, joined by LF; none when there was no such line.
    pub data: Option<String>,
    /// Where the stream could go on after it. Empty: nowhere.
    pub id: Option<String>,
    /// How long to wait before asking for the rest, in milliseconds.
    pub retry: Option<u64>,
}

/// The events of a body, none of which is larger than a limit.
pub struct Events {
    body: Body,
    /// What was read and not looked at yet.
    rest: Bytes,
    parser: Parser,
    received: u64,
}

impl Events {
    /// The limit is one of bytes: of an event's data, and of any line.
    pub fn new(body: Body, limit: usize) -> Self {
        Self { body, rest: Bytes::new(), parser: Parser::new(limit), received: 0 }
    }

    /// How many bytes have come so far, those that make no event included.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The next event. Losing nothing when it is dropped and called again.
    pub async fn next(&mut self) -> Result<Option<Sse>, Broken> {
        loop {
            match self.parser.feed(&mut self.rest) {
                Ok(Some(event)) => return Ok(Some(event)),
                Ok(None) => {}
                Err(TooLarge) => return Err(Broken::TooLarge),
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(Broken::Cut(causes(&error))),
                Some(Ok(frame)) => {
                    self.rest = frame.into_data().unwrap_or_default();
                    self.received += self.rest.len() as u64;
                }
            }
        }
    }
}

/// Why there is no next event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    /// It is larger than the limit.
    TooLarge,
    /// The connection broke.
    Cut(String),
}

/// An event was larger than the limit.
#[derive(Debug, PartialEq, Eq)]
struct TooLarge;

/// Makes events of bytes, however they are cut.
struct Parser {
    /// Most bytes of an event's data, and of any line.
    limit: usize,
    /// The beginning of a line that has not come whole.
    line: Vec<u8>,
    /// Whether the last line ended with CR, so that LF would be the rest of its end.
    after_cr: bool,
    /// Whether the first line has been read.
    begun: bool,
    /// Data so far, each line with LF.
    data: Option<Vec<u8>>,
    id: Option<String>,
    retry: Option<u64>,
}

impl Parser {
    fn new(limit: usize) -> Self {
        Self { limit, line: Vec::new(), after_cr: false, begun: false, data: None, id: None, retry: None }
    }

    /// Reads on until an event is whole, or `bytes` are used up.
    fn feed(&mut self, bytes: &mut Bytes) -> Result<Option<Sse>, TooLarge> {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                bytes.advance(1);
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let until = end.unwrap_or(bytes.len());
            let held = self.line.len() + self.data.as_ref().map_or(0, Vec::len);
            if held + until > self.limit {
                return Err(TooLarge);
            }
            let piece = bytes.split_to(until);
            let Some(end) = bytes.first().copied().filter(|_| end.is_some()) else {
                self.line.extend_from_slice(&piece);
                continue;
            };
            bytes.advance(1);
            self.after_cr = end == b'\r';
            let event = if self.line.is_empty() {
                self.take(&piece)
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&piece);
                let event = self.take(&line);
                if line.capacity() <= KEPT {
                    line.clear();
                    self.line = line;
                }
                event
            };
            if event.is_some() {
                return Ok(event);
            }
        }
        Ok(None)
    }

    /// Takes a line. An empty one ends an event.
    fn take(&mut self, line: &[u8]) -> Option<Sse> {
        let first = !std::mem::replace(&mut self.begun, true);
        let line = line.strip_prefix(BOM).filter(|_| first).unwrap_or(line);
        if line.is_empty() {
            return self.end();
        }
        let (name, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &b""[..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => {
                let data = self.data.get_or_insert_default();
                data.extend_from_slice(value);
                data.push(b'\n');
            }
            b"id" if !value.contains(&0) => self.id = Some(text(value.to_vec())),
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                self.retry = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
            }
            // A comment, or nothing that we know.
            _ => {}
        }
        None
    }

    /// The event that ends here, if anything was said since the last one.
    fn end(&mut self) -> Option<Sse> {
        let data = self.data.take().map(|mut data| {
            data.pop();
            text(data)
        });
        let event = Sse { data, id: self.id.take(), retry: self.retry.take() };
        (event != Sse::default()).then_some(event)
    }
}

/// Text; what is no UTF-8 is replaced.
fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
