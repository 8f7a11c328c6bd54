//! Standard error, written by a thread of its own: nothing waits for whoever reads it.
//!
//! What is said waits in a queue of bounded size. What does not fit is dropped and counted, and the count is said once
//! there is room again. (`tracing-appender` does much of this, but counts lines instead of bytes, and prints to standard
//! output when it can't be flushed: there MCP is spoken.)

#[cfg(test)]
mod tests;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd as _;
use std::panic::PanicHookInfo;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Most bytes that wait to be written.
const WAITING_MAX: usize = 256 << 10;
/// How long a command may wait until a sentence of its own is written, so that it comes before what it prints next.
const SENTENCE_MAX: Duration = Duration::from_millis(100);
/// How long the end of the process may wait until everything is written.
const END_MAX: Duration = Duration::from_secs(1);

static STDERR: LazyLock<Queue> = LazyLock::new(|| Queue::start(write_all));

/// Says a line. Returns when it is written, or after a tenth of a second.
pub(crate) fn say(line: impl Display) {
    print(format_args!("{line}\n"));
}

/// Says something that is no whole line, such as a question.
pub(crate) fn print(text: impl Display) {
    STDERR.push(text.to_string().into_bytes());
    STDERR.wait(SENTENCE_MAX);
}

/// Waits until everything is written, for a second at most.
pub(crate) fn flush() {
    STDERR.wait(END_MAX);
}

/// Whether a person reads it.
pub(crate) fn is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Has panics told here, too: else a thread that panics would wait for the reader.
pub(crate) fn tell_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let main = std::thread::current().name() == Some("main");
        STDERR.push(panic_text(panic).into_bytes());
        // It may be the end of the process.
        if main {
            flush();
        }
    }));
}

/// What the standard library says of a panic.
fn panic_text(panic: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let backtrace = Backtrace::capture();
    let backtrace = match backtrace.status() {
        BacktraceStatus::Captured => format!("{backtrace}\n"),
        _ => String::new(),
    };
    format!("thread '{}' {panic}\n{backtrace}", thread.name().unwrap_or("<unnamed>"))
}

/// Where log lines go: `tracing` writes each with one call.
pub(crate) struct Log;

impl io::Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        STDERR.push(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What waits to be written, and the thread that writes it.
struct Queue(Arc<Shared>);

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    /// Something waits.
    filled: Condvar,
    /// Nothing waits any more.
    emptied: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    /// Bytes of them, and of what is just being written.
    bytes: usize,
    /// Lines that were dropped since it was last said. While there are any, no more are taken.
    dropped: u64,
}

impl Waiting {
    fn add(&mut self, line: Vec<u8>) {
        self.bytes += line.len();
        self.lines.push_back(line);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// `write` writes one line, however long that takes.
    fn start(write: impl FnMut(&[u8]) + Send + 'static) -> Self {
        let shared = Arc::new(Shared::default());
        let writer = shared.clone();
        let thread = std::thread::Builder::new().name("stderr".to_owned());
        // Without the thread nothing is ever written, and the queue drops what comes.
        drop(thread.spawn(move || writer.write(write)));
        Self(shared)
    }

    fn push(&self, line: Vec<u8>) {
        let mut waiting = self.0.lock();
        if waiting.dropped > 0 || waiting.bytes + line.len() > WAITING_MAX {
            waiting.dropped += 1;
        } else {
            waiting.add(line);
        }
        drop(waiting);
        self.0.filled.notify_one();
    }

    /// Waits until nothing waits any more. Not at all while lines are dropped: nobody reads.
    fn wait(&self, most: Duration) {
        let waiting = self.0.lock();
        let busy = |waiting: &mut Waiting| waiting.bytes > 0 && waiting.dropped == 0;
        drop(self.0.emptied.wait_timeout_while(waiting, most, busy));
    }
}

impl Shared {
    fn write(&self, mut write: impl FnMut(&[u8])) {
        loop {
            let line = self.next();
            write(&line);
            let mut waiting = self.lock();
            waiting.bytes -= line.len();
            if waiting.bytes == 0 {
                self.emptied.notify_all();
            }
        }
    }

    /// What is written next. How many lines were dropped is said when half of the others are out.
    fn next(&self) -> Vec<u8> {
        let mut waiting = self.lock();
        loop {
            if waiting.dropped > 0 && waiting.bytes <= WAITING_MAX / 2 {
                let were = if waiting.dropped == 1 { "line was" } else { "lines were" };
                let dropped = std::mem::take(&mut waiting.dropped);
                let said = format!("{dropped} log {were} dropped: standard error was not read\n");
                waiting.add(said.into_bytes());
            }
            if let Some(line) = waiting.lines.pop_front() {
                return line;
            }
            waiting = self.filled.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Writes a line to standard error. Past the standard library's own lock: a thread that held it while nobody reads would
/// stop every other that prints or panics. What can't be written is gone.
fn write_all(mut line: &[u8]) {
    let stderr = io::stderr();
    let stderr = stderr.as_fd();
    while !line.is_empty() {
        match rustix::io::write(stderr, line) {
            Ok(0) => return,
            Ok(written) => line = &line[written..],
            Err(Errno::INTR) => {}
            // Whoever gave us the pipe may have set it so.
            Err(Errno::AGAIN) => {
                let mut ready = [PollFd::new(&stderr, PollFlags::OUT)];
                let _ = poll(&mut ready, None);
            }
            Err(_) => return,
        }
    }
}
