//! What the gateway and a worker say to each other, over the socket that is the worker's standard input.
//!
//! A message is the length of its JSON and the length of its bytes, four bytes each, most significant first, then the
//! two. The worker answers one request at a time; while it runs, it takes [`Request::Stop`].

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::core::{Button, CoreKind};

/// Most bytes of a message's JSON.
const MOST_JSON: u32 = 64 << 10;
/// Most bytes beside it: a game, a state or a picture.
const MOST_BYTES: u32 = 16 << 20;

/// What the gateway asks.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Start with this game, the bytes. Pictures are `scale` times as large as the screen.
    Insert { core: CoreKind, scale: u8 },
    /// Go on from this state, the bytes.
    Restore,
    /// Hold these buttons for some frames.
    Run { held: Vec<Button>, frames: u32 },
    /// Show the screen.
    Show,
    /// Read memory.
    Read { address: u32, length: u32 },
    /// Switch off and on.
    Reset,
    /// Run no more frames. Has no answer of its own.
    Stop,
}

/// What a worker answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    /// It is done; the bytes are what was asked for.
    Done,
    /// It is done after so many frames; the bytes are the picture, so long, and the state.
    Stands { frames: u32, picture: u32 },
    /// So many frames have run; the answer is still to come.
    Running { frames: u32 },
    /// It can't, and why.
    Refused { why: String },
}

/// Sends a message, from the worker.
pub(super) fn send(mut to: impl Write, message: &impl Serialize, bytes: &[u8]) -> io::Result<()> {
    to.write_all(&head(message, bytes)?)?;
    to.write_all(bytes)
}

/// Waits for a message, in the worker; `None` when there will be none.
pub(super) fn receive<M: DeserializeOwned>(mut from: impl Read) -> io::Result<Option<(M, Vec<u8>)>> {
    let mut lengths = [0; 8];
    match from.read_exact(&mut lengths) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let (json, bytes) = checked(lengths)?;
    let mut rest = vec![0; json + bytes];
    from.read_exact(&mut rest)?;
    parse(rest, json).map(Some)
}

/// Sends a message, from the gateway.
pub(super) async fn send_async(
    to: &mut (impl AsyncWrite + Unpin),
    message: &impl Serialize,
    bytes: &[u8],
) -> io::Result<()> {
    to.write_all(&head(message, bytes)?).await?;
    to.write_all(bytes).await
}

/// Waits for a message, in the gateway.
pub(super) async fn receive_async<M: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
) -> io::Result<(M, Vec<u8>)> {
    let mut lengths = [0; 8];
    from.read_exact(&mut lengths).await?;
    let (json, bytes) = checked(lengths)?;
    let mut rest = vec![0; json + bytes];
    from.read_exact(&mut rest).await?;
    parse(rest, json)
}

fn head(message: &impl Serialize, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(message)?;
    let length = |length: usize| u32::try_from(length).map_err(io::Error::other);
    let mut head = Vec::with_capacity(8 + json.len());
    head.extend(length(json.len())?.to_be_bytes());
    head.extend(length(bytes.len())?.to_be_bytes());
    head.extend(json);
    Ok(head)
}

fn checked(lengths: [u8; 8]) -> io::Result<(usize, usize)> {
    let [json, bytes] =
        [0, 4].map(|at| lengths[at..at + 4].iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)));
    if json > MOST_JSON || bytes > MOST_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    Ok((json as usize, bytes as usize))
}

fn parse<M: DeserializeOwned>(mut json: Vec<u8>, length: usize) -> io::Result<(M, Vec<u8>)> {
    let bytes = json.split_off(length);
    Ok((serde_json::from_slice(&json)?, bytes))
}
