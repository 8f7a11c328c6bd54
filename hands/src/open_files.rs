//! The soft limit of open files: raised for the gateway, and put back for the programs that it starts.
//!
//! Programs may rely on the usual limit of 1 024: `select` takes no larger descriptor. Between fork and exec nothing
//! can set a limit without `unsafe`, so our own program stands in between: it puts the limit back and becomes the
//! other one. Programs of ours that stand there anyway (`sandbox-enter`, `vm-keep`) put it back themselves.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The hidden command of our program. The limit, another program and its arguments follow.
const COMMAND: &str = "with-open-files";
/// Most open files that the gateway asks for.
const MOST: u64 = 65_536;
/// What a shell ends with when a program can't be started.
const NOT_STARTED: u8 = 127;

/// The soft limit before it was raised.
static FORMER: OnceLock<u64> = OnceLock::new();

/// Raises this process's soft limit to the hard one, at most to 65 536. To be called by a program that answers
/// [`dispatch`], before it starts any other.
pub fn raise() -> io::Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(former) = current else { return Ok(()) };
    let most = maximum.unwrap_or(MOST).min(MOST);
    if most <= former {
        return Ok(());
    }
    let _ = FORMER.set(former);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum })?)
}

/// The soft limit that programs get back, if it was raised.
pub(crate) fn former() -> Option<u64> {
    FORMER.get().copied()
}

/// Puts the soft limit back.
pub(crate) fn put_back(former: u64) -> io::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = Some(maximum.map_or(former, |maximum| former.min(maximum)));
    Ok(setrlimit(Resource::Nofile, Rlimit { current, maximum })?)
}

/// A command for `program`, which gets the former limit.
pub(crate) fn command(program: impl AsRef<OsStr>) -> tokio::process::Command {
    let Some(former) = former() else { return tokio::process::Command::new(program) };
    let mut command = tokio::process::Command::new("/proc/self/exe");
    command.arg(COMMAND).arg(former.to_string()).arg(program);
    command
}

/// Answers the hidden command, and `None` to any other. To be called first in `main`: it replaces the process.
pub fn dispatch(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter();
    if arguments.next()? != COMMAND {
        return None;
    }
    let former = arguments.next()?.to_str()?.parse().ok()?;
    let program = arguments.next()?;
    let error = match put_back(former) {
        Ok(()) => std::process::Command::new(&program).args(arguments).exec(),
        Err(error) => error,
    };
    eprintln!("{} could not be started: {error}", program.to_string_lossy());
    Some(ExitCode::from(NOT_STARTED))
}
