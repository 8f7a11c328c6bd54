//! Which hands there are, and what their tools are called.
//!
//! Hands come from `manyhands.toml` (read-only) and from the database (added at run time). One name in
//! both is refused, naming both.

pub mod names;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use hands::{Hand, HandError, Tool};
use serde::Serialize;
use serde_json::Value;
use sqlx::Row as _;
use tokio::sync::watch;

use crate::clock;
use crate::database::{Database, DatabaseError};
use crate::hand::{BadHandName, BadMount, HandConfig, HandName};

/// Where a hand was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// In `manyhands.toml`, or by default.
    File,
    /// By `manyhands hand add`.
    Added,
}

/// A hand that sessions can use.
pub struct Registered {
    /// Its name.
    pub name: HandName,
    /// How it is set up.
    pub config: HandConfig,
    /// Where that is written.
    pub origin: Origin,
    /// What executes.
    pub hand: Arc<dyn Hand>,
    /// Its tools as last looked at.
    tools: RwLock<Arc<Vec<Tool>>>,
}

impl Registered {
    /// Its tools, in order of their names. An MCP server's change while it is registered.
    pub fn tools(&self) -> Arc<Vec<Tool>> {
        self.tools.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Its tool of that name.
    pub fn tool(&self, name: &str) -> Option<Tool> {
        self.tools().iter().find(|tool| tool.name == name).cloned()
    }

    /// The tool as clients of the whole gateway call it.
    pub fn full_name(&self, tool: &Tool) -> String {
        names::full(&self.name, &tool.name)
    }

    /// What `hand list` and `hand show` say of it.
    pub fn describe(&self) -> Value {
        serde_json::json!({
            "name": self.name,
            "kind": self.config.kind(),
            "origin": self.origin,
            "config": self.config,
            "about": self.hand.about(),
            "tools": self.tools().iter().map(|tool| self.full_name(tool)).collect::<Vec<_>>(),
        })
    }
}

/// Builds a hand from its configuration.
pub type Maker = Box<dyn Fn(&HandConfig) -> Result<Arc<dyn Hand>, BadMount> + Send + Sync>;

/// The hands of this gateway.
pub struct Registry {
    database: Database,
    maker: Maker,
    hands: RwLock<BTreeMap<HandName, Arc<Registered>>>,
    changes: watch::Sender<u64>,
}

/// Why the registry did not do as told.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The name breaks the rule.
    #[error(transparent)]
    BadName(#[from] BadHandName),
    /// Somebody has the name.
    #[error("a hand named {name} exists already ({}): remove that one, or choose another name", origin_text(*.origin))]
    Exists {
        /// The name.
        name: HandName,
        /// Where it stands.
        origin: Origin,
    },
    /// A hand of the file and an added one have one name.
    #[error(
        "two hands are named {0}, one in manyhands.toml (or the default) and one added with `manyhands hand add`: \
         give the one in manyhands.toml another name"
    )]
    Twice(HandName),
    /// Nobody has the name.
    #[error("no hand named {0}: `manyhands hand list` shows them")]
    Unknown(String),
    /// A hand of the file is not for the command line to change.
    #[error("the hand {0} stands in manyhands.toml, or is the default: change it there and restart")]
    ReadOnly(HandName),
    /// A mount can't be.
    #[error(transparent)]
    Mount(#[from] BadMount),
    /// The hand can't be used as configured.
    #[error("the hand {name} can't be set up: {source}")]
    Hand {
        /// Its name.
        name: HandName,
        /// Why.
        source: HandError,
    },
    /// What the database holds of a hand can't be read.
    #[error("the stored configuration of the hand {0} can't be read: remove and add it again")]
    Corrupt(String),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

fn origin_text(origin: Origin) -> &'static str {
    match origin {
        Origin::File => "in manyhands.toml, or as the default",
        Origin::Added => "added with `manyhands hand add`",
    }
}

impl Registry {
    /// The hands of the file and those added before. One that can't be read is left out, for `remove` to clear.
    pub async fn open(
        database: Database,
        file: &BTreeMap<HandName, HandConfig>,
        maker: Maker,
    ) -> Result<Self, RegistryError> {
        let registry = Self { database, maker, hands: RwLock::default(), changes: watch::Sender::new(0) };
        for (name, config) in file {
            registry.put(name, config, Origin::File).await?;
        }
        let rows = sqlx::query("select name, config from hand order by name")
            .fetch_all(registry.database.reader())
            .await
            .map_err(DatabaseError::from)?;
        for row in rows {
            let name: String = row.try_get("name").map_err(DatabaseError::from)?;
            let config: String = row.try_get("config").map_err(DatabaseError::from)?;
            match registry.put_stored(&name, &config).await {
                Ok(()) => {}
                Err(RegistryError::Exists { name, .. }) => return Err(RegistryError::Twice(name)),
                Err(error) => tracing::error!(hand.name = name, error = %error, "a hand is left out"),
            }
        }
        Ok(registry)
    }

    async fn put_stored(&self, name: &str, config: &str) -> Result<(), RegistryError> {
        let config = serde_json::from_str(config).map_err(|_| RegistryError::Corrupt(name.to_owned()))?;
        self.put(&name.parse()?, &config, Origin::Added).await.map(drop)
    }

    /// All hands, by name.
    pub fn list(&self) -> Vec<Arc<Registered>> {
        self.hands().values().cloned().collect()
    }

    /// The hand of that name.
    pub fn get(&self, name: &str) -> Result<Arc<Registered>, RegistryError> {
        let found =
            self.hands().iter().find(|(known, _)| known.as_str() == name).map(|(_, hand)| hand.clone());
        found.ok_or_else(|| RegistryError::Unknown(name.to_owned()))
    }

    /// The hand and tool that clients call `full_name`.
    pub fn resolve(&self, full_name: &str) -> Option<(Arc<Registered>, Tool)> {
        let (hand, _) = full_name.split_once(names::SEPARATOR)?;
        let hand = self.get(hand).ok()?;
        let tool = hand.tools().iter().find(|tool| hand.full_name(tool) == full_name).cloned()?;
        Some((hand, tool))
    }

    /// Adds a hand for good.
    pub async fn add(&self, name: &HandName, config: &HandConfig) -> Result<Arc<Registered>, RegistryError> {
        match config {
            HandConfig::Sandbox(settings) => settings.check_hosts()?,
            HandConfig::Mcp(_) => {}
        }
        let added = self.put(name, config, Origin::Added).await?;
        let (key, text) = (name.to_string(), serde_json::to_string(config).unwrap_or_default());
        let stored = self
            .database
            .write(move |connection| {
                Box::pin(async move {
                    sqlx::query("insert into hand (name, config, created_at) values ($1, $2, $3)")
                        .bind(key)
                        .bind(text)
                        .bind(clock::now().to_string())
                        .execute(&mut *connection)
                        .await?;
                    Ok::<_, DatabaseError>(())
                })
            })
            .await;
        if let Err(error) = stored {
            self.forget(name);
            return Err(error.into());
        }
        Ok(added)
    }

    /// Removes a hand that was added. Its instances are the caller's to release.
    pub async fn remove(&self, name: &HandName) -> Result<(), RegistryError> {
        if self.hands().get(name).is_some_and(|hand| hand.origin == Origin::File) {
            return Err(RegistryError::ReadOnly(name.clone()));
        }
        let key = name.to_string();
        let removed = self
            .database
            .write(move |connection| {
                Box::pin(async move {
                    let done = sqlx::query("delete from hand where name = $1")
                        .bind(key)
                        .execute(&mut *connection)
                        .await?;
                    Ok::<_, DatabaseError>(done.rows_affected())
                })
            })
            .await?;
        if removed == 0 {
            return Err(RegistryError::Unknown(name.to_string()));
        }
        self.forget(name);
        Ok(())
    }

    /// Fires whenever the set of hands has changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    async fn put(
        &self,
        name: &HandName,
        config: &HandConfig,
        origin: Origin,
    ) -> Result<Arc<Registered>, RegistryError> {
        let hand = (self.maker)(config)?;
        let mut tools =
            hand.tools().await.map_err(|source| RegistryError::Hand { name: name.clone(), source })?;
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        let registered = Arc::new(Registered {
            name: name.clone(),
            config: config.clone(),
            origin,
            hand,
            tools: RwLock::new(Arc::new(tools)),
        });
        let mut hands = self.hands.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = hands.get(name) {
            return Err(RegistryError::Exists { name: name.clone(), origin: known.origin });
        }
        hands.insert(name.clone(), registered.clone());
        drop(hands);
        self.changes.send_modify(|version| *version += 1);
        Ok(registered)
    }

    fn forget(&self, name: &HandName) {
        self.hands.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        self.changes.send_modify(|version| *version += 1);
    }

    fn hands(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<HandName, Arc<Registered>>> {
        self.hands.read().unwrap_or_else(PoisonError::into_inner)
    }
}
