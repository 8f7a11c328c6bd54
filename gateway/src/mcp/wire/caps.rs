//! So many of something per principal, and a place for each that is given back by being dropped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::access::Principal;

/// A cap per principal.
#[derive(Clone)]
pub(super) struct Caps {
    limit: usize,
    held: Arc<Mutex<HashMap<Principal, usize>>>,
}

/// One place under a cap, taken until it is dropped.
pub(super) struct Place {
    principal: Principal,
    held: Arc<Mutex<HashMap<Principal, usize>>>,
}

impl Caps {
    /// At most `limit` at a time for each principal.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, held: Arc::default() }
    }

    /// The cap.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// A place, unless all are taken.
    pub(super) fn take(&self, principal: &Principal) -> Option<Place> {
        let mut held = lock(&self.held);
        let count = held.entry(principal.clone()).or_default();
        if *count >= self.limit {
            if *count == 0 {
                held.remove(principal);
            }
            return None;
        }
        *count += 1;
        Some(Place { principal: principal.clone(), held: self.held.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = lock(&self.held);
        // Who holds nothing is forgotten: the map is never larger than what is held.
        if let Some(count) = held.get_mut(&self.principal) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.principal);
            }
        }
    }
}

/// Nothing under these locks can panic half-way, so a poisoned one is as good as any.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
