//! Following `manyhands.toml`, and the other gateways on one database: hands that either adds, removes or changes are
//! there at once, without a restart.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::Gateway;
use crate::config::{ConfigError, FileRead, Reread, Stamp};

/// How often the file is looked at. What it says applies when two looks saw the same: a file that is just being written
/// is left alone.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Pause after the database could not be read.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Has the file's hands whenever it changes, or is told to be read, until the gateway closes. A file that can't be read
/// changes nothing.
pub(super) async fn follow(gateway: Arc<Gateway>) {
    let mut file = gateway.config.file.clone();
    if file.path.as_os_str().is_empty() {
        return;
    }
    if file.in_use().is_none() {
        return ignore(&gateway, &file).await;
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
        let allowed = gateway.unasked().is_some_and(|question| question.is_allowed());
        if told || allowed || (settled && now != file.stamp) {
            file.stamp = now;
            apply(&gateway, &mut file).await;
        }
    }
}

/// Says once that a file came up that was not there at the start. Whoever put it there, an agent in a folder that is
/// mounted or a person, it takes a start that a person makes.
async fn ignore(gateway: &Arc<Gateway>, file: &FileRead) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = gateway.closing.cancelled() => return,
        }
        let path = file.path.clone();
        let there = tokio::task::spawn_blocking(move || Stamp::of(&path)).await.unwrap_or_default();
        if there.is_some() {
            tracing::warn!(
                file = %file.path.display(),
                "a configuration came up that was not there at the start: it is read when the gateway is started again"
            );
            return;
        }
    }
}

/// Has the hands that other gateways on the same database add and remove, until this one closes.
pub(super) async fn follow_others(gateway: Arc<Gateway>) {
    let mut told = gateway.registry.told_elsewhere();
    // First for what was written between the first look and this one. Nobody tells of it.
    loop {
        let done = catch_up(&gateway).await;
        let again = async {
            match done {
                Caught::Up => drop(told.changed().await),
                Caught::Behind => tokio::time::sleep(AGAIN_AFTER).await,
            }
        };
        tokio::select! {
            () = again => {}
            () = gateway.closing.cancelled() => return,
        }
    }
}

/// Whether the hands are as the database has them.
enum Caught {
    Up,
    Behind,
}

async fn catch_up(gateway: &Arc<Gateway>) -> Caught {
    match gateway.registry.catch_up().await {
        Ok(gone) => {
            for hand in gone {
                let leases = gateway.leases.clone();
                // One that takes its time keeps no other hand waiting.
                gateway.tasks.spawn(async move { leases.release_of(&hand).await });
            }
            Caught::Up
        }
        Err(error) => {
            tracing::warn!(error = %error, "the hands of other gateways could not be read; trying again");
            Caught::Behind
        }
    }
}

async fn apply(gateway: &Arc<Gateway>, file: &mut FileRead) {
    let read = file.again();
    gateway.waits_for(match &read {
        Err(ConfigError::NeedsYes(question)) => Some((**question).clone()),
        _ => None,
    });
    let Reread { hands, later } = match read {
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
    // A name that the file had may be free now for one that another gateway added.
    catch_up(gateway).await;
    tracing::info!(file = %file.path.display(), "the configuration was read again");
}
