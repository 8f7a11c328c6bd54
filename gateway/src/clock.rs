//! Time and ids: the only callers of `now()` and of random ids.

use jiff::Timestamp;
use uuid::Uuid;

/// The time, to the microsecond, in UTC.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}

/// An id that sorts by the time it was made at.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub fn id() -> Uuid {
    Uuid::now_v7()
}

/// `N` bytes that nobody can guess.
///
/// # Panics
/// When the operating system has no randomness, which leaves nothing safe to do.
pub fn secret<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system has randomness");
    bytes
}
