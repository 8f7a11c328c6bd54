//! Lines with a limit: what is longer is skipped to its end, and the rest is read on.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// How many bytes at either end of a line that is too long are searched for its id.
const ENDS: usize = 256;

/// What was read.
#[derive(Debug, PartialEq)]
pub(super) enum Line {
    /// It is in the buffer, without its end.
    Whole,
    /// It was longer than the limit, and is gone.
    TooLong {
        /// The `id` that it seems to have had.
        id: Option<u64>,
    },
    /// There is no more.
    End,
}

/// Reads the next line of at most `limit` bytes.
pub(super) async fn next_line(
    reader: &mut (impl AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
    limit: usize,
) -> io::Result<Line> {
    line.clear();
    let read = reader.take(limit as u64 + 1).read_until(b'\n', line).await?;
    if read == 0 {
        return Ok(Line::End);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(Line::Whole);
    }
    if line.len() <= limit {
        // The last one has no end.
        return Ok(Line::Whole);
    }
    let head = line[..line.len().min(ENDS)].to_vec();
    let mut tail = line.split_off(line.len().saturating_sub(ENDS));
    *line = Vec::new();
    loop {
        let chunk = reader.fill_buf().await?;
        if chunk.is_empty() {
            break;
        }
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let until = end.unwrap_or(chunk.len());
        tail.extend_from_slice(&chunk[until.saturating_sub(ENDS)..until]);
        tail.drain(..tail.len().saturating_sub(ENDS));
        reader.consume(end.map_or(until, |end| end + 1));
        if end.is_some() {
            break;
        }
    }
    Ok(Line::TooLong { id: id_in_head(&head).or_else(|| id_in_tail(&tail)) })
}

/// The id where it stands first, or behind `jsonrpc`.
fn id_in_head(head: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(head).replace([' ', '\t'], "");
    let rest = text.strip_prefix(r#"{"jsonrpc":"2.0","#).or_else(|| text.strip_prefix('{'))?;
    let digits: String = rest.strip_prefix(r#""id":"#)?.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// The id where it stands last, or before `jsonrpc`.
fn id_in_tail(tail: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(tail).replace([' ', '\t', '\r'], "");
    let text = text.strip_suffix('}')?;
    let text = text.strip_suffix(r#","jsonrpc":"2.0""#).unwrap_or(text);
    let (_, digits) = text.rsplit_once(r#","id":"#)?;
    digits.parse().ok()
}
