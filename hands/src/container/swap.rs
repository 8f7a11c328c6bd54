//! How all that is in a workspace gives way to what was unpacked beside it.
//!
//! The old goes aside first, then the new comes in, and only then is the old removed. So whatever fails or is killed in
//! between, one of the two is there whole, and the names of the folders in `.manyhands` say where it is:
//!
//! - `restoring`: the new, as long as it is not in its place.
//! - `replacing`: the old, of which some is still in its place.
//! - `replaced`: the old. What is in its place is new.
//! - `discarded`: what nobody needs any more.

use crate::sandbox::copy::FOLDERS;

/// What the scripts here have in common. Each ends with 0 or says why it does not.
const COMMON: &str = r#"
set -e
ours=/workspace/.manyhands
all() { # all that is in the folder $1 goes to $2, but what is ours
  for entry in "$1"/..?* "$1"/.[!.]* "$1"/*; do
    [ "${entry##*/}" != .manyhands ] || continue
    if [ -e "$entry" ] || [ -L "$entry" ]; then
      [ "$3" != over ] || wipe "$2/${entry##*/}"
      move "$entry" "$2/${entry##*/}"
    fi
  done
}
back() { # the old comes back into its place, if it is not there
  if [ -d "$ours/replaced" ]; then
    mkdir -p "$ours/discarded"
    all /workspace "$ours/discarded" over
    move "$ours/replaced" "$ours/replacing"
  fi
  if [ -d "$ours/replacing" ]; then
    all "$ours/replacing" /workspace over
    rmdir "$ours/replacing"
  fi
}
clear() { # nothing is left of what broke off
  back
  wipe "$ours/restoring" "$ours/discarded" "$ours"/checkpoints/.*.new
}
"#;

/// Puts what is in `restoring` in the place of all that is there.
const SWAP: &str = r#"
mkdir "$ours/replacing"
all /workspace "$ours/replacing"
move "$ours/replacing" "$ours/replaced"
all "$ours/restoring" /workspace
move "$ours/replaced" "$ours/discarded"
# It is done, whatever becomes of the rest.
wipe "$ours/restoring" "$ours/discarded" 2> /dev/null || true
"#;

/// What a shell does before anything else in a workspace: ends what was killed in the middle of a swap. It starts no
/// program unless there was one, and prints nothing.
pub(super) fn at_start() -> String {
    let broke_off = "[ -d /workspace/.manyhands/replaced ] || [ -d /workspace/.manyhands/replacing ]";
    format!("if {broke_off}; then ({FOLDERS}{COMMON}back) > /dev/null 2>&1 < /dev/null; fi\n")
}

/// A script before which all is cleared that others left which broke off.
pub(super) fn cleared(rest: &str) -> String {
    format!("{FOLDERS}{COMMON}clear\n{rest}")
}

/// The script that swaps.
pub(super) fn swap() -> String {
    format!("{FOLDERS}{COMMON}{SWAP}")
}
