//! PID 1 of a sandbox: starts call runners, collects what ends, and ends with the gateway.
//!
//! It is not in the way of any data. When it ends, the kernel ends everything in the sandbox.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, ExitCode, Stdio};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit, umask};

use super::children::Children;
use super::share;

/// Where the sandbox shows our own program.
pub(super) const PROGRAM: &str = "/run/manyhands";
/// Names the call runner's role.
pub(super) const CALL: &str = "--call";

/// Serves the control socket on standard input until it closes. `processes`: most processes.
pub(super) fn main(processes: u64) -> ExitCode {
    match serve(processes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandbox init: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(processes: u64) -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // A kernel without inotify has nothing to take.
    if let Err(error) = share::limit_inotify() {
        eprintln!("sandbox init: inotify is not limited: {error}");
    }
    share::give_up_capabilities()?;
    // Not the gateway's, which may keep its own files to itself.
    umask(Mode::from_raw_mode(0o022));
    // A cgroup may have the same limit already. Only here, inside the user namespace: before, the owner's
    // other processes would count too.
    let processes = share::at_most_half(Resource::Nproc, processes);
    setrlimit(Resource::Nproc, Rlimit { current: Some(processes), maximum: Some(processes) })?;
    let background = (processes / 2).to_string();
    let control = io::stdin().as_fd().try_clone_to_owned()?;
    let children = Children::collect()?;
    while let Some(call) = next_call(&control)? {
        let runner = children.spawn(
            Command::new(PROGRAM)
                .args(["sandbox-init", CALL, &background])
                .stdin(Stdio::from(call))
                .stdout(Stdio::null()),
        );
        // The gateway sees that the call's socket closed; the reason goes to its log.
        if let Err(error) = runner {
            eprintln!("sandbox init: starting a call runner: {error}");
        }
    }
    Ok(())
}

/// The socket of the next call; `None` when the gateway is gone.
fn next_call(control: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let received =
            recvmsg(control, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC);
        match received {
            Ok(message) if message.bytes == 0 => return Ok(None),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(mut fds) = message
                && let Some(fd) = fds.next()
            {
                return Ok(Some(fd));
            }
        }
    }
}
