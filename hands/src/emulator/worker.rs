//! The process in which a console runs. It may crash: its gateway then starts another.
//!
//! It has its standard input, which is the socket to its gateway, and needs nothing else: no file, no network, no
//! other process. It ends with that socket.

use std::any::Any;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::core::{Button, Core, CoreError, CoreKind, Screen};
use super::picture;
use super::wire::{Reply, Request, receive, send};

/// Most memory of a worker, in bytes.
pub(super) const MEMORY: u64 = 512 << 20;
/// How often it says how far it is.
const NEWS: Duration = Duration::from_secs(1);
/// What a state begins with: its form and what made it.
const MAGIC: &[u8] = b"manyhands state 1\n";

/// Serves one gateway until it hangs up.
pub(super) fn main() -> ExitCode {
    // Its last words are for people, in one line.
    std::panic::set_hook(Box::new(|panic| eprintln!("{}", words(panic.payload()))));
    match confine().and_then(|()| serve()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn words(payload: &dyn Any) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("it panicked")
}

/// Gives up what a console never needs.
fn confine() -> io::Result<()> {
    for (resource, most) in [
        (Resource::Core, 0),
        (Resource::Data, MEMORY),
        (Resource::Fsize, 0),
        // Standard input, output and error are open, and the copy of the first that is the socket.
        (Resource::Nofile, 8),
    ] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(rustix::thread::set_no_new_privs(true)?)
}

fn serve() -> io::Result<()> {
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let Some((Request::Insert { core, scale }, rom)) = receive(&mut socket)? else { return Ok(()) };
    let mut worker = match Worker::insert(core, scale, &rom) {
        Ok(worker) => worker,
        Err(error) => return send(&mut socket, &Reply::Refused { why: error.to_string() }, &[]),
    };
    send(&mut socket, &Reply::Done, &[])?;
    while let Some((request, bytes)) = receive(&mut socket)? {
        let answered = match request {
            // It came too late.
            Request::Stop => continue,
            Request::Insert { .. } => Err(CoreError("there is a game in it already".into())),
            Request::Restore => worker.restore(&bytes).map(|()| (Reply::Done, Vec::new())),
            Request::Show => worker.picture().map(|picture| (Reply::Done, picture)),
            Request::Read { address, length } => {
                worker.read(address, length).map(|bytes| (Reply::Done, bytes))
            }
            Request::Reset => worker.reset().and_then(|()| worker.stands(0)),
            Request::Run { held, frames } => {
                let Some(frames) = worker.run(&mut socket, &held, frames)? else { return Ok(()) };
                worker.stands(frames)
            }
        };
        match answered {
            Ok((reply, bytes)) => send(&mut socket, &reply, &bytes)?,
            Err(error) => send(&mut socket, &Reply::Refused { why: error.to_string() }, &[])?,
        }
    }
    Ok(())
}

struct Worker {
    core: Box<dyn Core>,
    /// What was shown last: a state does not have to hold it.
    screen: Screen,
    scale: u8,
}

impl Worker {
    fn insert(core: CoreKind, scale: u8, rom: &[u8]) -> Result<Self, CoreError> {
        let mut core = core.start(rom)?;
        let screen = core.screen();
        Ok(Self { core, screen, scale })
    }

    /// Runs with these buttons held; how many frames it was, or `None` when the gateway has gone.
    fn run(&mut self, socket: &mut UnixStream, held: &[Button], frames: u32) -> io::Result<Option<u32>> {
        let mut told = Instant::now();
        self.core.hold(held);
        let mut ran = 0;
        while ran < frames {
            match asked(socket)? {
                Asked::Nothing => {}
                Asked::ToStop => break,
                Asked::ToEnd => return Ok(None),
            }
            self.core.frame();
            ran += 1;
            if told.elapsed() >= NEWS {
                told = Instant::now();
                send(&mut *socket, &Reply::Running { frames: ran }, &[])?;
            }
        }
        self.core.hold(&[]);
        self.screen = self.core.screen();
        Ok(Some(ran))
    }

    fn reset(&mut self) -> Result<(), CoreError> {
        self.core.reset()?;
        self.screen = self.core.screen();
        Ok(())
    }

    fn read(&mut self, address: u32, length: u32) -> Result<Vec<u8>, CoreError> {
        let bytes = (0..length).map(|offset| address.checked_add(offset).and_then(|at| self.core.read(at)));
        bytes.collect::<Option<_>>().ok_or_else(|| CoreError("there is no such address".into()))
    }

    fn picture(&self) -> Result<Vec<u8>, CoreError> {
        picture::png(&self.screen, self.scale).map_err(|error| CoreError(error.to_string()))
    }

    /// Where it stands now.
    fn stands(&mut self, frames: u32) -> Result<(Reply, Vec<u8>), CoreError> {
        let mut bytes = self.picture()?;
        let picture = u32::try_from(bytes.len()).map_err(|error| CoreError(error.to_string()))?;
        bytes.extend_from_slice(MAGIC);
        bytes.extend(self.screen.width.to_be_bytes());
        bytes.extend(self.screen.height.to_be_bytes());
        bytes.extend_from_slice(&self.screen.rgb);
        bytes.extend(self.core.save()?);
        Ok((Reply::Stands { frames, picture }, bytes))
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), CoreError> {
        let strange = || CoreError("it is not a state of this emulator".into());
        let rest = state.strip_prefix(MAGIC).ok_or_else(strange)?;
        let ([a, b, c, d], rest) = rest.split_first_chunk().ok_or_else(strange)?;
        let (width, height) = (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]));
        if (width, height) != (self.screen.width, self.screen.height) {
            return Err(strange());
        }
        let pixels = usize::from(width) * usize::from(height) * 3;
        let (rgb, rest) = rest.split_at_checked(pixels).ok_or_else(strange)?;
        self.core.load(rest)?;
        self.screen = Screen { width, height, rgb: rgb.to_vec() };
        Ok(())
    }
}

/// What the gateway wants while frames run.
enum Asked {
    Nothing,
    ToStop,
    ToEnd,
}

fn asked(socket: &mut UnixStream) -> io::Result<Asked> {
    let mut fds = [PollFd::new(&*socket, PollFlags::IN)];
    if poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? == 0 {
        return Ok(Asked::Nothing);
    }
    match receive(socket)? {
        Some((Request::Stop, _)) => Ok(Asked::ToStop),
        Some(_) | None => Ok(Asked::ToEnd),
    }
}
