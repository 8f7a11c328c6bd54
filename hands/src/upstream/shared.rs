//! What all connections of one hand have in common: its settings, what it knows of its server, and the sentences in
//! which it says what is wrong.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::http::{Http, ParamHeader, param_headers};
use super::lifecycle::Limits;
use super::wire::{Era, Failure};
use super::{Protocol, Reach, UpstreamConfig};
use crate::HandError;
use crate::mcp::{Catalogue, Down, Object};

/// The first wait before a server is started again that did not come up.
const BACKOFF: Duration = Duration::from_millis(100);
/// The longest.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// What exits sooner than this came up in vain.
const AT_ONCE: Duration = Duration::from_secs(1);
/// The longest that a caller waits for it.
const BACKOFF_WAITED: Duration = Duration::from_secs(2);

/// For each tool, which arguments are repeated in headers.
type Params = HashMap<String, Vec<(Vec<String>, ParamHeader)>>;

/// One hand's.
pub(super) struct Shared {
    pub(super) config: UpstreamConfig,
    pub(super) limits: Limits,
    /// Its URL's connections, or why it can have none. None for a child process.
    pub(super) http: Option<Result<Arc<Http>, String>>,
    /// The next id of a request.
    pub(super) ids: AtomicU64,
    pub(super) tasks: TaskTracker,
    /// Ends everything.
    pub(super) cancel: CancellationToken,
    catalogue: watch::Sender<Arc<Catalogue>>,
    changes: watch::Sender<u64>,
    /// Whether the catalogue is what this process has seen.
    pub(super) fresh: AtomicBool,
    params: RwLock<Arc<Params>>,
    /// What was found out last.
    era: Mutex<Option<Era>>,
    starts: Mutex<Starts>,
}

/// How starting it went lately.
#[derive(Default)]
struct Starts {
    failures: u32,
    not_before: Option<Instant>,
}

impl Shared {
    pub(super) fn new(config: UpstreamConfig, known: Catalogue, limits: Limits) -> Arc<Self> {
        let http = match &config.reach {
            Reach::Http { url, headers, trust } => Some(Http::new(url, headers, trust).map(Arc::new)),
            Reach::Stdio { .. } => None,
        };
        let params = RwLock::new(Arc::new(params_of(&known.tools)));
        Arc::new(Self {
            config,
            limits,
            http,
            ids: AtomicU64::new(1),
            tasks: TaskTracker::new(),
            cancel: CancellationToken::new(),
            catalogue: watch::Sender::new(Arc::new(known)),
            changes: watch::Sender::new(0),
            fresh: AtomicBool::new(false),
            params,
            era: Mutex::default(),
            starts: Mutex::default(),
        })
    }

    pub(super) fn catalogue(&self) -> Arc<Catalogue> {
        self.catalogue.borrow().clone()
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Takes what the server offers now. Tells of it only when it is another thing than before, or was down.
    pub(super) fn learn(&self, found: Catalogue) {
        let fresh = self.fresh.swap(true, Ordering::Relaxed);
        let former = self.catalogue.send_replace(Arc::new(found));
        let now = self.catalogue();
        let unchanged = Catalogue { seen_at: now.seen_at.clone(), down: None, ..Catalogue::clone(&former) };
        if unchanged != *now || (!fresh && former.seen_at.is_empty()) {
            let params = Arc::new(params_of(&now.tools));
            *self.params.write().unwrap_or_else(PoisonError::into_inner) = params;
            for problem in &now.problems {
                tracing::warn!(hand.name = self.config.name, "{problem}");
            }
            self.tell();
        } else if former.down.is_some() {
            self.tell();
        }
    }

    /// Takes what somebody else saw, unless something other than `before` is known by now.
    pub(super) fn know(&self, before: &Arc<Catalogue>, now: Catalogue) -> Option<Arc<Catalogue>> {
        let now = Arc::new(Catalogue { down: before.down.clone(), ..now });
        let taken = self.catalogue.send_if_modified(|known| {
            let same = Arc::ptr_eq(known, before);
            if same {
                Arc::clone_from(known, &now);
            }
            same
        });
        if taken {
            let params = Arc::new(params_of(&now.tools));
            *self.params.write().unwrap_or_else(PoisonError::into_inner) = params;
        }
        taken.then_some(now)
    }

    fn tell(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Which arguments of a tool are repeated in headers.
    pub(super) fn params(&self) -> Arc<Params> {
        Arc::clone(&self.params.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The era to begin in; none when the server is to be asked.
    pub(super) fn era(&self) -> Option<Era> {
        match self.config.protocol {
            Protocol::Legacy => Some(Era::Legacy),
            Protocol::Auto | Protocol::Modern => *self.era.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    pub(super) fn remember(&self, era: Option<Era>) {
        *self.era.lock().unwrap_or_else(PoisonError::into_inner) = era;
    }

    /// Notes that the server is there.
    pub(super) fn reached(&self) {
        if self.catalogue.borrow().down.is_some() {
            self.catalogue.send_modify(|catalogue| Arc::make_mut(catalogue).down = None);
            tracing::info!(hand.name = self.config.name, "the MCP server is there again");
            self.tell();
        }
    }

    /// Notes that it is not, and why.
    pub(super) fn unreached(&self, why: &str) {
        self.stumbled();
        let since = self.catalogue.borrow().down.as_ref().map(|down| down.since.clone());
        if since.is_none() {
            tracing::warn!(hand.name = self.config.name, why, "the MCP server can't be reached");
        }
        let news = since.is_none();
        let down = Down { since: since.unwrap_or_else(now), why: why.to_owned() };
        self.catalogue.send_modify(|catalogue| Arc::make_mut(catalogue).down = Some(down));
        if news {
            self.tell();
        }
    }

    /// Notes that a process came up in vain: the next one has to wait, longer each time.
    fn stumbled(&self) {
        let mut starts = self.starts();
        let wait = BACKOFF.saturating_mul(1 << starts.failures.min(16)).min(BACKOFF_MAX);
        starts.failures += 1;
        starts.not_before = Some(Instant::now() + wait);
    }

    /// Notes how long a process lived that exited by itself.
    pub(super) fn exited_after(&self, lived: Duration) {
        if lived < AT_ONCE {
            self.stumbled();
        } else {
            *self.starts() = Starts::default();
        }
    }

    /// Waits until a process may be started again.
    pub(super) async fn may_start(&self) -> Result<(), HandError> {
        let not_before = self.starts().not_before;
        let Some(wait) = not_before.map(|at| at.saturating_duration_since(Instant::now())) else {
            return Ok(());
        };
        if wait > BACKOFF_WAITED {
            let down = self.catalogue().down.clone();
            let why = down.map(|down| down.why).unwrap_or_default();
            return Err(HandError::Unavailable {
                why: format!(
                    "{} did not come up {} times, the last time because {why}",
                    self.whom(),
                    self.starts().failures
                ),
                remedy: format!("it is tried again in {} s", wait.as_secs() + 1),
            });
        }
        tokio::time::sleep(wait).await;
        Ok(())
    }

    fn starts(&self) -> MutexGuard<'_, Starts> {
        self.starts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server, in a sentence.
    pub(super) fn whom(&self) -> String {
        format!("the MCP server {} ({})", self.config.name, self.place())
    }

    /// Where it is, without anything secret.
    pub(super) fn place(&self) -> String {
        match &self.config.reach {
            Reach::Http { url, .. } => without_secrets(url),
            Reach::Stdio { command, .. } => {
                command.iter().take(1).map(|program| format!("the command {program}")).collect()
            }
        }
    }

    /// What a failure to reach it means for a call.
    pub(super) fn error(&self, failure: &Failure) -> HandError {
        let whom = self.whom();
        let catalogue = self.catalogue();
        let since = catalogue.down.as_ref().map(|down| format!(" (down since {})", down.since));
        let since = since.unwrap_or_default();
        let remedy = match &self.config.reach {
            Reach::Stdio { .. } => "look at its command, its settings and the log",
            Reach::Http { url, .. } if url.starts_with("https:") => {
                "start it, or correct its URL, headers or ca"
            }
            Reach::Http { .. } => "start it, or correct its URL or headers",
        };
        match failure {
            Failure::Cut(why) => HandError::Lost {
                may_have_run: true,
                why: format!("{whom} broke off before it answered: {why}{since}"),
            },
            Failure::Refused { status, .. } if *status >= 500 && *status != 503 => {
                HandError::Lost { may_have_run: true, why: format!("{whom} failed: {failure}{since}") }
            }
            Failure::SessionGone => {
                HandError::Lost { may_have_run: false, why: format!("{whom}: {failure}") }
            }
            Failure::Unreached(_)
            | Failure::Refused { .. }
            | Failure::Slow(_)
            | Failure::Nonsense(_)
            | Failure::TooLarge => HandError::Unavailable {
                why: format!("{whom} can't be used: {failure}{since}"),
                remedy: remedy.to_owned(),
            },
        }
    }
}

fn params_of(tools: &[Arc<Object>]) -> Params {
    let headers = |tool: &Arc<Object>| {
        let name = tool.get("name").and_then(Value::as_str)?;
        let headers = param_headers(tool);
        (!headers.is_empty()).then(|| (name.to_owned(), headers))
    };
    tools.iter().filter_map(headers).collect()
}

/// A URL without its user, and without the values of its query.
fn without_secrets(url: &str) -> String {
    let (base, query) = url.split_once('?').map_or((url, false), |(base, _)| (base, true));
    let base = match base.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
            let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            format!("{scheme}://{host}{path}")
        }
        None => base.to_owned(),
    };
    if query { format!("{base}?…") } else { base }
}

/// The time, as people write it (RFC 3339).
#[expect(
    clippy::disallowed_methods,
    reason = "hands have no clock of their own, and nothing depends on this one"
)]
pub(super) fn now() -> String {
    jiff::Timestamp::now().round(jiff::Unit::Second).map_or_else(|_| String::new(), |now| now.to_string())
}
