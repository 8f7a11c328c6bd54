//! The gateway's side of one call: request out, frames in, and the end when somebody wants it.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use async_trait::async_trait;
use bytes::{Buf, Bytes, BytesMut};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::instance::Instance;
use super::wire::{CHUNK, End, HEADER, How, Kind, MAX_REQUEST, Request, RunnerState, frame, parse_header};
use crate::instances::Living;
use crate::posix::{Command, Ended, Flow, Input, Program, Report, Shell, Sink, Stop, Stream, Streams};
use crate::{END_GRACE, HandError};

/// Frames from a runner, however they are cut up on the way.
pub(super) struct Frames<S> {
    stream: S,
    buffer: BytesMut,
}

impl<S: tokio::io::AsyncRead + Unpin> Frames<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, buffer: BytesMut::new() }
    }

    /// The next frame; `None` at the end. Loses nothing when it is dropped while it waits.
    pub(super) async fn next(&mut self) -> io::Result<Option<(Kind, Bytes)>> {
        loop {
            if let Some((header, _)) = self.buffer.split_first_chunk::<HEADER>() {
                let (kind, length) = parse_header(*header)?;
                if self.buffer.len() >= HEADER + length {
                    self.buffer.advance(HEADER);
                    return Ok(Some((kind, self.buffer.split_to(length).freeze())));
                }
            }
            self.buffer.reserve(HEADER + CHUNK);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }
}

/// A call runner in the sandbox, at the other end of a socket.
pub(super) struct Runner {
    frames: Frames<OwnedReadHalf>,
    requests: OwnedWriteHalf,
    /// Whether it has ever said that it is ready.
    greeted: bool,
}

impl Runner {
    pub(super) fn new(stream: UnixStream) -> Self {
        let (read, requests) = stream.into_split();
        Self { frames: Frames::new(read), requests, greeted: false }
    }

    /// Waits until it takes a request.
    pub(super) async fn ready(mut self) -> io::Result<Option<Self>> {
        match self.frames.next().await? {
            Some((Kind::Ready, _)) => Ok(Some(Self { greeted: true, ..self })),
            _ => Ok(None),
        }
    }

    /// Waits until the background processes that it looks after are gone.
    pub(super) async fn ended_background(&mut self) -> Background {
        match self.frames.next().await {
            Ok(Some((Kind::End, _))) => Background::TooMany,
            _ => Background::Ended,
        }
    }

    /// Whether it has not hung up: something in the sandbox may have killed it while it waited.
    pub(super) fn alive(&self) -> bool {
        // Not what a read says: that it is ready for the next request may lie there unread, from before it died.
        let mut stream = [PollFd::new(self.frames.stream.as_ref(), PollFlags::RDHUP)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut stream, Some(&at_once)), Ok(0))
    }
}

/// How background processes ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Background {
    /// By themselves, or with everything else.
    Ended,
    /// They left too little room for others.
    TooMany,
}

/// Sending the request and the input.
enum Feed {
    Going(Pin<Box<dyn Future<Output = io::Result<OwnedWriteHalf>> + Send>>),
    Done(OwnedWriteHalf),
    /// Given up. Closing our half of the socket asks the runner to end the call.
    Closed,
}

/// A call on its way.
struct Running<'a> {
    instance: &'a Instance,
    frames: Frames<OwnedReadHalf>,
    greeted: bool,
    feed: Feed,
    /// Says when the instance goes beyond a limit.
    alarm: watch::Receiver<Option<String>>,
    /// How many processes the memory limit had killed before.
    killed: u64,
    /// Why the call is being ended, once it is.
    stop: Option<Stop>,
    /// When it is to end by itself; then, when it is to have been ended.
    deadline: Instant,
}

/// Something that happened to a call.
enum News {
    Frame(Kind, Bytes),
    /// The runner is gone or talks nonsense.
    Broken,
    Stop(Stop),
    GraceOver,
}

#[async_trait]
impl Shell for Instance {
    async fn run(
        &self,
        command: Command,
        cancel: &CancellationToken,
        sink: &mut dyn Sink,
    ) -> Result<Report, HandError> {
        let _turn = tokio::select! {
            turn = self.turn() => turn?,
            () = cancel.cancelled() => return Ok(Report { ended: Ended::Stopped(Stop::Cancelled), notes: Vec::new() }),
        };
        self.watch.admit()?;
        let _active = self.watch.active();
        let alarm = self.watch.alarm();
        let killed = self.group.killed_for_memory();
        let deadline = Instant::now() + command.timeout;
        let runner = self.runner().await?;
        let request = Request {
            argv: match command.program {
                Program::Login(script) => vec![super::shell().into(), "-lc".into(), script],
                Program::Argv(argv) => argv,
            },
            cwd: command.cwd.unwrap_or_else(|| super::WORKSPACE.into()),
            merged: matches!(command.streams, Streams::Merged),
        };
        let feed = Feed::Going(Box::pin(feed(runner.requests, request, command.input)));
        let Runner { frames, greeted, .. } = runner;
        let running = Running { instance: self, frames, greeted, feed, alarm, killed, stop: None, deadline };
        running.run(cancel, sink).await
    }
}

impl Running<'_> {
    async fn run(mut self, cancel: &CancellationToken, sink: &mut dyn Sink) -> Result<Report, HandError> {
        loop {
            match self.news(cancel).await {
                News::Frame(Kind::Output, bytes) => {
                    let flow = sink.take(Stream::Output, &bytes).await;
                    self.heed(flow);
                }
                News::Frame(Kind::Error, bytes) => {
                    let flow = sink.take(Stream::Error, &bytes).await;
                    self.heed(flow);
                }
                News::Frame(Kind::Ready, _) => self.greeted = true,
                News::Frame(Kind::End, bytes) => match serde_json::from_slice(&bytes) {
                    Ok(end) => return self.ended(end).await,
                    Err(_) => return self.broken().await,
                },
                News::Stop(stop) => self.stop(stop),
                News::Frame(..) | News::Broken | News::GraceOver => return self.broken().await,
            }
        }
    }

    async fn news(&mut self, cancel: &CancellationToken) -> News {
        let Self { frames, feed, alarm, stop, deadline, .. } = self;
        let stopping = stop.is_some();
        loop {
            tokio::select! {
                frame = frames.next() => return match frame {
                    Ok(Some((kind, bytes))) => News::Frame(kind, bytes),
                    Ok(None) | Err(_) => News::Broken,
                },
                () = feed.done() => {}
                () = cancel.cancelled(), if !stopping => return News::Stop(Stop::Cancelled),
                why = limit(alarm), if !stopping => return News::Stop(Stop::Limit(why)),
                () = sleep_until(*deadline) => {
                    return if stopping { News::GraceOver } else { News::Stop(Stop::Timeout) };
                }
            }
        }
    }

    fn heed(&mut self, flow: Flow) {
        if let (Flow::Stop(stop), None) = (flow, &self.stop) {
            self.stop(stop);
        }
    }

    fn stop(&mut self, stop: Stop) {
        self.stop = Some(stop);
        self.feed = Feed::Closed;
        self.deadline = Instant::now() + END_GRACE;
    }

    /// The runner said how the call ended.
    async fn ended(mut self, end: End) -> Result<Report, HandError> {
        self.feed.look().await;
        if let Feed::Done(requests) = self.feed {
            let runner = Runner { frames: self.frames, requests, greeted: true };
            match end.runner {
                RunnerState::Free => self.instance.keep(runner),
                RunnerState::Background => self.instance.leave(runner),
                RunnerState::Gone => {}
            }
        }
        let mut notes = self.instance.notices();
        if !matches!(end.how, How::Exit(0)) && self.instance.group.killed_for_memory() > self.killed {
            notes.push("a process was killed by the memory limit of the sandbox".to_owned());
        }
        let ended = match (end.how, self.stop) {
            (How::Ended, Some(stop)) => Ended::Stopped(stop),
            (How::Exit(code), _) => Ended::Exit(code),
            (How::Signal(signal), _) => Ended::Signal(signal),
            (How::NotStarted(error, _), _) if Errno::from_raw_os_error(error) == Errno::AGAIN => {
                return self.instance.exhausted().await;
            }
            (How::NotStarted(error, doing), _) => {
                Ended::NotStarted { doing, error: io::Error::from_raw_os_error(error) }
            }
            (How::Ended, None) => Ended::Signal(9),
        };
        Ok(Report { ended, notes })
    }

    /// The runner does not talk to us any more: it died, was killed or is not itself. What it left can't be
    /// told from what others run, so all of it goes.
    async fn broken(self) -> Result<Report, HandError> {
        let why = self.instance.reason().await;
        if why.is_none() && !self.greeted && self.stop.is_none() {
            return self.instance.exhausted().await;
        }
        self.instance.end("the process that ran a call was killed, so its sandbox was ended").await?;
        match self.stop {
            Some(stop) => Ok(Report {
                ended: Ended::Stopped(stop),
                notes: vec!["the sandbox's background processes were ended with it".into()],
            }),
            None => Err(HandError::Lost {
                // It says that it is ready before it looks at a request.
                may_have_run: self.greeted,
                why: why.unwrap_or_else(|| {
                    "the process that ran the call was killed, so its sandbox was ended".into()
                }),
            }),
        }
    }
}

/// Waits for a limit to be passed.
async fn limit(alarm: &mut watch::Receiver<Option<String>>) -> String {
    loop {
        if alarm.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        if let Some(why) = alarm.borrow_and_update().clone() {
            return why;
        }
    }
}

impl Feed {
    /// Waits until all is sent; for ever when it is already, or never will be.
    async fn done(&mut self) {
        let sent = poll_fn(|context| match self {
            Self::Going(sending) => sending.as_mut().poll(context),
            Self::Done(_) | Self::Closed => Poll::Pending,
        });
        // A runner that takes no more tells why on the other half.
        *self = sent.await.map_or(Self::Closed, Self::Done);
    }

    /// Finds out whether all is sent, without waiting.
    async fn look(&mut self) {
        tokio::select! {
            biased;
            () = self.done() => {}
            () = std::future::ready(()) => {}
        }
    }
}

/// Sends a request and all of its input.
async fn feed(mut to: OwnedWriteHalf, request: Request, input: Input) -> io::Result<OwnedWriteHalf> {
    let request = serde_json::to_vec(&request)?;
    if request.len() > MAX_REQUEST {
        return Err(io::Error::from(io::ErrorKind::ArgumentListTooLong));
    }
    to.write_all(&frame(Kind::Start, &request)).await?;
    match input {
        Input::Bytes(bytes) => {
            for chunk in bytes.chunks(CHUNK) {
                to.write_all(&frame(Kind::Input, chunk)).await?;
            }
        }
        Input::Stream(mut from) => {
            let mut chunk = vec![0; CHUNK];
            loop {
                let length = from.read(&mut chunk).await?;
                if length == 0 {
                    break;
                }
                to.write_all(&frame(Kind::Input, &chunk[..length])).await?;
            }
        }
    }
    to.write_all(&frame(Kind::InputEnd, &[])).await?;
    Ok(to)
}
