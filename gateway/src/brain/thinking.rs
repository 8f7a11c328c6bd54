//! Whether and how long a model thinks before it speaks, as it stands in settings: a word or a number of tokens.

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// Whether and how long a model thinks before it speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThinkingSetting {
    /// Not at all, or as the model does when nothing is said of it.
    #[default]
    Off,
    /// As long as it thinks fit.
    Effort(Effort),
    /// At most this many tokens.
    Budget(u32),
}

/// How much trouble a model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Little: fast and cheap.
    Low,
    /// Some.
    Medium,
    /// Much.
    High,
}

impl Effort {
    /// Its name, in settings and at every provider.
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

impl<'de> Deserialize<'de> for ThinkingSetting {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Reader)
    }
}

struct Reader;

impl Visitor<'_> for Reader {
    type Value = ThinkingSetting;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"off\", \"low\", \"medium\", \"high\" or a number of tokens")
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<ThinkingSetting, E> {
        match word {
            "off" => Ok(ThinkingSetting::Off),
            "low" => Ok(ThinkingSetting::Effort(Effort::Low)),
            "medium" => Ok(ThinkingSetting::Effort(Effort::Medium)),
            "high" => Ok(ThinkingSetting::Effort(Effort::High)),
            other => Err(E::invalid_value(Unexpected::Str(other), &self)),
        }
    }

    fn visit_i64<E: Error>(self, tokens: i64) -> Result<ThinkingSetting, E> {
        let budget = u32::try_from(tokens).map(ThinkingSetting::Budget);
        budget.map_err(|_| E::invalid_value(Unexpected::Signed(tokens), &self))
    }

    fn visit_u64<E: Error>(self, tokens: u64) -> Result<ThinkingSetting, E> {
        let budget = u32::try_from(tokens).map(ThinkingSetting::Budget);
        budget.map_err(|_| E::invalid_value(Unexpected::Unsigned(tokens), &self))
    }
}
