//! An Android device against the contract: Google's adb server, and an adbd of our own behind it.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

mod screen;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use hands::android::Android;
use hands::{Hand, InstanceId, Lease};
use tests::device::Bench;

use super::rig::{Rig, Samples, lease};
use crate::hand::marked::{keepers_of, marked};

contract!(every, AndroidRig);
contract!(posix, AndroidRig);

pub(crate) struct AndroidRig {
    hands: Mutex<Vec<Arc<Android>>>,
    bench: Bench,
}

#[async_trait]
impl Rig for AndroidRig {
    async fn new() -> Self {
        let bench = Bench::start().await.unwrap();
        let hand = Arc::new(Android::new(bench.config()));
        Self { hands: Mutex::new(vec![hand]), bench }
    }

    fn hand(&self) -> Arc<dyn Hand> {
        Arc::clone(&self.hands.lock().unwrap()[0]) as _
    }

    async fn second(&self) -> Arc<dyn Hand> {
        let hand = Arc::new(Android::new(self.bench.config()));
        self.hands.lock().unwrap().push(Arc::clone(&hand));
        hand
    }

    fn lease(&self, name: &str) -> Lease {
        lease(self.bench.folder.path(), name)
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

    async fn kill(&self, _: &InstanceId) {
        self.bench.unplug();
    }

    async fn mend(&self) {
        self.bench.plug_in().unwrap();
    }

    async fn finish(self) {
        let hands = std::mem::take(&mut *self.hands.lock().unwrap());
        for hand in hands {
            hand.shutdown().await;
        }
    }
}
