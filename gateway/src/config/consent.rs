//! What a configuration that was only found in a folder may say by itself, and what needs a person's yes.
//!
//! `--config FILE` is a yes. A `manyhands.toml` in the current folder may come from anywhere, such as a repository that
//! was just cloned: what it says that reaches beyond the gateway is asked once, and the answer is kept in the data directory.

use std::fmt::Write as _;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::text::{Layout, escaped};

/// Where answers are kept, in the data directory: a file for each.
const FOLDER: &str = "allowed";
/// Settings that reach nothing beyond the gateway's own work; a table stands for all that is in it.
const HARMLESS: [&str; 12] = [
    "log",
    "drain_s",
    "limits",
    "loop",
    "brain.provider",
    "brain.model",
    "brain.api",
    "brain.max_tokens",
    "brain.thinking",
    "brain.silence_s",
    "brain.first_token_ms",
    "brain.token_ms",
];
/// What a sandbox may say by itself, beside an empty list of mounts and no network.
const HARMLESS_OF_SANDBOX: [&str; 3] = ["kind", "idle_s", "permission"];

/// A setting as it stands in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Said {
    /// Its path in the file.
    pub setting: String,
    /// Its value, as JSON.
    pub value: String,
}

/// What a person is asked about a configuration file.
#[derive(Clone, Debug)]
pub struct Question {
    /// The file.
    pub file: PathBuf,
    /// What it says that needs the yes.
    pub says: Vec<Said>,
    /// The data directory that keeps the answer.
    data: PathBuf,
    /// What it is about: an answer to one is none to the other.
    about: About,
    digest: String,
}

/// What a yes holds for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// What reaches beyond the gateway. The rest of the file may change.
    Reach,
    /// Everything in the file.
    Whole,
}

impl Question {
    /// None when the file says nothing that needs a yes.
    pub(super) fn new(file: &Path, text: &str, data: &Path, about: About) -> Option<Self> {
        let table: toml::Table = text.parse().unwrap_or_default();
        let mut says = settings(&table);
        let digest = match about {
            About::Whole => hex(text.as_bytes()),
            About::Reach => {
                says.retain(|said| needs_yes(&table, said));
                let lines = says.iter().map(|said| format!("{}={}\n", said.setting, said.value));
                hex(lines.collect::<String>().as_bytes())
            }
        };
        let file =
            file.parent().and_then(|folder| Some(folder.canonicalize().ok()?.join(file.file_name()?)))?;
        let asked = Self { file, says, data: data.to_owned(), about, digest };
        (about == About::Whole || !asked.says.is_empty()).then_some(asked)
    }

    /// Whether a person has said yes to just this.
    pub fn is_allowed(&self) -> bool {
        // A folder seen from the current one would be the stranger's.
        self.data.is_absolute() && self.data.join(FOLDER).join(self.record()).is_file()
    }

    /// Keeps a person's yes, in the place of a former one to the same file.
    pub fn allow(&self) -> io::Result<()> {
        let folder = self.data.join(FOLDER);
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let former = self.subject();
        for entry in folder.read_dir()?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(&former) {
                std::fs::remove_file(entry.path())?;
            }
        }
        let path = folder.join(self.record());
        let mut kept = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        // For people who look into the folder.
        kept.write_all(self.file.as_os_str().as_bytes())
    }

    /// What a person types to look at the file and allow it.
    pub fn command(&self) -> String {
        let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
        let command = format!("manyhands --data {} allow {}", quoted(&self.data), quoted(&self.file));
        escaped(&command, Layout::Line).into_owned()
    }

    /// The settings that it is about, for a sentence.
    pub fn settings(&self) -> String {
        let names = self.says.iter().map(|said| said.setting.as_str());
        escaped(&names.collect::<Vec<_>>().join(", "), Layout::Line).into_owned()
    }

    fn record(&self) -> String {
        format!("{}{}", self.subject(), self.digest)
    }

    fn subject(&self) -> String {
        let about = if self.about == About::Whole { "whole" } else { "reach" };
        format!("{}-{about}-", hex(self.file.as_os_str().as_bytes()))
    }
}

/// Everything that a file says, setting by setting.
fn settings(table: &toml::Table) -> Vec<Said> {
    let said = |setting: String, value: &toml::Value| Said {
        setting,
        value: serde_json::to_string(value).unwrap_or_default(),
    };
    let mut all = Vec::new();
    for (key, value) in table {
        let toml::Value::Table(section) = value else {
            all.push(said(key.clone(), value));
            continue;
        };
        for (inner, value) in section {
            match value {
                toml::Value::Table(hand) if key == "hands" => {
                    all.extend(hand.iter().map(|(last, value)| said(format!("{key}.{inner}.{last}"), value)));
                }
                value => all.push(said(format!("{key}.{inner}"), value)),
            }
        }
    }
    all.sort();
    all
}

/// Whether a person must have seen this setting. One that nobody thought of is one of those.
fn needs_yes(table: &toml::Table, said: &Said) -> bool {
    let (section, rest) = said.setting.split_once('.').unwrap_or((&said.setting, ""));
    if section == "hands" {
        let hand = rest.split('.').next().unwrap_or_default();
        return !table.get(section).and_then(|hands| hands.get(hand)).is_some_and(is_bare_sandbox);
    }
    !HARMLESS.iter().any(|harmless| *harmless == said.setting || *harmless == section)
}

/// Whether a hand is a sandbox that sees nothing of this machine.
fn is_bare_sandbox(hand: &toml::Value) -> bool {
    let Some(settings) = hand.as_table() else { return false };
    hand.get("kind").and_then(toml::Value::as_str) == Some("sandbox")
        && settings.iter().all(|(setting, value)| match setting.as_str() {
            "mounts" => value.as_array().is_some_and(Vec::is_empty),
            "network" => value.as_str() == Some("none"),
            other => HARMLESS_OF_SANDBOX.contains(&other),
        })
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
