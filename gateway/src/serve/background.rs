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
/// How often outputs that no event names are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(600);

/// How old an output must be that no event names: older than any call.
const SWEEP_OLDER: SignedDuration = SignedDuration::from_hours(24);

/// Starts all of it, on the gateway's own tracker, until it closes.
pub(super) fn start(gateway: &Arc<Gateway>) {
    let (closing, gone) = (&gateway.closing, &gateway.gone);
    // Signs of life go on while calls drain, or another process would settle them.
    gateway.tasks.spawn(every(
        gateway.clone(),
        gateway.config.nodes.heartbeat(),
        gone.clone(),
        |gateway| async move {
            live(&gateway).await;
        },
    ));
    gateway.tasks.spawn(every(gateway.clone(), IDLE_EVERY, closing.clone(), |gateway| async move {
        gateway.leases.release_idle().await;
    }));
    gateway.tasks.spawn(every(gateway.clone(), SWEEP_EVERY, closing.clone(), |gateway| async move {
        if let Err(error) = gateway.sessions.outputs().sweep(clock::now() - SWEEP_OLDER).await {
            tracing::warn!(error = %chain(&error), "stored outputs could not be swept");
        }
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

/// One sign of life, a look at the others, and what follows from it.
async fn live(gateway: &Gateway) {
    match gateway.nodes.beat().await {
        Ok(Beat::Counted) => {}
        Ok(Beat::TakenOver) => {
            tracing::error!(
                "this process was silent for so long that it was counted dead: it lets go of everything and goes on under a new name"
            );
            gateway.leases.abandon().await;
            gateway.sessions.log().rename(gateway.nodes.me().0);
            if let Err(error) = gateway.nodes.rejoin().await {
                tracing::error!(error = %chain(&error), "this process could not join again");
            }
        }
        Err(error) => tracing::warn!(error = %chain(&error), "a sign of life could not be written"),
    }
    if let Err(error) = gateway.nodes.watch().await {
        tracing::warn!(error = %chain(&error), "the other processes could not be looked at");
    }
    for done in [gateway.leases.reap().await, gateway.leases.settle().await] {
        if let Err(error) = done {
            tracing::warn!(error = %chain(&error), "what a dead process left could not be settled");
        }
    }
}
