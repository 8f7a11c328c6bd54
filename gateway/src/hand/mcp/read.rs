//! Reading a server's settings: what does not fit is told without what stands there.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserializer;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};

use crate::hand::source::Source;

/// A list of words. What stands there instead is not shown: it may hold a credential.
pub(super) fn words<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    struct Words;
    impl<'de> Visitor<'de> for Words {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of texts")
        }

        fn visit_str<E: Error>(self, _: &str) -> Result<Self::Value, E> {
            Err(E::custom(
                "a command is a list of words, such as [\"npx\", \"-y\", \"some-server\"]: there is no shell",
            ))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut words = Vec::new();
            let wrong = |_| A::Error::custom("each word of a command is a text in quotes");
            while let Some(word) = list.next_element().map_err(wrong)? {
                words.push(word);
            }
            Ok(words)
        }
    }
    from.deserialize_any(Words)
}

/// A table of values. What stands there instead is not shown: it may hold a credential.
pub(super) fn sources<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Source>, D::Error> {
    struct Sources;
    impl<'de> Visitor<'de> for Sources {
        type Value = BTreeMap<String, Source>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a table of names and values")
        }

        fn visit_str<E: Error>(self, _: &str) -> Result<Self::Value, E> {
            Err(E::custom("headers and env are tables: { NAME = \"value\" }"))
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut sources = BTreeMap::new();
            while let Some((name, source)) = map.next_entry()? {
                sources.insert(name, source);
            }
            Ok(sources)
        }
    }
    from.deserialize_any(Sources)
}
