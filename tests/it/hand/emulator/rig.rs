//! The emulator against the contract.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use hands::emulator::{Emulator, EmulatorConfig};
use hands::{Hand, InstanceId, Lease};
use serde_json::json;
use tempfile::TempDir;
use tests::game;

use super::program;
use crate::hand::rig::{Rig, Samples, call, lease, soon};
use crate::sandbox_kit::processes_of;

contract!(every, EmulatorRig);

struct EmulatorRig {
    hands: Mutex<Vec<Arc<Emulator>>>,
    folder: TempDir,
}

impl EmulatorRig {
    fn make(&self) -> Arc<Emulator> {
        let rom = self.folder.path().join("game.gb");
        let hand = Arc::new(Emulator::new(EmulatorConfig::new(program(), rom)));
        self.hands.lock().unwrap().push(Arc::clone(&hand));
        hand
    }
}

#[async_trait]
impl Rig for EmulatorRig {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("game.gb"), game::game()).unwrap();
        let rig = Self { hands: Mutex::default(), folder };
        rig.make();
        rig
    }

    fn hand(&self) -> Arc<dyn Hand> {
        Arc::clone(&self.hands.lock().unwrap()[0]) as _
    }

    async fn second(&self) -> Arc<dyn Hand> {
        self.make()
    }

    fn lease(&self, name: &str) -> Lease {
        lease(self.folder.path(), name)
    }

    fn samples(&self) -> Samples {
        Samples {
            ok: (call("wait", json!({"frames": 2})), "Waited for 2 frames."),
            error: (call("load", json!({"name": "never-saved"})), "nothing is saved as never-saved"),
            endless: (call("wait", json!({"frames": 3600})), " of 3600 frames"),
            // The first tile of the background is black, or not.
            keep: call("press", json!({"buttons": ["a"]})),
            change: call("reset", json!({})),
            kept: (call("read_memory", json!({"address": "0x9800"})), "9800: 01"),
        }
    }

    async fn count(&self, instance: &InstanceId) -> usize {
        processes_of(instance).len()
    }

    async fn remains(&self, instance: &InstanceId) -> Vec<String> {
        processes_of(instance).into_iter().map(|pid| format!("process {pid:?}")).collect()
    }

    async fn kill(&self, instance: &InstanceId) {
        for pid in processes_of(instance) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        soon(|| processes_of(instance).is_empty()).await;
    }

    async fn finish(self) {
        let hands = std::mem::take(&mut *self.hands.lock().unwrap());
        for hand in hands {
            hand.shutdown().await;
        }
    }
}
