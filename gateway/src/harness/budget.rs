//! What the loop may spend before a person says something, and how patient it is with a model that fails.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::session::{ModelUsage, Spent};

/// Tokens that a price is for.
const PRICED_TOKENS: f64 = 1_000_000.0;

/// The most that may be spent before a person says something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Model requests. Default 200.
    pub steps: u64,
    /// Tokens, told and answered. Default 20 million.
    pub tokens: u64,
    /// Time. Default 12 hours.
    pub time: Duration,
    /// Money, and what tokens cost. Default: not counted.
    pub cost: Option<(f64, Prices)>,
}

/// What a million tokens cost, in whatever currency the budget is in.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prices {
    /// Told, beside what the cache had.
    pub input: f64,
    /// Answered.
    pub output: f64,
    /// Read from the provider's cache.
    pub cache_read: f64,
    /// Written to the provider's cache.
    pub cache_write: f64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { steps: 200, tokens: 20_000_000, time: Duration::from_hours(12), cost: None }
    }
}

impl Budget {
    /// The name of the first budget that is used up.
    pub fn used_up(&self, spent: &Spent, now: Timestamp) -> Option<&'static str> {
        let tokens = spent.usage.context().saturating_add(spent.usage.output_tokens);
        let limit = SignedDuration::try_from(self.time).unwrap_or(SignedDuration::MAX);
        if spent.requests >= self.steps {
            Some("steps")
        } else if tokens >= self.tokens {
            Some("tokens")
        } else if spent.since.is_some_and(|since| now.duration_since(since) >= limit) {
            Some("time")
        } else if self.cost.is_some_and(|(most, prices)| prices.of(&spent.usage) >= most) {
            Some("cost")
        } else {
            None
        }
    }
}

impl Prices {
    /// What these tokens cost.
    #[expect(clippy::cast_precision_loss, reason = "nobody pays for 2^53 tokens")]
    pub fn of(&self, usage: &ModelUsage) -> f64 {
        let parts = [
            (usage.input_tokens, self.input),
            (usage.output_tokens, self.output),
            (usage.cache_read_input_tokens, self.cache_read),
            (usage.cache_creation_input_tokens, self.cache_write),
        ];
        parts.iter().map(|(tokens, price)| *tokens as f64 * price / PRICED_TOKENS).sum()
    }
}

/// How a model that fails is asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Before the second attempt. Doubled before each further one. Default 1 s.
    pub first: Duration,
    /// At most. Default 1 min.
    pub most: Duration,
    /// Attempts. Default 8.
    pub tries: u32,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), most: Duration::from_mins(1), tries: 8 }
    }
}

impl Backoff {
    /// The longest that a provider may ask to wait.
    const ASKED_MOST: Duration = Duration::from_hours(1);

    /// How long to wait after so many failures one after the other; none when that were enough. `asked` is how long the
    /// provider asks to wait.
    pub fn pause(&self, failures: u32, asked: Option<Duration>) -> Option<Duration> {
        if failures >= self.tries || asked.is_some_and(|asked| asked > Self::ASKED_MOST) {
            return None;
        }
        let doubled = 2_u32.saturating_pow(failures.saturating_sub(1));
        let pause = self.first.saturating_mul(doubled).min(self.most);
        Some(pause.max(asked.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_budget_is_told_by_its_name() {
        let since: Timestamp = "2026-11-29T16:00:00Z".parse().unwrap();
        let later = |minutes| since + SignedDuration::from_mins(minutes);
        let prices = Prices { input: 3.0, output: 15.0, cache_read: 0.3, cache_write: 3.75 };
        let budget =
            Budget { steps: 10, tokens: 1_000, time: Duration::from_mins(5), cost: Some((0.01, prices)) };
        let spent = |requests, input_tokens, output_tokens| Spent {
            requests,
            usage: ModelUsage { input_tokens, output_tokens, ..ModelUsage::default() },
            since: Some(since),
        };
        for (spent, now, expected) in [
            (spent(9, 100, 100), later(4), None),
            (spent(10, 100, 100), later(4), Some("steps")),
            (spent(9, 600, 400), later(4), Some("tokens")),
            (spent(9, 100, 100), later(5), Some("time")),
            (spent(9, 100, 700), later(4), Some("cost")),
        ] {
            assert_eq!(budget.used_up(&spent, now), expected, "{spent:?}");
        }
    }

    #[test]
    fn pauses_grow_and_end_and_heed_the_provider() {
        let backoff = Backoff { first: Duration::from_secs(1), most: Duration::from_secs(5), tries: 5 };
        let pauses: Vec<_> = (1..=5).map(|failures| backoff.pause(failures, None)).collect();
        assert_eq!(pauses, [Some(1), Some(2), Some(4), Some(5), None].map(|s| s.map(Duration::from_secs)));
        let asked = Some(Duration::from_secs(30));
        assert_eq!(backoff.pause(1, asked), asked);
        assert_eq!(backoff.pause(1, Some(Duration::from_hours(2))), None);
    }
}
