//! Collecting children that end, in a process which adopts the orphans of its descendants.

use std::fs;
use std::io::{self, PipeReader, PipeWriter, Write, pipe};
use std::process::{Child, Command};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, wait};

/// Pause between two passes over the processes that are to end.
const PASS: Duration = Duration::from_millis(2);
/// Most passes that stop processes before those found are ended: a fork bomb forks between passes.
const STOP_PASSES: usize = 16;

/// A thread that waits for every child, so that none stays a zombie.
pub(super) struct Children {
    shared: Arc<Shared>,
    /// Becomes readable when the watched child ended or when no child is left.
    pub(super) news: PipeReader,
}

struct Shared {
    state: Mutex<State>,
    spawned: Condvar,
    wake: PipeWriter,
}

#[derive(Default)]
struct State {
    /// Counts spawned children, so that "none left" can't be said of a moment before the last spawn.
    generation: u64,
    empty_at: Option<u64>,
    watched: Option<Pid>,
    status: Option<WaitStatus>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Children {
    /// Starts the thread.
    pub(super) fn collect() -> io::Result<Self> {
        let (news, wake) = pipe()?;
        let shared = Arc::new(Shared { state: Mutex::default(), spawned: Condvar::new(), wake });
        let theirs = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("children".into())
            .stack_size(64 * 1024)
            .spawn(move || collect(&theirs))?;
        Ok(Self { shared, news })
    }

    /// Spawns `command`, whose end [`Self::take_status`] will tell.
    pub(super) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let mut state = self.shared.lock();
        let child = command.spawn()?;
        state.generation += 1;
        state.watched = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        state.status = None;
        self.shared.spawned.notify_one();
        Ok(child)
    }

    /// How the child that was spawned last ended, once.
    pub(super) fn take_status(&self) -> Option<WaitStatus> {
        self.shared.lock().status.take()
    }

    /// Whether no child and hence, for a subreaper, no descendant is left.
    pub(super) fn none_left(&self) -> bool {
        if matches!(wait(WaitOptions::NOHANG), Err(Errno::CHILD)) {
            return true;
        }
        let state = self.shared.lock();
        state.empty_at == Some(state.generation)
    }

    /// Ends every descendant, however it tried to get away; `false` when some were left at `deadline`.
    pub(super) fn end_all(&self, deadline: Instant) -> bool {
        loop {
            stop_and_kill();
            if self.none_left() {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(PASS);
        }
    }
}

fn collect(shared: &Shared) {
    loop {
        let seen = shared.lock().generation;
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) => {
                let mut state = shared.lock();
                if state.watched == Some(pid) {
                    state.watched = None;
                    state.status = Some(status);
                    wake(shared);
                }
            }
            Ok(None) | Err(Errno::INTR) => {}
            Err(_) => {
                let mut state = shared.lock();
                state.empty_at = Some(seen);
                wake(shared);
                while state.generation == seen {
                    state = shared.spawned.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

fn wake(shared: &Shared) {
    // The reader is this process: it can only be gone when the process ends.
    let _ = (&shared.wake).write(&[1]);
}

/// Stops the whole tree below this process first, so that nothing forks away between the scan and the kill.
fn stop_and_kill() {
    let mut found = Vec::new();
    for _ in 0..STOP_PASSES {
        let tree = descendants();
        let new: Vec<_> = tree.into_iter().filter(|pid| !found.contains(pid)).collect();
        if new.is_empty() {
            break;
        }
        for pid in &new {
            let _ = kill_process(*pid, Signal::STOP);
        }
        found.extend(new);
    }
    for pid in found {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Every living process below this one.
fn descendants() -> Vec<Pid> {
    let Ok(proc) = fs::read_dir("/proc") else { return Vec::new() };
    let parents: Vec<(i32, i32)> = proc
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: i32| Some((pid, living_parent(pid)?)))
        .collect();
    let mut tree = vec![getpid().as_raw_pid()];
    let mut next = 0;
    while let Some(&parent) = tree.get(next) {
        tree.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    tree.into_iter().skip(1).filter_map(Pid::from_raw).collect()
}

/// The parent of a process that is not a zombie.
fn living_parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything, parentheses and spaces too.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.next()?.parse().ok()
}
