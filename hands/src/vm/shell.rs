//! Running a command in the guest.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::WORKSPACE;
use super::instance::Instance;
use super::link::{CHUNK, Link};
use super::machine::lock;
use crate::HandError;
use crate::posix::{Command, Ended, Flow, Input, Program, Report, Shell, Sink, Stop, Stream, Streams};

/// How long a killed command may take to end, in a machine that is emulated, before the machine itself is ended.
const GRACE: Duration = Duration::from_secs(30);
/// How long it may take until it is killed again.
const AGAIN: Duration = Duration::from_secs(1);
/// Most bytes of a command's standard input that is given whole: they wait in the guest's memory.
const MOST_INPUT: usize = 16 << 20;

#[async_trait]
impl Shell for Instance {
    async fn run(
        &self,
        command: Command,
        cancel: &CancellationToken,
        sink: &mut dyn Sink,
    ) -> Result<Report, HandError> {
        let deadline = Instant::now() + command.timeout;
        let (input, stream) = match command.input {
            Input::Bytes(bytes) => (bytes, None),
            Input::Stream(stream) => (Bytes::new(), Some(stream)),
        };
        if input.len() > MOST_INPUT {
            let error = io::Error::other(format!("it is more than {} MiB", MOST_INPUT >> 20));
            return Ok(not_started("take its input", error));
        }
        // What comes as a stream comes over a port of its own.
        let ports = 1 + u32::from(stream.is_some());
        let turn = tokio::select! {
            biased;
            () = cancel.cancelled() => return Ok(stopped(Stop::Cancelled)),
            turn = self.calls.acquire_many(ports) => turn,
            () = sleep_until(deadline) => return Ok(stopped(Stop::Timeout)),
        };
        let (link, feeder) = {
            let mut links = lock(&self.links);
            (links.pop(), stream.and_then(|stream| Some((links.pop()?, stream))))
        };
        let (Ok(_turn), Some(mut link)) = (turn, link) else { return Err(self.lost(Ran::No).await) };
        // Who gives up in the middle leaves a guest that nobody can talk to: it is ended.
        let abandoned = self.machine.killer().drop_guard();
        let id = self.next_call();
        let script = script(&id, &command.program, command.cwd.as_deref());
        let feeding = if feeder.is_some() { Feeding::WhileItRuns } else { Feeding::Before(&input) };
        let began = begin(&mut link, &id, script.as_bytes(), feeding, command.streams).await;
        let mark = match began {
            Ok(mark) => mark,
            Err(ran) => return Err(self.lost(ran).await),
        };
        let running = Running { instance: self, id: &id, mark, cancel, deadline };
        let ran = match feeder {
            None => running.to_its_end(&mut link, sink).await,
            Some((mut feeder, stream)) => {
                let ran = running.fed_to_its_end(&mut link, &mut feeder, stream, sink).await;
                lock(&self.links).push(feeder);
                ran
            }
        };
        let report = match ran {
            Ok(Finish::Ended(code, stop)) => report(&code, stop, command.cwd.as_deref()),
            Ok(Finish::Deaf(stop)) => {
                self.machine.end("it did not end a command when it was asked to, so it was ended").await;
                let notes =
                    vec!["the machine did not answer, so it was ended with all that ran in it".to_owned()];
                return Ok(Report { ended: Ended::Stopped(stop), notes });
            }
            Err(_) => return Err(self.lost(Ran::Perhaps).await),
        };
        abandoned.disarm();
        lock(&self.links).push(link);
        Ok(report)
    }
}

impl Instance {
    /// Ends everything that a call started.
    async fn kill(&self, id: &str) -> io::Result<()> {
        self.control.lock().await.write_all(format!("kill {id}\n").as_bytes()).await
    }

    async fn lost(&self, ran: Ran) -> HandError {
        HandError::Lost { may_have_run: ran == Ran::Perhaps, why: self.machine.reason().await }
    }
}

/// Whether a command that is lost may have had effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ran {
    No,
    Perhaps,
}

/// How a command ended, as far as the line goes.
enum Finish {
    /// With this code, after it was stopped or not.
    Ended(String, Option<Stop>),
    /// It was to be stopped, and nothing came of it.
    Deaf(Stop),
}

/// When a command gets its standard input.
#[derive(Clone, Copy)]
enum Feeding<'a> {
    /// This is all of it.
    Before(&'a [u8]),
    /// Over another port.
    WhileItRuns,
}

/// Brings a command to the guest and starts it. The answer is what says its end, or whether it may have run.
async fn begin(
    link: &mut Link,
    id: &str,
    script: &[u8],
    feeding: Feeding<'_>,
    streams: Streams,
) -> Result<Vec<u8>, Ran> {
    let mark = mark();
    let bringing = async {
        link.tell(&format!("new {id}")).await?;
        link.put(id, "script", script).await?;
        match feeding {
            Feeding::Before(input) => link.put(id, "in", input).await,
            Feeding::WhileItRuns => link.tell(&format!("pipe {id}")).await,
        }
    };
    bringing.await.map_err(|_| Ran::No)?;
    let streams = if streams == Streams::Merged { "merged" } else { "separate" };
    link.tell(&format!("run {id} {streams} {mark}")).await.map_err(|_| Ran::Perhaps)?;
    Ok(mark.into_bytes())
}

/// What no command prints by chance.
fn mark() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("manyhands:{:016x}{:016x}:", random(), random())
}

struct Running<'a> {
    instance: &'a Instance,
    id: &'a str,
    mark: Vec<u8>,
    cancel: &'a CancellationToken,
    deadline: Instant,
}

impl Running<'_> {
    /// The same as [`Self::to_its_end`], with what comes from `stream` given to it as it is ready for more. One that
    /// does not come to its end is not ended: its command is to be.
    async fn fed_to_its_end(
        &self,
        link: &mut Link,
        feeder: &mut Link,
        stream: Box<dyn AsyncRead + Send + Unpin>,
        sink: &mut dyn Sink,
    ) -> io::Result<Finish> {
        feeder.tell(&format!("feed {}", self.id)).await?;
        link.tell("piped").await?;
        let ended = CancellationToken::new();
        let running = async {
            let _ended = ended.clone().drop_guard();
            self.to_its_end(link, sink).await
        };
        let (mut running, mut feeding) =
            (std::pin::pin!(running), std::pin::pin!(feed(feeder, stream, &ended)));
        let mut fed = None;
        let finish = loop {
            tokio::select! {
                finish = &mut running => break finish?,
                done = &mut feeding, if fed.is_none() => fed = Some(done),
            }
        };
        match (finish, fed) {
            // Nobody reads any more: the machine is ended.
            (Finish::Deaf(stop), _) => Ok(Finish::Deaf(stop)),
            (ended, Some(fed)) => fed.map(|()| ended),
            (ended, None) => feeding.await.map(|()| ended),
        }
    }

    /// Hands on what the command prints until it ends or is to end.
    async fn to_its_end(&self, link: &mut Link, sink: &mut dyn Sink) -> io::Result<Finish> {
        let mut stop = None;
        let mut pending = Vec::new();
        let Some(code) = self.printing(link, sink, &mut pending, &mut stop).await? else {
            return Ok(Finish::Deaf(stop.unwrap_or(Stop::Timeout)));
        };
        let error = tokio::time::timeout(GRACE, link.get(&format!("end {}", self.id))).await??;
        if !error.is_empty() {
            let _ = sink.take(Stream::Error, &error).await;
        }
        Ok(Finish::Ended(code, stop))
    }

    /// Its exit code; `None` when it was to be stopped and nothing came of it.
    async fn printing(
        &self,
        link: &mut Link,
        sink: &mut dyn Sink,
        pending: &mut Vec<u8>,
        stop: &mut Option<Stop>,
    ) -> io::Result<Option<String>> {
        let request = format!("more {}", self.id);
        let mut deadline = std::pin::pin!(sleep_until(self.deadline));
        loop {
            let mut more = std::pin::pin!(link.get(&request));
            let bytes = loop {
                let why = tokio::select! {
                    biased;
                    bytes = &mut more => break bytes?,
                    () = self.cancel.cancelled(), if stop.is_none() => Stop::Cancelled,
                    () = &mut deadline => if stop.is_some() { return Ok(None) } else { Stop::Timeout },
                    // What was just starting was not yet where it is looked for.
                    () = sleep(AGAIN), if stop.is_some() => {
                        self.instance.kill(self.id).await?;
                        continue;
                    }
                };
                self.instance.kill(self.id).await?;
                *stop = Some(why);
                deadline.as_mut().reset(Instant::now() + GRACE);
            };
            if bytes.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            pending.extend_from_slice(&bytes);
            let (printed, code) = self.split_end(pending);
            if stop.is_none()
                && printed > 0
                && let Flow::Stop(why) = sink.take(Stream::Output, &pending[..printed]).await
            {
                if code.is_none() {
                    self.instance.kill(self.id).await?;
                    deadline.as_mut().reset(Instant::now() + GRACE);
                }
                *stop = Some(why);
            }
            pending.drain(..printed);
            if code.is_some() {
                return Ok(code);
            }
        }
    }

    /// How many bytes were printed for sure, and the exit code when that follows.
    fn split_end(&self, pending: &[u8]) -> (usize, Option<String>) {
        let mark = &self.mark[..];
        if let Some(at) = pending.windows(mark.len()).position(|bytes| bytes == mark) {
            let rest = &pending[at + mark.len()..];
            let code = rest.iter().position(|byte| *byte == b'\n').map(|end| &rest[..end]);
            return (at, code.map(|code| String::from_utf8_lossy(code).into_owned()));
        }
        // Its end may be the beginning of the mark.
        let open =
            (1..mark.len().min(pending.len() + 1)).rev().find(|length| pending.ends_with(&mark[..*length]));
        (pending.len() - open.unwrap_or(0), None)
    }
}

/// Gives a command all of its input, or as much as it takes until it ends. What is being given is never given up: the
/// port would be of no use any more.
async fn feed(
    feeder: &mut Link,
    mut stream: Box<dyn AsyncRead + Send + Unpin>,
    ended: &CancellationToken,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let mut filled = 0;
        // A request takes its time, however little it brings.
        let reading = async {
            while filled < chunk.len() {
                match stream.read(&mut chunk[filled..]).await {
                    Ok(length @ 1..) => filled += length,
                    Ok(0) | Err(_) => return,
                }
            }
        };
        tokio::select! {
            biased;
            () = ended.cancelled() => break,
            () = reading => {}
        }
        if filled > 0 {
            feeder.send("give", &chunk[..filled]).await?;
        }
        if filled < chunk.len() {
            break;
        }
    }
    feeder.tell("piped").await
}

/// What the guest's shell reads: the folder, then the command, its words exact.
fn script(id: &str, program: &Program, cwd: Option<&str>) -> String {
    let cwd = quote(cwd.unwrap_or(WORKSPACE));
    let words = match program {
        Program::Login(script) => format!("sh -c {}", quote(script)),
        Program::Argv(words) => words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" "),
    };
    format!("cd {cwd} 2>/dev/null || {{ : > /run/manyhands/{id}/nowhere; exit 126; }}\nexec {words}\n")
}

fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn stopped(why: Stop) -> Report {
    Report { ended: Ended::Stopped(why), notes: Vec::new() }
}

fn not_started(doing: &str, error: io::Error) -> Report {
    Report { ended: Ended::NotStarted { doing: doing.to_owned(), error }, notes: Vec::new() }
}

fn report(code: &str, stop: Option<Stop>, cwd: Option<&str>) -> Report {
    match (stop, code.parse()) {
        (Some(why), _) => stopped(why),
        (None, Ok(code)) => Report { ended: Ended::Exit(code), notes: Vec::new() },
        (None, Err(_)) => {
            let doing = format!("use {} as working folder", cwd.unwrap_or(WORKSPACE));
            not_started(&doing, io::ErrorKind::NotFound.into())
        }
    }
}
