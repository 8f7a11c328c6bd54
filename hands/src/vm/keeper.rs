//! Two small processes that hold a machine: the first ends it when the gateway's end of its socket closes; the second
//! becomes QEMU, which the kernel ends with the first.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use rustix::fs::OFlags;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, getppid, pidfd_open, pidfd_send_signal, set_parent_process_death_signal,
};

use super::machine::{KERNEL, NAME, SOCKETS, TEMPLATE};
use crate::{canonical, open_files};

/// The hidden command of the first. The instance's name, the soft limit of open files (0: as it is), QEMU and its
/// arguments follow.
pub(super) const KEEP: &str = "vm-keep";
/// The hidden command of the second. Who keeps it, the instance's name, QEMU and its arguments follow.
const BECOME: &str = "vm-become";

/// Answers both.
pub(super) fn dispatch(arguments: Vec<OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter();
    let command = arguments.next()?;
    let (program, ended) = match command.to_str()? {
        KEEP => {
            let (instance, files, program) = (arguments.next()?, arguments.next()?, arguments.next()?);
            let files = files.to_str().and_then(|files| files.parse().ok()).filter(|files| *files > 0);
            let ended = files
                .map_or(Ok(()), open_files::put_back)
                .and_then(|()| keep(&instance, &program, arguments));
            (program, ended)
        }
        BECOME => {
            let (keeper, instance, program) = (arguments.next()?, arguments.next()?, arguments.next()?);
            let error = turn_into(&keeper, &instance, &program, arguments);
            (program, Err(error))
        }
        _ => return None,
    };
    Some(ended.unwrap_or_else(|error| {
        eprintln!("{}: {error}", program.to_string_lossy());
        ExitCode::FAILURE
    }))
}

fn keep(
    instance: &OsString,
    program: &OsString,
    arguments: impl Iterator<Item = OsString>,
) -> io::Result<ExitCode> {
    // Where there is a state, the machine begins with it.
    let state = File::open(TEMPLATE).map_or_else(|_| Stdio::null(), Stdio::from);
    let mut child = Command::new("/proc/self/exe")
        .arg(BECOME)
        .arg(getpid().as_raw_nonzero().to_string())
        .arg(instance)
        .arg(program)
        .args(arguments)
        .stdin(state)
        .stdout(Stdio::null())
        .spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
    let machine = pidfd_open(pid, PidfdFlags::empty())?;
    let waiting = std::thread::Builder::new().spawn(move || {
        // It says nothing: this waits for its end.
        let _ = io::stdin().read(&mut [0]);
        let _ = pidfd_send_signal(&machine, Signal::KILL);
    });
    waiting?;
    let status = child.wait()?;
    for socket in SOCKETS {
        let _ = fs::remove_file(socket);
    }
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

fn turn_into(
    keeper: &OsString,
    instance: &OsString,
    program: &OsString,
    arguments: impl Iterator<Item = OsString>,
) -> io::Error {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return error.into();
    }
    // It may have ended before.
    if getppid().map(|pid| pid.as_raw_nonzero().to_string()).as_deref() != keeper.to_str() {
        return io::Error::other("its keeper is gone");
    }
    // By this it is found when it is orphaned.
    let mut name = OsString::from(NAME);
    name.push(instance);
    match with_open_kernel(arguments) {
        Ok((arguments, _kernel)) => Command::new(program).arg("-name").arg(name).args(arguments).exec(),
        Err(error) => error,
    }
}

/// The same arguments with the kernel as a descriptor that QEMU inherits: its path may lead elsewhere a moment later.
fn with_open_kernel(
    arguments: impl Iterator<Item = OsString>,
) -> io::Result<(Vec<OsString>, Option<OwnedFd>)> {
    let mut arguments: Vec<OsString> = arguments.collect();
    let Some(option) = arguments.iter().position(|argument| argument == KERNEL) else {
        return Ok((arguments, None));
    };
    let Some(path) = arguments.get_mut(option + 1) else { return Ok((arguments, None)) };
    let opened = canonical::open(Path::new(path), OFlags::RDONLY)
        .map_err(|error| io::Error::other(format!("the kernel {}: {error}", path.display())))?;
    fcntl_setfd(&opened, FdFlags::empty())?;
    *path = format!("/proc/self/fd/{}", opened.as_raw_fd()).into();
    Ok((arguments, Some(opened)))
}
