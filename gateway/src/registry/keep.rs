//! Keeping what servers offer: in the database, so that a list answers at once and a dead server keeps its tools, and up
//! to date, while the gateway runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hands::mcp::{Catalogue, Object};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use sqlx::Row as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::registered::Registered;
use crate::clock;
use crate::database::{self, Connection, Database, DatabaseError, Dialect};
use crate::hand::{HandConfig, HandName};

/// Pause before a server that was not reached is looked at again. It doubles up to [`LOOK_PAUSE_MAX`].
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between two looks at a server that can't be reached.
const LOOK_PAUSE_MAX: Duration = Duration::from_mins(1);
/// How often it is looked whether a server went away or came back, which is no change that its hand tells of.
const NOTICE_EVERY: Duration = Duration::from_secs(5);
/// Lines that one change of a server's definitions may make.
const LINES_MAX: usize = 20;

/// What is stored of a hand.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) catalogue: Catalogue,
    pub(super) changes: Vec<String>,
}

/// What was stored of the hand, as it is set up now. What can't be read is as good as nothing.
pub(super) async fn load(
    database: &Database,
    name: &HandName,
    config: &HandConfig,
) -> Result<Kept, DatabaseError> {
    let HandConfig::Mcp(_) = config else { return Ok(Kept::default()) };
    let row = sqlx::query("select body from catalogue where hand = $1 and config_digest = $2")
        .bind(name.to_string())
        .bind(digest(config))
        .fetch_optional(database.reader())
        .await?;
    let Some(row) = row else { return Ok(Kept::default()) };
    let body: String = row.try_get("body")?;
    Ok(serde_json::from_str(&body).unwrap_or_default())
}

/// What is stored of a hand, ready to be written.
#[derive(Clone)]
pub(super) struct Row {
    hand: String,
    config_digest: String,
    body: String,
}

impl Row {
    /// What the hand offers now. Nothing, unless it is an MCP server.
    pub(super) fn of(hand: &Registered) -> Option<Self> {
        let catalogue = Catalogue::clone(&*hand.catalogue()?);
        let kept = Kept { catalogue, changes: hand.changes().iter().cloned().collect() };
        let body = serde_json::to_string(&kept).unwrap_or_default();
        Some(Self { hand: hand.name.to_string(), config_digest: digest(&hand.config), body })
    }

    /// Writes it within a transaction, and tells the other processes once that is committed.
    pub(super) async fn store(
        self,
        connection: &mut Connection,
        dialect: Dialect,
    ) -> Result<(), DatabaseError> {
        let topic = topic(&self.hand);
        sqlx::query(
            "insert into catalogue (hand, config_digest, body, updated_at) values ($1, $2, $3, $4)
             on conflict (hand) do update set config_digest = excluded.config_digest, body = excluded.body,
                 updated_at = excluded.updated_at",
        )
        .bind(self.hand)
        .bind(self.config_digest)
        .bind(self.body)
        .bind(clock::now().to_string())
        .execute(&mut *connection)
        .await?;
        Ok(database::notify(connection, dialect, &topic, 0).await?)
    }
}

/// Stores what the hand offers now.
async fn store(database: &Database, hand: &Registered) -> Result<(), DatabaseError> {
    let (Some(row), dialect) = (Row::of(hand), database.dialect()) else { return Ok(()) };
    database.write(move |connection| Box::pin(row.store(connection, dialect))).await
}

/// What the signal is called that what a hand offers was stored.
fn topic(hand: &str) -> String {
    format!("offer {hand}")
}

/// A server that is reached otherwise may be another one.
fn digest(config: &HandConfig) -> String {
    let HandConfig::Mcp(settings) = config else { return String::new() };
    let digest = Sha256::digest(settings.server().to_string().as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What was known of a server at some moment, and what tells of later ones.
pub(super) struct Seen {
    fired: watch::Receiver<u64>,
    catalogue: Arc<Catalogue>,
}

impl Seen {
    /// Of now. Nothing, unless the hand is an MCP server.
    pub(super) fn of(hand: &Registered) -> Option<Self> {
        let mcp = hand.hand.mcp()?;
        // In this order: what changes between the two is seen twice, and never missed.
        Some(Self { fired: mcp.changes(), catalogue: mcp.catalogue() })
    }
}

/// Stores what a server offers whenever it has changed, says what was different, and tells `changes`; and has what other
/// processes that share the database have stored. Until the hand is gone, or `closing` fires.
pub(super) async fn keep(
    hand: Arc<Registered>,
    seen: Seen,
    database: Database,
    changes: watch::Sender<u64>,
    closing: CancellationToken,
) {
    let Some(mcp) = hand.hand.mcp() else { return };
    let Seen { mut fired, catalogue: mut known } = seen;
    let mut told = database.signals().subscribe();
    told.add(&topic(hand.name.as_str()));
    // What was stored between the making of this hand and the line above was told to nobody here.
    let mut news = database.dialect() == Dialect::Postgres;
    loop {
        let over = tokio::select! {
            biased;
            () = hand.gone.cancelled() => return,
            () = closing.cancelled() => true,
            fired = fired.changed() => fired.is_err(),
            () = std::future::ready(()), if news => false,
            _ = told.changed() => { news = true; false },
            () = tokio::time::sleep(NOTICE_EVERY) => false,
        };
        let now = mcp.catalogue();
        if !same(&known, &now) {
            say(&hand, &known, &now);
            if offers(&known) != offers(&now) {
                changes.send_modify(|version| *version += 1);
            }
            known = now;
            if let Err(error) = store(&database, &hand).await {
                tracing::warn!(hand.name = %hand.name, error = %error, "what a hand offers could not be stored");
            }
        }
        if over {
            return;
        }
        if std::mem::take(&mut news) {
            match take_over(&hand, &database, &known).await {
                Ok(None) => {}
                Ok(Some(taken)) => {
                    known = taken;
                    changes.send_modify(|version| *version += 1);
                }
                Err(error) => {
                    tracing::warn!(hand.name = %hand.name, error = %error, "what a hand offers could not be read");
                }
            }
        }
    }
}

/// Has the definitions that are stored, if they are others than those here. Whether a server is down is each process's
/// own to find out.
async fn take_over(
    hand: &Registered,
    database: &Database,
    known: &Arc<Catalogue>,
) -> Result<Option<Arc<Catalogue>>, DatabaseError> {
    let Some(mcp) = hand.hand.mcp() else { return Ok(None) };
    let before = mcp.catalogue();
    // What has changed here since is newer than all that is stored.
    if !same(known, &before) {
        return Ok(None);
    }
    let Kept { catalogue, changes } = load(database, &hand.name, &hand.config).await?;
    if catalogue.version.is_empty() || offers(&catalogue) == offers(&before) {
        return Ok(None);
    }
    // One that has changed here meanwhile is newer, and is stored next.
    let Some(taken) = mcp.know(&before, catalogue) else { return Ok(None) };
    tracing::info!(hand.name = %hand.name, "a hand's server changed what it offers, as another gateway has seen");
    *hand.changes() = changes.into();
    Ok(Some(taken))
}

/// Looks at a server that nobody has seen, or that can't be reached, again and again, from when `live` fires until the
/// hand is gone or `closing` fires.
pub(super) async fn look(hand: Arc<Registered>, live: CancellationToken, closing: CancellationToken) {
    let Some(mcp) = hand.hand.mcp() else { return };
    let looking = async {
        live.cancelled().await;
        let mut fired = mcp.changes();
        let mut pause = None;
        loop {
            let now = mcp.catalogue();
            if now.down.is_none() && !now.version.is_empty() {
                pause = Some(LOOK_PAUSE);
                // Without touching the server.
                if let Ok(Err(_)) = tokio::time::timeout(NOTICE_EVERY, fired.changed()).await {
                    return;
                }
                continue;
            }
            if let Some(pause) = pause {
                tokio::time::sleep(pause).await;
            }
            if let Err(error) = mcp.refresh().await {
                // The hand itself has said so when it began.
                tracing::debug!(hand.name = %hand.name, error = %error, "the server of a hand can't be reached");
            }
            pause = Some(pause.map_or(LOOK_PAUSE, |pause| LOOK_PAUSE_MAX.min(pause.saturating_mul(2))));
        }
    };
    tokio::select! {
        () = looking => {}
        () = hand.gone.cancelled() => {}
        () = closing.cancelled() => {}
    }
}

/// Whether nothing has changed but when it was seen.
fn same(before: &Arc<Catalogue>, now: &Arc<Catalogue>) -> bool {
    let seen = |catalogue: &Catalogue| Catalogue { seen_at: String::new(), ..catalogue.clone() };
    Arc::ptr_eq(before, now) || seen(before) == seen(now)
}

/// What clients see of a server.
fn offers(catalogue: &Catalogue) -> impl PartialEq {
    let Catalogue { capabilities, instructions, tools, resources, templates, prompts, .. } = catalogue;
    (
        capabilities.clone(),
        instructions.clone(),
        [tools.clone(), resources.clone(), templates.clone(), prompts.clone()],
    )
}

/// Says what has changed: to the log, and to `hand show`.
fn say(hand: &Registered, before: &Catalogue, now: &Catalogue) {
    // What is seen for the first time has not changed.
    if before.version.is_empty() {
        return;
    }
    let mut lines = differences(before, now);
    if lines.is_empty() {
        return;
    }
    let over = lines.len().saturating_sub(LINES_MAX);
    lines.truncate(LINES_MAX);
    if over > 0 {
        lines.push(format!("{over} more changed"));
    }
    tracing::info!(hand.name = %hand.name, changes = lines.join("; "), "a hand's server changed what it offers");
    let at = clock::now();
    hand.remember(lines.into_iter().map(|line| format!("{line} at {at}")));
}

fn differences(before: &Catalogue, now: &Catalogue) -> Vec<String> {
    let mut lines = Vec::new();
    for (what, before, now) in
        [("tool", &before.tools, &now.tools), ("prompt", &before.prompts, &now.prompts)]
    {
        let (before, now) = (by_name(before), by_name(now));
        for name in before.keys().filter(|name| !now.contains_key(*name)) {
            lines.push(format!("{what} {name} went away"));
        }
        for (name, definition) in &now {
            match before.get(name) {
                None => lines.push(format!("{what} {name} came")),
                Some(earlier) if earlier != definition => lines.push(format!("{what} {name} changed")),
                Some(_) => {}
            }
        }
    }
    if before.instructions != now.instructions {
        lines.push("its instructions changed".to_owned());
    }
    lines
}

fn by_name(items: &[Arc<Object>]) -> BTreeMap<&str, &Arc<Object>> {
    items.iter().filter_map(|item| Some((item.get("name")?.as_str()?, item))).collect()
}
