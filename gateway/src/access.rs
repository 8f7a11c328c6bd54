//! Who is calling, and may they.
//!
//! **Invariant:** a request gets its [`Principal`] here, from its bearer token, and from nothing else: no
//! name that a client gives itself, no session id and no header decides who it is.

pub mod token;

use std::fmt;

use serde::{Deserialize, Serialize};

/// Who owns things: `local:NAME` for a token of this gateway's own.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Principal(pub String);

impl Principal {
    /// The person who runs the gateway.
    pub fn owner() -> Self {
        Self("local:owner".to_owned())
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
