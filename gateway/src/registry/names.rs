//! What clients call the tools and prompts of hands.
//!
//! `{hand}__{own name}`, at most [`NAME_MAX`] characters of `[a-zA-Z0-9_-]`: clients put a prefix of their own in front
//! and rewrite or drop what is longer or odd. A name that does not fit is shortened, the same way at each start.

use sha2::{Digest as _, Sha256};

use crate::hand::HandName;

/// Between a hand's name and that of its tool.
pub const SEPARATOR: &str = "__";
/// Longest name that a client sees, in characters.
pub const NAME_MAX: usize = 48;
/// Hex digits of the SHA-256 of the whole name, at the end of one that was shortened.
const DIGEST_HEX: usize = 6;

/// What clients of the whole gateway call the tool or prompt that `hand` calls `own`.
pub fn full(hand: &HandName, own: &str) -> String {
    let whole = format!("{hand}{SEPARATOR}{own}");
    if !own.is_empty() && whole.len() <= NAME_MAX && whole.bytes().all(is_plain) {
        return whole;
    }
    let digest = Sha256::digest(whole.as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let plain: String = whole
        .chars()
        .map(|c| if c.is_ascii() && is_plain(c as u8) { c } else { '_' })
        .take(NAME_MAX - 1 - DIGEST_HEX)
        .collect();
    let hex = hex.get(..DIGEST_HEX).unwrap_or_default();
    format!("{plain}_{hex}")
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hand(name: &str) -> HandName {
        name.parse().unwrap()
    }

    #[test]
    fn a_good_name_stays() {
        assert_eq!(full(&hand("github"), "create_issue"), "github__create_issue");
        assert_eq!(full(&hand("a"), &"x".repeat(45)), format!("a__{}", "x".repeat(45)));
    }

    #[test]
    fn a_long_or_odd_name_is_shortened_and_keeps_its_hand() {
        let long = full(&hand("filesystem-of-my-laptop1"), &"list_directory_with_sizes".repeat(3));
        // Pinned: clients remember it over restarts and releases.
        assert_eq!(long, "filesystem-of-my-laptop1__list_directory__6e1fe8");
        assert_eq!(long.len(), NAME_MAX);
        let odd = full(&hand("db"), "query.run now/日本");
        assert!(odd.starts_with("db__query_run_now____"), "{odd}");
        assert!(odd.len() <= NAME_MAX && odd.bytes().all(is_plain), "{odd}");
        // Names that look alike when cleaned stay apart.
        assert_ne!(full(&hand("db"), "a.b"), full(&hand("db"), "a/b"));
        assert_ne!(full(&hand("db"), ""), full(&hand("db"), "_"));
    }
}
