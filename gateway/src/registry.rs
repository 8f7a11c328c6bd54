//! Which hands there are, and what their tools are called.
//!
//! Hands come from `manyhands.toml` (read-only; the file may change while the gateway runs) and from the database (added
//! at run time). One name in both is refused, naming both. What MCP servers offer is kept in the database.

mod elsewhere;
mod keep;
pub mod names;
mod offer;
mod refused;
mod registered;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use futures_util::future::join_all;
use hands::mcp::Catalogue;
use hands::{Hand, HandError};
use serde::Serialize;
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock;
use crate::database::{self, Database, DatabaseError};
use crate::hand::{BadHand, BadHandName, HandConfig, HandName};
use elsewhere::Stored;
pub use elsewhere::added;
pub use registered::Registered;

/// Where a hand was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// In `manyhands.toml`, or by default.
    File,
    /// By `manyhands hand add`.
    Added,
}

/// What a hand is made of.
pub struct Making<'a> {
    /// Its name.
    pub name: &'a HandName,
    /// How it is set up.
    pub config: &'a HandConfig,
    /// What its server offered when it was last looked at, when it is an MCP server.
    pub known: Catalogue,
}

/// Builds a hand from its configuration.
pub type Maker = Box<dyn Fn(&Making<'_>) -> Result<Arc<dyn Hand>, BadHand> + Send + Sync>;

/// Whether a server is looked at before it is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It must answer.
    First,
    /// It may be there or not.
    Later,
}

/// The hands of this gateway.
pub struct Registry {
    database: Database,
    maker: Maker,
    hands: RwLock<BTreeMap<HandName, Arc<Registered>>>,
    /// Held while hands of the database and those here are made the same, from either side.
    changing: Mutex<()>,
    changes: watch::Sender<u64>,
    /// What keeps an eye on servers.
    tasks: TaskTracker,
    /// Fires when servers may be looked at without being asked for.
    live: CancellationToken,
    /// Fires when nothing is kept any more.
    closing: CancellationToken,
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
    #[error("the hand {0} stands in manyhands.toml, or is the default: change it there")]
    ReadOnly(HandName),
    /// It makes no sense.
    #[error("the hand {name} can't be: {source}")]
    Senseless {
        /// Its name.
        name: HandName,
        /// Why.
        source: BadHand,
    },
    /// Its server was looked at and is not there.
    #[error("{why}. {name} was not added: put that right, or add it as it is with --no-check")]
    NoAnswer {
        /// Its name.
        name: HandName,
        /// Why.
        why: String,
    },
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
        let registry = Self {
            database,
            maker,
            hands: RwLock::default(),
            changing: Mutex::default(),
            changes: watch::Sender::new(0),
            tasks: TaskTracker::new(),
            live: CancellationToken::new(),
            closing: CancellationToken::new(),
        };
        let stored = registry.stored().await?;
        let added: Vec<HandConfig> = stored.iter().filter_map(Stored::config).collect();
        let writable: Vec<PathBuf> = file.values().chain(&added).flat_map(HandConfig::writable).collect();
        for (name, config) in file {
            let made = match canonical(name, config, &writable) {
                Ok(config) => registry.make_or_refuse(name, &config, Origin::File).await?,
                // An agent that made a link must not keep the gateway from starting.
                Err(error) => refused(name, config, Origin::File, &error),
            };
            registry.put(made)?;
        }
        for stored in stored {
            match registry.put_stored(&stored, None).await {
                Ok(_) => {}
                Err(RegistryError::Exists { name, .. }) => return Err(RegistryError::Twice(name)),
                Err(error) => tracing::error!(hand.name = stored.name, error = %error, "a hand is left out"),
            }
        }
        Ok(registry)
    }

    /// From now on servers that nobody has seen, or that can't be reached, are looked at in the background.
    pub fn live(&self) {
        self.live.cancel();
    }

    /// Keeps nothing any more. What is being stored is waited for, and what hands hold beside instances ends.
    pub async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        let hands = self.list();
        join_all(hands.iter().map(|hand| hand.hand.shutdown())).await;
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
    pub fn resolve(&self, full_name: &str) -> Option<(Arc<Registered>, Arc<hands::Tool>)> {
        let hand = self.owner(full_name)?;
        let tool = hand.offer().named(full_name)?.clone();
        Some((hand, tool))
    }

    /// The hand whose prompt clients call `full_name`, and the prompt's own name.
    pub fn resolve_prompt(&self, full_name: &str) -> Option<(Arc<Registered>, String)> {
        let hand = self.owner(full_name)?;
        let own = hand.offer().prompt_named(full_name)?.to_owned();
        Some((hand, own))
    }

    /// The hand whose name a full name begins with.
    fn owner(&self, full_name: &str) -> Option<Arc<Registered>> {
        let (hand, _) = full_name.split_once(names::SEPARATOR)?;
        self.get(hand).ok()
    }

    /// A hand that knows what instances of this kind look like: the one called `name` where that is still there, which
    /// alone knows on which machine they are, else any of the kind.
    pub(crate) fn reaper(&self, kind: &str, name: &str) -> Option<Arc<dyn Hand>> {
        let leaves_processes = |hand: &Arc<Registered>| match &hand.config {
            HandConfig::Mcp(settings) => settings.url.is_none(),
            _ => true,
        };
        let of_kind = |hand: &&Arc<Registered>| {
            hand.config.kind() == kind && hand.refused.is_none() && leaves_processes(hand)
        };
        let known = self.list();
        let same = known.iter().filter(of_kind).find(|hand| hand.name.as_str() == name);
        if let Some(known) = same.or_else(|| known.iter().find(of_kind).filter(|hand| hand.config.is_here()))
        {
            return Some(known.hand.clone());
        }
        let config = HandConfig::any(kind)?;
        let name = kind.parse().ok()?;
        (self.maker)(&Making { name: &name, config: &config, known: Catalogue::default() }).ok()
    }

    /// Adds a hand for good. Told to look first, it waits for the server's answer, as long as the hand allows.
    pub async fn add(
        &self,
        name: &HandName,
        config: &HandConfig,
        look: Look,
    ) -> Result<Arc<Registered>, RegistryError> {
        self.is_free(name)?;
        let config = &canonical(name, config, &self.writable([]))?;
        if let HandConfig::Sandbox(settings) = config {
            settings.check_hosts().map_err(|mount| senseless(name, mount))?;
        }
        let mut made = self.make(name, config, Origin::Added).await?;
        made.added_at = clock::now().to_string();
        if let (Some(mcp), Look::First) = (made.hand.mcp(), look) {
            let no_answer = |why| RegistryError::NoAnswer { name: name.clone(), why };
            mcp.refresh().await.map_err(|error| no_answer(error.to_string()))?;
            if let Some(down) = &mcp.catalogue().down {
                return Err(no_answer(down.why.clone()));
            }
        }
        let _one = self.changing.lock().await;
        tracing::info!(hand.name = %name, config = %config.shown(), "a hand is added");
        let added = self.put(made)?;
        match self.store(&added).await {
            Ok(true) => Ok(added),
            Ok(false) => {
                self.forget(&added);
                Err(RegistryError::Exists { name: name.clone(), origin: Origin::Added })
            }
            Err(error) => {
                self.forget(&added);
                Err(error.into())
            }
        }
    }

    /// Removes a hand that was added. Its instances are the caller's to release. None: it was never used, because what
    /// the database holds of it can't be read.
    pub async fn remove(&self, name: &HandName) -> Result<Option<Arc<Registered>>, RegistryError> {
        let _one = self.changing.lock().await;
        let known = self.hands().get(name).cloned();
        if known.as_ref().is_some_and(|hand| hand.origin == Origin::File) {
            return Err(RegistryError::ReadOnly(name.clone()));
        }
        let (key, dialect) = (name.to_string(), self.database.dialect());
        let removed = self
            .database
            .write(move |connection| {
                Box::pin(async move {
                    let done = sqlx::query("delete from hand where name = $1")
                        .bind(key.clone())
                        .execute(&mut *connection)
                        .await?;
                    sqlx::query("delete from catalogue where hand = $1")
                        .bind(key)
                        .execute(&mut *connection)
                        .await?;
                    database::notify(connection, dialect, elsewhere::TOPIC, 0).await?;
                    Ok::<_, DatabaseError>(done.rows_affected())
                })
            })
            .await?;
        if removed == 0 {
            return Err(RegistryError::Unknown(name.to_string()));
        }
        tracing::info!(hand.name = %name, "a hand is removed");
        if let Some(hand) = &known {
            self.forget(hand);
        }
        Ok(known)
    }

    /// Has the hands of the file as it reads now. Returns those that are not there any more, for their instances to be
    /// released. What can't be had is said in the log, and the rest applies.
    pub async fn apply(&self, file: &BTreeMap<HandName, HandConfig>) -> Vec<Arc<Registered>> {
        let of_file = |hand: &Arc<Registered>| hand.origin == Origin::File;
        let mut gone: Vec<_> =
            self.list().into_iter().filter(of_file).filter(|hand| !file.contains_key(&hand.name)).collect();
        for hand in &gone {
            self.forget(hand);
            tracing::info!(hand.name = %hand.name, "a hand is removed: it stands in manyhands.toml no more");
        }
        let writable = self.writable(file.values());
        for (name, config) in file {
            match self.apply_one(name, config, &writable).await {
                Ok(replaced) => gone.extend(replaced),
                Err(error) => {
                    tracing::error!(hand.name = %name, error = %error, "a hand of manyhands.toml is left as it was");
                }
            }
        }
        gone
    }

    async fn apply_one(
        &self,
        name: &HandName,
        config: &HandConfig,
        writable: &[PathBuf],
    ) -> Result<Option<Arc<Registered>>, RegistryError> {
        let config = &canonical(name, config, writable)?;
        let known = self.hands().get(name).cloned();
        match &known {
            Some(known) if known.origin == Origin::Added => return Err(RegistryError::Twice(name.clone())),
            // One that was refused may be another matter by now: what was in its way is elsewhere.
            Some(known) if known.config == *config && known.refused.is_none() => return Ok(None),
            _ => {}
        }
        let made = self.make_or_refuse(name, config, Origin::File).await?;
        self.put_over(made, known.as_ref())?;
        let did = if known.is_some() { "is set up anew" } else { "is added" };
        tracing::info!(hand.name = %name, config = %config.shown(), "a hand {did} as manyhands.toml says");
        Ok(known)
    }

    /// Fires whenever the set of hands has changed, or what one of them offers.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The same for a hand that is there already: one that would give an agent what decides over the gateway is there and
    /// says so, and the others are as they were.
    async fn make_or_refuse(
        &self,
        name: &HandName,
        config: &HandConfig,
        origin: Origin,
    ) -> Result<Registered, RegistryError> {
        match self.make(name, config, origin).await {
            Err(RegistryError::Senseless { source, .. }) if source.is_guarded() => {
                Ok(refused(name, config, origin, &source))
            }
            made => made,
        }
    }

    async fn make(
        &self,
        name: &HandName,
        config: &HandConfig,
        origin: Origin,
    ) -> Result<Registered, RegistryError> {
        config.check().map_err(|source| senseless(name, source))?;
        let kept = keep::load(&self.database, name, config).await?;
        let making = Making { name, config, known: kept.catalogue };
        let hand = (self.maker)(&making).map_err(|source| senseless(name, source))?;
        self.check_others(name, config).map_err(|source| senseless(name, source))?;
        let tools = match hand.mcp() {
            Some(_) => Vec::new(),
            None => {
                hand.tools().await.map_err(|source| RegistryError::Hand { name: name.clone(), source })?
            }
        };
        if hand.mcp().is_none() {
            // What a server offers may change; a misspelt word here would leave its tool open to all.
            let known = |named: &str| tools.iter().any(|tool| tool.name == named);
            if let Some(unknown) = config.permissions().named().find(|named| !known(named)) {
                return Err(senseless(name, BadHand::NoTool(unknown.to_owned())));
            }
        }
        let made = Registered::new(name.clone(), config.clone(), origin, hand, tools);
        made.remember(kept.changes);
        Ok(made)
    }

    fn is_free(&self, name: &HandName) -> Result<(), RegistryError> {
        match self.hands().get(name) {
            Some(known) => Err(RegistryError::Exists { name: name.clone(), origin: known.origin }),
            None => Ok(()),
        }
    }

    fn put(&self, made: Registered) -> Result<Arc<Registered>, RegistryError> {
        self.put_over(made, None)
    }

    /// In the place of `known`, if that is still there, so that there is no moment without one of the two.
    fn put_over(
        &self,
        made: Registered,
        known: Option<&Arc<Registered>>,
    ) -> Result<Arc<Registered>, RegistryError> {
        let made = Arc::new(made);
        let mut hands = self.hands.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = hands.get(&made.name)
            && known.is_none_or(|known| !Arc::ptr_eq(known, there))
        {
            return Err(RegistryError::Exists { name: made.name.clone(), origin: there.origin });
        }
        hands.insert(made.name.clone(), made.clone());
        drop(hands);
        if let Some(known) = known {
            known.gone.cancel();
        }
        if let Some(seen) = keep::Seen::of(&made) {
            let (database, changes) = (self.database.clone(), self.changes.clone());
            self.tasks.spawn(keep::keep(made.clone(), seen, database, changes, self.closing.clone()));
            self.tasks.spawn(keep::look(made.clone(), self.live.clone(), self.closing.clone()));
        }
        self.changes.send_modify(|version| *version += 1);
        Ok(made)
    }

    fn forget(&self, hand: &Arc<Registered>) {
        let mut hands = self.hands.write().unwrap_or_else(PoisonError::into_inner);
        if hands.get(&hand.name).is_some_and(|known| Arc::ptr_eq(known, hand)) {
            hands.remove(&hand.name);
        }
        drop(hands);
        hand.gone.cancel();
        self.changes.send_modify(|version| *version += 1);
    }

    /// Folders that brains may write to by hands that are here, and by those of `more`.
    fn writable<'a>(&self, more: impl IntoIterator<Item = &'a HandConfig>) -> Vec<PathBuf> {
        let here = self.list().into_iter().flat_map(|hand| hand.config.writable());
        here.chain(more.into_iter().flat_map(HandConfig::writable)).collect()
    }

    fn hands(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<HandName, Arc<Registered>>> {
        self.hands.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

/// The same with canonical paths.
fn canonical(
    name: &HandName,
    config: &HandConfig,
    writable: &[PathBuf],
) -> Result<HandConfig, RegistryError> {
    let mut config = config.clone();
    config.make_canonical(writable).map_err(|source| senseless(name, source))?;
    Ok(config)
}

/// A hand that listings show with the reason why it can't be used.
fn refused(name: &HandName, config: &HandConfig, origin: Origin, why: &dyn std::error::Error) -> Registered {
    tracing::error!(hand.name = %name, error = %why, "a hand is refused");
    Registered::refused(name.clone(), config.clone(), origin, why.to_string())
}

fn senseless(name: &HandName, source: impl Into<BadHand>) -> RegistryError {
    RegistryError::Senseless { name: name.clone(), source: source.into() }
}
