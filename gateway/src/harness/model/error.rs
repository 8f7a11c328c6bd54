//! Why a model did not answer, and whether trying again helps.
//!
//! **Invariant:** no text in here holds the key: who makes an error of a provider's words takes it out.

use std::time::Duration;

/// Why a model did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The provider counts, and it was too much.
    #[error("the provider's rate limit is reached{}", after(*.retry_after))]
    RateLimited {
        /// When it will take a request again, if it says so.
        retry_after: Option<Duration>,
    },
    /// The provider has too much to do.
    #[error("the provider is overloaded{}", after(*.retry_after))]
    Overloaded {
        /// When it will take a request again, if it says so.
        retry_after: Option<Duration>,
    },
    /// The provider failed, and says that this is its own fault.
    #[error("the provider failed{}", because(.why))]
    Failed {
        /// Its status and words.
        why: String,
    },
    /// Nobody answers there.
    #[error("the provider can't be reached: {why}")]
    Unreachable {
        /// What was seen.
        why: String,
    },
    /// The answer had begun, and did not come to its end.
    #[error("the answer broke off: {why}")]
    BrokenOff {
        /// What was seen.
        why: String,
    },
    /// Nothing came for too long.
    #[error("the provider has been silent for {} s", .silence.as_secs_f64())]
    Silent {
        /// How long.
        silence: Duration,
    },
    /// The provider does not take this request, and never will.
    #[error("the provider refuses the request{}", because(.why))]
    Refused {
        /// Its status and words.
        why: String,
    },
    /// The provider knows no such model, or has no such API at this URL.
    #[error("the provider has no such model, or base_url is wrong{}", because(.why))]
    NotFound {
        /// Its status and words.
        why: String,
    },
    /// The provider does not take the key, or the account behind it may not do this.
    #[error("the provider does not take the key ({status}): look at {place}")]
    BadKey {
        /// The HTTP status.
        status: u16,
        /// Where the key comes from.
        place: String,
    },
    /// The key can't be read.
    #[error("there is no key for the provider: {why}")]
    NoKey {
        /// Why, and what to do.
        why: String,
    },
    /// The transcript does not fit into the model's context window.
    #[error("the transcript is too long for the model{}", because(.why))]
    ContextTooLong {
        /// The provider's words.
        why: String,
    },
    /// The answer has no meaning in the provider's own protocol.
    #[error("the provider's answer makes no sense: {why}")]
    Nonsense {
        /// What is wrong with it.
        why: String,
    },
    /// The answer is larger than any that is read.
    #[error("the provider's answer is larger than {max} bytes")]
    TooLarge {
        /// The limit.
        max: usize,
    },
}

/// Whether the same request may get an answer later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// It may. Not before the time that the provider named, if it named one.
    Helps(Option<Duration>),
    /// Only once the transcript is shorter.
    Shorter,
    /// Only once a person has changed something.
    Pointless,
}

impl ModelError {
    /// Whether the same request may get an answer later.
    pub fn again(&self) -> Again {
        match self {
            Self::RateLimited { retry_after } | Self::Overloaded { retry_after } => {
                Again::Helps(*retry_after)
            }
            Self::Failed { .. }
            | Self::Unreachable { .. }
            | Self::BrokenOff { .. }
            | Self::Silent { .. }
            | Self::Nonsense { .. } => Again::Helps(None),
            Self::ContextTooLong { .. } => Again::Shorter,
            Self::Refused { .. }
            | Self::NotFound { .. }
            | Self::BadKey { .. }
            | Self::NoKey { .. }
            | Self::TooLarge { .. } => Again::Pointless,
        }
    }
}

fn after(time: Option<Duration>) -> String {
    time.map(|time| format!(": it asks to wait {} s", time.as_secs_f64())).unwrap_or_default()
}

fn because(why: &str) -> String {
    if why.is_empty() { String::new() } else { format!(": {why}") }
}
