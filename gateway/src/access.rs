//! Who is calling, and may they.

use std::fmt;

/// Who a request acts for: `local:NAME` for a token, `anonymous` without authentication. Everything is owned by one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Principal(pub String);

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
