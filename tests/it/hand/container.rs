//! Containers, on a real Docker daemon, against the contract.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use hands::container::{Container, ContainerConfig, Image, ShellName, Workspace};
use hands::{Hand, InstanceId, Lease};
use tempfile::TempDir;
use tests::dockerd::{Dockerd, busybox, rootfs};

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
        Self::of(Dockerd::start().await.unwrap(), change)
    }

    /// The same on this daemon.
    pub(crate) fn of(daemon: Dockerd, change: impl FnOnce(&mut ContainerConfig)) -> Self {
        let mut config = ContainerConfig::new("tests", Image::Rootfs(rootfs().unwrap()));
        config.host = daemon.host();
        change(&mut config);
        let hand = Arc::new(Container::new(config.clone()));
        let folder = tempfile::tempdir().unwrap();
        Self { hands: Mutex::new(vec![hand]), folder, daemon, config }
    }

    /// What its hands are made with.
    pub(crate) fn config(&self) -> ContainerConfig {
        self.config.clone()
    }

    /// The container's name.
    pub(crate) fn container(instance: &InstanceId) -> String {
        format!("manyhands-{instance}")
    }
}

/// Where there is nothing but `sh` and busybox, all that the six tools promise holds as well.
mod with_busybox {
    use super::BusyboxRig;
    contract!(posix, BusyboxRig);
}

/// What holds in a folder of this machine holds in a volume as well.
mod with_volume {
    use super::VolumeRig;
    contract!(every, VolumeRig);
}

/// A rig that differs in how its containers are made.
macro_rules! variant {
    ($name:ident, $change:expr) => {
        pub(crate) struct $name(ContainerRig);

        #[async_trait]
        impl Rig for $name {
            async fn new() -> Self {
                Self(ContainerRig::with($change).await)
            }

            fn hand(&self) -> Arc<dyn Hand> {
                self.0.hand()
            }

            async fn second(&self) -> Arc<dyn Hand> {
                self.0.second().await
            }

            fn lease(&self, name: &str) -> Lease {
                self.0.lease(name)
            }

            fn samples(&self) -> Samples {
                self.0.samples()
            }

            async fn count(&self, instance: &InstanceId) -> usize {
                self.0.count(instance).await
            }

            async fn remains(&self, instance: &InstanceId) -> Vec<String> {
                self.0.remains(instance).await
            }

            async fn kill(&self, instance: &InstanceId) {
                self.0.kill(instance).await;
            }

            async fn finish(self) {
                self.0.finish().await;
            }
        }
    };
}

variant!(BusyboxRig, |config| {
    config.image = Image::Rootfs(busybox().unwrap());
    config.shell = ShellName::Sh;
});
variant!(VolumeRig, |config| config.workspace = Workspace::Volume);

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
        let format = "{{.ID}} {{.Names}} {{.Status}}";
        let listed = self.daemon.docker(&["ps", "--all", "--filter", &label, "--format", format]);
        // A daemon that was killed may list one that it has since removed, without its name, as dead.
        let is_there = |line: &&str| {
            let id = line.split(' ').next().unwrap_or_default();
            !self.daemon.docker(&["container", "inspect", id]).contains("No such container")
        };
        listed.lines().filter(is_there).map(|line| format!("container {line}")).collect()
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
