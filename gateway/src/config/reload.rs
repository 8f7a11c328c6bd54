//! Reading `manyhands.toml` again while the gateway runs: its hands apply at once, anything else with the next start.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};

use super::{About, Config, ConfigError, Question, environment, trust};
use crate::hand::{HandConfig, HandName};

/// Who chose the configuration file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Chosen {
    /// A person, with `--config`: that is a yes to whatever it says.
    #[default]
    ByPerson,
    /// Nobody: it lay in the current folder.
    ByFolder,
}

/// A configuration file as it was read.
#[derive(Clone, Default)]
pub struct FileRead {
    /// Its absolute path. Empty: no file was asked for.
    pub path: PathBuf,
    /// What it was like. None: it was not there.
    pub stamp: Option<Stamp>,
    chosen: Chosen,
    /// The data directory that keeps a person's yes.
    data: PathBuf,
    /// All of it, where nobody chose it.
    whole: Option<Box<Question>>,
    /// What it says beside hands, by setting, as digests: some of it is secret.
    others: BTreeMap<String, [u8; 32]>,
}

impl fmt::Debug for FileRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.path, f)
    }
}

/// Tells one state of a file from another, whether it is written in place or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

impl Stamp {
    /// Of the file as it is now. None when there is none.
    pub fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self { modified: metadata.modified().ok(), length: metadata.len(), inode: metadata.ino() })
    }
}

/// What a file says that was read again.
#[derive(Debug)]
pub struct Reread {
    /// The hands. Default: one sandbox called `sandbox`.
    pub hands: BTreeMap<HandName, HandConfig>,
    /// Settings that it changes and that apply with the next start only.
    pub later: Vec<String>,
}

impl FileRead {
    /// Reads the file for the first time. One that nobody chose need not be there.
    pub(super) fn open(path: &Path, chosen: Chosen, data: PathBuf) -> Result<(Self, String), ConfigError> {
        let path = std::path::absolute(path).unwrap_or(path.to_owned());
        let mut file = Self { stamp: Stamp::of(&path), path, chosen, data, ..Self::default() };
        let text = match trust::read(&file.path) {
            Ok(text) => text,
            Err(ConfigError::Unreadable { source, .. })
                if chosen == Chosen::ByFolder && source.kind() == std::io::ErrorKind::NotFound =>
            {
                file.stamp = None;
                return Ok((file, String::new()));
            }
            Err(error) => return Err(error),
        };
        if chosen == Chosen::ByFolder {
            file.whole = Question::new(&file.path, &text, &file.data, About::Whole).map(Box::new);
        }
        file.others = others(&text);
        Ok((file, text))
    }

    /// What a person has to be asked before `text` of this file may apply.
    pub(super) fn unasked(&self, text: &str) -> Option<Box<Question>> {
        let of_folder = self.chosen == Chosen::ByFolder;
        let question =
            of_folder.then(|| Question::new(&self.path, text, &self.data, About::Reach)).flatten()?;
        (!question.is_allowed()).then(|| Box::new(question))
    }

    /// The question after all of the file, where nobody chose it and nobody has said yes to all of it.
    pub fn unasked_whole(&self) -> Option<&Question> {
        self.whole.as_deref().filter(|whole| !whole.is_allowed())
    }

    /// Where the file is, if there was one when it was read for the first time.
    pub fn in_use(&self) -> Option<&Path> {
        let there = self.stamp.is_some() || self.chosen == Chosen::ByPerson;
        (there && !self.path.as_os_str().is_empty()).then_some(self.path.as_path())
    }

    /// Reads the file again. One that went away is an error, like one that can't be read: most often it is just being
    /// replaced. So is one that needs a person's yes.
    pub fn again(&mut self) -> Result<Reread, ConfigError> {
        let text = trust::read(&self.path)?;
        let config = Config::parse(&text, &self.path, environment()?)?;
        if let Some(question) = self.unasked(&text) {
            return Err(ConfigError::NeedsYes(question));
        }
        let others = others(&text);
        let changed = |setting: &&String| others.get(*setting) != self.others.get(*setting);
        let mut later: Vec<_> = self.others.keys().chain(others.keys()).filter(changed).cloned().collect();
        later.sort();
        later.dedup();
        self.others = others;
        Ok(Reread { hands: config.hands, later })
    }
}

/// What a file says beside hands.
fn others(text: &str) -> BTreeMap<String, [u8; 32]> {
    let mut found = BTreeMap::new();
    let table: toml::Table = text.parse().unwrap_or_default();
    for (key, value) in table.iter().filter(|(key, _)| *key != "hands") {
        match value {
            toml::Value::Table(section) => {
                found.extend(section.iter().map(|(inner, value)| (format!("{key}.{inner}"), digest(value))));
            }
            value => {
                found.insert(key.clone(), digest(value));
            }
        }
    }
    found
}

fn digest(value: &toml::Value) -> [u8; 32] {
    Sha256::digest(value.to_string().as_bytes()).into()
}
