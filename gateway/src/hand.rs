//! How hands are named and set up: the same in `manyhands.toml` and in the database.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use hands::sandbox::{Access, Mount, SandboxConfig};
use serde::{Deserialize, Serialize};

/// Longest name of a hand, in characters.
const HAND_NAME_MAX: usize = 24;

/// The text can't name a hand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no name for a hand: use 1 to {HAND_NAME_MAX} of a-z, 0-9 and '-', beginning with a letter")]
pub struct BadHandName(String);

/// Names a hand: `^[a-z][a-z0-9-]{0,23}$`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HandName(String);

impl HandName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HandName {
    type Err = BadHandName;

    fn from_str(name: &str) -> Result<Self, BadHandName> {
        let good = name.len() <= HAND_NAME_MAX
            && name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        if good { Ok(Self(name.to_owned())) } else { Err(BadHandName(name.to_owned())) }
    }
}

impl TryFrom<String> for HandName {
    type Error = BadHandName;

    fn try_from(name: String) -> Result<Self, BadHandName> {
        name.parse()
    }
}

impl From<HandName> for String {
    fn from(name: HandName) -> String {
        name.0
    }
}

impl fmt::Display for HandName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a hand is set up, by kind. The same in the file and in the database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum HandConfig {
    /// A sandbox on this machine.
    Sandbox(SandboxSettings),
}

impl HandConfig {
    /// The kind's name.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Sandbox(_) => "sandbox",
        }
    }

    /// How long an instance lives that nobody calls.
    pub fn idle(&self) -> Duration {
        match self {
            Self::Sandbox(settings) => Duration::from_secs(settings.idle_s),
        }
    }
}

/// How a sandbox is set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxSettings {
    /// Folders of this machine inside it: `HOST:/path` or `HOST:/path:ro`.
    pub mounts: Vec<String>,
    /// What it can reach. Default none.
    pub network: Network,
    /// An instance that no call used for so long is released, in seconds; `/workspace` stays. Default 900.
    pub idle_s: u64,
}

impl Default for SandboxSettings {
    fn default() -> Self {
        Self { mounts: Vec::new(), network: Network::None, idle_s: 900 }
    }
}

/// Why a mount can't be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMount {
    /// Not the form of one.
    #[error("{0:?} is no mount: write HOST:/path or HOST:/path:ro, both absolute")]
    Form(String),
    /// There is nothing at the host's end.
    #[error("there is no {0} on this machine to mount")]
    Missing(PathBuf),
}

impl SandboxSettings {
    /// What the sandbox is made of. `program` is our own executable.
    pub fn resolve(&self, program: PathBuf) -> Result<SandboxConfig, BadMount> {
        let mounts = self.mounts.iter().map(|mount| resolve_mount(mount)).collect::<Result<_, _>>()?;
        let network = match self.network {
            Network::None => hands::sandbox::Network::None,
            Network::Host => hands::sandbox::Network::Host,
        };
        Ok(SandboxConfig { mounts, network, ..SandboxConfig::new(program) })
    }
}

fn resolve_mount(text: &str) -> Result<Mount, BadMount> {
    let form = || BadMount::Form(text.to_owned());
    let (rest, access) = match text.strip_suffix(":ro") {
        Some(rest) => (rest, Access::ReadOnly),
        None => (text, Access::ReadWrite),
    };
    let (host, at) = rest.rsplit_once(':').ok_or_else(form)?;
    let (host, at) = (PathBuf::from(host), PathBuf::from(at));
    if !host.is_absolute() || !at.is_absolute() || at == Path::new("/") {
        return Err(form());
    }
    let host = host.canonicalize().map_err(|_| BadMount::Missing(host))?;
    Ok(Mount { host, at, access })
}

/// What a sandbox can reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Nothing but itself.
    #[default]
    None,
    /// All that this machine can.
    Host,
}
