//! PostgreSQL tells what other processes that share the database have written.

use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use sqlx::postgres::PgListener;
use tokio_util::sync::CancellationToken;

use super::open::{address, postgres_failure};
use super::{CHANNEL, DatabaseError, Signals};

/// How long to wait before connecting again.
const RECONNECT_AFTER: Duration = Duration::from_millis(500);

/// Connects and subscribes.
pub(super) async fn connect(url: &SecretString) -> Result<PgListener, DatabaseError> {
    let at = address(url)?;
    let failed = |error| postgres_failure(at.clone(), error);
    let mut listener = PgListener::connect(url.expose_secret()).await.map_err(failed)?;
    listener.eager_reconnect(false);
    listener.listen(CHANNEL).await.map_err(failed)?;
    Ok(listener)
}

/// Passes on what is notified, until told to stop. What was missed while disconnected is unknown, so that
/// everybody who waits is then woken.
pub(super) async fn listen(
    mut listener: PgListener,
    url: SecretString,
    signals: Arc<Signals>,
    stop: CancellationToken,
) {
    loop {
        let notified = tokio::select! {
            () = stop.cancelled() => return,
            notified = listener.try_recv() => notified,
        };
        if let Ok(Some(notification)) = notified {
            signals.publish_payload(notification.payload());
        } else {
            tracing::warn!("lost the connection that tells of changes in PostgreSQL; connecting again");
            let Some(again) = reconnect(&url, &stop).await else { return };
            listener = again;
            signals.publish_all();
        }
    }
}

async fn reconnect(url: &SecretString, stop: &CancellationToken) -> Option<PgListener> {
    loop {
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(RECONNECT_AFTER) => {}
        }
        if let Ok(listener) = connect(url).await {
            return Some(listener);
        }
    }
}
