//! The built-in loop, as this gateway is set up for it.

use std::sync::Arc;
use std::time::Duration;

use crate::calls::Calls;
use crate::config::{Config, Work, variable};
use crate::harness::context::{Policy, Results};
use crate::harness::{Backoff, Budget, Harness, Manner, Prices, chooser};
use crate::leases::Leases;
use crate::registry::Registry;
use crate::session::Sessions;

pub(super) fn harness(
    config: &Config,
    sessions: &Arc<Sessions>,
    leases: &Arc<Leases>,
    registry: &Arc<Registry>,
    calls: &Calls,
) -> Arc<Harness> {
    Arc::new(Harness::new(
        sessions.clone(),
        Arc::new(sessions.log().clone()),
        leases.clone(),
        registry.clone(),
        calls.clone(),
        chooser(config.brain.clone(), variable),
        manner(&config.work),
    ))
}

fn manner(work: &Work) -> Manner {
    let prices = Prices {
        input: work.price_input,
        output: work.price_output,
        cache_read: work.price_cache_read,
        cache_write: work.price_cache_write,
    };
    let Policy { results, .. } = Policy::default();
    let results = match results {
        Results::Trimmed { chars, .. } => Results::Trimmed { whole: work.whole_results, chars },
        Results::Full => Results::Full,
    };
    Manner {
        policy: Policy { results, compact_at: Some(work.compact_at) },
        budget: Budget {
            steps: work.steps,
            tokens: work.tokens,
            time: work.time(),
            cost: work.cost.map(|most| (most, prices)),
        },
        backoff: Backoff {
            first: Duration::from_millis(work.backoff_ms),
            tries: work.tries,
            ..Backoff::default()
        },
    }
}
