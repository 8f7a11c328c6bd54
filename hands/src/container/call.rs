//! One call: an exec in the container, and its end when somebody wants it.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::ExecConfig;
use futures_util::{Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::engine::{root, why_gone};
use super::instance::Instance;
use super::keeper::MARK;
use super::scan::{Said, Scan, WRAPPER};
use crate::instances::Living;
use crate::posix::{
    Command, Ended, Flow, Input, Program, Report, Shell, Sink, Stop, Stream as From, Streams,
};
use crate::sandbox::WORKSPACE;
use crate::sandbox::watch::Watch;
use crate::{END_GRACE, HandError};

/// How long standard error may go on after the end of a call that has no background processes.
const LAST_WORDS: std::time::Duration = std::time::Duration::from_secs(2);
/// Pause between two looks at what has ended and is not yet said to have.
const LOOK: std::time::Duration = std::time::Duration::from_millis(10);
/// Most bytes kept of what a wrapper or the daemon complains about.
const MOST_COMPLAINT: usize = 4 * 1024;
/// Bytes of input that are sent at once.
const PIECE: usize = 32 * 1024;

/// A call on its way.
struct Running<'a> {
    instance: &'a Arc<Instance>,
    exec: String,
    /// The working folder that was asked for.
    cwd: String,
    token: String,
    output: Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>,
    feed: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    scan: Scan,
    streams: Streams,
    /// Says when the instance goes beyond a limit.
    alarm: Option<watch::Receiver<Option<String>>>,
    /// The wrapper, once it runs.
    wrapper: Option<u32>,
    /// How the call ended, when more of standard error may come.
    code: Option<i32>,
    /// What the wrapper itself had to complain about.
    complaint: Vec<u8>,
    /// Why the call is being ended, once it is.
    stop: Option<Stop>,
    /// When it is to end by itself; then, when it is to have been ended.
    deadline: Instant,
}

/// Something that happened to a call.
enum News {
    Output(LogOutput),
    Over,
    Stop(Stop),
    Deadline,
}

#[async_trait]
impl Shell for Arc<Instance> {
    async fn run(
        &self,
        command: Command,
        cancel: &CancellationToken,
        sink: &mut dyn Sink,
    ) -> Result<Report, HandError> {
        let cancelled = || Ok(Report { ended: Ended::Stopped(Stop::Cancelled), notes: Vec::new() });
        let _turn = tokio::select! {
            biased;
            () = cancel.cancelled() => return cancelled(),
            turn = self.turn() => turn?,
        };
        if let Some(watch) = &self.watch {
            watch.admit()?;
        }
        let _active = self.watch.as_ref().map(Watch::active);
        let alarm = self.watch.as_ref().map(|watch| watch.alarm());
        let deadline = Instant::now() + command.timeout;
        let token = token();
        let cwd = command.cwd.clone().unwrap_or_else(|| WORKSPACE.into());
        let streams = command.streams;
        let (config, input) = exec(self, &token, command);
        let exec = self.docker.create_exec(&self.container, config).await;
        let exec = match exec {
            Ok(exec) => exec.id,
            Err(error) => return self.not_started(&error, MayHaveRun::No).await,
        };
        if cancel.is_cancelled() {
            return cancelled();
        }
        let options = StartExecOptions { output_capacity: Some(64 * 1024), ..StartExecOptions::default() };
        let (output, stdin) = match self.docker.start_exec(&exec, Some(options)).await {
            Ok(StartExecResults::Attached { output, input }) => (output, input),
            Ok(StartExecResults::Detached) => {
                return self.not_started(&Error::APIVersionParseError {}, MayHaveRun::Perhaps).await;
            }
            Err(error) => return self.not_started(&error, MayHaveRun::Perhaps).await,
        };
        let feed: Option<Pin<Box<dyn Future<Output = ()> + Send>>> =
            input.map(|input| Box::pin(feed(stdin, input)) as _);
        let scan = Scan::new(&token);
        let running = Running {
            instance: self,
            exec,
            cwd,
            token,
            output,
            feed,
            scan,
            streams,
            alarm,
            wrapper: None,
            code: None,
            complaint: Vec::new(),
            stop: None,
            deadline,
        };
        running.run(cancel, sink).await
    }
}

/// Whether a call that can't be found may have had effects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MayHaveRun {
    No,
    Perhaps,
}

impl Instance {
    /// The daemon would not start a call.
    async fn not_started(&self, error: &Error, may: MayHaveRun) -> Result<Report, HandError> {
        let why = match why_gone(error) {
            Some(why) => self.reason().await.unwrap_or(why),
            None if no_process(&error.to_string()) => return self.exhausted().await,
            None => {
                let doing = "run a command in the container".to_owned();
                return Ok(Report {
                    ended: Ended::NotStarted { doing, error: io::Error::other(root(error)) },
                    notes: Vec::new(),
                });
            }
        };
        self.lose(why.clone());
        // Answers of the daemon's say that nothing was started.
        let answered = matches!(error, Error::DockerResponseServerError { .. });
        Err(HandError::Lost { may_have_run: may == MayHaveRun::Perhaps && !answered, why })
    }
}

/// Whether a message is about a lack of processes.
fn no_process(message: &str) -> bool {
    const SAYINGS: [&str; 7] = [
        "annot fork",
        "an't fork",
        "esource temporarily unavailable",
        "pthread_create",
        "newosproc",
        "OS thread",
        // What is left of an OCI runtime that could not become the command.
        "read init-p",
    ];
    SAYINGS.iter().any(|saying| message.contains(saying))
}

/// Unlike any other, and nothing that a call would print.
fn token() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

/// The exec of a command, how its streams are, and its input.
fn exec(instance: &Instance, token: &str, command: Command) -> (ExecConfig, Option<Input>) {
    let streams = match command.streams {
        Streams::Merged => "merged",
        Streams::Separate => "separate",
    };
    let cwd = command.cwd.unwrap_or_else(|| WORKSPACE.into());
    let mut argv = ["sh", "-c", WRAPPER, "sh", token, streams, &cwd].map(str::to_owned).to_vec();
    match command.program {
        Program::Login(script) => {
            let flags = if instance.shell.name() == "bash" { "-lc" } else { "-c" };
            argv.extend([instance.shell.name().into(), flags.into(), script]);
        }
        Program::Argv(program) => argv.extend(program),
    }
    let input = match command.input {
        Input::Bytes(bytes) if bytes.is_empty() => None,
        input => Some(input),
    };
    let config = ExecConfig {
        attach_stdin: Some(input.is_some()),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        env: Some(vec![format!("{MARK}={token}"), format!("HOME={WORKSPACE}")]),
        user: Some(instance.user.clone()),
        working_dir: Some("/".into()),
        cmd: Some(argv),
        ..ExecConfig::default()
    };
    (config, input)
}

/// Sends all of the input. A command that takes no more is no error.
async fn feed(mut to: Pin<Box<dyn AsyncWrite + Send>>, input: Input) {
    let mut from: Box<dyn AsyncRead + Send + Unpin> = match input {
        Input::Bytes(bytes) => Box::new(io::Cursor::new(bytes)),
        Input::Stream(from) => from,
    };
    let mut piece = vec![0; PIECE];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        if to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
    let _ = to.flush().await;
    let _ = to.shutdown().await;
}

impl Running<'_> {
    async fn run(mut self, cancel: &CancellationToken, sink: &mut dyn Sink) -> Result<Report, HandError> {
        loop {
            match self.news(cancel).await {
                News::Output(LogOutput::StdOut { message }) => {
                    for said in self.scan.take(&message) {
                        match said {
                            Said::Started(wrapper) => self.wrapper = Some(wrapper),
                            Said::NoFolder => return Ok(no_folder(&self.cwd)),
                            Said::Printed(bytes) => self.give(sink, From::Output, &bytes).await,
                            Said::Ended(code) => self.code = Some(code),
                        }
                    }
                }
                News::Output(LogOutput::StdErr { message }) => {
                    if self.wrapper.is_none() || self.streams == Streams::Merged {
                        let room = MOST_COMPLAINT - self.complaint.len().min(MOST_COMPLAINT);
                        self.complaint.extend(message.iter().take(room));
                    }
                    if self.streams == Streams::Separate {
                        self.give(sink, From::Error, &message).await;
                    }
                }
                News::Output(_) => {}
                News::Stop(stop) => self.heed(Flow::Stop(stop)),
                News::Over => return self.over().await,
                News::Deadline if self.stop.is_some() => return self.end().await,
                News::Deadline if self.code.is_some() => return self.over().await,
                News::Deadline => self.heed(Flow::Stop(Stop::Timeout)),
            }
            if let Some(code) = self.code {
                if self.streams == Streams::Merged {
                    return self.ended(code).await;
                }
                self.deadline = self.deadline.min(Instant::now() + LAST_WORDS);
            } else if self.stop.is_some() && self.wrapper.is_some() {
                return self.end().await;
            }
        }
    }

    async fn give(&mut self, sink: &mut dyn Sink, from: From, bytes: &[u8]) {
        if self.stop.is_none() {
            let flow = sink.take(from, bytes).await;
            self.heed(flow);
        }
    }

    async fn news(&mut self, cancel: &CancellationToken) -> News {
        let Self { output, feed, alarm, stop, code, deadline, .. } = self;
        let going = stop.is_none() && code.is_none();
        loop {
            tokio::select! {
                next = output.next() => return match next {
                    Some(Ok(output)) => News::Output(output),
                    Some(Err(_)) | None => News::Over,
                },
                () = fed(feed) => *feed = None,
                () = cancel.cancelled(), if going => return News::Stop(Stop::Cancelled),
                why = limit(alarm), if going => return News::Stop(Stop::Limit(why)),
                () = sleep_until(*deadline) => return News::Deadline,
            }
        }
    }

    fn heed(&mut self, flow: Flow) {
        if let (Flow::Stop(stop), None) = (flow, &self.stop) {
            self.stop = Some(stop);
            self.feed = None;
            self.deadline = Instant::now() + END_GRACE;
        }
    }

    /// Ends everything that the call started, or, where that does not work, the container.
    async fn end(self) -> Result<Report, HandError> {
        let stopped = |stop, notes| Ok(Report { ended: Ended::Stopped(stop), notes });
        let stop = self.stop.unwrap_or(Stop::Cancelled);
        if let Some(wrapper) = self.wrapper {
            let request = format!("end {} {wrapper}", self.token);
            if self.instance.keeper.ask(&request).await.is_some() {
                return stopped(stop, self.instance.notices());
            }
        }
        self.instance.end("a call in it could not be ended, so its container was").await?;
        stopped(stop, vec!["the container's background processes were ended with it".into()])
    }

    /// The wrapper said how the call ended. What was to be stopped meanwhile has not said all to who asked.
    async fn ended(self, code: i32) -> Result<Report, HandError> {
        let mut notes = self.instance.notices();
        if code != 0 {
            notes.extend(self.instance.killed_for_memory().await);
        }
        self.instance.linger();
        let ended = self.stop.map_or(Ended::Exit(code), Ended::Stopped);
        Ok(Report { ended, notes })
    }

    /// Nothing more will come.
    async fn over(self) -> Result<Report, HandError> {
        if let Some(code) = self.code {
            return self.ended(code).await;
        }
        let Self { instance, stop, scan, complaint, exec, wrapper, .. } = self;
        let (code, why) = match exit_code(instance, &exec).await {
            Ok(code) => (Some(code), instance.why_lost()),
            Err(error) => (None, Some(why_gone(&error).unwrap_or_else(|| root(&error)))),
        };
        // A container that was killed may say what became of the exec, and not yet that it was.
        let why = if matches!(code, Some(137) | None) { instance.reason().await.or(why) } else { why };
        let report = |ended| Ok(Report { ended, notes: instance.notices() });
        if let Some(stop) = stop {
            return report(Ended::Stopped(stop));
        }
        if let Some(why) = why {
            instance.lose(why.clone());
            return Err(HandError::Lost { may_have_run: wrapper.is_some(), why });
        }
        let said = [scan.failure().unwrap_or_default(), String::from_utf8_lossy(&complaint).into()].concat();
        if no_process(&said) {
            return instance.exhausted().await;
        }
        if wrapper.is_some() {
            // It was killed by what it ran, or what it says went the same way.
            instance.linger();
            return report(Ended::Exit(code.filter(|code| *code != 0).unwrap_or(137)));
        }
        report(Ended::NotStarted {
            doing: "run a command in the container".into(),
            error: io::Error::other(said.trim().to_owned()),
        })
    }
}

/// What the exec ended with, as soon as the daemon says so.
async fn exit_code(instance: &Instance, exec: &str) -> Result<i32, Error> {
    let ended = async {
        loop {
            let exec = instance.docker.inspect_exec(exec).await?;
            if exec.running != Some(true) {
                return Ok(exec.exit_code.and_then(|code| i32::try_from(code).ok()).unwrap_or(137));
            }
            sleep(LOOK).await;
        }
    };
    timeout(END_GRACE, ended).await.unwrap_or(Err(Error::RequestTimeoutError))
}

fn no_folder(cwd: &str) -> Report {
    let doing = format!("use {cwd} as working folder");
    let error = io::Error::other("it is no folder that can be entered");
    Report { ended: Ended::NotStarted { doing, error }, notes: Vec::new() }
}

/// Waits until all input is sent; for ever when there is none.
async fn fed(feed: &mut Option<Pin<Box<dyn Future<Output = ()> + Send>>>) {
    match feed {
        Some(feed) => feed.await,
        None => std::future::pending().await,
    }
}

/// Waits for a limit to be passed.
pub(super) async fn limit(alarm: &mut Option<watch::Receiver<Option<String>>>) -> String {
    if let Some(alarm) = alarm {
        while alarm.changed().await.is_ok() {
            if let Some(why) = alarm.borrow_and_update().clone() {
                return why;
            }
        }
    }
    std::future::pending().await
}
