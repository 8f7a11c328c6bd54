//! Keeping the workspace as it is and bringing it back, by `tar` inside.
//!
//! All else that a container has goes with it, so its work is its state. What is kept lies in the workspace itself, in
//! a folder that no checkpoint holds: it outlives the container with it, wherever it is.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::Container;
use crate::posix::{Command, Ended, Flow, Input, Program, Shell, Sink, Stream, Streams};
use crate::{Checkpoints, HandError, Handle};

/// How long one may take.
const TIMEOUT: Duration = Duration::from_mins(10);
/// Longest name, in bytes.
const MOST_NAME: usize = 32;
/// Most bytes kept of why it failed.
const MOST_ERROR: usize = 2048;
/// The exit code that says that there is no such checkpoint.
const NONE: i32 = 10;

/// Keeps all as `$1`. Files that change meanwhile are kept as they were at some moment.
const SAVE: &str = r#"
set -eu
cd /workspace
mkdir -p .manyhands/checkpoints
new=.manyhands/checkpoints/.$1.new
trap 'rm -f "$new"' EXIT
tar -c -f "$new" --exclude ./.manyhands . || [ $? -eq 1 ]
sync "$new" 2> /dev/null || sync 2> /dev/null || true
mv -f "$new" ".manyhands/checkpoints/$1.tar"
trap - EXIT
"#;

/// Unpacks what was kept as `$1` first, and only then replaces what is there.
const RESTORE: &str = r#"
set -eu
cd /workspace
kept=.manyhands/checkpoints/$1.tar new=.manyhands/restoring
[ -f "$kept" ] || exit 10
rm -rf "$new"
mkdir "$new"
tar -x -f "$kept" -C "$new" --no-same-owner
for entry in ..?* .[!.]* *; do
  [ "$entry" = .manyhands ] || rm -rf -- "./$entry"
done
for entry in "$new"/..?* "$new"/.[!.]* "$new"/*; do
  if [ -e "$entry" ] || [ -L "$entry" ]; then mv -- "$entry" .; fi
done
rm -rf "$new"
"#;

#[async_trait]
impl Checkpoints for Container {
    async fn checkpoint(&self, handle: &Handle, name: &str) -> Result<(), HandError> {
        run(&self.shared.instances.get(handle).await?, SAVE, name, "kept").await
    }

    async fn restore(&self, handle: &Handle, name: &str) -> Result<(), HandError> {
        run(&self.shared.instances.get(handle).await?, RESTORE, name, "brought back").await
    }
}

async fn run(shell: &dyn Shell, script: &str, name: &str, what: &str) -> Result<(), HandError> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty() || name.len() > MOST_NAME || name.starts_with('-') || !name.bytes().all(fits) {
        let why = format!("{name:?} can't name a checkpoint");
        return Err(HandError::Unavailable { why, remedy: "use a-z, 0-9 and -, 32 at most".into() });
    }
    let command = Command {
        program: Program::Argv(["sh", "-c", script, "sh", name].map(str::to_owned).to_vec()),
        cwd: None,
        input: Input::Bytes(Bytes::new()),
        streams: Streams::Separate,
        timeout: TIMEOUT,
    };
    let mut said = Said(Vec::new());
    let why = match shell.run(command, &CancellationToken::new(), &mut said).await?.ended {
        Ended::Exit(0) => return Ok(()),
        Ended::Exit(NONE) => {
            let why = format!("there is no checkpoint named {name}");
            return Err(HandError::Unavailable { why, remedy: "name one that was made".into() });
        }
        Ended::Exit(_) => String::from_utf8_lossy(&said.0).lines().next().unwrap_or_default().to_owned(),
        Ended::NotStarted { error, .. } => error.to_string(),
        Ended::Signal(_) | Ended::Stopped(_) => "it was ended".into(),
    };
    let why = format!("the checkpoint {name} could not be {what} ({why})");
    Err(HandError::Unavailable { why, remedy: "make room in /workspace and try again".into() })
}

/// Keeps the beginning of what is printed as an error.
struct Said(Vec<u8>);

#[async_trait]
impl Sink for Said {
    async fn take(&mut self, stream: Stream, bytes: &[u8]) -> Flow {
        if stream == Stream::Error {
            self.0.extend(bytes.iter().take(MOST_ERROR - self.0.len().min(MOST_ERROR)));
        }
        Flow::Continue
    }
}
