//! Following resources of hands: as long as somebody is told of them, and again when the server was lost.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use hands::HandError;
use tokio::sync::{mpsc, watch};

use super::super::View;
use crate::error;
use crate::leases::LeaseError;
use crate::registry::Registered;
use crate::serve::Gateway;
use crate::session::{By, SessionError, Via};

/// Updates of one resource that wait to be told.
const UPDATES_MAX: usize = 16;
/// Pause before a server that was lost is followed again. It doubles up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// A resource of a hand, to be followed.
pub(in crate::mcp) struct Followed {
    pub(in crate::mcp) gateway: Arc<Gateway>,
    pub(in crate::mcp) view: View,
    pub(in crate::mcp) hand: Arc<Registered>,
    /// What the hand calls it.
    pub(in crate::mcp) own: String,
    /// What the client calls it.
    pub(in crate::mcp) uri: String,
    /// Hears the client's URI at each update.
    pub(in crate::mcp) updates: mpsc::Sender<String>,
    /// The client's URIs that are being followed.
    pub(in crate::mcp) holding: Arc<watch::Sender<HashSet<String>>>,
}

/// Why a resource is not being followed.
#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error("there is no session: {0}")]
    Session(#[from] SessionError),
    #[error("there is no instance: {0}")]
    Lease(#[from] LeaseError),
    #[error("the server refuses: {0}")]
    Hand(#[from] HandError),
    #[error("the server was lost")]
    Lost,
    #[error("the hand is no MCP server")]
    NoServer,
}

impl Followed {
    /// Follows it until it is dropped, or the hand is gone.
    pub(in crate::mcp) async fn follow(self) {
        let mut pause = PAUSE;
        let mut missed = Missed::Nothing;
        while !self.hand.is_gone() {
            let error = match self.once(missed).await {
                Ok(()) => return,
                Err(error) => error,
            };
            if let FollowError::Lost = error {
                (pause, missed) = (PAUSE, Missed::Something);
            }
            tracing::debug!(hand.name = %self.hand.name, error = error::chain(&error), "a resource is not followed for now");
            self.holding.send_if_modified(|holding| holding.remove(&self.uri));
            tokio::time::sleep(pause).await;
            pause = PAUSE_MAX.min(pause * 2);
        }
    }

    /// Follows it until the server is lost, or nobody is told any more.
    async fn once(&self, missed: Missed) -> Result<(), FollowError> {
        let (gateway, view) = (&self.gateway, &self.view);
        let by = By { principal: view.principal.to_string(), client: None, via: Via::Mcp };
        let session = gateway.sessions.open(&view.principal, &view.session, &by).await?.id;
        // Held to the end: an instance that is followed is in use.
        let in_use = match gateway.leases.warm(session, &self.hand) {
            Some(in_use) => in_use,
            None => {
                gateway
                    .leases
                    .acquire(session, &view.principal, &self.hand, Arc::new(hands::NoProgress))
                    .await?
            }
        };
        let face = self.hand.hand.mcp().ok_or(FollowError::NoServer)?;
        let (sender, mut updates) = mpsc::channel(UPDATES_MAX);
        face.follow(&in_use.instance.handle, self.own.clone(), sender).await?;
        self.holding.send_if_modified(|holding| holding.insert(self.uri.clone()));
        if missed == Missed::Something && self.updates.send(self.uri.clone()).await.is_err() {
            return Ok(());
        }
        loop {
            tokio::select! {
                update = updates.recv() => {
                    update.ok_or(FollowError::Lost)?;
                    if self.updates.send(self.uri.clone()).await.is_err() {
                        return Ok(());
                    }
                }
                () = self.updates.closed() => return Ok(()),
            }
        }
    }
}

/// Whether updates may have been missed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missed {
    Nothing,
    /// Told as one update.
    Something,
}
