//! What the gateway and a call runner say to each other: frames over one Unix stream socket.
//!
//! A frame is a kind (one byte), a length (four bytes, little endian) and that many bytes.
//! The gateway must not trust the other end: anything in the sandbox may have taken its place.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// Most bytes of output or input in one frame.
pub(super) const CHUNK: usize = 64 * 1024;
/// Most bytes of a request. A single argument of a program can't exceed 128 KiB on Linux anyway.
pub(super) const MAX_REQUEST: usize = 1024 * 1024;
/// Bytes of a frame's kind and length.
pub(super) const HEADER: usize = 5;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// To the runner: a [`Request`] as JSON.
    Start,
    /// To the runner: bytes for the command's standard input.
    Input,
    /// To the runner: the command's standard input ends.
    InputEnd,
    /// From the runner: it waits for a request.
    Ready,
    /// From the runner: bytes of standard output.
    Output,
    /// From the runner: bytes of standard error.
    Error,
    /// From the runner: the command ended, as [`End`] says.
    End,
}

impl Kind {
    /// The byte on the wire.
    pub(super) fn byte(self) -> u8 {
        match self {
            Self::Start => b's',
            Self::Input => b'i',
            Self::InputEnd => b'e',
            Self::Ready => b'r',
            Self::Output => b'1',
            Self::Error => b'2',
            Self::End => b'x',
        }
    }

    /// The kind of a byte on the wire.
    pub(super) fn of(byte: u8) -> Option<Self> {
        [Self::Start, Self::Input, Self::InputEnd, Self::Ready, Self::Output, Self::Error, Self::End]
            .into_iter()
            .find(|kind| kind.byte() == byte)
    }

    /// Most bytes that a frame of this kind may carry.
    pub(super) fn limit(self) -> usize {
        match self {
            Self::Start => MAX_REQUEST,
            Self::InputEnd | Self::Ready => 0,
            Self::Input | Self::Output | Self::Error | Self::End => CHUNK,
        }
    }
}

/// A command to run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Request {
    /// Program and arguments.
    pub(super) argv: Vec<String>,
    /// Working folder, absolute.
    pub(super) cwd: String,
    /// Whether standard error goes where standard output goes.
    pub(super) merged: bool,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End {
    /// How.
    pub(super) how: How,
    /// What became of the runner.
    pub(super) runner: RunnerState,
}

/// How a command ended, told by its runner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum How {
    /// With this exit code.
    Exit(i32),
    /// By this signal.
    Signal(i32),
    /// It never ran: the error number of the attempt, and what was attempted.
    NotStarted(i32, String),
    /// The gateway asked for the end, and nothing of the call is left.
    Ended,
}

/// What a runner does after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum RunnerState {
    /// Waits for another request.
    Free,
    /// Looks after what the call left running.
    Background,
    /// Ends.
    Gone,
}

/// Writes one frame.
pub(super) fn write_frame(out: &mut impl Write, kind: Kind, payload: &[u8]) -> io::Result<()> {
    out.write_all(&frame(kind, payload))
}

/// The bytes of one frame.
pub(super) fn frame(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.push(kind.byte());
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Reads one frame; `None` at the end of the stream.
pub(super) fn read_frame(from: &mut impl Read) -> io::Result<Option<(Kind, Vec<u8>)>> {
    let mut header = [0; HEADER];
    match from.read_exact(&mut header) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let (kind, length) = parse_header(header)?;
    let mut payload = vec![0; length];
    from.read_exact(&mut payload)?;
    Ok(Some((kind, payload)))
}

/// What a header announces; an error when it isn't one of ours or announces too much.
pub(super) fn parse_header(header: [u8; HEADER]) -> io::Result<(Kind, usize)> {
    let [byte, length @ ..] = header;
    let kind = Kind::of(byte).ok_or_else(|| io::Error::other("an unknown kind of frame"))?;
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > kind.limit() {
        return Err(io::Error::other("a frame that is too long"));
    }
    Ok((kind, length))
}
