//! Keeping the workspace as it is and bringing it back, packed and unpacked by the daemon.
//!
//! All else that a container has goes with it, so its work is its state. What is kept lies in the workspace itself, in
//! a folder that no checkpoint holds: it outlives the container with it, wherever it is. Whoever works in the container
//! writes and reads it there.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::Container;
use super::copy::written;
use super::entries::Plan;
use super::instance::Instance;
use super::swap::{cleared, swap};
use super::window::{OURS, Rewriting, Shows, Window, inside, while_given};
use crate::posix::{Command, Ended, Flow, Input, Program, Shell, Sink, Stop, Stream, Streams};
use crate::sandbox::{CopyError, WORKSPACE};
use crate::{Checkpoints, HandError, Handle};

/// How long one may take.
const TIMEOUT: Duration = Duration::from_mins(10);
/// Longest name, in bytes.
const MOST_NAME: usize = 32;
/// Most bytes kept of why it failed.
const MOST_ERROR: usize = 2048;
/// How often it is tried to keep what changes meanwhile.
const TRIES: u32 = 3;
/// The exit code that says that there is no such checkpoint.
const NONE: i32 = 10;

/// Makes room for a checkpoint.
const PREPARE: &str = "mkdir -p /workspace/.manyhands/checkpoints";

/// Writes all that comes beside where `$1` is kept.
const WRITE: &str = r#"
set -eu
cd /workspace/.manyhands/checkpoints
cat > ".$1.new"
sync ".$1.new" 2> /dev/null || sync 2> /dev/null || true
"#;

/// Replaces what was kept as `$1` by what came whole.
const KEEP: &str = r#"
cd /workspace/.manyhands/checkpoints && mv -f ".$1.new" "$1.tar" && { sync . 2> /dev/null || true; }
"#;

/// Removes what came of `$1` and is not whole.
const FORGET: &str = r#"rm -f "/workspace/.manyhands/checkpoints/.$1.new""#;

/// Makes room for what was kept as `$1`.
const BEGIN: &str = r#"
[ -f "$ours/checkpoints/$1.tar" ] || exit 10
mkdir "$ours/restoring"
"#;

/// Prints what was kept as `$1`.
const PRINT: &str = r#"exec cat "/workspace/.manyhands/checkpoints/$1.tar""#;

#[async_trait]
impl Checkpoints for Container {
    async fn checkpoint(&self, handle: &Handle, name: &str) -> Result<(), HandError> {
        let instance = self.shared.instances.get(handle).await?;
        let one = One::new(&instance, name)?;
        let kept = timeout(TIMEOUT, one.keep()).await.unwrap_or_else(|_| Err(late()));
        one.say("kept", kept)
    }

    async fn restore(&self, handle: &Handle, name: &str) -> Result<(), HandError> {
        let instance = self.shared.instances.get(handle).await?;
        let one = One::new(&instance, name)?;
        let restored = timeout(TIMEOUT, one.bring_back()).await.unwrap_or_else(|_| Err(late()));
        one.say("brought back", restored)
    }
}

/// Why one failed.
enum Failed {
    /// There is none of the name.
    None,
    /// As this says.
    Because(String),
    /// Its instance failed.
    Hand(HandError),
}

fn late() -> Failed {
    Failed::Because(format!("it took more than {} s", TIMEOUT.as_secs()))
}

impl From<CopyError> for Failed {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::Hand(error) => Self::Hand(error),
            error => Self::Because(error.to_string().trim_end_matches('.').to_owned()),
        }
    }
}

/// One checkpoint of an instance.
struct One<'a> {
    instance: &'a Arc<Instance>,
    name: &'a str,
}

impl<'a> One<'a> {
    fn new(instance: &'a Arc<Instance>, name: &'a str) -> Result<Self, HandError> {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if name.is_empty() || name.len() > MOST_NAME || name.starts_with('-') || !name.bytes().all(fits) {
            let why = format!("{name:?} can't name a checkpoint");
            return Err(HandError::Unavailable { why, remedy: "use a-z, 0-9 and -, 32 at most".into() });
        }
        Ok(Self { instance, name })
    }

    fn say(&self, what: &str, done: Result<(), Failed>) -> Result<(), HandError> {
        let name = self.name;
        let (why, remedy) = match done {
            Ok(()) => return Ok(()),
            Err(Failed::Hand(error)) => return Err(error),
            Err(Failed::None) => (format!("there is no checkpoint named {name}"), "name one that was made"),
            Err(Failed::Because(why)) => (
                format!("the checkpoint {name} could not be {what} ({why})"),
                "see to that in /workspace and try again",
            ),
        };
        Err(HandError::Unavailable { why, remedy: remedy.into() })
    }

    async fn keep(&self) -> Result<(), Failed> {
        let _alone = self.instance.checkpoints.lock().await;
        self.run(&cleared(PREPARE)).await?;
        let mut kept = Ok(());
        for _ in 0..TRIES {
            // Opened anew each time: what is cut short while it is packed ends the archive early.
            let window = Window::open(self.instance, Shows::Work).await.map_err(Failed::Hand)?;
            kept = self.pack(&window).await;
            window.close().await;
            match &kept {
                Err(Tried::Again(_)) => {}
                Ok(()) | Err(Tried::Failed(_)) => break,
            }
        }
        let kept = match kept {
            Ok(()) => self.run(KEEP).await,
            Err(Tried::Again(failed) | Tried::Failed(failed)) => Err(failed),
        };
        if kept.is_err() {
            let _ = self.run(FORGET).await;
        }
        kept
    }

    /// Writes what the daemon packs.
    async fn pack(&self, window: &Window) -> Result<(), Tried> {
        let failed = |error: CopyError| Tried::Failed(error.into());
        let packed = window.read(WORKSPACE).await.map_err(failed)?;
        let Some(packed) = packed else {
            return Err(Tried::Failed(Failed::Because("there is no /workspace".into())));
        };
        let plan = Plan { skip: 1, below: "".into(), without: Some(OURS), owner: self.instance.owner() };
        let Rewriting { old, new, whole } = Rewriting::begin(plan);
        let mut errors = Errors { kept: Vec::new(), to: None };
        let writing = self.run_with(WRITE, Input::Stream(Box::new(new)), &mut errors);
        while_given(packed, old, writing).await.map_err(Tried::Failed)?;
        whole.check().await.map_err(|error| Tried::Again(error.into()))
    }

    async fn bring_back(&self) -> Result<(), Failed> {
        let _alone = self.instance.checkpoints.lock().await;
        self.run(&cleared(BEGIN)).await?;
        let plan = Plan {
            skip: 0,
            below: inside(&format!("{OURS}/restoring")),
            without: None,
            owner: self.instance.owner(),
        };
        let Rewriting { old, new, whole } = Rewriting::begin(plan);
        let never = CancellationToken::new();
        let printing = async {
            // It goes with its end, which ends the archive.
            let mut to = Errors { kept: Vec::new(), to: Some(old) };
            self.run_with(PRINT, Input::Bytes(Bytes::new()), &mut to).await
        };
        let (printed, written) = tokio::join!(printing, written(self.instance, new, whole, &never));
        // What could not be printed is the reason of an archive that is not whole.
        let unpacked = printed.and(written.map_err(Failed::from));
        let swapped = match unpacked {
            Ok(()) => self.run(&swap()).await,
            failed => failed,
        };
        if swapped.is_err() {
            // The old comes back. Where that fails, it is tried again before anything else is done there.
            let _ = self.run(&cleared("")).await;
        }
        swapped
    }

    async fn run(&self, script: &str) -> Result<(), Failed> {
        self.run_with(script, Input::Bytes(Bytes::new()), &mut Errors { kept: Vec::new(), to: None }).await
    }

    async fn run_with(&self, script: &str, input: Input, said: &mut Errors) -> Result<(), Failed> {
        let command = Command {
            program: Program::Argv(["sh", "-c", script, "sh", self.name].map(str::to_owned).to_vec()),
            cwd: None,
            input,
            streams: Streams::Separate,
            timeout: TIMEOUT,
        };
        let ran = self.instance.run(command, &CancellationToken::new(), said).await;
        Err(Failed::Because(match ran.map_err(Failed::Hand)?.ended {
            // Where nobody takes any more of what it prints, that is theirs to explain.
            Ended::Exit(0) | Ended::Stopped(Stop::Enough) => return Ok(()),
            Ended::Exit(NONE) => return Err(Failed::None),
            Ended::Exit(_) => {
                String::from_utf8_lossy(&said.kept).lines().next().unwrap_or_default().to_owned()
            }
            Ended::NotStarted { error, .. } => error.to_string(),
            Ended::Stopped(Stop::Limit(why)) => why,
            Ended::Signal(_) | Ended::Stopped(_) => "it was ended".into(),
        }))
    }
}

/// Why one try failed.
enum Tried {
    /// What was packed changed meanwhile.
    Again(Failed),
    Failed(Failed),
}

/// Keeps the beginning of what is printed as an error, and gives the rest on.
struct Errors {
    kept: Vec<u8>,
    to: Option<DuplexStream>,
}

#[async_trait]
impl Sink for Errors {
    async fn take(&mut self, stream: Stream, bytes: &[u8]) -> Flow {
        if stream == Stream::Error {
            self.kept.extend(bytes.iter().take(MOST_ERROR - self.kept.len().min(MOST_ERROR)));
        } else if let Some(to) = &mut self.to
            && to.write_all(bytes).await.is_err()
        {
            return Flow::Stop(Stop::Enough);
        }
        Flow::Continue
    }
}
