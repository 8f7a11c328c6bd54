//! The tool `read`.

use async_trait::async_trait;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::output::{Replaced, Text};
use super::{Failure, Flow, Shell, Sink, Stop, Stream, Surroundings, decode, script, size};
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
    let text = Text::new(surroundings.output, context.spool.clone(), None);
    let wanted = Wanted { lines: limit, room: surroundings.output };
    let mut shown = Shown { kind: None, image: Vec::new(), text, wanted, rest: Rest::None };
    let done = script::run_into(shell, context, argv, Bytes::new(), &mut shown).await?;
    check(&path, done.code, &done.error)?;
    match shown.kind {
        Some(b'i') => show_image(&path, shown.image),
        Some(_) => shown.text(&path, offset, limit).await,
        None => Err(Failure::Refused(format!("Can't read {path}: {}.", done.error))),
    }
}

/// Says why a file can't be read, by the exit code of a script.
pub(super) fn check(path: &str, code: i32, error: &str) -> Result<(), Failure> {
    let why = match code {
        0 => return Ok(()),
        10 => format!("{path} does not exist; look with glob or `ls`."),
        11 => format!("{path} is a folder; list it with glob or `ls`."),
        12 => format!("{path} is not a regular file; use bash for devices and pipes."),
        13 => format!("{path} may not be read; look at its mode with `ls -l`."),
        _ => format!("Can't read {path}: {error}."),
    };
    Err(Failure::Refused(why))
}

fn show_image(path: &str, image: Vec<u8>) -> Result<Outcome, Failure> {
    if image.len() > MAX_IMAGE {
        let most = size(MAX_IMAGE);
        return Err(Failure::Refused(format!(
            "{path} is an image of more than {most}; make it smaller first."
        )));
    }
    let mime = if image.starts_with(b"\x89PNG") { "image/png" } else { "image/jpeg" };
    let content = Content::Image { data: image.into(), mime };
    Ok(Outcome { ending: Ending::Ok, content: vec![content], reply: None })
}

/// What a file shows, as it comes.
struct Shown {
    /// The first byte: whether it is an image.
    kind: Option<u8>,
    image: Vec<u8>,
    text: Text,
    wanted: Wanted,
    rest: Rest,
}

/// How much more is wanted.
struct Wanted {
    lines: u64,
    /// In bytes.
    room: usize,
}

/// What was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    None,
    /// There is more of it.
    More,
    /// It is no text.
    Binary,
}

#[async_trait]
impl Sink for Shown {
    async fn take(&mut self, stream: Stream, mut bytes: &[u8]) -> Flow {
        if self.kind.is_none()
            && let Some((kind, rest)) = bytes.split_first()
        {
            (self.kind, bytes) = (Some(*kind), rest);
        }
        if self.kind == Some(b'i') {
            let room = (MAX_IMAGE + 1).saturating_sub(self.image.len());
            self.image.extend_from_slice(&bytes[..room.min(bytes.len())]);
            return Flow::Continue;
        }
        if bytes.contains(&0) {
            self.rest = Rest::Binary;
            return Flow::Stop(Stop::Enough);
        }
        let (part, lines) = first_lines(bytes, self.wanted.lines);
        let part = &part[..part.len().min(self.wanted.room)];
        self.wanted.lines -= lines;
        self.wanted.room -= part.len();
        let flow = self.text.take(stream, part).await;
        if part.len() < bytes.len() {
            self.rest = Rest::More;
            return Flow::Stop(Stop::Enough);
        }
        flow
    }
}

impl Shown {
    async fn text(self, path: &str, offset: u64, limit: u64) -> Result<Outcome, Failure> {
        let Self { mut text, rest, .. } = self;
        if rest == Rest::Binary {
            return Err(Failure::Refused(format!(
                "{path} is binary; look at it with bash, such as `file` or `xxd`."
            )));
        }
        let replaced = text.end();
        if text.len() == 0 {
            text.note(&if offset == 1 {
                "empty".to_owned()
            } else {
                format!("nothing from line {offset} on")
            });
        }
        if rest == Rest::More {
            let next = offset.saturating_add(limit);
            text.note(&format!("more follows: go on with offset {next}"));
        }
        if replaced == Replaced::Some {
            text.note("bytes that are not UTF-8 are shown as \u{fffd}");
        }
        Ok(Outcome { ending: Ending::Ok, content: vec![text.content().await], reply: None })
    }
}

/// The first `most` lines of these bytes, and how many of them end there.
fn first_lines(bytes: &[u8], most: u64) -> (&[u8], u64) {
    let mut lines = 0;
    if most == 0 {
        return (&[], 0);
    }
    for (at, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
        lines += 1;
        if lines == most {
            return (&bytes[..=at], lines);
        }
    }
    (bytes, lines)
}
