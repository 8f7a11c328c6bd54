//! How hands are named and set up: the same in `manyhands.toml` and in the database.

mod mcp;
mod sandbox;
mod source;

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use mcp::{BadServer, McpSettings, Protocol, Share};
pub use sandbox::{BadMount, Network, SandboxSettings, split_mount};
pub use source::{Source, Variables};

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
    /// An MCP server.
    Mcp(McpSettings),
}

/// Why a hand can't be as it is set up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHand {
    /// A mount of a sandbox.
    #[error(transparent)]
    Mount(#[from] BadMount),
    /// What is said of an MCP server.
    #[error(transparent)]
    Server(#[from] BadServer),
}

impl HandConfig {
    /// Refuses what can be read and makes no sense. Touches nothing.
    pub fn check(&self) -> Result<(), BadHand> {
        match self {
            // Its mounts are read when it is made.
            Self::Sandbox(_) => Ok(()),
            Self::Mcp(settings) => Ok(settings.check()?),
        }
    }

    /// Makes relative paths absolute, as seen from `folder`; `home` is `~`.
    pub fn place(&mut self, folder: &Path, home: Option<&Path>) {
        match self {
            // The host's end of a mount is refused unless it is absolute.
            Self::Sandbox(_) => {}
            Self::Mcp(settings) => settings.place(folder, home),
        }
    }

    /// As listings show it: without the values of variables and headers, and without what looks like a credential.
    pub fn shown(&self) -> Value {
        let mut shown = match self {
            Self::Sandbox(settings) => serde_json::to_value(settings).unwrap_or_default(),
            Self::Mcp(settings) => settings.shown(),
        };
        shown["kind"] = self.kind().into();
        shown
    }

    /// What a brain is told of a lost instance: what the next call gets, and what is gone.
    pub fn loss(&self) -> &'static str {
        match self {
            Self::Sandbox(_) => {
                "The next call gets a fresh instance with the same /workspace; background processes and files outside \
                 /workspace are gone."
            }
            Self::Mcp(settings) if settings.url.is_some() => "The next call connects to the server anew.",
            Self::Mcp(_) => "The next call starts the server anew: what it kept in memory is gone.",
        }
    }

    /// The kind's name.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Sandbox(_) => "sandbox",
            Self::Mcp(_) => "mcp",
        }
    }

    /// Some hand of that kind that leaves processes behind.
    pub(crate) fn any(kind: &str) -> Option<Self> {
        match kind {
            "sandbox" => Some(Self::Sandbox(SandboxSettings::default())),
            "mcp" => {
                Some(Self::Mcp(McpSettings { command: vec!["true".to_owned()], ..McpSettings::default() }))
            }
            _ => None,
        }
    }

    /// Whether its calls are in the log.
    pub fn logged(&self) -> Logged {
        match self {
            Self::Mcp(settings) if !settings.log => Logged::No,
            Self::Mcp(_) | Self::Sandbox(_) => Logged::Yes,
        }
    }

    /// What one of its instances costs this machine.
    pub fn weight(&self) -> Weight {
        match self {
            Self::Sandbox(_) => Weight::Own,
            Self::Mcp(settings) if settings.url.is_none() && settings.share() == Share::Session => {
                Weight::Own
            }
            Self::Mcp(_) => Weight::Shared,
        }
    }

    /// How long an instance lives that nobody calls.
    pub fn idle(&self) -> Duration {
        match self {
            Self::Sandbox(settings) => Duration::from_secs(settings.idle_s),
            Self::Mcp(settings) => Duration::from_secs(settings.idle_s),
        }
    }
}

/// What an instance costs this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Processes of its own: it counts against `limits.instances`.
    Own,
    /// Next to nothing: a connection, or a share of a process that others have as well.
    Shared,
}

/// Whether calls of a hand are written to the session's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logged {
    /// Before and after, durably.
    Yes,
    /// Not at all: whether a call ran at most once is then the server's to say.
    No,
}
