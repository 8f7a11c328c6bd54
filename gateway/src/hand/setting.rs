//! What the settings of several kinds of hand have in common.

use std::path::{Path, PathBuf};

use super::source::{Source, Variables};

/// The longest time that a setting in seconds may have: a day.
const SECONDS_MAX: u64 = 86_400;
/// The largest size that a setting in MiB may have: 16 TiB.
const MIB_MAX: u64 = 16 << 20;

/// What a hand is made of beside its settings.
#[derive(Clone, Debug)]
pub struct Ground {
    /// Our own executable.
    pub program: PathBuf,
    /// The data directory.
    pub data: PathBuf,
    /// The gateway's own files and folders, which no sandbox is shown.
    pub hidden: Vec<PathBuf>,
    /// Reads the gateway's environment.
    pub variables: Variables,
}

/// Why a hand can't be as it is set up. No sentence shows the value of a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSetting {
    /// Something must be given, or less of it.
    #[error("{0}")]
    Needs(&'static str),
    /// A setting has a value that can't be.
    #[error("{setting} must be {must}")]
    Value {
        /// The setting.
        setting: &'static str,
        /// What it may be.
        must: String,
    },
    /// A path is relative, and nobody knows to what.
    #[error("the path {} of {setting} is not absolute", .path.display())]
    Relative {
        /// The setting.
        setting: &'static str,
        /// Its value.
        path: PathBuf,
    },
    /// A secret in plain text, or no value at all.
    #[error(
        "{0} is a secret, which does not stand in a configuration: give it as {0} = {{ env = \"NAME\" }} or {0} = {{ file = \
         \"/path\" }}"
    )]
    Secret(&'static str),
}

/// Refuses a number out of its range.
pub(super) fn within(setting: &'static str, value: u64, least: u64, most: u64) -> Result<(), BadSetting> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(BadSetting::Value { setting, must: format!("{least} to {most}, and is {value}") })
}

/// Refuses a time that nobody waits for.
pub(super) fn seconds(setting: &'static str, value: u64) -> Result<(), BadSetting> {
    within(setting, value, 1, SECONDS_MAX)
}

/// Refuses a size that no machine has.
pub(super) fn mib(setting: &'static str, value: u64) -> Result<(), BadSetting> {
    within(setting, value, 1, MIB_MAX)
}

/// So many MiB in bytes.
pub(super) fn bytes(mib: u64) -> u64 {
    mib.saturating_mul(1 << 20)
}

/// So many MiB in bytes of memory.
pub(super) fn size(mib: u64) -> usize {
    usize::try_from(bytes(mib)).unwrap_or(usize::MAX)
}

/// Refuses a path that is not placed.
pub(super) fn absolute(setting: &'static str, path: &Path) -> Result<(), BadSetting> {
    if path.is_absolute() {
        return Ok(());
    }
    Err(BadSetting::Relative { setting, path: path.to_owned() })
}

/// Refuses a secret that stands there in plain text.
pub(super) fn secret(setting: &'static str, source: &Source) -> Result<(), BadSetting> {
    match source {
        Source::Plain(_) => Err(BadSetting::Secret(setting)),
        source if source.is_sound() => Ok(()),
        _ => Err(BadSetting::Secret(setting)),
    }
}

/// A path as seen from `folder`; `home` is `~`. An absolute one stays what it is.
pub(super) fn placed(path: &Path, folder: &Path, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => folder.join(path),
    }
}

/// Places each of these paths.
pub(super) fn place<'a>(
    paths: impl IntoIterator<Item = &'a mut PathBuf>,
    folder: &Path,
    home: Option<&Path>,
) {
    for path in paths {
        *path = placed(path, folder, home);
    }
}
