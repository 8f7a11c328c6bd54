//! Running the small commands of which the file tools are made.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::{Command, Ended, Failure, Flow, Input, Program, Shell, Sink, Stop, Stream, Streams};
use crate::{CallContext, Ending, Outcome};

/// How long a file tool may take: a search through a large tree on a slow disk.
const TIMEOUT: Duration = Duration::from_mins(2);
/// Most bytes kept of a command's standard error.
const MOST_ERROR: usize = 4 * 1024;

/// What a command printed, and its exit code.
pub(super) struct Printed {
    pub(super) code: i32,
    pub(super) output: Vec<u8>,
    pub(super) error: String,
    /// Whether it was ended because it printed enough.
    pub(super) cut: Cut,
}

/// Whether there was more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// This is all.
    Whole,
    /// There was more.
    Short,
}

/// Runs `argv` and keeps at most `most` bytes of what it prints.
pub(super) async fn run(
    shell: &dyn Shell,
    context: &CallContext,
    argv: Vec<String>,
    input: Bytes,
    most: usize,
) -> Result<Printed, Failure> {
    let mut kept = Kept { output: Vec::new(), error: Vec::new(), most };
    let command = Command {
        program: Program::Argv(argv),
        cwd: None,
        input: Input::Bytes(input),
        streams: Streams::Separate,
        timeout: TIMEOUT,
    };
    let report = shell.run(command, &context.cancel, &mut kept).await?;
    let error = String::from_utf8_lossy(&kept.error).trim().to_owned();
    let done = |code, cut| Printed { code, output: kept.output, error, cut };
    let failed = |ending, text: String| {
        let text = std::iter::once(text).chain(report.notes).collect::<Vec<_>>().join("; ");
        Failure::Ended(Outcome::ended(ending, text))
    };
    match report.ended {
        Ended::Exit(code) => Ok(done(code, Cut::Whole)),
        Ended::Stopped(Stop::Enough) => Ok(done(0, Cut::Short)),
        Ended::Signal(signal) => Err(failed(Ending::Error, format!("it was ended by signal {signal}"))),
        Ended::NotStarted { doing, error } => Err(failed(Ending::Error, format!("can't {doing}: {error}"))),
        Ended::Stopped(Stop::Timeout) => {
            Err(failed(Ending::Timeout, format!("it timed out after {} s", TIMEOUT.as_secs())))
        }
        Ended::Stopped(Stop::Cancelled) => Err(failed(Ending::Cancelled, "cancelled".to_owned())),
        Ended::Stopped(Stop::Limit(why)) => Err(failed(Ending::Error, format!("it was ended: {why}"))),
    }
}

/// `sh -c` with arguments `$1`, `$2`, …
pub(super) fn sh(script: &str, arguments: impl IntoIterator<Item = String>) -> Vec<String> {
    ["sh", "-c", script, "sh"].map(str::to_owned).into_iter().chain(arguments).collect()
}

struct Kept {
    output: Vec<u8>,
    error: Vec<u8>,
    most: usize,
}

#[async_trait]
impl Sink for Kept {
    async fn take(&mut self, stream: Stream, bytes: &[u8]) -> Flow {
        let (kept, most) = match stream {
            Stream::Output => (&mut self.output, self.most),
            Stream::Error => (&mut self.error, MOST_ERROR),
        };
        let room = most - kept.len();
        kept.extend_from_slice(&bytes[..room.min(bytes.len())]);
        if stream == Stream::Output && bytes.len() > room { Flow::Stop(Stop::Enough) } else { Flow::Continue }
    }
}
