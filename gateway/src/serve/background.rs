//! What goes on beside requests: signs of life, settling, releasing what is idle, sweeping.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;

use tokio_util::sync::CancellationToken;

use super::Gateway;
use crate::clock;
use crate::error::chain;
use crate::leases::node::Beat;

/// How often idle instances are looked for.
const IDLE_EVERY: Duration = Duration::from_secs(1);
/// How often it is looked for what nobody needs any more. The first time is at the start.
const SWEEP_EVERY: Duration = Duration::from_mins(10);

/// How old an output must be that no event names: older than any call.
const SWEEP_OLDER: SignedDuration = SignedDuration::from_hours(24);

/// Starts all of it, on the gateway's own tracker, until it closes.
pub(super) fn start(gateway: &Arc<Gateway>) {
    let (closing, gone) = (&gateway.closing, &gateway.gone);
    let heartbeat = gateway.config.nodes.heartbeat();
    // Signs of life go on while calls drain, or another process would settle them. Nothing that may take its time
    // comes between two of them.
    gateway.tasks.spawn(every(gateway.clone(), heartbeat, gone.clone(), |gateway| async move {
        live(&gateway).await;
    }));
    gateway.tasks.spawn(every(gateway.clone(), heartbeat, closing.clone(), |gateway| async move {
        look_after(&gateway).await;
    }));
    gateway.tasks.spawn(every(gateway.clone(), IDLE_EVERY, closing.clone(), |gateway| async move {
        gateway.leases.release_idle().await;
    }));
    gateway.tasks.spawn(every(gateway.clone(), SWEEP_EVERY, closing.clone(), |gateway| async move {
        sweep(&gateway).await;
    }));
}

async fn every<F, Fut>(gateway: Arc<Gateway>, period: Duration, until: CancellationToken, work: F)
where
    F: Fn(Arc<Gateway>) -> Fut + Send,
    Fut: Future<Output = ()> + Send,
{
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => work(gateway.clone()).await,
            () = until.cancelled() => return,
        }
    }
}

/// One sign of life, and what follows when it comes too late.
async fn live(gateway: &Gateway) {
    match gateway.nodes.beat().await {
        Ok(Beat::Counted) => {}
        Ok(Beat::TakenOver) => {
            tracing::error!(
                "this process was silent for so long that it was counted dead: it lets go of everything and goes on under a new name"
            );
            gateway.leases.abandon().await;
            match gateway.nodes.rejoin().await {
                Ok(name) => gateway.sessions.log().rename(name.0),
                Err(error) => tracing::error!(error = %chain(&error), "this process could not join again"),
            }
        }
        Err(error) => tracing::warn!(error = %chain(&error), "a sign of life could not be written"),
    }
}

/// A look at the other processes, and at what dead ones left.
async fn look_after(gateway: &Gateway) {
    if let Err(error) = gateway.nodes.watch().await {
        tracing::warn!(error = %chain(&error), "the other processes could not be looked at");
    }
    for done in [gateway.leases.settle().await, gateway.leases.reap().await] {
        if let Err(error) = done {
            tracing::warn!(error = %chain(&error), "what a dead process left could not be settled");
        }
    }
}

/// What nobody needs any more: work, half-deleted sessions, outputs without an event.
async fn sweep(gateway: &Gateway) {
    let retention = SignedDuration::from_hours(24).saturating_mul(gateway.config.work_retention_days.into());
    let kept_since = clock::now().saturating_sub(retention).unwrap_or(jiff::Timestamp::MIN);
    // Before the deletions: while their sessions are there, they say that the work may go.
    if let Err(error) = gateway.leases.sweep_work(kept_since).await {
        tracing::warn!(error = %chain(&error), "the work of former sessions could not be swept");
    }
    if let Err(error) = gateway.sessions.finish_deletions().await {
        tracing::warn!(error = %chain(&error), "deletions that were begun could not be finished");
    }
    if let Err(error) = gateway.sessions.outputs().sweep(clock::now() - SWEEP_OLDER).await {
        tracing::warn!(error = %chain(&error), "stored outputs could not be swept");
    }
    // Last, for hosts may take their time.
    if let Err(error) = gateway.leases.sweep_far_work(kept_since).await {
        tracing::warn!(error = %chain(&error), "the work of former sessions elsewhere could not be swept");
    }
}
