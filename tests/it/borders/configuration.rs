//! A configuration file that an agent, or a stranger, wrote; and the owner's socket, seen from inside a sandbox.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

mod files;
mod mounts;
mod questions;
mod socket;
mod unprivileged;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tests::gateway::{Gateway, Options, binary, command};

/// How long anything may take that is done in a moment.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long what must not happen is waited for: six looks of the gateway at its file.
const NOTHING_HAPPENS: Duration = Duration::from_millis(1_500);
/// A hand that sees nothing of this machine.
const BARE: &str = "[hands.sandbox]\nkind = \"sandbox\"\n";

/// A person's machine: a project, which is the current folder, and a data directory elsewhere.
struct Machine {
    folder: TempDir,
}

impl Machine {
    fn new() -> Self {
        // What a sandbox of a gateway that runs as root is to reach, others must reach, too.
        let mode = fs::Permissions::from_mode(0o755);
        let folder = tempfile::Builder::new().prefix("mh-").permissions(mode).tempdir().unwrap();
        fs::create_dir(folder.path().join("project")).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn project(&self) -> PathBuf {
        self.path("project")
    }

    /// The file that a gateway finds in the project.
    fn file(&self) -> PathBuf {
        self.project().join("manyhands.toml")
    }

    fn write(&self, toml: &str) {
        fs::write(self.file(), toml).unwrap();
    }

    /// An MCP server that leaves a trace on this machine when it is started.
    fn evil(&self) -> String {
        format!(
            "[hands.evil]\nkind = \"mcp\"\ncommand = [\"sh\", \"-c\", \"touch {}; exec cat\"]\n",
            self.text("trace")
        )
    }

    fn harmed(&self) -> bool {
        self.path("trace").exists()
    }

    #[track_caller]
    fn stays_unharmed(&self) {
        std::thread::sleep(NOTHING_HAPPENS);
        assert!(!self.harmed(), "a command of the file ran on this machine");
    }

    /// A gateway that is started in the project.
    fn gateway(&self, args: &[&str]) -> Gateway {
        let mut options = Options::default().data(&self.path("data"));
        options.args = args.iter().map(|&arg| arg.to_owned()).collect();
        options.folder = Some(self.project());
        Gateway::start_blocking(&options).unwrap()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(&self.path("data"));
        command.current_dir(self.project()).args(args).stdin(Stdio::null()).env("HOME", self.path("home"));
        command
    }

    fn run(&self, args: &[&str]) -> Said {
        Said::of(&self.command(args).output().unwrap())
    }

    /// The same on a terminal, where a person types an answer.
    fn on_terminal(&self, args: &[&str], answer: &str) -> Said {
        let words: Vec<_> =
            [binary().to_str().unwrap()].iter().chain(args).map(|word| format!("'{word}'")).collect();
        let mut terminal = Command::new("script");
        terminal.args(["-qec", &words.join(" "), "/dev/null"]);
        terminal
            .current_dir(self.project())
            .env("HOME", self.path("home"))
            .env("MANYHANDS_DATA", self.path("data"));
        let mut terminal =
            terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut input = terminal.stdin.take().unwrap();
        writeln!(input, "{answer}").unwrap();
        let said = Said::of(&terminal.wait_with_output().unwrap());
        drop(input);
        said
    }

    /// How a hand is, as `hand show` says.
    fn hand(&self, name: &str) -> Value {
        let said = self.run(&["hand", "show", name, "--json"]);
        serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{said:?}"))
    }
}

/// What a command said.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    #[track_caller]
    fn succeeds(&self) {
        assert_eq!(self.code, Some(0), "{self:?}");
    }

    /// It failed with one sentence that holds all of `parts`.
    #[track_caller]
    fn refuses(&self, parts: &[&str]) {
        assert_eq!(self.code, Some(1), "{self:?}");
        for part in parts {
            assert!(self.err.contains(part), "{part:?} is not in {self:?}");
        }
        assert!(self.err.starts_with("manyhands: ") && self.err.lines().count() == 1, "{self:?}");
    }
}

/// Waits until it is so.
#[track_caller]
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A mount of a folder that is read and written.
fn mount(of: &Path) -> String {
    format!("{}:/mounted", of.display())
}
