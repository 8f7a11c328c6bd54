//! How a session is called.

use std::fmt;
use std::str::FromStr;

use super::SessionId;

/// Most characters of a name.
pub const SESSION_NAME_MAX: usize = 64;

/// A session's name among those of its principal: `[a-z0-9][a-z0-9._-]{0,63}`, and never `sesn_…`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionName(String);

/// A session by either of its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SessionRef {
    /// By its id.
    Id(SessionId),
    /// By its name, among those of the principal that asks.
    Name(SessionName),
}

/// The text can't name a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// Not the form of a name.
    #[error(
        "a session name is 1 to {SESSION_NAME_MAX} characters of a-z, 0-9, '.', '_' and '-', and begins with a \
         letter or digit"
    )]
    Form,
    /// It begins like an id and is none.
    #[error("a session id is sesn_ and 32 hexadecimal digits, and no name begins with sesn_")]
    Id,
}

impl SessionName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SessionName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let Some((first, rest)) = text.as_bytes().split_first() else { return Err(BadName::Form) };
        if text.starts_with("sesn_") {
            return Err(BadName::Id);
        }
        let fits = text.len() <= SESSION_NAME_MAX
            && plain(*first)
            && rest.iter().all(|byte| plain(*byte) || b"._-".contains(byte));
        if fits { Ok(Self(text.to_owned())) } else { Err(BadName::Form) }
    }
}

impl fmt::Display for SessionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for SessionRef {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        if text.starts_with("sesn_") {
            return text.parse().map(Self::Id).map_err(|_| BadName::Id);
        }
        text.parse().map(Self::Name)
    }
}

impl fmt::Display for SessionRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}
