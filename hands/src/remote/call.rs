//! One command in a channel of its own, from its start to the end of all that it started.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf, Bytes, BytesMut};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::feed::Feed;
use super::keeper::{MOST_NOISE, Order, shown};
use super::script::{self, Mark, Merged, Wrapped};
use super::{Event, Line, OpenError, Reader, Remote, Writer};
use crate::instances::Living;
use crate::posix::{Command, Ended, Flow, Input, Program, Report, Shell, Sink, Stop, Stream, Streams};
use crate::{END_GRACE, HandError};

/// How long what was printed may still come after the end of a command, while background processes go on printing.
const DRAIN: Duration = Duration::from_secs(2);
/// How long a line that breaks may take to say why.
const REASON: Duration = Duration::from_millis(500);

/// A call on its way.
struct Running<'a> {
    remote: &'a Remote,
    reader: Box<dyn Reader>,
    feed: Feed,
    /// What comes after the first script: held back until something that waits for it has the marks.
    go: Option<(Bytes, Input)>,
    output: Start,
    error: Start,
    attention: String,
    /// Has the command ended if nobody waits for that any more.
    guard: EndIfDropped<'a>,
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

/// Whoever waits for a call may stop waiting without a word.
struct EndIfDropped<'a> {
    remote: &'a Remote,
    call: u64,
    /// The process that waits to become the command, or did.
    process: Option<u64>,
    over: Over,
}

/// Whether there is nothing to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Yes,
    No,
}

impl Drop for EndIfDropped<'_> {
    fn drop(&mut self) {
        if let (Over::No, Some(process)) = (self.over, self.process) {
            let (done, _) = oneshot::channel();
            // Where nobody takes it, the instance is at its end.
            let _ = self.remote.orders.try_send(Order::Kill { call: self.call, process, done });
        }
    }
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
    /// All is sent that was to be sent.
    Fed,
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
        // On a task of its own: a channel that is given up half open would stay so.
        let opening = Arc::clone(line);
        let mut opening = self.tasks.spawn(async move { opening.open().await });
        let opened = tokio::select! {
            opened = &mut opening => opened.unwrap_or(Err(OpenError::Broken)),
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
        let [wait, go] = script::call(&wrapped).map(|script| Bytes::from(script::line(&script)));
        reader.expect(&script::end_mark(&nonce), command.streams);
        Running {
            remote: self,
            reader,
            feed: Feed::script(writer, wait),
            go: Some((go, command.input)),
            output: Start::Waiting(BytesMut::new()),
            error: if merged == Merged::Yes { Start::Over } else { Start::Waiting(BytesMut::new()) },
            attention: format!("{}{nonce}", script::ATTENTION),
            guard: EndIfDropped { remote: self, call: number, process: None, over: Over::No },
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
            self.go_on();
            match self.news(cancel, fence.as_mut()).await {
                News::Fed => {}
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
        tokio::pin!(fence);
        tokio::select! {
            event = reader.next(), if *open != Open::Gone => News::Event(event),
            () = feed.done() => News::Fed,
            all = &mut swept => News::Swept(all),
            () = remote.gone.cancelled(), if !over => News::Lost,
            () = &mut fence, if over && !stopping => News::Fenced,
            () = cancel.cancelled(), if !stopping && !over => News::Stop(Stop::Cancelled),
            () = sleep_until(*deadline) => {
                if stopping || over { News::Time } else { News::Stop(Stop::Timeout) }
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
                let mut heard = split(noise, &self.attention);
                if let Some((said, rest)) = &heard
                    && let Some(process) = said.strip_prefix(" start ")
                {
                    self.guard.process = Some(process.parse().unwrap_or(0));
                    *noise = BytesMut::from(&rest[..]);
                    heard = split(noise, &self.attention);
                }
                let Some((said, rest)) = heard else {
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
        if let Some(why) = said.strip_prefix(" cwd ") {
            let error = io::Error::from_raw_os_error(why.parse().unwrap_or(libc::ENOENT));
            let doing = format!("use {} as working folder", self.cwd);
            self.ended = Some(Ended::NotStarted { doing, error });
        }
    }

    /// Lets the command begin, once what waits for it has the marks and unless nobody wants it any more.
    fn go_on(&mut self) {
        if self.guard.process.is_some()
            && self.go.is_some()
            && self.stop.is_none()
            && let Some(writer) = self.feed.idle()
            && let Some((go, input)) = self.go.take()
        {
            self.feed = Feed::all(writer, go, input);
        }
    }

    fn end_with(&mut self, ended: Ended) {
        self.ended.get_or_insert(ended);
        if self.stop.is_none() {
            self.deadline = Instant::now() + DRAIN;
        }
    }

    /// Has everything ended that the call started.
    async fn stop(&mut self, stop: Stop) {
        let (done, swept) = oneshot::channel();
        let order = Order::Kill { call: self.guard.call, process: self.guard.process.unwrap_or(0), done };
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

    fn report(mut self) -> Report {
        self.guard.over = Over::Yes;
        let mut notes = Vec::new();
        let ended = match (self.stop, self.ended) {
            (Some((stop, _)), _) => Ended::Stopped(stop),
            // Only now: how it ended may be told before the last of what it said.
            (None, Some(Ended::Exit(_) | Ended::Signal(_))) if let Start::Waiting(noise) = &self.output => {
                let why = shown(noise).unwrap_or_else(|| "its shell ended at once".into());
                Ended::NotStarted { doing: "run a command there".into(), error: io::Error::other(why) }
            }
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
    async fn give_up(mut self) -> Report {
        self.guard.over = Over::Yes;
        let _ =
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
            self.remote.end("the host ended a call without saying how").await?;
        }
        let why = why.unwrap_or_else(|| "the host ended the call without saying how".into());
        Err(HandError::Lost { may_have_run: self.go.is_none(), why })
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
