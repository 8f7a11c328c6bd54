//! The six tools over anything that can run a command.
//!
//! **Invariant:** nothing here knows what kind of hand it works for. All that a tool does is done by
//! commands in the hand, so it can do no more than `bash` there can.

mod bash;
mod find;
pub(crate) mod given;
mod output;
mod read;
mod script;
mod write;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::io::AsyncRead;
use tokio_util::sync::CancellationToken;

use crate::{Call, CallContext, Effects, HandError, Outcome, Tool};

/// Something that runs commands, one process tree each.
#[async_trait]
pub trait Shell: Send + Sync {
    /// Runs a command to its end and gives what it prints to `sink` as it comes.
    ///
    /// When `cancel` fires, the time is over or the sink has enough, everything that the command started
    /// is ended before this returns.
    async fn run(
        &self,
        command: Command,
        cancel: &CancellationToken,
        sink: &mut dyn Sink,
    ) -> Result<Report, HandError>;
}

/// What to run.
pub struct Command {
    /// The program.
    pub program: Program,
    /// Working folder; the workspace when there is none.
    pub cwd: Option<String>,
    /// Standard input.
    pub input: Input,
    /// What becomes of standard error.
    pub streams: Streams,
    /// How long it may take.
    pub timeout: Duration,
}

/// A program and its arguments.
pub enum Program {
    /// A script for the login shell.
    Login(String),
    /// A program and its arguments, without a shell.
    Argv(Vec<String>),
}

/// Standard input of a command.
pub enum Input {
    /// These bytes.
    Bytes(Bytes),
    /// All that comes from here, until it ends. It does not fail: what may break off is given by [`given::Given`].
    Stream(Box<dyn AsyncRead + Send + Unpin>),
}

/// What becomes of standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// It goes where standard output goes, in order.
    Merged,
    /// It is told apart.
    Separate,
}

/// Takes what a command prints.
#[async_trait]
pub trait Sink: Send {
    /// Takes some bytes and says whether to go on. The command waits meanwhile.
    async fn take(&mut self, stream: Stream, bytes: &[u8]) -> Flow;
}

/// Where bytes were printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output, or both.
    Output,
    /// Standard error.
    Error,
}

/// Whether a command is to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It is.
    Continue,
    /// It is to be ended.
    Stop(Stop),
}

/// How a command ended.
#[derive(Debug)]
pub struct Report {
    /// How.
    pub ended: Ended,
    /// What else a person should know about the end, a sentence each.
    pub notes: Vec<String>,
}

/// How a command ended.
#[derive(Debug)]
pub enum Ended {
    /// With this exit code.
    Exit(i32),
    /// By this signal.
    Signal(i32),
    /// It never ran.
    NotStarted {
        /// What was attempted.
        doing: String,
        /// Why it failed.
        error: std::io::Error,
    },
    /// It was ended, with everything that it had started.
    Stopped(Stop),
}

/// Why a command was ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Nobody wanted the outcome any more.
    Cancelled,
    /// Its time was over.
    Timeout,
    /// The sink had all it needed.
    Enough,
    /// It went beyond a limit, as the sentence says.
    Limit(String),
}

/// What the tools' descriptions say about the world they work in.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// The shell that runs `bash` commands: `bash` or `sh`.
    pub shell: &'static str,
    /// The folder that persists, and where commands start.
    pub workspace: PathBuf,
    /// Folders in which `write` and `edit` may change files.
    pub writable: Vec<PathBuf>,
    /// What else is there, in words.
    pub mounts: Vec<String>,
    /// What network there is, in words.
    pub network: &'static str,
    /// What one call may print, in bytes.
    pub output: usize,
}

/// The six tools.
pub struct Posix {
    surroundings: Surroundings,
}

impl Posix {
    /// The tools for a world.
    pub fn new(surroundings: Surroundings) -> Self {
        Self { surroundings }
    }

    /// What they are called and take.
    pub fn tools(&self) -> Vec<Tool> {
        let surroundings = &self.surroundings;
        vec![
            bash::tool(surroundings),
            read::tool(surroundings),
            write::write_tool(surroundings),
            write::edit_tool(surroundings),
            find::glob_tool(surroundings),
            find::grep_tool(surroundings),
        ]
    }

    /// Executes one call in a hand.
    pub async fn execute(
        &self,
        shell: &dyn Shell,
        call: &Call,
        context: &CallContext,
    ) -> Result<Outcome, HandError> {
        let (surroundings, arguments) = (&self.surroundings, &call.arguments);
        let ran = match call.tool.as_str() {
            "bash" => bash::run(surroundings, shell, arguments, context).await,
            "read" => read::run(surroundings, shell, arguments, context).await,
            "write" => write::run_write(surroundings, shell, arguments, context).await,
            "edit" => write::run_edit(surroundings, shell, arguments, context).await,
            "glob" => find::run_glob(surroundings, shell, arguments, context).await,
            "grep" => find::run_grep(surroundings, shell, arguments, context).await,
            other => return Err(HandError::UnknownTool(other.to_owned())),
        };
        match ran {
            Err(Failure::Refused(sentence)) => Ok(Outcome::error(sentence)),
            Ok(outcome) | Err(Failure::Ended(outcome)) => Ok(outcome),
            Err(Failure::Hand(error)) => Err(error),
        }
    }
}

/// Why a tool has no outcome of its own.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// It was asked for something it can't do, as the sentence says.
    #[error("{0}")]
    Refused(String),
    /// What it needed to run was ended.
    #[error("ended")]
    Ended(Outcome),
    /// Its hand failed.
    #[error(transparent)]
    Hand(#[from] HandError),
}

/// Decodes a tool's arguments; a wrong one is refused with what is right.
fn decode<T: DeserializeOwned>(tool: &str, arguments: &Map<String, Value>) -> Result<T, Failure> {
    serde_json::from_value(Value::Object(arguments.clone())).map_err(|error| {
        Failure::Refused(format!(
            "The arguments of {tool} are wrong: {error}. Call it again as its schema says."
        ))
    })
}

/// A tool whose arguments are an object of `properties`, those in `required` always.
pub(crate) fn tool(
    name: &str,
    description: String,
    effects: Effects,
    required: &[&str],
    properties: Value,
) -> Tool {
    let schema = [
        ("type".to_owned(), "object".into()),
        ("properties".to_owned(), properties),
        ("required".to_owned(), required.into()),
        ("additionalProperties".to_owned(), false.into()),
    ];
    Tool {
        name: name.to_owned(),
        description,
        input_schema: Arc::new(Map::from_iter(schema)),
        effects,
        definition: None,
    }
}

impl Surroundings {
    /// A path as a tool means it: below the workspace unless it is absolute.
    fn path(&self, path: &str) -> Result<String, Failure> {
        if path.is_empty() || path.contains('\0') {
            return Err(Failure::Refused("A path must not be empty nor contain a NUL.".into()));
        }
        let path = path.trim_start_matches("./");
        let whole = if matches!(path, "" | ".") { self.workspace.clone() } else { self.workspace.join(path) };
        Ok(whole.to_string_lossy().into_owned())
    }

    /// Where `write` and `edit` may, in words.
    fn places(&self) -> String {
        self.writable.iter().map(|root| root.to_string_lossy()).collect::<Vec<_>>().join(", ")
    }
}

/// Adds a sentence of ours to what a tool shows, on a line of its own.
fn add_note(text: &mut String, sentence: &str) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.extend(["[", sentence, "]"]);
}

/// A number of bytes for people.
fn size(bytes: usize) -> String {
    const MIB: usize = 1 << 20;
    if bytes >= MIB { format!("{} MiB", bytes / MIB) } else { format!("{bytes} bytes") }
}
