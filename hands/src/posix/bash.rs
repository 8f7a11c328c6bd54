//! The tool `bash`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::output::{Replaced, Text};
use super::{Command, Ended, Failure, Input, Program, Report, Shell, Stop, Streams, Surroundings, decode};
use crate::{CallContext, Effects, Ending, Outcome, Tool};

/// Seconds that a command may take when nobody says otherwise.
const DEFAULT_TIMEOUT: u64 = 120;
/// Most seconds that anybody may ask for.
const MAX_TIMEOUT: u64 = 3600;
/// Most bytes of a command: Linux takes no argument beyond 128 KiB.
const MAX_COMMAND: usize = 120 * 1024;

pub(super) fn tool(surroundings: &Surroundings) -> Tool {
    let Surroundings { shell, network, .. } = surroundings;
    let workspace = surroundings.workspace.display();
    let flags = if *shell == "bash" { "-lc" } else { "-c" };
    let mut description = format!(
        "Runs a command with `{shell} {flags}` and gives back what it prints (standard output and error in order) \
         and its exit code. Every call is a fresh shell in {workspace}: nothing of it survives but files and \
         background processes; variables, functions and the working folder do not. Only {workspace} persists. \
         Background processes (`&`, nohup, setsid) go on after a normal end, their later output is dropped, so \
         send it to a file; when a call is cancelled or times out, everything it started is ended. \
         There is {network}. Standard input is empty unless stdin is given."
    );
    if !surroundings.mounts.is_empty() {
        description.extend([" Also mounted: ", &surroundings.mounts.join(", "), "."]);
    }
    let properties = json!({
        "command": {"type": "string", "description": "The command line or script"},
        "cwd": {"type": "string", "description": format!("Working folder, absolute or below {workspace}")},
        "stdin": {"type": "string", "description": "Text for its standard input"},
        "timeout_s": {
            "type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT, "default": DEFAULT_TIMEOUT,
            "description": "Seconds after which it is ended",
        },
    });
    super::tool("bash", description, Effects::Destructive, &["command"], properties)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    command: String,
    cwd: Option<String>,
    stdin: Option<String>,
    timeout_s: Option<u64>,
}

pub(super) async fn run(
    surroundings: &Surroundings,
    shell: &dyn Shell,
    arguments: &Map<String, Value>,
    context: &CallContext,
) -> Result<Outcome, Failure> {
    let Arguments { command, cwd, stdin, timeout_s } = decode("bash", arguments)?;
    let seconds = timeout_s.unwrap_or(DEFAULT_TIMEOUT);
    if !(1..=MAX_TIMEOUT).contains(&seconds) {
        return Err(Failure::Refused(format!("timeout_s must be between 1 and {MAX_TIMEOUT} seconds.")));
    }
    if command.len() > MAX_COMMAND || command.contains('\0') {
        return Err(Failure::Refused(format!(
            "command must have no NUL and at most {MAX_COMMAND} bytes; write a longer script to a file and run that."
        )));
    }
    let progress = Some(Arc::clone(&context.progress));
    let mut text = Text::new(surroundings.output, context.spool.clone(), progress);
    let command = Command {
        program: Program::Login(command),
        cwd: cwd.map(|cwd| surroundings.path(&cwd)).transpose()?,
        input: Input::Bytes(Bytes::from(stdin.unwrap_or_default())),
        streams: Streams::Merged,
        timeout: Duration::from_secs(seconds),
    };
    let report = shell.run(command, &context.cancel, &mut text).await?;
    Ok(outcome(text, report, seconds).await)
}

/// The output, then in brackets what else there is to say.
async fn outcome(mut text: Text, report: Report, seconds: u64) -> Outcome {
    let replaced = text.end();
    text.cut().await;
    let (ending, verdict) = match report.ended {
        Ended::Exit(0) | Ended::Stopped(Stop::Enough) => (Ending::Ok, None),
        Ended::Exit(code) => (Ending::Error, Some(format!("exit code {code}"))),
        Ended::Signal(signal) => (Ending::Error, Some(format!("ended by signal {signal}"))),
        Ended::NotStarted { doing, error } => (Ending::Error, Some(format!("can't {doing}: {error}"))),
        Ended::Stopped(Stop::Timeout) => {
            (Ending::Timeout, Some(format!("timed out after {seconds} s; everything it started was ended")))
        }
        Ended::Stopped(Stop::Cancelled) => {
            (Ending::Cancelled, Some("cancelled; everything it started was ended".to_owned()))
        }
        Ended::Stopped(Stop::Limit(why)) => (Ending::Error, Some(format!("ended: {why}"))),
    };
    let note =
        (replaced == Replaced::Some).then(|| "bytes that are not UTF-8 are shown as \u{fffd}".to_owned());
    for sentence in verdict.into_iter().chain(report.notes).chain(note) {
        text.note(&sentence);
    }
    Outcome { ending, content: vec![text.content().await], reply: None }
}
