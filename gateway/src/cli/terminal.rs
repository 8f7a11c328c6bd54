//! The one way to print: answers go to stdout, what is said beside them to stderr.
//!
//! **Invariant:** what a hand, a model, a server or an event said steers no terminal: there it is shown escaped. A pipe, a
//! file and `--json` get every byte.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::io::{self, IsTerminal, Write};

use anyhow::Context as _;
use serde_json::Value;
use tokio::task::spawn_blocking;
use tracing::field::Field;
use tracing_subscriber::field::{MakeExt as _, RecordFields};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

use super::{Output, Setting};
use crate::stderr;
use crate::text::{Layout, Pieces, escaped};

/// Erases the line that the cursor is in.
const ERASE: &str = "\r\x1b[K";

/// Prints an answer of the gateway's: one sentence of it, or all of it as JSON.
pub(super) fn tell(setting: &Setting, done: &Value, sentence: impl Display) -> io::Result<()> {
    match setting.output {
        Output::Json => json(done),
        Output::Text => say(sentence),
    }
}

/// Prints one line of an answer.
pub(super) fn say(line: impl Display) -> io::Result<()> {
    print(&mut io::stdout().lock(), &line.to_string(), Layout::Line, "\n")
}

/// Prints a text of any number of lines.
pub(super) fn say_lines(text: impl Display) -> io::Result<()> {
    print(&mut io::stdout().lock(), &text.to_string(), Layout::Lines, "\n")
}

/// Prints JSON for programs, every byte of it wherever it goes.
pub(super) fn json(value: impl Display) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{value}")
}

/// Says one line beside the answer. If nobody can be told, nothing is lost but that.
pub(super) fn note(line: impl Display) {
    stderr::say(beside(&line.to_string()));
}

/// A line for stderr, escaped on a terminal.
fn beside(line: &str) -> Cow<'_, str> {
    if stderr::is_terminal() { escaped(line, Layout::Line) } else { Cow::Borrowed(line) }
}

fn print(
    out: &mut (impl IsTerminal + Write),
    text: &str,
    layout: Layout,
    end: &'static str,
) -> io::Result<()> {
    let shown = if out.is_terminal() { escaped(text, layout) } else { Cow::Borrowed(text) };
    // At once, so that lines of several processes stay whole.
    out.write_all([shown.as_bytes(), end.as_bytes()].concat().as_slice())?;
    out.flush()
}

/// A text that is printed as it comes.
#[derive(Default)]
pub(super) struct Stream(Pieces);

impl Stream {
    /// Prints the next piece.
    pub(super) fn piece(&mut self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if out.is_terminal() {
            out.write_all(self.0.next(text).as_bytes())?;
        } else {
            out.write_all(text.as_bytes())?;
        }
        out.flush()
    }

    /// Prints what was held back of the text that ends here.
    pub(super) fn end(&mut self) -> io::Result<()> {
        io::stdout().lock().write_all(self.0.end().as_bytes())
    }
}

/// What goes on meanwhile, in the last line of a terminal on stderr. Elsewhere it is not said.
#[derive(Clone, Copy)]
pub(super) struct Meanwhile {
    terminal: bool,
}

impl Meanwhile {
    pub(super) fn new() -> Self {
        Self { terminal: stderr::is_terminal() }
    }

    /// Whether anybody is told.
    pub(super) fn is_told(self) -> bool {
        self.terminal
    }

    /// Replaces the line before.
    pub(super) fn say(self, step: impl Display) {
        if self.terminal {
            let step = step.to_string();
            stderr::print(format_args!("{ERASE}{}", escaped(&step, Layout::Line)));
        }
    }

    /// Leaves no line.
    pub(super) fn end(self) {
        self.say("");
    }
}

/// Whether there is a person to ask.
pub(super) fn can_ask() -> bool {
    io::stdin().is_terminal()
}

/// Asks on stderr, and reads the answer from stdin: true is a yes. None: the input ended.
pub(super) async fn yes(question: &str) -> anyhow::Result<Option<bool>> {
    stderr::print(format_args!("{} [y/N] ", beside(question)));
    let read = || {
        let mut line = String::new();
        io::stdin().read_line(&mut line).map(|read| (read > 0).then_some(line))
    };
    // Meanwhile Ctrl-C is heard.
    let line = spawn_blocking(read).await?.context("there is no answer")?;
    Ok(line.map(|line| matches!(line.trim().to_lowercase().as_str(), "y" | "yes")))
}

/// Formats the fields of log lines for a terminal. What tracing does by itself escapes the message alone.
pub(super) struct LogFields;

impl<'writer> FormatFields<'writer> for LogFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        debug_fn(field).delimited(" ").format_fields(writer, fields)
    }
}

fn field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let value = format!("{value:?}");
    let value = escaped(&value, Layout::Line);
    match field.name() {
        "message" => writer.write_str(&value),
        name if writer.has_ansi_escapes() => write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m{value}"),
        name => write!(writer, "{name}={value}"),
    }
}
