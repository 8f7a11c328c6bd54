//! Hands in the database: written here, and seen here when another process that shares it has written them.

use std::sync::Arc;

use sqlx::Row as _;

use super::registered::Registered;
use super::{Origin, Registry, RegistryError, keep};
use crate::database::{self, Database, DatabaseError, Subscription};
use crate::hand::{HandConfig, HandName};

/// What the signal is called that hands were added or removed.
pub(super) const TOPIC: &str = "hands";

/// A hand as the database has it.
pub(super) struct Stored {
    pub(super) name: String,
    config: String,
    added_at: String,
}

impl Stored {
    /// How it is set up, where that can be read.
    pub(super) fn config(&self) -> Option<HandConfig> {
        serde_json::from_str(&self.config).ok()
    }
}

/// The hands that were added, by name, as the database has them. One that can't be read is left out.
pub async fn added(database: &Database) -> Result<Vec<(HandName, HandConfig)>, DatabaseError> {
    let read = |stored: Stored| Some((stored.name.parse().ok()?, stored.config()?));
    Ok(stored(database).await?.into_iter().filter_map(read).collect())
}

/// All that the database has.
async fn stored(database: &Database) -> Result<Vec<Stored>, DatabaseError> {
    let rows = sqlx::query("select name, config, created_at from hand order by name")
        .fetch_all(database.reader())
        .await?;
    let stored = rows.iter().map(|row| {
        let text = |column| row.try_get::<String, _>(column);
        Ok(Stored { name: text("name")?, config: text("config")?, added_at: text("created_at")? })
    });
    stored.collect()
}

impl Registry {
    /// Fires when another process has added or removed hands, or may have: then it is time to [`Registry::catch_up`].
    pub fn told_elsewhere(&self) -> Subscription {
        let mut told = self.database.signals().subscribe();
        told.add(TOPIC);
        told
    }

    /// Has the added hands as the database has them now. Returns those that are not there any more, for their instances
    /// to be released. What can't be had is said in the log, and the rest applies.
    pub async fn catch_up(&self) -> Result<Vec<Arc<Registered>>, RegistryError> {
        let _one = self.changing.lock().await;
        let stored = self.stored().await?;
        let added = self.list().into_iter().filter(|hand| hand.origin == Origin::Added);
        let mut gone: Vec<_> =
            added.filter(|hand| stored.iter().all(|stored| stored.name != hand.name.as_str())).collect();
        for hand in &gone {
            self.forget(hand);
            tracing::info!(hand.name = %hand.name, "a hand is removed, by another gateway");
        }
        for stored in &stored {
            match self.catch_up_one(stored).await {
                Ok(replaced) => gone.extend(replaced),
                Err(error) => {
                    tracing::error!(hand.name = stored.name, error = %error, "a hand of another gateway is left out");
                }
            }
        }
        Ok(gone)
    }

    async fn catch_up_one(&self, stored: &Stored) -> Result<Option<Arc<Registered>>, RegistryError> {
        let known = self.get(&stored.name).ok();
        match &known {
            Some(known) if known.origin == Origin::File => {
                return Err(RegistryError::Twice(known.name.clone()));
            }
            Some(known) if known.added_at == stored.added_at => return Ok(None),
            _ => {}
        }
        let put = self.put_stored(stored, known.as_ref()).await?;
        tracing::info!(hand.name = %put.name, config = %put.config.shown(), "a hand is added, by another gateway");
        Ok(known)
    }

    /// All that the database has.
    pub(super) async fn stored(&self) -> Result<Vec<Stored>, DatabaseError> {
        stored(&self.database).await
    }

    /// Has it, in the place of `known`.
    pub(super) async fn put_stored(
        &self,
        stored: &Stored,
        known: Option<&Arc<Registered>>,
    ) -> Result<Arc<Registered>, RegistryError> {
        // Its paths are those that were seen when it was added: no link is followed again.
        let config = stored.config().ok_or_else(|| RegistryError::Corrupt(stored.name.clone()))?;
        let mut made = self.make_or_refuse(&stored.name.parse()?, &config, Origin::Added).await?;
        made.added_at.clone_from(&stored.added_at);
        self.put_over(made, known)
    }

    /// Writes a hand and what it offers, and tells the others. False when there is one of its name.
    pub(super) async fn store(&self, hand: &Registered) -> Result<bool, DatabaseError> {
        let (name, added_at) = (hand.name.to_string(), hand.added_at.clone());
        let config = serde_json::to_string(&hand.config).unwrap_or_default();
        let (offers, dialect) = (keep::Row::of(hand), self.database.dialect());
        self.database
            .write(move |connection| {
                Box::pin(async move {
                    let insert = "insert into hand (name, config, created_at) values ($1, $2, $3)
                        on conflict (name) do nothing";
                    let insert = sqlx::query(insert).bind(name).bind(config).bind(added_at);
                    if insert.execute(&mut *connection).await?.rows_affected() == 0 {
                        return Ok(false);
                    }
                    if let Some(offers) = offers {
                        offers.store(connection, dialect).await?;
                    }
                    database::notify(connection, dialect, TOPIC, 0).await?;
                    Ok::<_, DatabaseError>(true)
                })
            })
            .await
    }
}
