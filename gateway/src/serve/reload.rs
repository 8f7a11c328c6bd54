//! Following `manyhands.toml`: hands that it adds, removes or changes are there at once, without a restart.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::Gateway;
use crate::config::{FileRead, Reread, Stamp};

/// How often the file is looked at. What it says applies when two looks saw the same: a file that is just being written
/// is left alone.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Has the file's hands whenever it changes, or is told to be read, until the gateway closes. A file that can't be read
/// changes nothing.
pub(super) async fn follow(gateway: Arc<Gateway>) {
    let mut file = gateway.config.file.clone();
    if file.path.as_os_str().is_empty() {
        return;
    }
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = file.stamp;
    loop {
        let told = tokio::select! {
            _ = ticks.tick() => false,
            () = gateway.reread.notified() => true,
            () = gateway.closing.cancelled() => return,
        };
        let path = file.path.clone();
        // A file system that hangs keeps only this waiting.
        let now = tokio::task::spawn_blocking(move || Stamp::of(&path)).await.unwrap_or_default();
        let settled = now == last;
        last = now;
        if told || (settled && now != file.stamp) {
            file.stamp = now;
            apply(&gateway, &mut file).await;
        }
    }
}

async fn apply(gateway: &Gateway, file: &mut FileRead) {
    let Reread { hands, later } = match file.again() {
        Ok(read) => read,
        Err(error) => {
            tracing::error!(error = %error, "the configuration is left as it was");
            return;
        }
    };
    if !later.is_empty() {
        tracing::warn!(
            settings = later.join(", "),
            "settings were changed that apply when the gateway is started again"
        );
    }
    let gone = gateway.registry.apply(&hands).await;
    join_all(gone.iter().map(|hand| gateway.leases.release_of(hand))).await;
    tracing::info!(file = %file.path.display(), "the configuration was read again");
}
