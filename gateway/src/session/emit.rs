//! What a brain may write into a log by itself, and how a session is shown.

use serde_json::{Map, Value, json};

use super::row::NewRow;
use super::{By, EventId, LogError, NewEvent, SessionInfo};

/// The first part of every type of the gateway's own. Brains emit only [`OPEN_TYPES`] of these, and nothing that a person
/// could take for one.
const RESERVED: [&str; 6] = ["user", "agent", "session", "span", "hand", "vault"];
/// The reserved types that a brain may emit.
const OPEN_TYPES: [&str; 3] = ["user.message", "user.interrupt", "agent.message"];
/// Fields that the gateway writes itself.
const OWN_FIELDS: [&str; 6] = ["id", "seq", "session", "at", "by", "type"];
/// Longest type, in bytes.
const TYPE_MAX: usize = 128;

/// Why an event is not for a brain to emit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    /// Only the gateway writes it.
    #[error(
        "{0:?} is written by the gateway alone, or looks as if it were: emit user.message, user.interrupt, agent.message, or a type of your own such as note.plan"
    )]
    Reserved(String),
    /// It is no type.
    #[error(
        "{0:?} is no event type: use 3 to {TYPE_MAX} of a-z, A-Z, 0-9, '.', '_' and '-' with a dot in the middle, such as note.plan"
    )]
    BadType(String),
    /// A message says nothing.
    #[error("{0} needs content: a text, or content blocks")]
    NoContent(String),
    /// Content is neither text nor blocks.
    #[error("content must be a text or a list of content blocks")]
    BadContent,
    /// The fields clash with the gateway's own.
    #[error("the field {0:?} is written by the gateway: choose another name")]
    OwnField(String),
    /// `data` does not belong there.
    #[error("{0} takes content, not data")]
    DataInMessage(String),
}

/// The fields of an event that a brain wants to emit, if it may.
pub fn check_emitted(
    kind: &str,
    content: Option<Value>,
    data: Option<Map<String, Value>>,
) -> Result<Map<String, Value>, EmitError> {
    check_type(kind)?;
    let mut fields = data.unwrap_or_default();
    if OPEN_TYPES.contains(&kind) {
        if !fields.is_empty() {
            return Err(EmitError::DataInMessage(kind.to_owned()));
        }
        match (&content, kind) {
            (None, "user.interrupt") => {}
            (None, _) => return Err(EmitError::NoContent(kind.to_owned())),
            (Some(Value::String(_) | Value::Array(_)), _) => {}
            (Some(_), _) => return Err(EmitError::BadContent),
        }
    } else if is_reserved(kind) {
        return Err(EmitError::Reserved(kind.to_owned()));
    }
    if let Some(own) = OWN_FIELDS.into_iter().find(|own| fields.contains_key(*own)) {
        return Err(EmitError::OwnField(own.to_owned()));
    }
    fields.extend(content.map(|content| ("content".to_owned(), content)));
    fields.insert("type".to_owned(), kind.into());
    Ok(fields)
}

/// Whether the type is the gateway's own, or looks like it: in other letters' case, with dashes, or with digits for letters.
fn is_reserved(kind: &str) -> bool {
    let first = kind.split('.').next().unwrap_or_default();
    RESERVED.iter().any(|reserved| look(reserved) == look(first))
}

/// What a word looks like at a glance. It has ASCII letters, digits, dashes and dots alone.
fn look(word: &str) -> String {
    let seen = word.chars().filter(|c| !matches!(c, '-' | '_')).map(|c| match c.to_ascii_lowercase() {
        '0' => 'o',
        '1' | 'i' => 'l',
        '3' => 'e',
        '4' => 'a',
        '5' => 's',
        other => other,
    });
    seen.collect()
}

fn check_type(kind: &str) -> Result<(), EmitError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let dotted = kind.split('.').count() > 1 && kind.split('.').all(|part| !part.is_empty());
    if kind.len() <= TYPE_MAX && kind.chars().all(plain) && dotted {
        Ok(())
    } else {
        Err(EmitError::BadType(kind.chars().take(TYPE_MAX).collect()))
    }
}

impl NewEvent {
    /// An event with fields that [`check_emitted`] passed.
    pub fn emitted(by: By, fields: Map<String, Value>) -> Self {
        Self { id: EventId::new(), by, fields, key: None, private: None }
    }

    /// Whether a log can hold it, before anything is written.
    pub fn check(&self) -> Result<(), LogError> {
        NewRow::of(self).map(drop)
    }
}

impl SessionInfo {
    /// The session as every face shows it.
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id.to_string(),
            "uri": format!("session://{}", self.id),
            "name": self.name.as_ref().map(ToString::to_string),
            "principal": self.principal,
            "status": self.status.as_str(),
            "created_at": self.created_at.to_string(),
            "updated_at": self.updated_at.to_string(),
            "last_seq": self.last_seq.0,
            "bytes": self.bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_brain_says_only_what_is_its_own_to_say() {
        let text = || Some(json!("hello"));
        for open in OPEN_TYPES {
            assert!(check_emitted(open, text(), None).is_ok(), "{open}");
        }
        assert!(check_emitted("note.plan", None, Some(Map::new())).is_ok());
        for reserved in [
            "agent.tool_result",
            "user.tool_confirmation",
            "session.created",
            "hand.lost",
            "span.x",
            "vault.opened",
            "user.x",
            "USER.tool_confirmation",
            "User.message",
            "AGENT.tool_result",
            "hAnD.lost",
            "us-er.x",
            "user_.x",
            "_user.x",
            "u5er.message",
            "sess1on.created",
            "sessIon.created",
            "agent-.message",
        ] {
            assert_eq!(check_emitted(reserved, text(), None), Err(EmitError::Reserved(reserved.into())));
        }
        for own in ["users.x", "agents.note", "handover.x", "my.user.x", "session2.x"] {
            assert!(check_emitted(own, None, None).is_ok(), "{own}");
        }
        for bad in [
            "",
            " user.x",
            "user.x ",
            "ｕser.x",
            "us\u{200b}er.x",
            "uѕer.x",
            "user\u{2024}x",
            "note",
            ".plan",
            "note.",
            "note..plan",
            "note plan.x",
            "nöte.plan",
            &"a.".repeat(99),
        ] {
            assert!(matches!(check_emitted(bad, None, None), Err(EmitError::BadType(_))), "{bad}");
        }
        let own = json!({"seq": 7});
        assert_eq!(
            check_emitted("note.x", None, own.as_object().cloned()),
            Err(EmitError::OwnField("seq".into()))
        );
        assert_eq!(
            check_emitted("user.message", None, None),
            Err(EmitError::NoContent("user.message".into()))
        );
        assert_eq!(check_emitted("user.message", Some(json!(7)), None), Err(EmitError::BadContent));
    }
}
