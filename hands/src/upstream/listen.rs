//! `subscriptions/listen` of 2026-07-28: a request that stays open, and brings what was asked for.
//! (<https://modelcontextprotocol.io/specification/2026-07-28/basic/patterns/subscriptions>)

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::connection::{Connection, Exchange};
use super::wire::{Event, Failure, Incoming, Outgoing};
use crate::mcp::Object;

/// The shortest wait before it is opened again.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest.
const AGAIN_MAX: Duration = Duration::from_secs(30);
/// How long a new one may take to be acknowledged before the old one is let go.
const ACKNOWLEDGE: Duration = Duration::from_secs(5);

/// What is wanted: `notifications` of the request.
#[derive(Clone, Debug, Default)]
pub(super) struct Filter(Object);

impl Filter {
    /// Changes of the lists that the server says it tells of.
    pub(super) fn lists(capabilities: &Object) -> Self {
        let tells = |key: &str| capabilities.get(key).is_some_and(|has| has["listChanged"] == true);
        let wanted = ["tools", "prompts", "resources"].into_iter().filter(|key| tells(key));
        Self(wanted.map(|key| (format!("{key}ListChanged"), json!(true))).collect())
    }

    /// Updates of these resources.
    pub(super) fn resources(uris: &[String]) -> Self {
        if uris.is_empty() {
            return Self::default();
        }
        Self(Object::from_iter([("resourceSubscriptions".to_owned(), json!(uris))]))
    }

    /// Whether updates of this resource are wanted.
    pub(super) fn has(&self, uri: &str) -> bool {
        let uris = self.0.get("resourceSubscriptions").and_then(Value::as_array);
        uris.is_some_and(|uris| uris.iter().any(|wanted| wanted == uri))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Keeps a subscription open. `wanted` is asked again whenever `changed` ends; nothing is missed in between, since
/// the new one is there before the old one goes. Tells `opened` of each that is there, and whether nothing was heard
/// before it, so that something may have been missed. Ends when the server has no such thing.
pub(super) async fn stay<C: Future<Output = ()>>(
    connection: &Arc<Connection>,
    wanted: impl Fn() -> Filter,
    changed: impl Fn() -> C,
    mut opened: impl FnMut(&Filter, bool),
) {
    let mut again = AGAIN;
    let mut open: Option<(u64, Exchange)> = None;
    loop {
        let filter = wanted();
        let next = if filter.is_empty() { Ok(None) } else { begin(connection, &filter).await.map(Some) };
        let gap = open.is_none();
        if let Some((id, _)) = open.take() {
            connection.forget(id, "another subscription takes its place").await;
        }
        match next {
            Ok(next) => open = next,
            Err(Refused::ForGood) => return,
            Err(Refused::ForNow) => {
                tokio::time::sleep(again).await;
                again = (again * 2).min(AGAIN_MAX);
                continue;
            }
        }
        let Some((_, exchange)) = &mut open else {
            changed().await;
            continue;
        };
        opened(&filter, gap);
        let begun = tokio::time::Instant::now();
        tokio::select! {
            () = changed() => continue,
            () = follow(connection, exchange) => {}
        }
        open = None;
        if begun.elapsed() > AGAIN_MAX {
            again = AGAIN;
        }
        tokio::time::sleep(again).await;
        again = (again * 2).min(AGAIN_MAX);
    }
}

enum Refused {
    ForNow,
    ForGood,
}

async fn begin(connection: &Arc<Connection>, filter: &Filter) -> Result<(u64, Exchange), Refused> {
    let params = Object::from_iter([("notifications".to_owned(), Value::Object(filter.0.clone()))]);
    let id = connection.id();
    let outgoing = Outgoing::plain("subscriptions/listen", &params);
    let mut exchange = match connection.open(id, &outgoing, None, &[]).await {
        Ok(exchange) => exchange,
        Err(Failure::Refused { status, .. }) if (400..500).contains(&status) && status != 429 => {
            return Err(Refused::ForGood);
        }
        Err(_) => return Err(Refused::ForNow),
    };
    // Over pipes its news comes with everybody's, so that there is nothing to wait for.
    if connection.is_process() {
        return Ok((id, exchange));
    }
    match tokio::time::timeout(ACKNOWLEDGE, exchange.next()).await {
        Ok(Ok(Event::Answer(Err(_)))) => Err(Refused::ForGood),
        Ok(Ok(Event::Answer(Ok(_))) | Err(_)) => Err(Refused::ForNow),
        Ok(Ok(event)) => {
            pass(connection, event);
            Ok((id, exchange))
        }
        Err(_) => Ok((id, exchange)),
    }
}

async fn follow(connection: &Arc<Connection>, exchange: &mut Exchange) {
    loop {
        match exchange.next().await {
            Ok(Event::Answer(_)) | Err(_) => return,
            Ok(event) => pass(connection, event),
        }
    }
}

fn pass(connection: &Arc<Connection>, event: Event) {
    // A stateless server asks nothing here.
    if let Event::Notification { method, params } = event {
        connection.take(Incoming::Notification { method, params });
    }
}
