//! What runs on the host, in its `sh`.

use std::fmt::Write;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;

use super::Tail;
use crate::InstanceId;

/// The command line of every channel: takes a script as the first line of its input and becomes it, unless the line breaks
/// off. A shell reads lines byte by byte, so that the rest of the input is the script's.
pub(crate) const COMMAND: &str = r#"exec sh -c 'IFS= read -r l&&eval "$(printf %b "$l")"'"#;

/// What comes before anything that a wrapper says about itself.
pub(super) const ATTENTION: char = '\u{1}';

/// `sweep MARK [GROUP]`: ends every process with this in its environment, or where there is no `/proc` the process group.
/// A process that is just starting another program shows no environment, so it looks twice.
const SWEEP: &str = r#"
sweep() {
  if [ ! -r /proc/self/environ ]; then
    case $2 in
      "" | 0 | 1) ;;
      *) kill -KILL -- "-$2" 2>/dev/null ;;
    esac
    return 0
  fi
  clean=0 round=0
  while [ "$round" -lt 60 ]; do
    found=
    for file in $(grep -zlF -e "$1" /proc/[0-9]*/environ 2>/dev/null); do
      file=${file#/proc/}
      found="$found ${file%/environ}"
    done
    if [ -z "$found" ]; then
      clean=$((clean + 1))
      [ "$clean" -lt 2 ] || return 0
    else
      clean=0
      kill -STOP $found 2>/dev/null
      kill -KILL $found 2>/dev/null
      [ "$round" -lt 4 ] || sleep 0.05 2>/dev/null || sleep 1
    fi
    round=$((round + 1))
  done
  return 1
}
"#;

/// Looks after an instance until its input ends. `$1`: nonce, `$2`: instance, `$3`: what may be a shell for scripts.
const KEEPER: &str = r#"
trap "" HUP INT TERM PIPE
shell=sh
! command -v bash >/dev/null 2>&1 || shell=bash
printf '\001%s ready %s %s\n' "$1" "$shell" "$(pwd -P)"
while IFS=' ' read -r order call group; do
  case $order in
    kill)
      {
        sweep "MANYHANDS_CALL=$2/$call/" "$group"
        printf 'done %s %s\n' "$call" "$?"
      } &
      ;;
  esac
done
sweep "MANYHANDS_CALL=$2/"
printf 'swept\n'
"#;

/// Something that nobody else says, for this once.
pub(super) fn nonce() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// A name for the work of a lease, safe in a path: the same for all instances of one session's hand.
pub(crate) fn work_name(work: &Path) -> String {
    // FNV-1a: it has to be the same in every build.
    let hash = work.as_os_str().as_encoded_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let name = work.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let name: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(24).collect();
    format!("{name}-{hash:016x}")
}

/// One word for `sh`.
pub(crate) fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A folder for `sh`: `~/` is the home of whoever runs it.
fn folder(path: &str) -> String {
    match path.strip_prefix("~/") {
        Some(rest) => format!("\"$HOME\"/{}", quote(rest)),
        None if path == "~" => "\"$HOME\"".into(),
        None => quote(path),
    }
}

/// A script as the one line that [`COMMAND`] takes.
pub(crate) fn line(script: &str) -> String {
    format!("{}\n", script.replace('\\', r"\\").replace('\n', r"\n"))
}

/// The script of a keeper. `workspace` has `{work}` replaced already.
pub(super) fn keeper(nonce: &str, instance: &InstanceId, work: &str, workspace: &str) -> String {
    let folder = folder(workspace);
    let (mark, owner) = (quote(&format!("{instance}/")), quote(&format!("{work}/")));
    let keeper = quote(&format!("{SWEEP}{KEEPER}"));
    let (nonce, instance) = (quote(nonce), quote(&instance.0));
    format!(
        "{SWEEP}
sweep MANYHANDS_WORK={owner}
(umask 077; mkdir -p -- {folder}) && cd -- {folder} || {{ printf '\\001%s failed\\n' {nonce}; exit 1; }}
MANYHANDS_HOLD={mark} MANYHANDS_WORK={owner}
export MANYHANDS_HOLD MANYHANDS_WORK
exec sh -c {keeper} sh {nonce} {instance}"
    )
}

/// A script that ends everything of some instances, their keepers last.
pub(crate) fn reap(nonce: &str, instances: &[InstanceId]) -> String {
    let mut script = SWEEP.to_owned();
    for instance in instances {
        let [calls, keeper] = ["CALL", "HOLD"].map(|what| quote(&format!("MANYHANDS_{what}={instance}/")));
        let _ = writeln!(script, "sweep {calls} && sweep {keeper} || left=yes");
    }
    let _ = write!(script, "printf '\\001%s reaped %s\\n' {nonce} \"${{left:-all}}\"");
    script
}

/// A script that ends what runs in the work of this name, and removes the folder. `path` has `{work}` replaced already.
pub(super) fn remove(nonce: &str, work: &str, path: &str) -> String {
    let (folder, owner) = (folder(path), quote(&format!("{work}/")));
    format!(
        "{SWEEP}
sweep MANYHANDS_WORK={owner}
left=all
rm -rf -- {folder} 2> /dev/null || left=no
printf '\\001%s removed %s\\n' {nonce} \"$left\""
    )
}

/// Which call of which instance a command is.
pub(super) struct Mark<'a> {
    pub(super) instance: &'a InstanceId,
    pub(super) work: &'a str,
    pub(super) call: u64,
}

/// What a wrapper runs.
pub(super) struct Wrapped<'a> {
    pub(super) nonce: &'a str,
    pub(super) mark: Mark<'a>,
    /// The real folder of the work.
    pub(super) workspace: &'a str,
    pub(super) cwd: &'a str,
    pub(super) argv: &'a [String],
    pub(super) merged: Merged,
    pub(super) tail: Tail,
}

/// Whether standard error goes where standard output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Merged {
    Yes,
    No,
}

/// What a call's channel becomes first: something that has the marks, says `start` and waits for the rest. Until then
/// nothing has run, and from then on the keeper finds it. `$1`: nonce.
const WAIT: &str = r#"printf '\001%s start %s\n' "$1" "$$"; IFS= read -r l && eval "$(printf %b "$l")""#;

/// The two scripts of a call. The second is for the one that waits: says `run`, in both streams, and becomes the command.
pub(super) fn call(wrapped: &Wrapped<'_>) -> [String; 2] {
    let Wrapped { nonce, mark, workspace, cwd, argv, merged, tail } = wrapped;
    let id = quote(&format!("{}/{}/", mark.instance, mark.call));
    let (work, workspace, cwd) = (quote(&format!("{}/", mark.work)), quote(workspace), quote(cwd));
    let argv = argv.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ");
    let merge = match merged {
        Merged::Yes => "exec 2>&1".to_owned(),
        Merged::No => format!("printf '\\001%s run\\n' {nonce} >&2"),
    };
    let run = match tail {
        Tail::Channel => format!("exec {argv}"),
        Tail::Printed => {
            let error = match merged {
                Merged::Yes => String::new(),
                Merged::No => format!("printf '\\001%s end\\n' {nonce} >&2;"),
            };
            format!("{argv}\ncode=$?; {error} printf '\\001%s end %s\\n' {nonce} \"$code\"")
        }
    };
    let wait = format!(
        "MANYHANDS_CALL={id} MANYHANDS_WORK={work} WORKSPACE={workspace}
export MANYHANDS_CALL MANYHANDS_WORK WORKSPACE
exec sh -c {} sh {nonce}",
        quote(WAIT)
    );
    let go = format!(
        "if ! cd -- {cwd} 2>/dev/null; then
  why=2
  [ ! -e {cwd} ] || why=20
  [ ! -d {cwd} ] || why=13
  printf '\\001%s cwd %s\\n' {nonce} \"$why\"
  exit 1
fi
{merge}
printf '\\001%s run\\n' {nonce}
{run}"
    );
    [wait, go]
}

/// What a [`Tail::Printed`] wrapper prints at the end: on standard output a space, the exit code and a newline come after
/// it, and where standard error is told apart a newline there.
pub(crate) fn end_mark(nonce: &str) -> String {
    format!("{ATTENTION}{nonce} end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_one_line_that_a_shell_turns_back() {
        let script = "printf '%s' 'a\\nb\\\\c'\necho \"$HOME\" 'it'\\''s'; cat";
        let line = line(script);
        assert_eq!(line.matches('\n').count(), 1);
        let mut child = std::process::Command::new("sh")
            .args(["-c", COMMAND])
            .env("HOME", "/home/x")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), format!("{line}rest").as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "a\\nb\\\\c/home/x it's\nrest");
    }
}
