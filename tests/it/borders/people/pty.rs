//! A command at a real terminal, and what a person would see of it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Child, Command};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// What a line of progress begins with: ours, and on stderr alone.
const ERASE: &[u8] = b"\r\x1b[K";

/// What a command printed on its terminals.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) code: Option<i32>,
}

/// A command that runs at a terminal.
pub(super) struct Running {
    pub(super) child: Child,
    keyboard: File,
    stdout: JoinHandle<Vec<u8>>,
    stderr: JoinHandle<Vec<u8>>,
}

/// Both ends of a new terminal: that of the person, and that of the program.
fn terminal() -> Result<(OwnedFd, OwnedFd)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let path = ptsname(&ours, Vec::new())?;
    let path = Path::new(std::ffi::OsStr::from_bytes(path.as_bytes()));
    let theirs = open(path, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    Ok((ours, theirs))
}

/// Starts a command whose stdin and stdout are one terminal, and whose stderr is another.
pub(super) fn start(mut command: Command) -> Result<Running> {
    let (screen, theirs) = terminal()?;
    let (errors, their_errors) = terminal()?;
    command.stdin(theirs.try_clone()?).stdout(theirs).stderr(their_errors);
    let child = command.spawn()?;
    // Ours of the program's ends must be closed, or reading would not end.
    drop(command);
    let keyboard = File::from(screen.try_clone()?);
    Ok(Running { child, keyboard, stdout: reading(screen), stderr: reading(errors) })
}

/// Reads until the last program has closed its end, which is an error on Linux.
fn reading(from: OwnedFd) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let (mut from, mut seen, mut piece) = (File::from(from), Vec::new(), [0; 4096]);
        while let Ok(read @ 1..) = from.read(&mut piece) {
            seen.extend_from_slice(&piece[..read]);
        }
        seen
    })
}

impl Running {
    /// Types a line.
    pub(super) fn type_line(&mut self, line: &str) -> Result<()> {
        Ok(self.keyboard.write_all(format!("{line}\n").as_bytes())?)
    }

    /// Waits for the end.
    pub(super) fn end(mut self) -> Result<Seen> {
        let code = self.child.wait()?.code();
        let read = |thread: JoinHandle<Vec<u8>>| thread.join().ok().context("the reader failed");
        Ok(Seen { stdout: read(self.stdout)?, stderr: read(self.stderr)?, code })
    }
}

/// Runs a command at a terminal to its end.
pub(super) fn run(command: Command) -> Result<Seen> {
    start(command)?.end()
}

impl Seen {
    /// Fails if anything of it would have steered the terminal.
    pub(super) fn is_harmless(&self) -> Result<()> {
        let errors = without_progress(&self.stderr);
        for (what, bytes) in [("stdout", &self.stdout), ("stderr", &errors)] {
            let text = std::str::from_utf8(bytes).with_context(|| format!("{what}: {bytes:?}"))?;
            // The terminal itself puts a carriage return before each line feed.
            let text = text.replace("\r\n", "\n");
            let steers = text.chars().find(|c| steers(*c));
            ensure!(steers.is_none(), "{what} has {steers:?}: {text:?}");
        }
        Ok(())
    }

    /// What was printed on stdout, as the program wrote it.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).replace("\r\n", "\n")
    }

    /// The same of stderr.
    pub(super) fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr).replace("\r\n", "\n")
    }
}

/// Whether a terminal obeys or hides the character; written down here once more, on purpose.
pub(super) fn steers(c: char) -> bool {
    let code = u32::from(c);
    let control = code < 0x20 && c != '\n' && c != '\t';
    let direction = [0x061c, 0x200e, 0x200f].contains(&code)
        || (0x202a..=0x202e).contains(&code)
        || (0x2066..=0x2069).contains(&code);
    control || (0x7f..=0x9f).contains(&code) || direction || (0x2028..=0x2029).contains(&code)
}

fn without_progress(bytes: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, more)) = rest.split_first() {
        rest = match rest.strip_prefix(ERASE) {
            Some(behind) => behind,
            None => {
                kept.push(*first);
                more
            }
        };
    }
    kept
}
