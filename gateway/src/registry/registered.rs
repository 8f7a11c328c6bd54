//! One registered hand: what it offers now, what that is called, and what became of it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use hands::mcp::{Catalogue, Object};
use hands::{Hand, Tool};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::Origin;
use super::names;
use super::offer::Offer;
use super::refused::Refused;
use crate::hand::{HandConfig, HandName, Logged};

/// Changes of definitions that are remembered of one hand.
pub(super) const CHANGES_MAX: usize = 100;
/// Said of a hand whose calls are not in the log.
const NOT_LOGGED: &str = "calls of this hand are not in the log, and the promise that a call runs at most once does not \
     hold for it";

/// A hand that sessions can use.
pub struct Registered {
    /// Its name.
    pub name: HandName,
    /// How it is set up.
    pub config: HandConfig,
    /// Where that is written.
    pub origin: Origin,
    /// When it was added, as the database has it: one that was removed and added again is another one.
    pub(super) added_at: String,
    /// What executes.
    pub hand: Arc<dyn Hand>,
    /// Why it can't be used as it is set up, and what to do.
    pub refused: Option<String>,
    /// Fires when it is registered no more.
    pub(super) gone: CancellationToken,
    /// What it offers. An MCP server's is made anew whenever its catalogue is another one.
    offer: RwLock<Arc<Offer>>,
    /// How what it offers has changed, a line each, the last ones.
    changes: Mutex<VecDeque<String>>,
}

impl Registered {
    /// A hand whose tools, unless it is an MCP server, are `tools` for good.
    pub(super) fn new(
        name: HandName,
        config: HandConfig,
        origin: Origin,
        hand: Arc<dyn Hand>,
        tools: Vec<Tool>,
    ) -> Self {
        let offer = RwLock::new(Arc::new(Offer::of_tools(&name, tools)));
        Self {
            name,
            config,
            origin,
            added_at: String::new(),
            hand,
            refused: None,
            gone: CancellationToken::new(),
            offer,
            changes: Mutex::default(),
        }
    }

    /// A hand that is there and does nothing but say why.
    pub(super) fn refused(name: HandName, config: HandConfig, origin: Origin, why: String) -> Self {
        let hand = Arc::new(Refused { why: why.clone() });
        Self { refused: Some(why), ..Self::new(name, config, origin, hand, Vec::new()) }
    }

    /// Its tools that clients can call, in order of their names. An MCP server's change while it is registered.
    pub fn tools(&self) -> Arc<Vec<Arc<Tool>>> {
        self.offer().tools.clone()
    }

    /// Its tool of that name.
    pub fn tool(&self, name: &str) -> Option<Arc<Tool>> {
        self.offer().tool(name).cloned()
    }

    /// The tool as clients of the whole gateway call it.
    pub fn full_name(&self, tool: &Tool) -> String {
        names::full(&self.name, &tool.name)
    }

    /// Definitions of its prompts that clients can ask for, in order of their names.
    pub fn prompts(&self) -> Arc<Vec<Arc<Object>>> {
        self.offer().prompts.clone()
    }

    /// The prompt of that own name as clients of the whole gateway call it.
    pub fn full_prompt_name(&self, own: &str) -> String {
        names::full(&self.name, own)
    }

    /// What its server offers, when it is one. Touches no server.
    pub fn catalogue(&self) -> Option<Arc<Catalogue>> {
        self.hand.mcp().map(hands::mcp::McpFace::catalogue)
    }

    /// Whether it is registered no more.
    pub fn is_gone(&self) -> bool {
        self.gone.is_cancelled()
    }

    pub(super) fn offer(&self) -> Arc<Offer> {
        let known = self.offer.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(now) = self.catalogue().filter(|now| !known.is_of(now)) else { return known };
        let offer = Arc::new(Offer::of_catalogue(&self.name, now));
        offer.clone_into(&mut self.offer.write().unwrap_or_else(PoisonError::into_inner));
        offer
    }

    /// What `hand list` and `hand show` say of it.
    pub fn describe(&self) -> Value {
        let mut described = json!({
            "name": self.name,
            "kind": self.config.kind(),
            "origin": self.origin,
            "state": if self.refused.is_some() { "refused" } else { "ok" },
            "config": self.config.shown(),
            "about": self.hand.about(),
            "capabilities": self.capabilities(),
            "tools": self.tools().iter().map(|tool| self.full_name(tool)).collect::<Vec<_>>(),
        });
        if let Some(catalogue) = self.catalogue() {
            self.describe_server(&catalogue, &mut described);
        }
        if let Some(why) = &self.refused {
            described["why"] = json!(why);
        }
        if self.config.logged() == Logged::No {
            described["note"] = NOT_LOGGED.into();
        }
        described
    }

    /// What can be done with it beside its tools.
    fn capabilities(&self) -> Value {
        json!({
            "posix": self.config.posix(),
            "files": self.hand.files().is_some(),
            "checkpoints": self.hand.checkpoints().is_some(),
            "movable": self.config.movable(),
        })
    }

    fn describe_server(&self, catalogue: &Catalogue, described: &mut Value) {
        let offer = self.offer();
        let prompts = offer.prompts.iter().filter_map(|prompt| prompt.get("name")?.as_str());
        let problems = catalogue.problems.iter().chain(&offer.refused);
        described["state"] = match (&catalogue.down, catalogue.version.as_str()) {
            (Some(_), _) => "down",
            (None, "") => "unseen",
            (None, _) => "ok",
        }
        .into();
        described["server"] = json!({
            "info": catalogue.server,
            "protocol": catalogue.version,
            "seen_at": catalogue.seen_at,
        });
        described["prompts"] = prompts.map(|own| self.full_prompt_name(own)).collect();
        described["resources"] = catalogue.resources.len().into();
        described["templates"] = catalogue.templates.len().into();
        described["problems"] = problems.cloned().collect();
        described["changes"] = self.changes().iter().cloned().collect();
        if let Some(down) = &catalogue.down {
            described["down"] = json!(down);
        }
    }

    /// Remembers how its definitions have changed; the oldest go.
    pub(super) fn remember(&self, lines: impl IntoIterator<Item = String>) {
        let mut changes = self.changes();
        changes.extend(lines);
        let over = changes.len().saturating_sub(CHANGES_MAX);
        changes.drain(..over);
    }

    pub(super) fn changes(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
