//! `[loop]`: how the built-in loop goes about its work.

use std::time::Duration;

use serde::Deserialize;

/// How the built-in loop goes about its work.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Work {
    /// Model requests before a person says something. Default 200.
    pub steps: u64,
    /// Tokens before a person says something. Default 20 million.
    pub tokens: u64,
    /// Minutes before a person says something. Default 720.
    pub minutes: u64,
    /// Money before a person says something, in the currency of the prices, one of which must be set. Default: any.
    pub cost: Option<f64>,
    /// What a million tokens cost that the model is told.
    pub price_input: f64,
    /// What a million tokens cost that the model answers.
    pub price_output: f64,
    /// What a million tokens cost that are read from the provider's cache.
    pub price_cache_read: f64,
    /// What a million tokens cost that are written to the provider's cache.
    pub price_cache_write: f64,
    /// Attempts at a model that fails. Default 8.
    pub tries: u32,
    /// The pause before the second attempt, in milliseconds; doubled before each further one. Default 1000.
    pub backoff_ms: u64,
    /// Tokens from which on a summary takes the place of what came before. Default 120000.
    pub compact_at: u64,
    /// How many of the latest results of calls the model is told whole; of older ones, the beginning. Default 24.
    pub whole_results: usize,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            steps: 200,
            tokens: 20_000_000,
            minutes: 720,
            cost: None,
            price_input: 0.0,
            price_output: 0.0,
            price_cache_read: 0.0,
            price_cache_write: 0.0,
            tries: 8,
            backoff_ms: 1_000,
            compact_at: 120_000,
            whole_results: 24,
        }
    }
}

impl Work {
    /// What makes no sense: which setting, and what it must be.
    pub(super) fn senseless(&self) -> Option<(&'static str, &'static str)> {
        let prices = [self.price_input, self.price_output, self.price_cache_read, self.price_cache_write];
        let numbers = [
            ("loop.steps", self.steps),
            ("loop.tokens", self.tokens),
            ("loop.minutes", self.minutes),
            ("loop.tries", self.tries.into()),
            ("loop.backoff_ms", self.backoff_ms),
            ("loop.compact_at", self.compact_at),
            ("loop.whole_results", u64::try_from(self.whole_results).unwrap_or(u64::MAX)),
        ];
        if let Some((setting, _)) = numbers.into_iter().find(|(_, number)| *number == 0) {
            return Some((setting, "is 0: it must be at least 1"));
        }
        if prices.iter().chain(&self.cost).any(|number| !number.is_finite() || *number < 0.0) {
            return Some(("loop.cost", "and the prices must be numbers of at least 0"));
        }
        if self.cost.is_some() && prices.iter().all(|price| *price == 0.0) {
            return Some((
                "loop.cost",
                "limits nothing without prices: set loop.price_input and loop.price_output, too",
            ));
        }
        None
    }

    /// The most time before a person says something.
    pub fn time(&self) -> Duration {
        Duration::from_secs(self.minutes.saturating_mul(60))
    }
}
