//! Which tools of a hand a brain may call by itself.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::BadSetting;

/// Stands for every tool that is not named.
const OTHERS: &str = "*";
/// Most tools that are named.
const NAMED_MAX: usize = 1_000;

/// Whether a tool may be called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Permission {
    /// By whoever may use the hand.
    #[default]
    Allow,
    /// Once a person has said yes to this very call, on this machine's command line or through the client that asks for
    /// it. Whoever writes a client can say so by themselves.
    Ask,
    /// Once a person has said yes to this very call on this machine's command line. No client is asked.
    AskOwner,
    /// Never.
    Deny,
}

impl Permission {
    fn asks(self) -> bool {
        matches!(self, Self::Ask | Self::AskOwner)
    }
}

impl FromStr for Permission {
    type Err = BadSetting;

    fn from_str(text: &str) -> Result<Self, BadSetting> {
        match text {
            "allow" => Ok(Self::Allow),
            "ask" => Ok(Self::Ask),
            "ask-owner" => Ok(Self::AskOwner),
            "deny" => Ok(Self::Deny),
            other => Err(BadSetting::Value {
                setting: "permission",
                must: format!("allow, ask, ask-owner or deny, and is {other:?}"),
            }),
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::AskOwner => "ask-owner",
            Self::Deny => "deny",
        })
    }
}

/// The permissions of a hand: one for all of its tools, or one by tool, where `*` is every other. What is not named is
/// allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "permission must be allow, ask, ask-owner or deny, or a table of tools with one of them each"
)]
pub enum Permissions {
    /// The same for every tool.
    Every(Permission),
    /// By the tool's own name.
    ByTool(BTreeMap<String, Permission>),
}

impl Default for Permissions {
    fn default() -> Self {
        Self::Every(Permission::Allow)
    }
}

impl Permissions {
    /// That of a tool, by its own name within the hand.
    pub fn of(&self, tool: &str) -> Permission {
        match self {
            Self::Every(permission) => *permission,
            Self::ByTool(named) => named.get(tool).or_else(|| named.get(OTHERS)).copied().unwrap_or_default(),
        }
    }

    /// Whether it says nothing that is not so without it.
    pub fn is_usual(&self) -> bool {
        match self {
            Self::Every(permission) => *permission == Permission::Allow,
            Self::ByTool(named) => named.values().all(|permission| *permission == Permission::Allow),
        }
    }

    /// Whether some tool needs a person's yes.
    pub fn asks(&self) -> bool {
        match self {
            Self::Every(permission) => permission.asks(),
            Self::ByTool(named) => named.values().any(|permission| permission.asks()),
        }
    }

    /// The tools that it names.
    pub fn named(&self) -> impl Iterator<Item = &str> {
        let named = match self {
            Self::Every(_) => None,
            Self::ByTool(named) => Some(named.keys().map(String::as_str).filter(|tool| *tool != OTHERS)),
        };
        named.into_iter().flatten()
    }

    /// Says one more thing, as an option of the command line does: `PERMISSION`, or `TOOL=PERMISSION`.
    pub fn add(&mut self, text: &str) -> Result<(), BadSetting> {
        let (tool, permission) = text.split_once('=').unwrap_or((OTHERS, text));
        let permission = permission.parse()?;
        let mut named = match std::mem::take(self) {
            Self::Every(Permission::Allow) => BTreeMap::new(),
            Self::Every(other) => BTreeMap::from([(OTHERS.to_owned(), other)]),
            Self::ByTool(named) => named,
        };
        named.insert(tool.to_owned(), permission);
        *self = match named.get(OTHERS) {
            Some(every) if named.len() == 1 => Self::Every(*every),
            _ => Self::ByTool(named),
        };
        Ok(())
    }

    /// Refuses what can be read and makes no sense.
    pub(super) fn check(&self) -> Result<(), BadSetting> {
        match self {
            Self::ByTool(named) if named.len() > NAMED_MAX => {
                Err(BadSetting::Needs("permission names more than 1000 tools"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Permissions {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn the_tool_itself_counts_before_the_rest() {
        assert_eq!(Permissions::default().of("bash"), Permission::Allow);
        assert_eq!(read(r#""ask""#).of("bash"), Permission::Ask);
        assert_eq!(read(r#""ask-owner""#).of("bash"), Permission::AskOwner);
        assert!(read(r#"{"bash": "ask-owner"}"#).asks());
        let mixed = read(r#"{"*": "ask", "read": "allow", "write": "deny"}"#);
        for (tool, permission) in
            [("read", Permission::Allow), ("write", Permission::Deny), ("bash", Permission::Ask)]
        {
            assert_eq!(mixed.of(tool), permission, "{tool}");
        }
        assert_eq!(read(r#"{"bash": "ask"}"#).of("read"), Permission::Allow);
        assert_eq!(mixed.named().collect::<Vec<_>>(), ["read", "write"]);
        for bad in [r#""maybe""#, r#""ask_owner""#, r#"{"bash": true}"#, "1", "null"] {
            assert!(serde_json::from_str::<Permissions>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn options_add_up() {
        let mut permissions = Permissions::default();
        permissions.add("ask").unwrap();
        assert_eq!(permissions, Permissions::Every(Permission::Ask));
        permissions.add("read=allow").unwrap();
        assert_eq!(permissions, read(r#"{"*": "ask", "read": "allow"}"#));
        assert!(permissions.add("read=perhaps").is_err());
        assert!(permissions.asks() && !permissions.is_usual());
    }
}
