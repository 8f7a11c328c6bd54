//! Runs calls inside the sandbox, one after another, on behalf of the gateway.
//!
//! It adopts the orphans of what it starts. So when the gateway wants the end of a call, nothing of
//! it can get away, whatever sessions or groups it made; and after a normal end it stays to look
//! after what the call left running.

use std::fs::{self, File};
use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{
    DumpableBehavior, Pid, WaitStatus, getpid, set_child_subreaper, set_dumpable_behavior,
};

use super::children::Children;
use super::wire::{CHUNK, End, How, Kind, Request, RunnerState, read_frame, write_frame};

/// How long the end of a call's processes is tried. Below [`crate::END_GRACE`].
const ENDING: Duration = Duration::from_secs(4);
/// Niceness of commands: a fork bomb must not starve the process that is to end it.
const COMMAND_NICENESS: i32 = 10;
/// The memory limit shall take a command and never a runner or PID 1.
const COMMAND_OOM_SCORE_ADJ: &str = "800";

/// Serves calls over standard input until the gateway closes it.
pub(super) fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandbox call runner: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_child_subreaper(Some(getpid()))?;
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let children = Children::collect()?;
    let runner = Runner { socket, children };
    loop {
        runner.send(Kind::Ready, &[])?;
        let Some(request) = runner.next_request()? else { return Ok(()) };
        match runner.run(&request)? {
            RunnerState::Free => {}
            RunnerState::Background | RunnerState::Gone => return Ok(()),
        }
    }
}

struct Runner {
    socket: UnixStream,
    children: Children,
}

impl Runner {
    fn send(&self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        write_frame(&mut &self.socket, kind, payload)
    }

    fn end(&self, how: How, runner: RunnerState) -> io::Result<RunnerState> {
        self.send(Kind::End, &serde_json::to_vec(&End { how, runner })?)?;
        Ok(runner)
    }

    fn next_request(&self) -> io::Result<Option<Request>> {
        loop {
            match read_frame(&mut &self.socket)? {
                None => return Ok(None),
                Some((Kind::Start, payload)) => return Ok(Some(serde_json::from_slice(&payload)?)),
                // Input that the last command did not live to read.
                Some((Kind::Input | Kind::InputEnd, _)) => {}
                Some(_) => return Err(io::Error::other("a frame that only a runner sends")),
            }
        }
    }

    /// Runs one command to its end, and stays while anything of it runs.
    fn run(&self, request: &Request) -> io::Result<RunnerState> {
        let mut streams = match self.start(request) {
            Ok(streams) => streams,
            Err((error, doing)) => {
                let number = error.raw_os_error().unwrap_or_default();
                return self.end(How::NotStarted(number, doing), RunnerState::Free);
            }
        };
        loop {
            match self.pump(&mut streams)? {
                Pumped::Running => {}
                Pumped::Abandoned => return self.end_call(),
                Pumped::Ended(status) => {
                    streams.drain(self)?;
                    let how = how(status);
                    if self.children.none_left() {
                        return self.end(how, RunnerState::Free);
                    }
                    self.end(how, RunnerState::Background)?;
                    return self.look_after(streams);
                }
            }
        }
    }

    fn start(&self, request: &Request) -> Result<Streams, (io::Error, String)> {
        let [program, arguments @ ..] = request.argv.as_slice() else {
            return Err((io::Error::from_raw_os_error(2), "run nothing".into()));
        };
        // Otherwise a missing folder would look like a missing program.
        if let Err(error) = fs::read_dir(&request.cwd) {
            return Err((error, format!("use {} as working folder", request.cwd)));
        }
        let cannot = |error| (error, format!("run {program}"));
        let (input_end, input) = pipe().map_err(cannot)?;
        let (output, output_end) = pipe().map_err(cannot)?;
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&request.cwd).stdin(input_end);
        let error = if request.merged {
            command.stderr(output_end.try_clone().map_err(cannot)?);
            None
        } else {
            let (error, error_end) = pipe().map_err(cannot)?;
            command.stderr(error_end);
            Some(error)
        };
        command.stdout(Stdio::from(OwnedFd::from(output_end)));
        let child = self.children.spawn(&mut command).map_err(cannot)?;
        drop(command);
        restrain(child.id());
        for end in [Some(input.as_fd()), Some(output.as_fd()), error.as_ref().map(AsFd::as_fd)] {
            end.map_or(Ok(()), do_not_block).map_err(cannot)?;
        }
        Ok(Streams { input: Some(input), pending: Vec::new(), last: false, output: Some(output), error })
    }

    /// Waits for something to happen and passes it on.
    fn pump(&self, streams: &mut Streams) -> io::Result<Pumped> {
        let ready = streams.wait(self)?;
        if ready.news {
            (&self.children.news).read(&mut [0; 16])?;
            if let Some(status) = self.children.take_status() {
                return Ok(Pumped::Ended(status));
            }
        }
        if ready.hangup {
            return Ok(Pumped::Abandoned);
        }
        if ready.request {
            match read_frame(&mut &self.socket)? {
                None => return Ok(Pumped::Abandoned),
                Some((Kind::Input, bytes)) => streams.pending = bytes,
                Some((Kind::InputEnd, _)) => streams.last = true,
                Some(_) => return Err(io::Error::other("an unexpected frame during a call")),
            }
        }
        streams.feed();
        if ready.output {
            pass_on(&mut streams.output, |bytes| self.send(Kind::Output, bytes))?;
        }
        if ready.error {
            pass_on(&mut streams.error, |bytes| self.send(Kind::Error, bytes))?;
        }
        Ok(Pumped::Running)
    }

    /// Ends everything of the call and says so.
    fn end_call(&self) -> io::Result<RunnerState> {
        if self.children.end_all(Instant::now() + ENDING) {
            return self.end(How::Ended, RunnerState::Gone);
        }
        // Silence makes the gateway replace the whole sandbox.
        Ok(RunnerState::Gone)
    }

    /// Discards what background processes print until the last ended or the gateway hangs up.
    fn look_after(&self, mut streams: Streams) -> io::Result<RunnerState> {
        streams.input = None;
        while !self.children.none_left() {
            let ready = streams.wait(self)?;
            if ready.news {
                (&self.children.news).read(&mut [0; 16])?;
            }
            if ready.hangup {
                self.children.end_all(Instant::now() + ENDING);
                break;
            }
            if ready.output {
                pass_on(&mut streams.output, |_| Ok(()))?;
            }
            if ready.error {
                pass_on(&mut streams.error, |_| Ok(()))?;
            }
        }
        Ok(RunnerState::Gone)
    }
}

enum Pumped {
    Running,
    Abandoned,
    Ended(WaitStatus),
}

/// Our ends of a command's standard streams.
struct Streams {
    input: Option<PipeWriter>,
    /// Input that the pipe has not taken yet.
    pending: Vec<u8>,
    /// Whether `pending` is the last of it.
    last: bool,
    output: Option<PipeReader>,
    error: Option<PipeReader>,
}

/// What can be done without waiting.
#[expect(clippy::struct_excessive_bools, reason = "one for each thing that was polled")]
#[derive(Default)]
struct Ready {
    news: bool,
    hangup: bool,
    request: bool,
    output: bool,
    error: bool,
}

impl Streams {
    fn wait(&self, runner: &Runner) -> io::Result<Ready> {
        let listening = self.input.is_some() && self.pending.is_empty() && !self.last;
        let socket = if listening { PollFlags::IN | PollFlags::RDHUP } else { PollFlags::RDHUP };
        let mut fds =
            vec![PollFd::new(&runner.children.news, PollFlags::IN), PollFd::new(&runner.socket, socket)];
        let mut places = [None; 3];
        for (place, pipe, flags) in [
            (0, self.output.as_ref().map(AsFd::as_fd), PollFlags::IN),
            (1, self.error.as_ref().map(AsFd::as_fd), PollFlags::IN),
            (2, self.input.as_ref().filter(|_| !self.pending.is_empty()).map(AsFd::as_fd), PollFlags::OUT),
        ] {
            if let Some(pipe) = pipe {
                places[place] = Some(fds.len());
                fds.push(PollFd::from_borrowed_fd(pipe, flags));
            }
        }
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Ready::default()),
            Err(error) => return Err(error.into()),
        }
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let any = |place: Option<usize>| place.is_some_and(|at| !fds[at].revents().is_empty());
        Ok(Ready {
            news: !fds[0].revents().is_empty(),
            hangup: fds[1].revents().intersects(gone),
            request: fds[1].revents().contains(PollFlags::IN),
            output: any(places[0]),
            error: any(places[1]),
        })
    }

    /// Gives the command as much of its input as it takes now.
    fn feed(&mut self) {
        let Some(input) = &mut self.input else { return };
        let gone = match input.write(&self.pending) {
            Ok(taken) => {
                self.pending.drain(..taken);
                false
            }
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        };
        if gone || (self.last && self.pending.is_empty()) {
            self.input = None;
            self.pending = Vec::new();
        }
    }

    /// Passes on what was printed before the end, and no more: others may print on.
    fn drain(&mut self, runner: &Runner) -> io::Result<()> {
        for _ in 0..2 {
            pass_on(&mut self.output, |bytes| runner.send(Kind::Output, bytes))?;
            pass_on(&mut self.error, |bytes| runner.send(Kind::Error, bytes))?;
        }
        Ok(())
    }
}

/// Reads once from a pipe; an ended one becomes `None`.
fn pass_on(pipe: &mut Option<PipeReader>, to: impl FnOnce(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let Some(from) = pipe else { return Ok(()) };
    let mut bytes = vec![0; CHUNK];
    match from.read(&mut bytes) {
        Ok(0) => *pipe = None,
        Ok(length) => to(&bytes[..length])?,
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

fn do_not_block(fd: rustix::fd::BorrowedFd<'_>) -> io::Result<()> {
    Ok(fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?)
}

/// Puts the command behind its runner, for the processor and for the memory limit.
fn restrain(child: u32) {
    let pid = i32::try_from(child).ok().and_then(Pid::from_raw);
    let _ = rustix::process::setpriority_process(pid, COMMAND_NICENESS);
    if let Ok(mut file) = File::options().write(true).open(format!("/proc/{child}/oom_score_adj")) {
        let _ = file.write_all(COMMAND_OOM_SCORE_ADJ.as_bytes());
    }
}

fn how(status: WaitStatus) -> How {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => How::Exit(code),
        (None, Some(signal)) => How::Signal(signal),
        (None, None) => How::Exit(-1),
    }
}
