//! The rig of a kind whose instances are on a host, which is this machine in disguise.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use hands::{Hand, InstanceId, Lease};

use super::marked::{keepers_of, marked};
use super::rig::{Rig, Samples, lease};

/// A host of a test's own.
#[async_trait]
pub(crate) trait Host: Send + Sync + Sized + 'static {
    /// Makes it ready.
    async fn start() -> Self;

    /// A new hand that knows nothing of others.
    fn hand(&self) -> Arc<dyn Hand>;

    /// A folder that goes with it.
    fn folder(&self) -> &Path;

    /// Cuts the line of an instance.
    async fn kill(&self, instance: &InstanceId);

    /// Makes whole what `kill` broke beyond the instance.
    async fn mend(&self) {}
}

pub(crate) struct HostRig<H> {
    hands: Mutex<Vec<Arc<dyn Hand>>>,
    host: H,
}

impl<H: Host> HostRig<H> {
    fn make(&self) -> Arc<dyn Hand> {
        let hand = self.host.hand();
        self.hands.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&hand));
        hand
    }
}

#[async_trait]
impl<H: Host> Rig for HostRig<H> {
    async fn new() -> Self {
        let rig = Self { hands: Mutex::default(), host: H::start().await };
        rig.make();
        rig
    }

    fn hand(&self) -> Arc<dyn Hand> {
        Arc::clone(&self.hands.lock().unwrap_or_else(PoisonError::into_inner)[0])
    }

    async fn second(&self) -> Arc<dyn Hand> {
        self.make()
    }

    fn lease(&self, name: &str) -> Lease {
        lease(self.host.folder(), name)
    }

    fn samples(&self) -> Samples {
        Samples::posix()
    }

    async fn count(&self, instance: &InstanceId) -> usize {
        keepers_of(instance).len()
    }

    async fn remains(&self, instance: &InstanceId) -> Vec<String> {
        marked(instance)
    }

    async fn kill(&self, instance: &InstanceId) {
        self.host.kill(instance).await;
    }

    async fn mend(&self) {
        self.host.mend().await;
    }

    async fn finish(self) {
        let hands = std::mem::take(&mut *self.hands.lock().unwrap_or_else(PoisonError::into_inner));
        for hand in hands {
            hand.shutdown().await;
        }
    }
}
