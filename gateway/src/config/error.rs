//! Why there is no configuration.

use std::path::PathBuf;

use super::Question;
use crate::brain::BadBrain;
use crate::hand::{BadHand, HandName};
use crate::text::{Layout, escaped};

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file was named, or is there, and can't be read.
    #[error("the configuration {path} can't be read: {source}")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file, or an environment name, says something that means nothing.
    #[error("{from}: {message}")]
    Invalid {
        /// The file's path and line, or the environment name.
        from: String,
        /// What is wrong. The text itself is not shown: it may hold a password.
        message: String,
    },
    /// A value can be read, and makes no sense.
    #[error("the setting {setting} {message}")]
    Senseless {
        /// Its path in the file.
        setting: &'static str,
        /// What it must be.
        message: String,
    },
    /// A hand can be read, and makes no sense.
    #[error("{from}: the hand {name} can't be: {source}")]
    Hand {
        /// The file's path, and the line where the hand begins.
        from: String,
        /// Its name.
        name: HandName,
        /// Why.
        source: BadHand,
    },
    /// The brain can be read, and makes no sense.
    #[error("[brain] of {from}, or MANYHANDS_BRAIN_…: {source}")]
    Brain {
        /// The file's path. What is wrong may come from the environment, too.
        from: String,
        /// Why.
        source: BadBrain,
    },
    /// It is no file, or a very long one.
    #[error("the configuration {} can't be read: it is no file of at most 1 MiB", .0.display())]
    NoFile(PathBuf),
    /// Somebody else could have written it.
    #[error("the configuration {} is not read, because others could have written it: {} {why}", path.display(), at.display())]
    Foreign {
        /// Which.
        path: PathBuf,
        /// What of its path is not this user's alone.
        at: PathBuf,
        /// Why not, and what to do.
        why: String,
    },
    /// It was found in a folder, and a person has to see first what it says.
    #[error(
        "{} was found in its folder and says what needs your yes ({}): look at it and type `{}`, or name it with --config",
        escaped(&.0.file.display().to_string(), Layout::Line), .0.settings(), .0.command()
    )]
    NeedsYes(Box<Question>),
    /// There is no home directory to keep data in.
    #[error("there is no home directory to keep data in: set HOME, or name a directory with --data")]
    NoHome,
}
