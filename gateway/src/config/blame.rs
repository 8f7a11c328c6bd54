//! Where in the file a mistake stands.

use std::path::Path;

use serde::Deserialize as _;
use toml::de::{DeTable, DeValue};

use super::ConfigError;
use crate::hand::{HandConfig, HandName};
use crate::text::{Layout, escaped};

/// An error of the file, with its line and without its text: that may hold a password.
pub(super) fn in_file(path: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
    let (message, at) = match blamed_setting(text, error.message()) {
        Some((setting, at)) => (format!("{setting}: {}", one_line(error)), Some(at)),
        None => (one_line(error), error.span().map(|span| span.start)),
    };
    let line = at.and_then(|at| text.get(..at)).map(|before| before.matches('\n').count() + 1);
    ConfigError::Invalid { from: place_of(path, line), message }
}

/// The setting of a hand that is to blame for `message`, and where it stands in the text. What is read by its `kind` is
/// read as a whole, so that the message itself knows only where the hand begins: to blame is that without which it would
/// be another.
fn blamed_setting(text: &str, message: &str) -> Option<(String, usize)> {
    let whole: toml::Table = text.parse().ok()?;
    let said = |hand: &toml::Table| {
        HandConfig::deserialize(hand.clone()).err().map(|error| error.message().to_owned())
    };
    for (name, hand) in whole.get("hands")?.as_table()? {
        let Some(hand) = hand.as_table().filter(|hand| said(hand).as_deref() == Some(message)) else {
            continue;
        };
        let to_blame = hand.keys().filter(|key| *key != "kind").find(|key| {
            let mut without = hand.clone();
            without.remove(*key);
            said(&without).as_deref() != Some(message)
        })?;
        return Some((format!("hands.{name}.{to_blame}"), place_in(text, name, to_blame)?));
    }
    None
}

/// Where a setting of a hand stands, in bytes.
fn place_in(text: &str, hand: &str, setting: &str) -> Option<usize> {
    let whole = DeTable::parse(text).ok()?;
    let DeValue::Table(hands) = whole.get_ref().get("hands")?.get_ref() else { return None };
    let DeValue::Table(hand) = hands.get(hand)?.get_ref() else { return None };
    hand.iter().find(|(key, _)| key.get_ref() == setting).map(|(key, _)| key.span().start)
}

pub(super) fn place_of(path: &Path, line: Option<usize>) -> String {
    match line {
        Some(line) => format!("{}, line {line}", path.display()),
        None => path.display().to_string(),
    }
}

/// Where the table of a hand begins, when it has a head of its own.
pub(super) fn line_of_hand(text: &str, name: &HandName) -> Option<usize> {
    let head = format!("[hands.{name}]");
    text.lines().position(|line| line.trim_start().starts_with(&head)).map(|line| line + 1)
}

pub(super) fn one_line(error: &toml::de::Error) -> String {
    let message = error.message().lines().collect::<Vec<_>>().join("; ");
    let message = escaped(&message, Layout::Line);
    // Rust's words for it mean nothing to a person.
    message
        .replace("expected usize", "expected a whole number")
        .replace("expected u64", "expected a whole number")
        .replace("expected u32", "expected a whole number")
        .replace("expected u16", "expected a whole number up to 65535")
        .replace("expected u8", "expected a whole number up to 255")
}
