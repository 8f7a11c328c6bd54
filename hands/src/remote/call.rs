//! One command in a channel of its own, from its start to the end of all that it started.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::keeper::{MOST_NOISE, Order, shown};
use super::script::{self, Mark, Merged, Wrapped};
use super::{Event, Line, OpenError, Reader, Remote, Writer};
use crate::posix::{Command, Ended, Flow, Input, Program, Report, Shell, Sink, Stop, Stream, Streams};
use crate::{END_GRACE, HandError};

/// How long what was printed may still come after the end of a command, while background processes go on printing.
const DRAIN: Duration = Duration::from_secs(2);
/// How long a line that breaks may take to say why.
const REASON: Duration = Duration::from_millis(500);
/// Bytes of input that are sent at once.
const CHUNK: usize = 32 * 1024;

/// A call on its way.
struct Running<'a> {
    remote: &'a Remote,
    number: u64,
    reader: Box<dyn Reader>,
    feed: Feed,
    output: Start,
    error: Start,
    attention: String,
    /// The process that the wrapper was, once it has begun.
    process: Option<u64>,
    /// How it ended, once that is known.
    ended: Option<Ended>,
    /// Why it is being ended, once it is, and the keeper's answer.
    stop: Option<(Stop, Option<oneshot::Receiver<bool>>)>,
    /// What there is still to come.
    open: Open,
    cwd: String,
    /// When it is to end by itself; then, when it is to have been ended or to have printed all.
    deadline: Instant,
}

/// Sending the script and the input. The writer is kept: some lines know but one end for both directions.
enum Feed {
    Going(Pin<Box<dyn Future<Output = Box<dyn Writer>> + Send>>),
    Done(#[expect(dead_code, reason = "held open")] Box<dyn Writer>),
    /// Somebody else has it.
    Over,
}

/// A channel that is somebody else's now.
struct Nothing;

#[async_trait]
impl Reader for Nothing {
    async fn next(&mut self) -> Option<Event> {
        None
    }
}

/// What comes in a stream before the wrapper speaks is not the command's.
enum Start {
    Waiting(BytesMut),
    Over,
}

/// What of a channel is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    /// All of it.
    Whole,
    /// Nothing is printed any more.
    Silent,
    /// Nothing.
    Gone,
}

/// Something that happened to a call.
enum News {
    Event(Option<Event>),
    Stop(Stop),
    /// The keeper ended everything, or could not.
    Swept(bool),
    /// All that was printed before the end has come.
    Fenced,
    /// The instance is gone.
    Lost,
    Time,
}

#[async_trait]
impl Shell for Remote {
    async fn run(
        &self,
        command: Command,
        cancel: &CancellationToken,
        sink: &mut dyn Sink,
    ) -> Result<Report, HandError> {
        self.run_by(&self.line, command, cancel, sink).await
    }
}

impl Remote {
    /// [`Shell::run`] over another line to the same host.
    pub(super) async fn run_by(
        &self,
        line: &Arc<dyn Line>,
        command: Command,
        cancel: &CancellationToken,
        sink: &mut dyn Sink,
    ) -> Result<Report, HandError> {
        let stopped = |stop| Ok(Report { ended: Ended::Stopped(stop), notes: Vec::new() });
        let deadline = Instant::now() + command.timeout;
        let _turn = tokio::select! {
            biased;
            () = cancel.cancelled() => return stopped(Stop::Cancelled),
            turn = self.turn() => turn?,
            () = self.gone.cancelled() => return Err(self.lost()),
            () = sleep_until(deadline) => return stopped(Stop::Timeout),
        };
        if self.why_lost().is_some() {
            return Err(self.lost());
        }
        let opened = tokio::select! {
            opened = line.open() => opened,
            () = cancel.cancelled() => return stopped(Stop::Cancelled),
            () = sleep_until(deadline) => return stopped(Stop::Timeout),
        };
        let (writer, reader) = match opened {
            Ok(opened) => opened,
            Err(OpenError::Broken) => {
                let _ = timeout(REASON, self.gone.cancelled()).await;
                return Err(self.lost());
            }
            Err(OpenError::Refused(why)) => {
                let ended =
                    Ended::NotStarted { doing: "start a command".into(), error: io::Error::other(why) };
                return Ok(Report { ended, notes: Vec::new() });
            }
        };
        self.begin(writer, reader, command, deadline).run(line, cancel, sink).await
    }

    fn begin(
        &self,
        writer: Box<dyn Writer>,
        mut reader: Box<dyn Reader>,
        command: Command,
        deadline: Instant,
    ) -> Running<'_> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let nonce = script::nonce();
        let argv = match command.program {
            Program::Login(script) if self.shell == "bash" => vec!["bash".into(), "-lc".into(), script],
            Program::Login(script) => vec![self.shell.into(), "-c".into(), script],
            Program::Argv(argv) => argv,
        };
        let merged = if matches!(command.streams, Streams::Merged) { Merged::Yes } else { Merged::No };
        let wrapped = Wrapped {
            nonce: &nonce,
            mark: Mark { instance: &self.id, work: &self.work, call: number },
            workspace: &self.folder,
            cwd: command.cwd.as_deref().unwrap_or(&self.folder),
            argv: &argv,
            merged,
            tail: self.line.tail(),
        };
        let script = Bytes::from(script::line(&script::call(&wrapped)));
        reader.expect(&script::end_mark(&nonce), command.streams);
        Running {
            remote: self,
            number,
            reader,
            feed: Feed::Going(Box::pin(feed(writer, script, command.input))),
            output: Start::Waiting(BytesMut::new()),
            error: if merged == Merged::Yes { Start::Over } else { Start::Waiting(BytesMut::new()) },
            attention: format!("{}{nonce}", script::ATTENTION),
            process: None,
            ended: None,
            stop: None,
            open: Open::Whole,
            cwd: command.cwd.unwrap_or_else(|| self.folder.clone()),
            deadline,
        }
    }
}

impl Running<'_> {
    async fn run(
        mut self,
        line: &Arc<dyn Line>,
        cancel: &CancellationToken,
        sink: &mut dyn Sink,
    ) -> Result<Report, HandError> {
        let mut fence = Box::pin(line.fence());
        // Whether something came since the fence was put up.
        let mut came = false;
        loop {
            match self.news(cancel, fence.as_mut()).await {
                News::Event(Some(Event::Output(bytes))) => {
                    came = true;
                    self.take(Stream::Output, bytes, sink).await;
                }
                News::Event(Some(Event::Error(bytes))) => {
                    came = true;
                    self.take(Stream::Error, bytes, sink).await;
                }
                News::Event(Some(Event::Exit(code))) => {
                    self.end_with(Ended::Exit(code));
                    fence = Box::pin(line.fence());
                    came = false;
                }
                News::Event(Some(Event::Signal(signal))) => {
                    self.end_with(Ended::Signal(signal));
                    fence = Box::pin(line.fence());
                    came = false;
                }
                News::Event(Some(Event::End)) => {
                    self.open = Open::Silent;
                    if self.ended.is_some() && self.stop.is_none() {
                        return Ok(self.report());
                    }
                }
                News::Event(None) => {
                    self.open = Open::Gone;
                    match (&self.ended, &self.stop) {
                        (Some(_), None) => return Ok(self.report()),
                        (None, None) => return self.broken().await,
                        // The keeper has still to say that all has ended.
                        (_, Some(_)) => {}
                    }
                }
                News::Lost => return self.broken().await,
                News::Fenced if came => {
                    fence = Box::pin(line.fence());
                    came = false;
                }
                News::Fenced => return Ok(self.leave()),
                News::Stop(stop) => self.stop(stop).await,
                News::Swept(true) => return Ok(self.report()),
                News::Swept(false) => return Ok(self.give_up().await),
                News::Time if self.stop.is_some() => return Ok(self.give_up().await),
                News::Time => return Ok(self.leave()),
            }
        }
    }

    async fn news(
        &mut self,
        cancel: &CancellationToken,
        fence: Pin<&mut (dyn Future<Output = ()> + Send + '_)>,
    ) -> News {
        let Self { remote, reader, feed, stop, deadline, ended, open, .. } = self;
        let (stopping, over) = (stop.is_some(), ended.is_some());
        let swept = answer(stop);
        tokio::pin!(swept);
        let mut fed = !matches!(feed, Feed::Going(_));
        tokio::pin!(fence);
        loop {
            tokio::select! {
                event = reader.next(), if *open != Open::Gone => return News::Event(event),
                () = feed.done(), if !fed => fed = true,
                all = &mut swept => return News::Swept(all),
                () = remote.gone.cancelled(), if !over => return News::Lost,
                () = &mut fence, if over && !stopping => return News::Fenced,
                () = cancel.cancelled(), if !stopping && !over => return News::Stop(Stop::Cancelled),
                () = sleep_until(*deadline) => {
                    return if stopping || over { News::Time } else { News::Stop(Stop::Timeout) };
                }
            }
        }
    }

    /// Gives the command's own output to the sink.
    async fn take(&mut self, stream: Stream, bytes: Bytes, sink: &mut dyn Sink) {
        let start = match stream {
            Stream::Output => &mut self.output,
            Stream::Error => &mut self.error,
        };
        let bytes = match start {
            Start::Over => bytes,
            Start::Waiting(noise) => {
                noise.extend(bytes);
                let Some((said, rest)) = split(noise, &self.attention) else {
                    if noise.len() > MOST_NOISE {
                        let keep = noise.len() - MOST_NOISE / 2;
                        noise.advance(keep);
                    }
                    return;
                };
                *start = Start::Over;
                self.heard(&said);
                rest
            }
        };
        if bytes.is_empty() {
            return;
        }
        if let (Flow::Stop(stop), None) = (sink.take(stream, &bytes).await, &self.stop) {
            self.stop(stop).await;
        }
    }

    /// What the wrapper says before it becomes the command.
    fn heard(&mut self, said: &str) {
        match said.trim_start().split_once(' ') {
            Some(("start", process)) => self.process = process.parse().ok(),
            Some(("cwd", why)) => {
                let error = io::Error::from_raw_os_error(why.parse().unwrap_or(libc::ENOENT));
                let doing = format!("use {} as working folder", self.cwd);
                self.ended = Some(Ended::NotStarted { doing, error });
            }
            _ => {}
        }
    }

    fn end_with(&mut self, ended: Ended) {
        if self.ended.is_none() {
            self.ended = Some(match &self.output {
                Start::Waiting(noise) => {
                    let why = shown(noise).unwrap_or_else(|| "its shell ended at once".into());
                    Ended::NotStarted { doing: "run a command there".into(), error: io::Error::other(why) }
                }
                Start::Over => ended,
            });
        }
        if self.stop.is_none() {
            self.deadline = Instant::now() + DRAIN;
        }
    }

    /// Has everything ended that the call started.
    async fn stop(&mut self, stop: Stop) {
        let (done, swept) = oneshot::channel();
        let order = Order::Kill { call: self.number, process: self.process.unwrap_or(0), done };
        // Where nobody takes it any more, the line's end comes next.
        let _ = self.remote.orders.send(order).await;
        self.stop = Some((stop, Some(swept)));
        self.deadline = Instant::now() + END_GRACE;
    }

    /// It has ended, and background processes may go on printing: nobody listens, but neither must they fail.
    fn leave(mut self) -> Report {
        let reader = std::mem::replace(&mut self.reader, Box::new(Nothing));
        let feed = std::mem::replace(&mut self.feed, Feed::Over);
        self.remote.leave(async move {
            let mut reader = reader;
            while reader.next().await.is_some() {}
            drop(feed);
        });
        self.report()
    }

    fn report(self) -> Report {
        let mut notes = Vec::new();
        let ended = match (self.stop, self.ended) {
            (Some((stop, _)), _) => Ended::Stopped(stop),
            (None, Some(Ended::Signal(0))) => {
                notes.push("a signal ended it, and the host does not say which".into());
                Ended::Exit(128)
            }
            (None, Some(ended)) => ended,
            (None, None) => Ended::Exit(0),
        };
        Report { ended, notes }
    }

    /// Not all could be ended: nobody can say what goes on, so all of the instance ends.
    async fn give_up(self) -> Report {
        self.remote.end("something that a call started could not be ended, so the line was closed").await;
        let mut report = self.report();
        report.notes.push("it could not be ended at once, so the whole instance was ended".into());
        report
    }

    /// The channel is gone, and nobody knows how the command ended.
    async fn broken(self) -> Result<Report, HandError> {
        let _ = timeout(REASON, self.remote.gone.cancelled()).await;
        let why = self.remote.why_lost();
        if why.is_none() {
            self.remote.end("the host ended a call without saying how").await;
        }
        let why = why.unwrap_or_else(|| "the host ended the call without saying how".into());
        Err(HandError::Lost { may_have_run: true, why })
    }
}

/// What the keeper answers. One that is gone says nothing: its end is the line's.
async fn answer(stop: &mut Option<(Stop, Option<oneshot::Receiver<bool>>)>) -> bool {
    if let Some((_, waiting)) = stop
        && let Some(swept) = waiting
    {
        let said = swept.await;
        *waiting = None;
        if let Ok(all) = said {
            return all;
        }
    }
    std::future::pending().await
}

/// What the wrapper says, up to its newline, and what comes after it.
fn split(noise: &mut BytesMut, attention: &str) -> Option<(String, Bytes)> {
    let at = noise.windows(attention.len()).position(|window| window == attention.as_bytes())?;
    let end = at + noise[at..].iter().position(|byte| *byte == b'\n')?;
    let said = String::from_utf8_lossy(&noise[at + attention.len()..end]).into_owned();
    let mut rest = noise.split();
    rest.advance(end + 1);
    Some((said, rest.freeze()))
}

impl Feed {
    /// Waits until all is sent.
    async fn done(&mut self) {
        if let Self::Going(sending) = self {
            let writer = sending.await;
            *self = Self::Done(writer);
        }
    }
}

/// Sends a script and all of the input. A host that takes no more tells why on the other side.
async fn feed(mut to: Box<dyn Writer>, script: Bytes, input: Input) -> Box<dyn Writer> {
    let _ = send(&mut *to, script, input).await;
    to
}

async fn send(to: &mut dyn Writer, script: Bytes, input: Input) -> io::Result<()> {
    to.send(script).await?;
    match input {
        Input::Bytes(mut bytes) => {
            while !bytes.is_empty() {
                to.send(bytes.split_to(bytes.len().min(CHUNK))).await?;
            }
        }
        Input::Stream(mut from) => loop {
            let mut chunk = BytesMut::with_capacity(CHUNK);
            if from.read_buf(&mut chunk).await? == 0 {
                break;
            }
            to.send(chunk.freeze()).await?;
        },
    }
    to.finish().await
}
