//! Where the value of a header or of a variable comes from: a text that anybody may see, the gateway's environment, or a
//! file that only its owner can read.
//!
//! **Invariant:** a value is read where it is used, and no listing, log or error shows one.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use secrecy::{ExposeSecret as _, SecretString};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

/// Longest value that is read from a file, in bytes.
const VALUE_MAX: u64 = 64 << 10;
/// Longest prefix, in characters.
const PREFIX_MAX: usize = 16;
/// What makes a name look like that of a credential, in lower case.
const TELLTALES: [&str; 8] =
    ["authorization", "cookie", "token", "secret", "key", "password", "passwd", "credential"];

/// Where a value comes from.
#[derive(Clone, PartialEq, Eq)]
pub enum Source {
    /// It stands here.
    Plain(String),
    /// A variable of the gateway's own environment.
    Variable {
        /// Its name.
        env: String,
        /// What is put before its value, such as `Bearer `.
        prefix: String,
    },
    /// The text of a file without the line end behind it.
    File {
        /// Its path. Nobody but its owner may read it.
        file: PathBuf,
        /// What is put before its text, such as `Bearer `.
        prefix: String,
    },
}

/// Reads a variable of the gateway's environment.
pub type Variables = fn(&str) -> Option<SecretString>;

impl Source {
    /// The value, or a sentence that says why there is none, for a person. Neither shows the value.
    pub fn read(&self, variables: Variables) -> Result<SecretString, String> {
        let (prefix, value) = match self {
            Self::Plain(value) => return Ok(value.clone().into()),
            Self::Variable { env, prefix } => {
                let value = variables(env).ok_or_else(|| {
                    format!("the gateway's environment has no {env}: set it and start the gateway again")
                })?;
                (prefix, value)
            }
            Self::File { file, prefix } => (prefix, read_file(file)?),
        };
        let text = value.expose_secret();
        if text.is_empty() || text.contains(['\n', '\r', '\0']) {
            return Err(format!("what stands in {} is not one line of text", self.place()));
        }
        Ok(format!("{prefix}{text}").into())
    }

    /// As listings show it: where it comes from, never what it is.
    pub(super) fn shown(&self) -> Value {
        let mut shown = match self {
            Self::Plain(_) => return json!("…"),
            Self::Variable { env, .. } => json!({"env": env}),
            Self::File { file, .. } => json!({"file": file}),
        };
        if let Self::Variable { prefix, .. } | Self::File { prefix, .. } = self
            && !prefix.is_empty()
        {
            shown["prefix"] = json!(prefix);
        }
        shown
    }

    /// Whether it is written as it can be: names that are names, absolute paths, prefixes that hold no value.
    pub fn is_sound(&self) -> bool {
        let (place, prefix) = match self {
            Self::Plain(value) => return !value.contains(['\n', '\r', '\0']),
            Self::Variable { env, prefix } => (is_variable(env), prefix),
            Self::File { file, prefix } => (file.is_absolute(), prefix),
        };
        // Digits would make room for a credential in what is shown.
        let bare = |c: char| c.is_ascii_alphabetic() || matches!(c, ' ' | '-' | '_' | '=' | ':');
        place && prefix.chars().count() <= PREFIX_MAX && prefix.chars().all(bare)
    }

    /// The file that it is read from, if it is.
    pub(super) fn file(&self) -> Option<&PathBuf> {
        match self {
            Self::File { file, .. } => Some(file),
            Self::Plain(_) | Self::Variable { .. } => None,
        }
    }

    /// Where it comes from, for a sentence.
    pub fn place(&self) -> String {
        match self {
            Self::Plain(_) => "the configuration".to_owned(),
            Self::Variable { env, .. } => format!("the variable {env}"),
            Self::File { file, .. } => file.display().to_string(),
        }
    }
}

/// Whether a header or variable of this name most often holds a credential.
pub(super) fn looks_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    TELLTALES.iter().any(|telltale| name.contains(telltale))
        || name.split(['-', '_']).any(|word| word == "auth")
}

/// Whether it can name an environment variable.
pub(super) fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// A file that others may read, or that is no file, is refused.
fn read_file(path: &Path) -> Result<SecretString, String> {
    let shown = path.display();
    let opened = hands::canonical::open(path, OFlags::RDONLY | OFlags::NONBLOCK);
    let file = opened.map(File::from).map_err(|error| format!("{shown} can't be read: {error}"))?;
    let metadata = file.metadata().map_err(|error| format!("{shown} can't be read: {error}"))?;
    if !metadata.is_file() {
        return Err(format!("{shown} is not a file"));
    }
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(format!("{shown} can be read by others than its owner (mode {mode:o}): chmod 600 it"));
    }
    let mut text = String::new();
    file.take(VALUE_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| format!("{shown} can't be read: {error}"))?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > VALUE_MAX {
        return Err(format!("{shown} is longer than {VALUE_MAX} bytes"));
    }
    let line = text.strip_suffix('\n').unwrap_or(&text);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned().into())
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.shown())
    }
}

/// A source that is no plain text.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Elsewhere {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    env: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    file: Option<PathBuf>,
    #[serde(skip_serializing_if = "String::is_empty", default)]
    prefix: String,
}

/// For the database. Listings take [`Source::shown`].
impl Serialize for Source {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let (env, file, prefix) = match self {
            Self::Plain(value) => return to.serialize_str(value),
            Self::Variable { env, prefix } => (Some(env.clone()), None, prefix.clone()),
            Self::File { file, prefix } => (None, Some(file.clone()), prefix.clone()),
        };
        Elsewhere { env, file, prefix }.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Source {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Reader)
    }
}

/// Its errors show no value, which those of a derived reader do.
struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Source;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, { env = \"NAME\" } or { file = \"/path\" }")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Source, E> {
        Ok(Source::Plain(value.to_owned()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Source, E> {
        Ok(Source::Plain(value.to_string()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Source, E> {
        Ok(Source::Plain(value.to_string()))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Source, E> {
        Err(E::custom("a number with a point may lose digits: write it in quotes"))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Source, E> {
        Ok(Source::Plain(value.to_string()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Source, A::Error> {
        // Whatever is wrong in there may be a value in the wrong place.
        let wrong = || {
            A::Error::custom(
                "a value is a text, { env = \"NAME\" } or { file = \"/path\" }, the latter two with or without prefix",
            )
        };
        let Elsewhere { env, file, prefix } =
            Deserialize::deserialize(MapAccessDeserializer::new(map)).map_err(|_: A::Error| wrong())?;
        match (env, file) {
            (Some(env), None) => Ok(Source::Variable { env, prefix }),
            (None, Some(file)) => Ok(Source::File { file, prefix }),
            _ => Err(wrong()),
        }
    }
}
