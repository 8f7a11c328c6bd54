//! The tools `glob` and `grep`.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use async_trait::async_trait;
use bytes::Bytes;
use globset::{GlobBuilder, GlobMatcher};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::script::{self, Cut};
use super::{Failure, Flow, Shell, Sink, Stop, Stream, Surroundings, add_note, decode, size};
use crate::{CallContext, Effects, Outcome, Tool};

/// Most paths that `glob` answers with.
const MOST_PATHS: usize = 1000;
/// Most bytes of the list of all files that `glob` chooses from.
const MOST_LISTED: usize = 32 * 1024 * 1024;
/// Most bytes that `grep` answers with.
const MOST_FOUND: usize = 1024 * 1024;
/// Most lines of context around a match.
const MOST_CONTEXT: u64 = 100;
/// Lists what is below `$1` for a find without `-printf`: busybox's. Names with line ends are not found.
const LIST: &str = r#"
[ -e "$1" ] || { echo "$1: No such file or directory" >&2; exit 1; }
find -H "$1" -name .git -prune -o ! -type d -exec stat -c '%Y %n' {} + | tr '\n' '\000'
"#;

pub(super) fn glob_tool(surroundings: &Surroundings) -> Tool {
    let workspace = surroundings.workspace.display();
    let description = format!(
        "Finds files by a pattern such as `**/*.rs` or `src/*.{{c,h}}`, the newest first, {MOST_PATHS} at most. \
         A pattern without `/` matches names at any depth. Looks below {workspace} unless path says otherwise; \
         leaves out .git."
    );
    let properties = json!({
        "pattern": {"type": "string", "description": "`*` and `?` within a name, `**` over folders, `{a,b}`, `[a-z]`"},
        "path": {"type": "string", "description": "The folder to look in"},
    });
    super::tool("glob", description, Effects::ReadOnly, &["pattern"], properties)
}

pub(super) fn grep_tool(surroundings: &Surroundings) -> Tool {
    let workspace = surroundings.workspace.display();
    let description = format!(
        "Searches the text of files with `grep -rE` (extended regular expressions). Looks below {workspace} unless \
         path says otherwise; leaves out .git and binary files."
    );
    let properties = json!({
        "pattern": {"type": "string", "description": "The regular expression"},
        "path": {"type": "string", "description": "The file or folder to look in"},
        "glob": {"type": "string", "description": "Only files whose name matches, such as `*.rs`"},
        "ignore_case": {"type": "boolean", "default": false},
        "context": {
            "type": "integer", "minimum": 0, "maximum": MOST_CONTEXT, "default": 0,
            "description": "Lines to show around each match",
        },
        "output": {
            "enum": ["lines", "files", "count"], "default": "lines",
            "description": "Matching lines with their numbers, names of matching files, or matches per file",
        },
    });
    super::tool("grep", description, Effects::ReadOnly, &["pattern"], properties)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GlobArguments {
    pattern: String,
    path: Option<String>,
}

pub(super) async fn run_glob(
    surroundings: &Surroundings,
    shell: &dyn Shell,
    arguments: &Map<String, Value>,
    context: &CallContext,
) -> Result<Outcome, Failure> {
    let GlobArguments { pattern, path } = decode("glob", arguments)?;
    let base = surroundings.path(path.as_deref().unwrap_or("."))?;
    let matcher = matcher(&base, &pattern)?;
    let find =
        ["find", "-H", &base, "-name", ".git", "-prune", "-o", "!", "-type", "d", "-printf", "%T@ %p\\0"];
    let argv = find.map(str::to_owned).to_vec();
    let mut newest = Newest::new(matcher);
    let mut done = script::run_into(shell, context, argv, Bytes::new(), &mut newest).await?;
    if done.code != 0 && done.error.contains("-printf") {
        let argv = script::sh(LIST, [base.clone()]);
        done = script::run_into(shell, context, argv, Bytes::new(), &mut newest).await?;
    }
    if newest.listed == 0 && done.code != 0 {
        return Err(Failure::Refused(format!("Can't look in {base}: {}.", done.error)));
    }
    let (more, found) = newest.found();
    if found.is_empty() {
        return Ok(Outcome::ok(format!("[no file below {base} matches {pattern}]")));
    }
    let mut text: String = found.iter().flat_map(|entry| [entry.path.as_str(), "\n"]).collect();
    if more > 0 {
        add_note(&mut text, &format!("{more} more; narrow the pattern"));
    } else if done.cut == Cut::Short {
        add_note(&mut text, "there are too many files to look at all; narrow the path");
    }
    Ok(Outcome::ok(text.trim_end()))
}

/// The newest of the files that match, as they are listed.
struct Newest {
    matcher: GlobMatcher,
    /// Bytes of the list so far.
    listed: usize,
    /// The entry that the last bytes broke off in.
    broken: Vec<u8>,
    /// The one that goes first when there are too many is on top.
    kept: BinaryHeap<Entry>,
    /// Bytes of their paths.
    bytes: usize,
    /// How many match that are not kept.
    more: usize,
}

/// A file that was found.
struct Entry {
    at: f64,
    path: String,
}

impl Ord for Entry {
    /// The newest first, and of one age by name.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then_with(|| self.path.cmp(&other.path))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

impl Newest {
    fn new(matcher: GlobMatcher) -> Self {
        let (broken, kept) = (Vec::new(), BinaryHeap::new());
        Self { matcher, listed: 0, broken, kept, bytes: 0, more: 0 }
    }

    fn entry(&mut self, entry: &[u8]) {
        let entry = std::str::from_utf8(entry).ok().and_then(|entry| entry.split_once(' '));
        let Some((at, path)) = entry.filter(|(_, path)| self.matcher.is_match(path)) else { return };
        let Ok(at) = at.parse() else { return };
        self.bytes += path.len();
        self.kept.push(Entry { at, path: path.to_owned() });
        while self.kept.len() > MOST_PATHS || self.bytes > MOST_FOUND {
            let Some(last) = self.kept.pop() else { return };
            self.bytes -= last.path.len();
            self.more += 1;
        }
    }

    /// How many more match, and those that are kept, the newest first.
    fn found(self) -> (usize, Vec<Entry>) {
        (self.more, self.kept.into_sorted_vec())
    }
}

#[async_trait]
impl Sink for Newest {
    async fn take(&mut self, _: Stream, bytes: &[u8]) -> Flow {
        self.listed += bytes.len();
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == 0) {
            let mut entry = std::mem::take(&mut self.broken);
            entry.extend_from_slice(&rest[..end]);
            self.entry(&entry);
            rest = &rest[end + 1..];
        }
        // Nothing that is longer is a path.
        let room = MOST_FOUND.saturating_sub(self.broken.len());
        self.broken.extend_from_slice(&rest[..rest.len().min(room)]);
        if self.listed > MOST_LISTED { Flow::Stop(Stop::Enough) } else { Flow::Continue }
    }
}

/// Matches whole paths.
fn matcher(base: &str, pattern: &str) -> Result<GlobMatcher, Failure> {
    let relative =
        if pattern.contains('/') { pattern.trim_start_matches("./") } else { &format!("**/{pattern}") };
    let whole = if pattern.starts_with('/') {
        pattern.to_owned()
    } else {
        format!("{}/{relative}", globset::escape(base.trim_end_matches('/')))
    };
    let glob = GlobBuilder::new(&whole).literal_separator(true).build();
    let glob = glob.map_err(|error| Failure::Refused(format!("pattern is wrong: {}.", error.kind())))?;
    Ok(glob.compile_matcher())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GrepArguments {
    pattern: String,
    path: Option<String>,
    glob: Option<String>,
    #[serde(default)]
    ignore_case: bool,
    #[serde(default)]
    context: u64,
    #[serde(default)]
    output: Output,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Output {
    #[default]
    Lines,
    Files,
    Count,
}

pub(super) async fn run_grep(
    surroundings: &Surroundings,
    shell: &dyn Shell,
    arguments: &Map<String, Value>,
    context: &CallContext,
) -> Result<Outcome, Failure> {
    let arguments: GrepArguments = decode("grep", arguments)?;
    if arguments.context > MOST_CONTEXT {
        return Err(Failure::Refused(format!("context must be at most {MOST_CONTEXT} lines.")));
    }
    let path = surroundings.path(arguments.path.as_deref().unwrap_or("."))?;
    let argv = grep(&arguments, &path);
    let mut printed = script::run(shell, context, argv, Bytes::new(), MOST_FOUND).await?;
    if printed.code != 0 && printed.error.contains("option") {
        let argv = plain_grep(&arguments, &path);
        printed = script::run(shell, context, argv, Bytes::new(), MOST_FOUND).await?;
        if printed.output.is_empty() && !printed.error.is_empty() {
            printed.code = 2;
        }
    }
    let mut text = String::from_utf8_lossy(&printed.output).into_owned();
    if arguments.output == Output::Count {
        // `grep -c` names every file, those without a match too.
        text = text.lines().filter(|line| !line.ends_with(":0")).flat_map(|line| [line, "\n"]).collect();
    }
    if text.is_empty() && printed.code > 1 {
        return Err(Failure::Refused(format!(
            "Can't search: {}.",
            printed.error.trim_start_matches("grep: ")
        )));
    }
    if text.is_empty() {
        return Ok(Outcome::ok(format!("[nothing below {path} matches]")));
    }
    if printed.cut == Cut::Short {
        add_note(&mut text, &format!("more than {} found; narrow the search", size(MOST_FOUND)));
    } else if printed.code > 1 {
        add_note(&mut text, &format!("not all could be searched: {}", printed.error));
    }
    Ok(Outcome::ok(text.trim_end()))
}

fn grep(arguments: &GrepArguments, path: &str) -> Vec<String> {
    let mut argv: Vec<String> = ["grep", "-rIHE", "--exclude-dir=.git"].map(str::to_owned).to_vec();
    if let Some(glob) = &arguments.glob {
        argv.push(format!("--include={glob}"));
    }
    what(arguments, &mut argv);
    argv.extend(["--".into(), path.to_owned()]);
    argv
}

/// For a grep that can neither leave out nor choose files: busybox's.
fn plain_grep(arguments: &GrepArguments, path: &str) -> Vec<String> {
    let mut argv: Vec<String> =
        ["find", "-H", path, "-name", ".git", "-prune", "-o", "-type", "f"].map(str::to_owned).to_vec();
    if let Some(glob) = &arguments.glob {
        argv.extend(["-name".into(), glob.clone()]);
    }
    argv.extend(["-exec", "grep", "-HE"].map(str::to_owned));
    what(arguments, &mut argv);
    argv.extend(["--", "{}", "+"].map(str::to_owned));
    argv
}

/// What is searched for and shown.
fn what(arguments: &GrepArguments, argv: &mut Vec<String>) {
    match arguments.output {
        Output::Lines => argv.push("-n".into()),
        Output::Files => argv.push("-l".into()),
        Output::Count => argv.push("-c".into()),
    }
    if arguments.ignore_case {
        argv.push("-i".into());
    }
    if arguments.context > 0 {
        argv.push(format!("-C{}", arguments.context));
    }
    argv.extend(["-e".into(), arguments.pattern.clone()]);
}
