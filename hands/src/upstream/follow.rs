//! Who wants to hear of which resource.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::sync::{Notify, mpsc};

use super::connection::Connection;
use super::listen::{Filter, stay};
use super::wire::{Era, Failure, Outgoing};
use crate::mcp::{Object, RpcError};

/// How long a legacy server may take to subscribe or unsubscribe.
const SUBSCRIBE_MAX: Duration = Duration::from_secs(10);

/// The followed resources of one connection.
#[derive(Default)]
pub(super) struct Follows {
    uris: Mutex<HashMap<String, Vec<mpsc::Sender<String>>>>,
    /// Fires when other resources are followed than before.
    changed: Notify,
    /// Held while a legacy server is told: its subscriptions have no order but ours.
    telling: tokio::sync::Mutex<()>,
    /// Set once there is somebody who keeps the subscription of a stateless server.
    kept: AtomicBool,
}

impl Follows {
    /// Tells who follows. A queue that is full has been told already.
    pub(super) fn updated(&self, uri: &str) {
        if let Some(followers) = self.lock().get(uri) {
            for follower in followers {
                let _ = follower.try_send(uri.to_owned());
            }
        }
    }

    /// Lets go of everybody: the server is lost.
    pub(super) fn clear(&self) {
        self.lock().clear();
        self.changed.notify_one();
    }

    /// Says whether it is the first for this resource.
    fn add(&self, uri: &str, follower: mpsc::Sender<String>) -> bool {
        let mut uris = self.lock();
        let followers = uris.entry(uri.to_owned()).or_default();
        followers.push(follower);
        followers.len() == 1
    }

    /// Forgets those who went away. Says whether they were the last for this resource.
    fn sweep(&self, uri: &str) -> bool {
        let mut uris = self.lock();
        let Some(followers) = uris.get_mut(uri) else { return false };
        followers.retain(|follower| !follower.is_closed());
        let last = followers.is_empty();
        if last {
            uris.remove(uri);
        }
        last
    }

    fn uris(&self) -> Vec<String> {
        let mut uris: Vec<_> = self.lock().keys().cloned().collect();
        uris.sort_unstable();
        uris
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<mpsc::Sender<String>>>> {
        self.uris.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows a resource until `updates` is closed or the connection is gone.
pub(super) async fn follow(
    connection: &Arc<Connection>,
    uri: String,
    updates: mpsc::Sender<String>,
) -> Result<Result<(), RpcError>, Failure> {
    let follows = &connection.follows;
    {
        let _telling = follows.telling.lock().await;
        if follows.add(&uri, updates.clone())
            && let Err(error) = tell(connection, "resources/subscribe", &uri).await?
        {
            follows.lock().remove(&uri);
            return Ok(Err(error));
        }
    }
    let watched = Arc::clone(connection);
    connection.shared.tasks.spawn(async move {
        tokio::select! {
            () = watched.gone.cancelled() => return,
            () = watched.shared.cancel.cancelled() => return,
            () = updates.closed() => {}
        }
        let _telling = watched.follows.telling.lock().await;
        if watched.follows.sweep(&uri) {
            let _ = tell(&watched, "resources/unsubscribe", &uri).await;
        }
    });
    Ok(Ok(()))
}

/// Tells the server that other resources are followed now.
async fn tell(
    connection: &Arc<Connection>,
    method: &str,
    uri: &str,
) -> Result<Result<(), RpcError>, Failure> {
    if connection.era() == Era::Modern {
        let follows = &connection.follows;
        follows.changed.notify_one();
        if !follows.kept.swap(true, Ordering::Relaxed) {
            keep(connection);
        }
        return Ok(Ok(()));
    }
    let params = Object::from_iter([("uri".to_owned(), json!(uri))]);
    let told = connection.ask(&Outgoing::plain(method, &params), SUBSCRIBE_MAX).await;
    if told.is_err() {
        connection.follows.lock().remove(uri);
    }
    Ok(told?.map(|_| ()))
}

/// Keeps the one subscription of a stateless server, for all resources that are followed.
fn keep(connection: &Arc<Connection>) {
    let connection = Arc::clone(connection);
    connection.shared.tasks.clone().spawn(async move {
        let follows = &connection.follows;
        let mut before = Filter::default();
        // Whoever follows was told so before the server was: what changed in between, nobody heard.
        let missed = |now: &Filter, gap: bool| {
            for uri in follows.uris() {
                if now.has(&uri) && (gap || !before.has(&uri)) {
                    follows.updated(&uri);
                }
            }
            before = now.clone();
        };
        let wanted = || Filter::resources(&follows.uris());
        let staying = stay(&connection, wanted, || follows.changed.notified(), missed);
        tokio::select! {
            () = connection.gone.cancelled() => {}
            () = connection.shared.cancel.cancelled() => {}
            () = staying => {}
        }
    });
}
