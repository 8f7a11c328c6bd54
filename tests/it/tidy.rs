//! The rules of the house that a machine can check. `ARCHITECTURE.md` says what they are for.

mod manifest;
mod rooms;
mod source;
mod tree;

use std::path::{Path, PathBuf};

/// The checkout this was compiled from.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace around the package").to_owned()
}

/// Fails with every offender at once, so that one run shows all there is to do.
#[track_caller]
fn none(rule: &str, offenders: &[String]) {
    assert!(offenders.is_empty(), "{rule}:\n  {}", offenders.join("\n  "));
}
