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

/// How a command ended that did not fail.
pub(super) struct Done {
    pub(super) code: i32,
    pub(super) error: String,
    pub(super) cut: Cut,
}

/// Runs `argv` and keeps at most `most` bytes of what it prints.
pub(super) async fn run(
    shell: &dyn Shell,
    context: &CallContext,
    argv: Vec<String>,
    input: Bytes,
    most: usize,
) -> Result<Printed, Failure> {
    let mut kept = Kept { bytes: Vec::new(), most };
    let Done { code, error, cut } = run_into(shell, context, argv, input, &mut kept).await?;
    Ok(Printed { code, output: kept.bytes, error, cut })
}

/// Runs `argv` and gives what it prints to `output`.
pub(super) async fn run_into(
    shell: &dyn Shell,
    context: &CallContext,
    argv: Vec<String>,
    input: Bytes,
    output: &mut dyn Sink,
) -> Result<Done, Failure> {
    let mut both = Both { output, error: Kept { bytes: Vec::new(), most: MOST_ERROR } };
    let command = Command {
        program: Program::Argv(argv),
        cwd: None,
        input: Input::Bytes(input),
        streams: Streams::Separate,
        timeout: TIMEOUT,
    };
    let report = shell.run(command, &context.cancel, &mut both).await?;
    let error = String::from_utf8_lossy(&both.error.bytes).trim().to_owned();
    let done = |code, cut| Done { code, error, cut };
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

/// The beginning of what is printed.
struct Kept {
    bytes: Vec<u8>,
    most: usize,
}

#[async_trait]
impl Sink for Kept {
    async fn take(&mut self, _: Stream, bytes: &[u8]) -> Flow {
        let room = self.most - self.bytes.len();
        self.bytes.extend_from_slice(&bytes[..room.min(bytes.len())]);
        if bytes.len() > room { Flow::Stop(Stop::Enough) } else { Flow::Continue }
    }
}

/// Tells what is printed as an error apart, of which the beginning is kept.
struct Both<'a> {
    output: &'a mut dyn Sink,
    error: Kept,
}

#[async_trait]
impl Sink for Both<'_> {
    async fn take(&mut self, stream: Stream, bytes: &[u8]) -> Flow {
        match stream {
            Stream::Output => self.output.take(stream, bytes).await,
            Stream::Error => {
                self.error.take(stream, bytes).await;
                Flow::Continue
            }
        }
    }
}
