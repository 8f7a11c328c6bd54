//! One walk over a JSON text that finds what two parsers could read differently: a key that an object has twice, and
//! nesting so deep that one of them gives up. What nobody asks for is walked over without being kept.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// How deep objects and arrays of a message may nest, in levels. Below the 128 at which `serde_json` gives up, so that
/// nothing behind the guard meets a depth that it refuses.
pub(super) const MAX_DEPTH: usize = 100;

/// What becomes of a value that is walked over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// It is returned whole.
    Whole,
    /// It is checked whole, and returned as an empty value of its kind.
    Kind,
}

/// Checks one value, `depth` levels below the top.
pub(super) struct Checked {
    /// What to return.
    pub(super) keep: Keep,
    /// How many objects and arrays it is in.
    pub(super) depth: usize,
}

impl Checked {
    fn inside<E: de::Error>(&self) -> Result<Self, E> {
        if self.depth >= MAX_DEPTH {
            return Err(E::custom(format_args!("nested deeper than {MAX_DEPTH} levels")));
        }
        Ok(Self { keep: self.keep, depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for Checked {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Checked {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(if self.keep == Keep::Whole { value.to_owned() } else { String::new() }))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut kept = Vec::new();
        while let Some(item) = items.next_element_seed(self.inside()?)? {
            if self.keep == Keep::Whole {
                kept.push(item);
            }
        }
        Ok(Value::Array(kept))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut seen = Keys::default();
        let mut kept = Map::new();
        while let Some(Key(key)) = entries.next_key()? {
            let value = entries.next_value_seed(self.inside()?)?;
            if self.keep == Keep::Whole {
                kept.insert(key.clone().into_owned(), value);
            }
            seen.add(key)?;
        }
        Ok(Value::Object(kept))
    }
}

/// The keys of one object so far.
#[derive(Default)]
pub(super) struct Keys<'de>(HashSet<Cow<'de, str>>);

impl<'de> Keys<'de> {
    /// Refuses a key that was there before.
    pub(super) fn add<E: de::Error>(&mut self, key: Cow<'de, str>) -> Result<(), E> {
        match self.0.replace(key) {
            None => Ok(()),
            Some(twice) => Err(E::custom(format_args!("the key {twice:?} is there twice"))),
        }
    }
}

/// A key, borrowed from the text when it has no escapes.
pub(super) struct Key<'de>(pub(super) Cow<'de, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(value)))
            }

            fn visit_str<E>(self, value: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(value.to_owned())))
            }
        }
        deserializer.deserialize_str(Read)
    }
}
