//! JSON as it is written, but for the order of keys and the space between: numbers keep their digits.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde_json::value::RawValue;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Object(BTreeMap<String, Node>),
    Array(Vec<Node>),
    Text(String),
    /// A number, `true`, `false` or `null`, as it is written.
    Plain(String),
}

impl Node {
    pub(super) fn read(text: &str) -> Result<Self> {
        let text = text.trim();
        Ok(match text.as_bytes().first() {
            Some(b'{') => {
                let fields: BTreeMap<String, &RawValue> = serde_json::from_str(text)?;
                let read = fields.into_iter().map(|(key, value)| Ok((key, Self::read(value.get())?)));
                Self::Object(read.collect::<Result<_>>()?)
            }
            Some(b'[') => {
                let items: Vec<&RawValue> = serde_json::from_str(text)?;
                Self::Array(items.into_iter().map(|item| Self::read(item.get())).collect::<Result<_>>()?)
            }
            Some(b'"') => Self::Text(serde_json::from_str(text)?),
            _ => Self::Plain(text.to_owned()),
        })
    }

    /// Makes a list of objects a map, by the first of these fields that an object has.
    pub(super) fn key_by(&mut self, fields: &[&str]) {
        let Self::Array(items) = self else { return };
        let key = |item: &Self| {
            let Self::Object(of) = item else { return None };
            let key = fields.iter().find_map(|field| of.get(*field))?;
            if let Self::Text(key) = key { Some(key.clone()) } else { None }
        };
        let keyed: Option<BTreeMap<_, _>> =
            items.iter().map(|item| Some((key(item)?, item.clone()))).collect();
        // Two of one name would hide each other.
        if let Some(keyed) = keyed.filter(|keyed| keyed.len() == items.len()) {
            *self = Self::Object(keyed);
        }
    }

    /// Shown in one line, shortened.
    fn shown(&self) -> String {
        let text = format!("{self:?}");
        if text.chars().count() > 200 { text.chars().take(200).collect::<String>() + "…" } else { text }
    }
}

/// Where the two differ: path, and what stands there on either side.
pub(super) fn differences(path: &str, direct: &Node, through: &Node, found: &mut Vec<(String, String)>) {
    match (direct, through) {
        (Node::Object(left), Node::Object(right)) => {
            let keys: BTreeSet<_> = left.keys().chain(right.keys()).collect();
            for key in keys {
                let path = format!("{path}/{}", key.replace('/', "~"));
                match (left.get(key), right.get(key)) {
                    (Some(left), Some(right)) => differences(&path, left, right, found),
                    // Where there is no `_meta`, there is nothing in it.
                    (Some(left @ Node::Object(_)), None) if key == "_meta" => {
                        differences(&path, left, &Node::Object(BTreeMap::new()), found);
                    }
                    (None, Some(right @ Node::Object(_))) if key == "_meta" => {
                        differences(&path, &Node::Object(BTreeMap::new()), right, found);
                    }
                    (Some(left), None) => found.push((path, format!("{} is missing", left.shown()))),
                    (None, Some(right)) => found.push((path, format!("{} was added", right.shown()))),
                    (None, None) => {}
                }
            }
        }
        (Node::Array(left), Node::Array(right)) if left.len() == right.len() => {
            for (n, (left, right)) in left.iter().zip(right).enumerate() {
                differences(&format!("{path}/{n}"), left, right, found);
            }
        }
        (left, right) if left == right => {}
        (left, right) => found.push((path.to_owned(), format!("{} became {}", left.shown(), right.shown()))),
    }
}
