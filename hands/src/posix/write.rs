//! The tools `write` and `edit`.
//!
//! A file changes as a whole or not at all: its new content is written beside it and renamed over it.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::script::{self, Cut};
use super::{Failure, Shell, Surroundings, decode, read, size};
use crate::{CallContext, Effects, Outcome, Tool};

/// Most bytes of a file that `edit` changes.
const MAX_EDIT: usize = 16 * 1024 * 1024;

/// Writes standard input, `$2` bytes, to the file `$1`, if links and all it lies below one of `$3`, `$4`, ….
const WRITE: &str = r#"
path=$1 length=$2
shift 2
nearest() { # for a realpath without -m: busybox's
  up=$path rest=
  while [ ! -e "$up" ] && [ ! -L "$up" ]; do
    rest=/${up##*/}$rest up=${up%/*}
    [ "$up" ] || up=/
  done
  case $rest/ in */../* | */./*) return 1 ;; esac
  up=$(readlink -f -- "$up") && printf %s "${up%/}$rest"
}
target=$(realpath -m -- "$path" 2> /dev/null) || target=$(nearest) || exit 22
allowed=
for root do
  case $target in "$root"/*) allowed=yes ;; esac
done
[ "$allowed" ] || { printf %s "$target"; exit 21; }
[ -d "$target" ] && exit 11
if [ -e "$target" ]; then
  [ -f "$target" ] || exit 12
  [ -w "$target" ] || exit 24
  mode=$(stat -c %a -- "$target")
  # As when a file is written to: what runs as its owner or group no longer does.
  case $mode in ????) mode=${mode#?} ;; esac
else
  mode=$(printf %o $((0666 & ~$(umask))))
fi
folder=$(dirname -- "$target")
mkdir -p -- "$folder" || exit 22
new=$(mktemp -- "$folder/.manyhands-XXXXXX") || exit 22
trap 'rm -f -- "$new"' EXIT
cat > "$new" || exit 22
[ "$(wc -c < "$new")" -eq "$length" ] || exit 23
chmod -- "$mode" "$new" && mv -fT -- "$new" "$target" || exit 22
trap - EXIT
"#;

/// Prints a file.
const READ: &str = r#"
[ -e "$1" ] || exit 10
[ -d "$1" ] && exit 11
[ -f "$1" ] || exit 12
[ -r "$1" ] || exit 13
exec cat -- "$1"
"#;

pub(super) fn write_tool(surroundings: &Surroundings) -> Tool {
    let places = surroundings.places();
    let description = format!(
        "Writes a file as a whole, replacing what was there; missing folders are made. Only below {places}. \
         Other files may be changed with edit."
    );
    let properties = json!({
        "path": {"type": "string", "description": "The file, absolute or below the workspace"},
        "content": {"type": "string", "description": "All that it is to hold"},
    });
    super::tool("write", description, Effects::Destructive, &["path", "content"], properties)
}

pub(super) fn edit_tool(surroundings: &Surroundings) -> Tool {
    let places = surroundings.places();
    let description = format!(
        "Replaces text in a file. old must occur exactly once, unless replace_all is true. Only below {places}; \
         files that are UTF-8, of at most {}.",
        size(MAX_EDIT)
    );
    let properties = json!({
        "path": {"type": "string", "description": "The file, absolute or below the workspace"},
        "old": {"type": "string", "minLength": 1, "description": "The text to replace, exactly as it is"},
        "new": {"type": "string", "description": "What to put in its place"},
        "replace_all": {"type": "boolean", "default": false, "description": "Replace every occurrence"},
    });
    super::tool("edit", description, Effects::Destructive, &["path", "old", "new"], properties)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WriteArguments {
    path: String,
    content: String,
}

pub(super) async fn run_write(
    surroundings: &Surroundings,
    shell: &dyn Shell,
    arguments: &Map<String, Value>,
    context: &CallContext,
) -> Result<Outcome, Failure> {
    let WriteArguments { path, content } = decode("write", arguments)?;
    let path = surroundings.path(&path)?;
    let length = content.len();
    put(surroundings, shell, context, &path, content).await?;
    Ok(Outcome::ok(format!("Wrote {length} bytes to {path}.")))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EditArguments {
    path: String,
    old: String,
    new: String,
    #[serde(default)]
    replace_all: bool,
}

pub(super) async fn run_edit(
    surroundings: &Surroundings,
    shell: &dyn Shell,
    arguments: &Map<String, Value>,
    context: &CallContext,
) -> Result<Outcome, Failure> {
    let EditArguments { path, old, new, replace_all } = decode("edit", arguments)?;
    let path = surroundings.path(&path)?;
    let refuse = |why: String| Err(Failure::Refused(why));
    if old.is_empty() {
        return refuse("old is empty; to make a file or replace it as a whole, use write.".into());
    }
    if old == new {
        return refuse("old and new are the same; there is nothing to change.".into());
    }
    let printed =
        script::run(shell, context, script::sh(READ, [path.clone()]), Bytes::new(), MAX_EDIT).await?;
    read::check(&path, printed.code, &printed.error)?;
    if printed.cut == Cut::Short {
        return refuse(format!("{path} is larger than {}; change it with bash.", size(MAX_EDIT)));
    }
    let Ok(text) = String::from_utf8(printed.output) else {
        return refuse(format!("{path} is not UTF-8 text; change it with bash."));
    };
    let count = text.matches(&old).count();
    match count {
        0 => return refuse(format!("old does not occur in {path}; read it and copy the text exactly.")),
        2.. if !replace_all => {
            return refuse(format!(
                "old occurs {count} times in {path}; give more of its surroundings, or set replace_all."
            ));
        }
        _ => {}
    }
    put(surroundings, shell, context, &path, text.replace(&old, &new)).await?;
    let times = if count == 1 { "once".to_owned() } else { format!("{count} times") };
    Ok(Outcome::ok(format!("Replaced it {times} in {path}.")))
}

async fn put(
    surroundings: &Surroundings,
    shell: &dyn Shell,
    context: &CallContext,
    path: &str,
    whole: String,
) -> Result<(), Failure> {
    let roots = surroundings.writable.iter().map(|root| root.to_string_lossy().into_owned());
    let arguments = [path.to_owned(), whole.len().to_string()].into_iter().chain(roots);
    let argv = script::sh(WRITE, arguments);
    let printed = script::run(shell, context, argv, Bytes::from(whole), 64 * 1024).await?;
    let why = match printed.code {
        0 => return Ok(()),
        11 => format!("{path} is a folder; name a file in it."),
        12 => format!("{path} is not a regular file; use bash for devices and pipes."),
        21 => {
            let target = String::from_utf8_lossy(&printed.output);
            let places = surroundings.places();
            let link = if target == path { String::new() } else { format!(", which is {target},") };
            format!("{path}{link} can't be written: only files below {places} can.")
        }
        24 => format!("{path} is write-protected; change its mode with `chmod` first. Nothing was changed."),
        23 => format!("{path} did not fit; make room first. Nothing was changed."),
        _ => format!("Can't write {path}: {}. Nothing was changed.", printed.error.trim_end_matches('.')),
    };
    Err(Failure::Refused(why))
}
