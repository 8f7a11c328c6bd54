//! The command line, as a person types it: the real binary, its exit codes, its sentences.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

mod bad_input;
mod disk;
mod follow;
mod hands;
mod owner;
mod stdio;
mod tokens;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tests::gateway::command;

/// How long anything may take that is done in a moment.
const PATIENCE: Duration = Duration::from_mins(1);

/// A person's machine: a current folder, and in it a data directory that nobody owns yet.
pub(crate) struct Home {
    folder: TempDir,
}

/// What a command said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::Builder::new().prefix("mh-").tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// The binary, in the person's folder.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(&self.data());
        command.env("HOME", self.path()).env_remove("XDG_DATA_HOME");
        command.current_dir(self.path()).args(args).stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Said {
        said(self.command(args))
    }

    /// Runs what must succeed, and returns what it printed as JSON.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let said = self.run(&[args, &["--json"]].concat());
        assert_eq!(said.code, Some(0), "{said:?}");
        serde_json::from_str(&said.out).unwrap()
    }

    fn spawn(&self, args: &[&str]) -> Process {
        let mut command = self.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Process(Some(command.spawn().unwrap()))
    }

    /// The types of a session's events.
    fn types(&self, session: &str) -> Vec<String> {
        let page = self.json(&["session", "events", session]);
        let events = page["events"].as_array().unwrap();
        events.iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect()
    }
}

/// Runs a command to its end.
fn said(mut command: Command) -> Said {
    Said::of(&command.output().unwrap())
}

impl Said {
    pub(crate) fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// It failed with `code` and one sentence that holds all of `parts`.
    #[track_caller]
    pub(crate) fn refuses(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.out, "", "{self:?}");
        for part in parts {
            assert!(self.err.contains(part), "{part:?} is not in {self:?}");
        }
        if code == 1 {
            let lines: Vec<_> = self.err.lines().collect();
            assert!(matches!(lines[..], [line] if line.starts_with("manyhands: ")), "{self:?}");
        }
    }
}

/// A command that runs; it is ended with the test.
struct Process(Option<Child>);

impl Process {
    fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    fn signal(&mut self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child().id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for its end.
    fn end(mut self) -> Said {
        until("the command ends", || self.child().try_wait().unwrap().is_some());
        Said::of(&self.0.take().unwrap().wait_with_output().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// Waits until it is so.
#[track_caller]
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
