//! Where a game stands, in files of the work folder: `states-GAME/latest`, written after every call that changed
//! something, and `states-GAME/NAME.state` for those that were asked for.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::HandError;

/// Most states that are kept by name; each takes some 200 KB.
const MOST: usize = 64;
/// Longest name.
const LONGEST: usize = 32;
/// Bytes of the checksum in front of a state.
const SUM: usize = 32;
/// Where the last state is.
const LATEST: &str = "latest";

/// The folder of one game's states.
#[derive(Clone, Debug)]
pub(super) struct States {
    folder: PathBuf,
}

/// Why a state was not kept or not found.
#[derive(Debug, thiserror::Error)]
pub(super) enum StateError {
    #[error("a name is 1 to {LONGEST} small letters, digits and dashes, and begins with no dash")]
    Name,
    #[error("nothing is saved as {name}; {}", .others.as_str())]
    Missing { name: String, others: String },
    #[error("{MOST} states are saved already; save over one of them")]
    Full,
    #[error("what was saved as {name} is damaged")]
    Damaged { name: String },
    #[error("its file can't be used ({0})")]
    Io(#[from] io::Error),
}

impl States {
    /// Of this game in this work folder, which is made when it is missing.
    pub(super) fn open(work: &Path, game: &str) -> Result<Self, HandError> {
        let folder = work.join(format!("states-{game}"));
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(|source| HandError::Io { doing: "making a work folder", source })?;
        Ok(Self { folder })
    }

    /// Where the game stood last; `None` when it was never played.
    pub(super) fn latest(&self) -> Result<Option<Vec<u8>>, StateError> {
        read(&self.folder.join(LATEST), LATEST)
    }

    /// Keeps where it stands, durably.
    pub(super) fn keep_latest(&self, state: &[u8]) -> Result<(), StateError> {
        self.write(LATEST, state)
    }

    /// Lets the next start begin anew, and keeps what could not be used for whoever wants to look at it.
    pub(super) fn set_latest_aside(&self) -> io::Result<()> {
        fs::rename(self.folder.join(LATEST), self.folder.join("unusable"))
    }

    /// What was saved by this name.
    pub(super) fn named(&self, name: &str) -> Result<Vec<u8>, StateError> {
        let file = file(name)?;
        read(&self.folder.join(file), name)?.ok_or_else(|| {
            let names = self.names().unwrap_or_default();
            let others = if names.is_empty() {
                "nothing is saved yet".to_owned()
            } else {
                format!("there is {}", names.join(", "))
            };
            StateError::Missing { name: name.to_owned(), others }
        })
    }

    /// Saves it by this name, durably.
    pub(super) fn save(&self, name: &str, state: &[u8]) -> Result<(), StateError> {
        let file = file(name)?;
        let names = self.names()?;
        if names.len() >= MOST && !names.iter().any(|known| known == name) {
            return Err(StateError::Full);
        }
        self.write(&file, state)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let file = entry?.file_name();
            names.extend(file.to_str().and_then(|file| file.strip_suffix(".state")).map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    /// An earlier one is replaced when this one is whole and on the disk.
    fn write(&self, file: &str, state: &[u8]) -> Result<(), StateError> {
        let new = self.folder.join("new");
        let mut writing = File::create(&new)?;
        writing.write_all(&Sha256::digest(state))?;
        writing.write_all(state)?;
        writing.sync_all()?;
        fs::rename(&new, self.folder.join(file))?;
        Ok(File::open(&self.folder)?.sync_all()?)
    }
}

/// Whether a state can be saved by this name.
pub(super) fn check(name: &str) -> Result<(), StateError> {
    let fits = name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    if fits && !name.starts_with('-') && (1..=LONGEST).contains(&name.len()) {
        Ok(())
    } else {
        Err(StateError::Name)
    }
}

fn file(name: &str) -> Result<String, StateError> {
    check(name).map(|()| format!("{name}.state"))
}

fn read(file: &Path, name: &str) -> Result<Option<Vec<u8>>, StateError> {
    let whole = match fs::read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    match whole.split_at_checked(SUM) {
        Some((sum, state)) if Sha256::digest(state)[..] == *sum => Ok(Some(state.to_vec())),
        _ => Err(StateError::Damaged { name: name.to_owned() }),
    }
}
