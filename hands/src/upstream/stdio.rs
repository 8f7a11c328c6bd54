//! A server as a child process: a JSON-RPC message a line on stdin and stdout, stderr into our log.
//!
//! It has a process group and an environment of its own. It is ended by closing its stdin, then by SIGTERM, then by
//! SIGKILL, together with everything that it started. What outlives us is found by the mark in its environment.

mod lines;
mod processes;

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::OFlags;
use secrecy::ExposeSecret;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

pub(super) use self::processes::reap;

use self::lines::{Line, next_line};
use self::processes::{Family, Mark};
use super::connection::Connection;
use super::wire::{Failure, Incoming};
use super::{Given, Shared};
use crate::{InstanceId, canonical, open_files};

/// How many messages may wait for a server to read them.
const QUEUE: usize = 64;
/// How long a server has to end after its stdin was closed.
const EOF_GRACE: Duration = Duration::from_secs(2);
/// How long it has after SIGTERM.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// How long what an ended server left in its pipe is read: others may hold the pipe open.
const DRAIN: Duration = Duration::from_millis(500);
/// Most bytes of a message that is no answer: many of them may wait.
const NEWS_MAX: usize = 1 << 20;
/// Most bytes of a line of stderr.
const STDERR_LINE: usize = 4 << 10;
/// Most lines of stderr a second that go to our log.
const STDERR_RATE: u32 = 20;
/// How many of its last lines an error shows.
const TAIL: usize = 3;
/// Most characters of each.
const TAIL_LINE: usize = 200;
/// What a server has of our environment.
const INHERITED: [&str; 5] = ["PATH", "HOME", "LANG", "TZ", "TMPDIR"];

/// How a server is started.
#[derive(Clone, Copy)]
pub(super) struct Start<'a> {
    pub(super) command: &'a [String],
    pub(super) directory: Option<&'a PathBuf>,
    pub(super) environment: &'a [(String, Given)],
}

/// Our end of a server's process.
pub(super) struct Process {
    input: mpsc::Sender<Bytes>,
    /// Fires when it is to end.
    close: CancellationToken,
    /// Fires when nothing of it is left.
    ended: CancellationToken,
    tail: Mutex<VecDeque<String>>,
}

/// What runs the process, once there is a connection to take its messages.
pub(super) struct Pipes {
    child: Child,
    mark: Mark,
    input: (mpsc::Receiver<Bytes>, ChildStdin),
    output: ChildStdout,
    error: ChildStderr,
}

impl Process {
    /// Starts it. The error is a sentence, and nothing runs.
    pub(super) fn start(start: Start<'_>, instance: &InstanceId) -> Result<(Self, Pipes), Failure> {
        let [program, arguments @ ..] = start.command else {
            return Err(Failure::Unreached("its command is empty".to_owned()));
        };
        let mark = Mark::new();
        let mut command = open_files::command(program);
        command.args(arguments).env_clear().envs(inherited());
        for (name, given) in start.environment {
            let value = given.read().map_err(|error| {
                Failure::Unreached(format!("the value of its variable {name} can't be read: {error}"))
            })?;
            command.env(name, value.expose_secret());
        }
        mark.put_on(&mut command, instance);
        let directory = start.directory.map(|path| {
            canonical::open(path, OFlags::PATH | OFlags::DIRECTORY).map_err(|error| {
                let path = path.display();
                Failure::Unreached(format!("{program} could not be started: its directory {path}: {error}"))
            })
        });
        let directory = directory.transpose()?;
        if let Some(directory) = &directory {
            // By descriptor, which lives until it runs: its path may lead elsewhere a moment later.
            command.current_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        }
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| Failure::Unreached(format!("{program} could not be started: {error}")))?;
        let (Some(stdin), Some(output), Some(error)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(Failure::Unreached("its pipes are missing".to_owned()));
        };
        let (input, queue) = mpsc::channel(QUEUE);
        let process = Self {
            input,
            close: CancellationToken::new(),
            ended: CancellationToken::new(),
            tail: Mutex::default(),
        };
        Ok((process, Pipes { child, mark, input: (queue, stdin), output, error }))
    }

    /// Gives it a message; waits while its queue is full.
    pub(super) async fn send(&self, message: Bytes) -> Result<(), Failure> {
        let gone = |_| Failure::Unreached("its stdin is closed".to_owned());
        self.input.send(message).await.map_err(gone)
    }

    /// Ends it and everything that it started.
    pub(super) async fn end(&self) {
        self.close.cancel();
        self.ended.cancelled().await;
    }

    /// Ends it when this is dropped.
    pub(super) fn ends_with_this(&self) -> DropGuard {
        self.close.clone().drop_guard()
    }

    /// Asks for its end and waits for nothing.
    pub(super) fn close(&self) {
        self.close.cancel();
    }

    fn tail(&self) -> std::sync::MutexGuard<'_, VecDeque<String>> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it said last, to follow a sentence.
    fn last_words(&self) -> String {
        let tail = self.tail();
        if tail.is_empty() {
            return String::new();
        }
        let lines: Vec<_> = tail.iter().map(String::as_str).collect();
        format!("; the last of its stderr: {}", lines.join(" | "))
    }
}

impl Pipes {
    /// Runs the process for `connection` until it ends.
    pub(super) fn run(self, shared: &Shared, connection: &Arc<Connection>, process: &Arc<Process>) {
        let Self { child, mark, input: (queue, stdin), output, error } = self;
        let tasks = &shared.tasks;
        let (read, drained) = (CancellationToken::new(), CancellationToken::new());
        tasks.spawn(write(queue, stdin, process.close.clone()));
        let name = shared.config.name.clone();
        tasks.spawn(listen_to_errors(name, error, Arc::clone(process)));
        let reading = {
            let (connection, read) = (Arc::clone(connection), read.clone());
            async move {
                let _read = read.drop_guard();
                read_messages(output, &connection).await;
            }
        };
        let stop = drained.clone();
        tasks.spawn(async move { stop.run_until_cancelled(reading).await });
        let keeper = Keeper { connection: Arc::clone(connection), process: Arc::clone(process), mark, read };
        let cancel = shared.cancel.clone();
        tasks.spawn(async move {
            let _drained = drained.drop_guard();
            keeper.keep(child, cancel).await;
        });
    }
}

/// Sees to it that a process ends once, and whole.
struct Keeper {
    connection: Arc<Connection>,
    process: Arc<Process>,
    mark: Mark,
    /// Fires when its stdout has ended.
    read: CancellationToken,
}

impl Keeper {
    async fn keep(self, mut child: Child, cancel: CancellationToken) {
        // Whatever ends this task ends the group.
        let mut family = Family::of(child.id(), self.mark.clone());
        let _ended = self.process.ended.clone().drop_guard();
        let begun = tokio::time::Instant::now();
        let exited = tokio::select! {
            // First whether it was told to end: one that then exits at once has not come up in vain.
            biased;
            () = self.process.close.cancelled() => None,
            () = cancel.cancelled() => None,
            status = child.wait() => Some(status),
            // It closed its stdout: it may be about to exit, and say how.
            () = self.read.cancelled() => tokio::time::timeout(DRAIN, child.wait()).await.ok(),
        };
        let why = match &exited {
            Some(status) => {
                let _ = tokio::time::timeout(DRAIN, self.read.cancelled()).await;
                format!("its process {}{}", how(status.as_ref().ok()), self.process.last_words())
            }
            None if self.read.is_cancelled() => "it closed its stdout".to_owned(),
            None => "it was ended".to_owned(),
        };
        if exited.is_some() {
            self.connection.shared.exited_after(begun.elapsed());
        }
        self.connection.end(&why);
        self.process.close.cancel();
        if exited.is_none() {
            family.remember().await;
            if tokio::time::timeout(EOF_GRACE, child.wait()).await.is_err() {
                family.remember().await;
                family.terminate();
                if tokio::time::timeout(TERM_GRACE, child.wait()).await.is_err() {
                    family.remember().await;
                }
            }
        }
        family.kill().await;
        let _ = child.wait().await;
    }
}

fn how(status: Option<&ExitStatus>) -> String {
    use std::os::unix::process::ExitStatusExt;
    match status.map(|status| (status.code(), status.signal())) {
        Some((Some(code), _)) => format!("exited with code {code}"),
        Some((None, Some(signal))) => format!("was killed by signal {signal}"),
        _ => "ended".to_owned(),
    }
}

#[expect(clippy::disallowed_methods, reason = "a server gets these few, and nothing here depends on them")]
fn inherited() -> impl Iterator<Item = (&'static str, std::ffi::OsString)> {
    INHERITED.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)))
}

async fn write(mut queue: mpsc::Receiver<Bytes>, mut stdin: ChildStdin, close: CancellationToken) {
    let writing = async {
        while let Some(message) = queue.recv().await {
            if stdin.write_all(&message).await.is_err() || stdin.write_all(b"\n").await.is_err() {
                return;
            }
        }
    };
    close.run_until_cancelled(writing).await;
}

async fn read_messages(output: ChildStdout, connection: &Arc<Connection>) {
    let mut reader = BufReader::with_capacity(64 << 10, output);
    let mut line = Vec::new();
    let mut noise: u64 = 0;
    loop {
        match next_line(&mut reader, &mut line, super::wire::MESSAGE_MAX).await {
            Ok(Line::Whole) => match Incoming::parse(&line) {
                Ok(Incoming::Notification { .. }) if line.len() > NEWS_MAX => noise += 1,
                Ok(Incoming::Request { id, method, .. }) if line.len() > NEWS_MAX => {
                    connection.answer_alone(id, &method);
                }
                Ok(message) => connection.take(message),
                Err(_) if line.trim_ascii().is_empty() => {}
                Err(error) => {
                    noise += 1;
                    if noise.is_power_of_two() {
                        let hand = connection.hand();
                        tracing::warn!(
                            hand.name = hand,
                            noise,
                            error,
                            "stdout has lines that are no JSON-RPC: skipped"
                        );
                    }
                }
            },
            Ok(Line::TooLong { id }) => connection.too_large(id),
            Ok(Line::End) | Err(_) => return,
        }
        // A large message must not be held for ever.
        if line.capacity() > 1 << 20 {
            line = Vec::new();
        }
    }
}

async fn listen_to_errors(name: String, error: ChildStderr, process: Arc<Process>) {
    let mut reader = BufReader::new(error);
    let mut line = Vec::new();
    let (mut since, mut count) = (tokio::time::Instant::now(), 0);
    while let Ok(found) = next_line(&mut reader, &mut line, STDERR_LINE).await {
        let text = match found {
            Line::End => return,
            Line::Whole => String::from_utf8_lossy(&line),
            Line::TooLong { .. } => "(a line that is too long)".into(),
        };
        let text: String = text.trim_end().chars().filter(|c| !c.is_control()).collect();
        if text.is_empty() {
            continue;
        }
        if since.elapsed() >= Duration::from_secs(1) {
            if count > STDERR_RATE {
                tracing::info!(hand.name = name, lines = count - STDERR_RATE, "stderr went on");
            }
            (since, count) = (tokio::time::Instant::now(), 0);
        }
        count += 1;
        if count <= STDERR_RATE {
            tracing::info!(hand.name = name, "stderr: {text}");
        }
        let mut tail = process.tail();
        if tail.len() == TAIL {
            tail.pop_front();
        }
        tail.push_back(text.chars().take(TAIL_LINE).collect());
    }
}
