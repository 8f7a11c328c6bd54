//! Bearer tokens: made here, kept as SHA-256, shown once.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jiff::Timestamp;
use secrecy::SecretString;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use sqlx::Row as _;

use super::Principal;
use crate::clock;
use crate::database::{Database, DatabaseError};

/// How every token begins, so that scanners recognise a leaked one.
const PREFIX: &str = "mh_";
/// How long a verified token is believed without asking the database again. A revocation through this
/// process counts at once, one through another process on the same database within this time.
const BELIEVED: Duration = Duration::from_secs(1);
/// Most tokens remembered as verified.
const REMEMBERED_MAX: usize = 4_096;
/// Longest name of a token, in characters.
const NAME_MAX: usize = 64;

/// The tokens of this gateway.
pub struct Tokens {
    database: Database,
    verified: Mutex<Verified>,
}

/// Digests of tokens that were verified lately: whose, until when, and since when that is believed.
type Verified = HashMap<String, (Principal, Option<Timestamp>, Instant)>;

/// What a listing shows of a token: never the token.
#[derive(Clone, Debug, Serialize)]
pub struct TokenInfo {
    /// Its name.
    pub name: String,
    /// Whom it makes of its bearer.
    pub principal: Principal,
    /// When it was made.
    pub created_at: String,
    /// From when on it is refused, if ever.
    pub expires_at: Option<String>,
    /// When it was revoked.
    pub revoked_at: Option<String>,
}

/// Why a token was not made or revoked.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The name breaks the rule.
    #[error(
        "{0:?} is no name for a token: use 1 to {NAME_MAX} of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit"
    )]
    BadName(String),
    /// A living token has the name.
    #[error("a token named {0:?} exists: revoke it first, or choose another name")]
    Exists(String),
    /// No living token has the name.
    #[error("no token named {0:?}: `manyhands token list` shows them")]
    Unknown(String),
    /// It would be dead at birth.
    #[error("the expiry {0} is in the past")]
    Expired(Timestamp),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl Tokens {
    /// The tokens kept in `database`.
    pub fn new(database: Database) -> Self {
        Self { database, verified: Mutex::default() }
    }

    /// Makes a token for `local:NAME` and returns it, the only time it can be seen.
    pub async fn create(
        &self,
        name: &str,
        expires_at: Option<Timestamp>,
    ) -> Result<SecretString, TokenError> {
        self.create_for(Principal(format!("local:{name}")), name, expires_at).await
    }

    /// Makes a token for somebody who has others by other names.
    pub async fn create_for(
        &self,
        principal: Principal,
        name: &str,
        expires_at: Option<Timestamp>,
    ) -> Result<SecretString, TokenError> {
        check_name(name)?;
        if let Some(at) = expires_at.filter(|at| *at <= clock::now()) {
            return Err(TokenError::Expired(at));
        }
        self.database.check_disk()?;
        let token = format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(clock::secret::<32>()));
        let (digest, name) = (digest(&token), name.to_owned());
        self.database
            .write(move |connection| {
                Box::pin(async move {
                    let taken = sqlx::query("select 1 from token where name = $1 and revoked_at is null")
                        .bind(name.clone())
                        .fetch_optional(&mut *connection)
                        .await
                        .map_err(DatabaseError::from)?;
                    if taken.is_some() {
                        return Err(TokenError::Exists(name));
                    }
                    sqlx::query(
                        "insert into token (digest, name, principal, created_at, expires_at)
                         values ($1, $2, $3, $4, $5)",
                    )
                    .bind(digest)
                    .bind(name.clone())
                    .bind(principal.0)
                    .bind(clock::now().to_string())
                    .bind(expires_at.map(|at| at.to_string()))
                    .execute(&mut *connection)
                    .await
                    .map_err(DatabaseError::from)?;
                    Ok(())
                })
            })
            .await?;
        Ok(SecretString::from(token))
    }

    /// Whom `token` speaks for, if it is known, not expired and not revoked.
    pub async fn verify(&self, token: &str) -> Result<Option<Principal>, DatabaseError> {
        let digest = digest(token);
        if let Some(principal) = self.remembered(&digest) {
            return Ok(Some(principal));
        }
        let row =
            sqlx::query("select principal, expires_at from token where digest = $1 and revoked_at is null")
                .bind(digest.clone())
                .fetch_optional(self.database.reader())
                .await?;
        let Some(row) = row else { return Ok(None) };
        let principal = Principal(row.try_get("principal")?);
        let expires_at: Option<String> = row.try_get("expires_at")?;
        // An expiry that can't be read is one that has passed: fail closed.
        let expires_at = expires_at.map(|at| at.parse().unwrap_or(Timestamp::MIN));
        if expires_at.is_some_and(|at| at <= clock::now()) {
            return Ok(None);
        }
        self.remember(digest, &principal, expires_at);
        Ok(Some(principal))
    }

    /// All tokens, the revoked ones too, by age.
    pub async fn list(&self) -> Result<Vec<TokenInfo>, DatabaseError> {
        let rows = sqlx::query(
            "select name, principal, created_at, expires_at, revoked_at from token order by created_at, name",
        )
        .fetch_all(self.database.reader())
        .await?;
        rows.into_iter()
            .map(|row| {
                Ok(TokenInfo {
                    name: row.try_get("name")?,
                    principal: Principal(row.try_get("principal")?),
                    created_at: row.try_get("created_at")?,
                    expires_at: row.try_get("expires_at")?,
                    revoked_at: row.try_get("revoked_at")?,
                })
            })
            .collect()
    }

    /// Makes the living token of that name worthless, at once.
    pub async fn revoke(&self, name: &str) -> Result<(), TokenError> {
        let name = name.to_owned();
        self.database
            .write(move |connection| {
                Box::pin(async move {
                    let done = sqlx::query(
                        "update token set revoked_at = $1 where name = $2 and revoked_at is null",
                    )
                    .bind(clock::now().to_string())
                    .bind(name.clone())
                    .execute(&mut *connection)
                    .await
                    .map_err(DatabaseError::from)?;
                    if done.rows_affected() == 0 { Err(TokenError::Unknown(name)) } else { Ok(()) }
                })
            })
            .await?;
        self.verified().clear();
        Ok(())
    }

    fn remembered(&self, digest: &str) -> Option<Principal> {
        let verified = self.verified();
        let (principal, expires_at, since) = verified.get(digest)?;
        let fresh = since.elapsed() < BELIEVED && expires_at.is_none_or(|at| at > clock::now());
        fresh.then(|| principal.clone())
    }

    fn remember(&self, digest: String, principal: &Principal, expires_at: Option<Timestamp>) {
        let mut verified = self.verified();
        if verified.len() >= REMEMBERED_MAX {
            verified.clear();
        }
        verified.insert(digest, (principal.clone(), expires_at, Instant::now()));
    }

    fn verified(&self) -> std::sync::MutexGuard<'_, Verified> {
        self.verified.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn check_name(name: &str) -> Result<(), TokenError> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let good = name.len() <= NAME_MAX
        && name.starts_with(plain)
        && name.chars().all(|c| plain(c) || matches!(c, '.' | '_' | '-'));
    if good { Ok(()) } else { Err(TokenError::BadName(name.to_owned())) }
}

/// Tokens have 256 random bits, so one round of SHA-256 is enough to store them by.
fn digest(token: &str) -> String {
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(token.as_bytes()) {
        use std::fmt::Write as _;
        let _ = write!(text, "{byte:02x}");
    }
    text
}
