//! Sealed texts: what the gateway gives to a client to bring back, and believes only from that client.
//!
//! Cursors, task ids and request states name things of ours. A client can neither read nor change one, nor use one that
//! another principal was given or that was given for something else (2026-07-28, basic/patterns/mrtr: `requestState` is
//! an attacker's input). The key is the database's, so that every gateway on it opens what another one sealed, and a
//! restart changes nothing.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead as _, Payload};
use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305, XNonce};
use jiff::Timestamp;
use sqlx::Row as _;

use crate::access::Principal;
use crate::clock;
use crate::database::{Database, DatabaseError};

/// What the key is called in the database.
const KEY_NAME: &str = "seal";
/// Bytes of the key.
const KEY_BYTES: usize = 32;
/// Bytes of a nonce. (`XChaCha20`: long enough to be random.)
const NONCE_BYTES: usize = 24;
/// Bytes of the time after which a seal is worth nothing.
const EXPIRY_BYTES: usize = 8;
/// Longest text that is opened, in bytes.
const TEXT_MAX: usize = 16 << 10;

/// What a sealed text is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Where a list goes on.
    Cursor,
    /// A task of a hand's server.
    Task,
    /// A call that waits for input.
    RequestState,
}

impl Purpose {
    fn tag(self) -> &'static str {
        match self {
            Self::Cursor => "cursor",
            Self::Task => "task",
            Self::RequestState => "request-state",
        }
    }
}

/// The text was not sealed here for that, or for somebody else, or is too old. Which of them is nobody's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a value that this gateway gave for this, or one that is too old")]
pub struct BadSeal;

/// Seals and opens.
pub struct Sealer {
    cipher: XChaCha20Poly1305,
}

impl Sealer {
    /// With the database's key, which is made when there is none.
    pub async fn open_key(database: &Database) -> Result<Self, DatabaseError> {
        let fresh: String = BASE64_URL_SAFE_NO_PAD.encode(clock::secret::<KEY_BYTES>());
        let key = database
            .write(move |connection| {
                Box::pin(async move {
                    sqlx::query(
                        "insert into sealing_key (name, value) values ($1, $2) on conflict do nothing",
                    )
                    .bind(KEY_NAME)
                    .bind(fresh)
                    .execute(&mut *connection)
                    .await?;
                    let row = sqlx::query("select value from sealing_key where name = $1")
                        .bind(KEY_NAME)
                        .fetch_one(&mut *connection)
                        .await?;
                    Ok::<String, DatabaseError>(row.try_get("value")?)
                })
            })
            .await?;
        let key: [u8; KEY_BYTES] = BASE64_URL_SAFE_NO_PAD
            .decode(key)
            .ok()
            .and_then(|key| key.try_into().ok())
            .ok_or_else(|| sqlx::Error::Decode("the sealing key is not one".into()))?;
        Ok(Self::of(&key))
    }

    /// With this key.
    pub fn of(key: &[u8; KEY_BYTES]) -> Self {
        Self { cipher: XChaCha20Poly1305::new(key.into()) }
    }

    /// Seals `body` for `owner`, to be opened before `until`. The text is safe in URLs, headers and JSON.
    pub fn seal(&self, purpose: Purpose, owner: &Principal, until: Timestamp, body: &[u8]) -> String {
        let nonce = clock::secret::<NONCE_BYTES>();
        let mut plain = until.as_second().to_be_bytes().to_vec();
        plain.extend_from_slice(body);
        let aad = bound_to(purpose, owner);
        let sealed = self.cipher.encrypt(&XNonce::from(nonce), Payload { msg: &plain, aad: &aad });
        // Only a body of more than 256 GiB can't be sealed; that text opens for nobody.
        let sealed = sealed.unwrap_or_default();
        BASE64_URL_SAFE_NO_PAD.encode([nonce.as_slice(), &sealed].concat())
    }

    /// What was sealed in `text` for `purpose` and `owner`.
    pub fn open(&self, purpose: Purpose, owner: &Principal, text: &str) -> Result<Vec<u8>, BadSeal> {
        if text.len() > TEXT_MAX {
            return Err(BadSeal);
        }
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| BadSeal)?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_BYTES>().ok_or(BadSeal)?;
        let aad = bound_to(purpose, owner);
        let plain = self.cipher.decrypt(&XNonce::from(*nonce), Payload { msg: sealed, aad: &aad });
        let plain = plain.map_err(|_| BadSeal)?;
        let (until, body) = plain.split_first_chunk::<EXPIRY_BYTES>().ok_or(BadSeal)?;
        if i64::from_be_bytes(*until) < clock::now().as_second() {
            return Err(BadSeal);
        }
        Ok(body.to_vec())
    }
}

fn bound_to(purpose: Purpose, owner: &Principal) -> Vec<u8> {
    format!("{}\n{owner}", purpose.tag()).into_bytes()
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    fn later() -> Timestamp {
        clock::now() + SignedDuration::from_mins(1)
    }

    #[test]
    fn only_its_owner_opens_it_for_what_it_is_for_and_in_time() {
        let (sealer, owner) = (Sealer::of(&[7; KEY_BYTES]), Principal::owner());
        let text = sealer.seal(Purpose::Cursor, &owner, later(), b"page 2");
        assert_eq!(sealer.open(Purpose::Cursor, &owner, &text).as_deref(), Ok(b"page 2".as_slice()));
        assert_eq!(sealer.open(Purpose::Task, &owner, &text), Err(BadSeal));
        let other = Principal("local:bob".to_owned());
        assert_eq!(sealer.open(Purpose::Cursor, &other, &text), Err(BadSeal));
        assert_eq!(Sealer::of(&[8; KEY_BYTES]).open(Purpose::Cursor, &owner, &text), Err(BadSeal));
        let old = sealer.seal(Purpose::Cursor, &owner, clock::now() - SignedDuration::from_secs(2), b"");
        assert_eq!(sealer.open(Purpose::Cursor, &owner, &old), Err(BadSeal));
    }

    #[test]
    fn a_text_that_was_changed_anywhere_opens_for_nobody() {
        let (sealer, owner) = (Sealer::of(&[7; KEY_BYTES]), Principal::owner());
        let text = sealer.seal(Purpose::RequestState, &owner, later(), b"call 7");
        for n in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[n] = if bytes[n] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).unwrap();
            assert_eq!(sealer.open(Purpose::RequestState, &owner, &changed), Err(BadSeal), "at {n}");
        }
        for text in ["", "A", "not sealed", &text[..text.len() - 4]] {
            assert_eq!(sealer.open(Purpose::RequestState, &owner, text), Err(BadSeal));
        }
    }
}
