//! What a server offers, page by page and with bounds, and noticing when that changes.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::Value;
use tokio::time::Instant;

use super::Shared;
use super::clean::{self, Cleaned};
use super::connection::Connection;
use super::http::{self, Spoken};
use super::listen::{Filter, stay};
use super::wire::{Era, Failure, METHOD_NOT_FOUND, Outgoing};
use crate::mcp::{Catalogue, Object};

/// Most items of one list.
const ITEMS_MAX: usize = 5_000;
/// Most pages of one list.
const PAGES_MAX: usize = 200;
/// Most bytes of the items of one list: 16 MiB.
const BYTES_MAX: usize = 16 << 20;
/// How long to wait for more news of changes before listing again.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// The least time from the beginning of one listing to that of the next.
const LEAST: Duration = Duration::from_millis(250);

/// One kind of definitions.
struct List {
    method: &'static str,
    key: &'static str,
    clean: fn(Vec<Value>) -> Cleaned,
}

const TOOLS: List = List { method: "tools/list", key: "tools", clean: clean::tools };
const PROMPTS: List = List { method: "prompts/list", key: "prompts", clean: clean::prompts };
const RESOURCES: List = List { method: "resources/list", key: "resources", clean: clean::resources };
const TEMPLATES: List =
    List { method: "resources/templates/list", key: "resourceTemplates", clean: clean::templates };

/// Lists everything that the server offers, into the catalogue. Of a server that is not there, nothing is learned.
pub(super) async fn relist(connection: &Arc<Connection>) -> Result<(), Failure> {
    let listed = list_all(connection).await;
    match &listed {
        Ok(found) => connection.shared.learn(found.clone()),
        Err(Failure::SessionGone) => connection.end("it has forgotten the session"),
        Err(failure) if connection.is_process() => {
            tracing::debug!(hand.name = connection.hand(), %failure, "an MCP server was not listed");
        }
        Err(failure) => connection.shared.unreached(&failure.to_string()),
    }
    listed.map(|_| ())
}

async fn list_all(connection: &Arc<Connection>) -> Result<Catalogue, Failure> {
    let shared = &connection.shared;
    let until = Instant::now() + shared.limits.lists;
    let agreed = connection.agreed();
    // Servers that declare nothing at all have been seen to offer tools.
    let silent = agreed.capabilities.is_empty();
    let declares = |capability| silent || agreed.capabilities.contains_key(capability);
    let former = shared.catalogue();
    let mut problems = Vec::new();
    let list = async |wanted: bool, list: List, former: &[Arc<Object>]| {
        if wanted { fetch(connection, list, until, former).await } else { Ok(none()) }
    };
    let (tools, prompts, resources, templates) = tokio::try_join!(
        list(declares("tools"), TOOLS, &former.tools),
        list(declares("prompts") && !silent, PROMPTS, &former.prompts),
        list(declares("resources") && !silent, RESOURCES, &former.resources),
        list(declares("resources") && !silent, TEMPLATES, &former.templates),
    )?;
    let mut take = |cleaned: Cleaned| {
        problems.extend(cleaned.problems);
        cleaned.items
    };
    Ok(Catalogue {
        version: agreed.version.clone(),
        server: agreed.server.clone(),
        capabilities: agreed.capabilities.clone(),
        instructions: agreed.instructions.clone(),
        tools: take(tools),
        resources: take(resources),
        templates: take(templates),
        prompts: take(prompts),
        problems,
        seen_at: super::shared::now(),
        down: None,
    })
}

fn none() -> Cleaned {
    Cleaned { items: Vec::new(), problems: Vec::new() }
}

/// One list. What can't be had now stays as it was.
async fn fetch(
    connection: &Arc<Connection>,
    list: List,
    until: Instant,
    former: &[Arc<Object>],
) -> Result<Cleaned, Failure> {
    let List { method, key, clean } = list;
    let mut items = Vec::new();
    let (mut bytes, mut cursor, mut seen) = (0, None::<String>, HashSet::new());
    let mut problem = None;
    for page in 0.. {
        if page == PAGES_MAX {
            problem = Some(format!("{method} has more than {PAGES_MAX} pages: the rest is left out"));
            break;
        }
        let params = cursor.take().map(|cursor| ("cursor".to_owned(), Value::from(cursor)));
        let params = Object::from_iter(params);
        let left = until.saturating_duration_since(Instant::now());
        let mut result = match connection.ask(&Outgoing::plain(method, &params), left).await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) if error.code == METHOD_NOT_FOUND => break,
            Ok(Err(error)) => {
                problem = Some(format!("{method} was answered with an error: {}", error.message));
                break;
            }
            Err(gone @ (Failure::Unreached(_) | Failure::Cut(_) | Failure::SessionGone)) => return Err(gone),
            Err(failure) => {
                problem = Some(format!("{method} was not answered: {failure}"));
                break;
            }
        };
        let Some(Value::Array(page)) = result.remove(key) else {
            problem = Some(format!("{method} was answered without a list of {key}"));
            break;
        };
        let kept = page.into_iter().take_while(|item| {
            bytes += size(item);
            bytes <= BYTES_MAX
        });
        items.extend(kept.take(ITEMS_MAX + 1 - items.len().min(ITEMS_MAX)));
        if items.len() > ITEMS_MAX || bytes > BYTES_MAX {
            items.truncate(ITEMS_MAX);
            let limit = format!("{ITEMS_MAX} items or {} MiB", BYTES_MAX >> 20);
            problem = Some(format!("{method} has more than {limit}: the rest is left out"));
            break;
        }
        match result.remove("nextCursor") {
            Some(Value::String(next)) if seen.insert(next.clone()) => cursor = Some(next),
            Some(Value::String(_)) => {
                problem = Some(format!("{method} gives the same cursor again: its list ends there"));
                break;
            }
            _ => break,
        }
    }
    if items.is_empty() && problem.is_some() {
        return Ok(Cleaned { items: former.to_vec(), problems: problem.into_iter().collect() });
    }
    let mut cleaned = clean(items);
    cleaned.problems.extend(problem);
    Ok(cleaned)
}

/// How large a value is when written.
fn size(value: &Value) -> usize {
    struct Counter(usize);
    impl io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    // Counting can't fail.
    let _ = serde_json::to_writer(&mut counter, value);
    counter.0
}

/// Whether to list at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    Now,
    /// Somebody else does that.
    WhenChanged,
}

/// Lists whenever the server says that something changed, until the connection is gone.
pub(super) fn watch(connection: &Arc<Connection>, first: First) {
    let shared = &connection.shared;
    let (one, two) = (Arc::clone(connection), Arc::clone(connection));
    let stop = shared.cancel.clone();
    shared.tasks.spawn(async move {
        let ends = one.gone.clone();
        tokio::select! {
            () = ends.cancelled() => {}
            () = stop.cancelled() => one.close().await,
            () = async { tokio::join!(again_and_again(&one, first), hear(&two)); } => {}
        }
    });
}

async fn again_and_again(connection: &Arc<Connection>, first: First) {
    let mut begun = Instant::now();
    if first == First::Now {
        connection.listened().await;
        // It has said what is wrong.
        let _ = relist(connection).await;
    }
    loop {
        connection.lists_changed.notified().await;
        tokio::time::sleep(DEBOUNCE.max(LEAST.saturating_sub(begun.elapsed()))).await;
        // What was said until now is seen by this listing; what is said from now on makes another.
        let _ = connection.lists_changed.notified().now_or_never();
        begun = Instant::now();
        let _ = relist(connection).await;
    }
}

/// Listens for what belongs to no request, where that takes a stream of its own.
async fn hear(connection: &Arc<Connection>) {
    let agreed = connection.agreed();
    match (agreed.era, connection.http()) {
        (Era::Modern, _) => {
            let filter = Filter::lists(&agreed.capabilities);
            if !filter.is_empty() {
                let mut first = true;
                // What changed while nobody listened, nobody heard.
                let missed = |_: &Filter, gap: bool| {
                    if gap && !std::mem::take(&mut first) {
                        connection.lists_changed.notify_one();
                    }
                };
                stay(connection, || filter.clone(), std::future::pending, missed).await;
            }
        }
        (Era::Legacy, Some(http)) => {
            let spoken: &Spoken = &agreed.spoken;
            let ended =
                http::listen(http, spoken, &connection.listening, |message| connection.take(message)).await;
            if ended == http::ListenEnded::SessionGone {
                connection.end("it has forgotten the session");
            }
        }
        // They come on the one pipe.
        (Era::Legacy, None) => {}
    }
}

impl Shared {
    /// Whether its tools have been seen.
    pub(super) fn knows_tools(&self) -> bool {
        self.fresh.load(std::sync::atomic::Ordering::Relaxed)
    }
}
