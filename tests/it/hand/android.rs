//! An Android device against the contract: Google's adb server, and an adbd of our own behind it.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

mod screen;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use hands::android::Android;
use hands::{Hand, InstanceId};
use tests::device::Bench;

use super::host::{Host, HostRig};

contract!(every, HostRig<Bench>);
contract!(posix, HostRig<Bench>);

#[async_trait]
impl Host for Bench {
    async fn start() -> Self {
        Self::start().await.unwrap()
    }

    fn hand(&self) -> Arc<dyn Hand> {
        Arc::new(Android::new(self.config()))
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }

    async fn kill(&self, _: &InstanceId) {
        self.unplug();
    }

    async fn mend(&self) {
        self.plug_in().unwrap();
    }
}
