//! Containers, on a real Docker daemon, against the contract.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use hands::container::{Container, ContainerConfig, Image};
use hands::{Hand, InstanceId, Lease};
use tempfile::TempDir;

use super::dockerd::{Dockerd, rootfs};
use super::rig::{Rig, Samples, lease};

contract!(every, ContainerRig);
contract!(posix, ContainerRig);

pub(crate) struct ContainerRig {
    // Dropped in this order.
    hands: Mutex<Vec<Arc<Container>>>,
    pub(crate) folder: TempDir,
    pub(crate) daemon: Dockerd,
    config: ContainerConfig,
}

impl ContainerRig {
    pub(crate) async fn with(change: impl FnOnce(&mut ContainerConfig)) -> Self {
        let daemon = Dockerd::start().await;
        let mut config = ContainerConfig::new("tests", Image::Rootfs(rootfs()));
        config.host = daemon.host();
        change(&mut config);
        let hand = Arc::new(Container::new(config.clone()));
        let folder = tempfile::tempdir().unwrap();
        Self { hands: Mutex::new(vec![hand]), folder, daemon, config }
    }

    pub(crate) fn container(instance: &InstanceId) -> String {
        format!("manyhands-{instance}")
    }
}

#[async_trait]
impl Rig for ContainerRig {
    async fn new() -> Self {
        Self::with(|_| ()).await
    }

    fn hand(&self) -> Arc<dyn Hand> {
        Arc::clone(&self.hands.lock().unwrap()[0]) as _
    }

    async fn second(&self) -> Arc<dyn Hand> {
        let hand = Arc::new(Container::new(self.config.clone()));
        self.hands.lock().unwrap().push(Arc::clone(&hand));
        hand
    }

    fn lease(&self, name: &str) -> Lease {
        lease(self.folder.path(), name)
    }

    fn samples(&self) -> Samples {
        Samples::posix()
    }

    async fn count(&self, instance: &InstanceId) -> usize {
        self.remains(instance).await.len()
    }

    async fn remains(&self, instance: &InstanceId) -> Vec<String> {
        let label = format!("label=manyhands.instance={instance}");
        let containers =
            self.daemon.docker(&["ps", "--all", "--filter", &label, "--format", "{{.Names}} {{.Status}}"]);
        containers.lines().map(|line| format!("container {line}")).collect()
    }

    async fn kill(&self, instance: &InstanceId) {
        self.daemon.docker(&["kill", "--signal", "KILL", &Self::container(instance)]);
    }

    async fn finish(self) {
        let hands = std::mem::take(&mut *self.hands.lock().unwrap());
        for hand in hands {
            hand.shutdown().await;
        }
    }
}
