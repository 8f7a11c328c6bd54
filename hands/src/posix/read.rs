//! The tool `read`.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::script::{self, Cut, Printed};
use super::{Failure, Shell, Surroundings, add_note, decode, size};
use crate::{CallContext, Content, Effects, Ending, Outcome, Tool};

/// Lines that are read when nobody says how many.
const DEFAULT_LINES: u64 = 2000;
/// Most bytes of an image: what models take.
const MAX_IMAGE: usize = 5 * 1024 * 1024;

/// Prints `i` and an image, or `t` and the lines from `$2` on, `$3` at most. `$4`: most bytes of an image.
const SCRIPT: &str = r#"
[ -e "$1" ] || exit 10
[ -d "$1" ] && exit 11
[ -f "$1" ] || exit 12
[ -r "$1" ] || exit 13
case $(head -c 4 -- "$1" | od -An -tx1 | tr -d ' \n') in
  89504e47 | ffd8ff*) printf i; exec head -c "$4" -- "$1" ;;
esac
printf t
tail -n "+$2" -- "$1" | head -n "$3"
"#;

pub(super) fn tool(surroundings: &Surroundings) -> Tool {
    let workspace = surroundings.workspace.display();
    let description = format!(
        "Reads a file: the lines of a text, {DEFAULT_LINES} unless limit says otherwise, or a PNG or JPEG as an \
         image. Paths are absolute or below {workspace}. Bytes that are not UTF-8 are shown as \u{fffd}."
    );
    let properties = json!({
        "path": {"type": "string", "description": "The file"},
        "offset": {"type": "integer", "minimum": 1, "default": 1, "description": "First line, counted from 1"},
        "limit": {"type": "integer", "minimum": 1, "default": DEFAULT_LINES, "description": "Most lines"},
    });
    super::tool("read", description, Effects::ReadOnly, &["path"], properties)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    path: String,
    offset: Option<u64>,
    limit: Option<u64>,
}

pub(super) async fn run(
    surroundings: &Surroundings,
    shell: &dyn Shell,
    arguments: &Map<String, Value>,
    context: &CallContext,
) -> Result<Outcome, Failure> {
    let Arguments { path, offset, limit } = decode("read", arguments)?;
    let path = surroundings.path(&path)?;
    let (offset, limit) = (offset.unwrap_or(1), limit.unwrap_or(DEFAULT_LINES));
    if offset == 0 || limit == 0 {
        return Err(Failure::Refused("offset and limit count lines from 1.".into()));
    }
    // One line more, to know whether there is one.
    let numbers = [offset, limit.saturating_add(1)].map(|number| number.to_string());
    let [first, lines] = numbers;
    let argv = script::sh(SCRIPT, [path.clone(), first, lines, (MAX_IMAGE + 1).to_string()]);
    let printed = script::run(shell, context, argv, Bytes::new(), surroundings.output).await?;
    check(&path, &printed)?;
    match printed.output.split_first() {
        Some((b'i', image)) => show_image(&path, image),
        Some((_, text)) => show_text(&path, text, offset, limit, printed.cut),
        None => Err(Failure::Refused(format!("Can't read {path}: {}.", printed.error))),
    }
}

/// Says why a file can't be read, by the exit code of a script.
pub(super) fn check(path: &str, printed: &Printed) -> Result<(), Failure> {
    let why = match printed.code {
        0 => return Ok(()),
        10 => format!("{path} does not exist; look with glob or `ls`."),
        11 => format!("{path} is a folder; list it with glob or `ls`."),
        12 => format!("{path} is not a regular file; use bash for devices and pipes."),
        13 => format!("{path} may not be read; look at its mode with `ls -l`."),
        _ => format!("Can't read {path}: {}.", printed.error),
    };
    Err(Failure::Refused(why))
}

fn show_image(path: &str, image: &[u8]) -> Result<Outcome, Failure> {
    if image.len() > MAX_IMAGE {
        let most = size(MAX_IMAGE);
        return Err(Failure::Refused(format!(
            "{path} is an image of more than {most}; make it smaller first."
        )));
    }
    let mime = if image.starts_with(b"\x89PNG") { "image/png" } else { "image/jpeg" };
    let content = Content::Image { data: Bytes::copy_from_slice(image), mime };
    Ok(Outcome { ending: Ending::Ok, content: vec![content], reply: None })
}

fn show_text(path: &str, bytes: &[u8], offset: u64, limit: u64, cut: Cut) -> Result<Outcome, Failure> {
    if bytes.contains(&0) {
        return Err(Failure::Refused(format!(
            "{path} is binary; look at it with bash, such as `file` or `xxd`."
        )));
    }
    let wanted = usize::try_from(limit).unwrap_or(usize::MAX);
    let end = line_end(bytes, wanted);
    let more = end < bytes.len() || cut == Cut::Short;
    let decoded = String::from_utf8_lossy(&bytes[..end]);
    let replaced = decoded.len() != end || std::str::from_utf8(&bytes[..end]).is_err();
    let mut text = decoded.into_owned();
    let mut notes = Vec::new();
    if text.is_empty() {
        notes.push(if offset == 1 { "empty".to_owned() } else { format!("nothing from line {offset} on") });
    }
    if more {
        let next = offset.saturating_add(limit);
        notes.push(format!("more follows: go on with offset {next}"));
    }
    if replaced {
        notes.push("bytes that are not UTF-8 are shown as \u{fffd}".to_owned());
    }
    for note in notes {
        add_note(&mut text, &note);
    }
    Ok(Outcome::ok(text))
}

/// Where the first `lines` lines end.
fn line_end(bytes: &[u8], lines: usize) -> usize {
    let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    ends.take(lines).nth(lines - 1).unwrap_or(bytes.len())
}
