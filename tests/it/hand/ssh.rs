//! A host over SSH against the contract: a real sshd on a loopback port.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

mod calls;
mod connections;
mod trust;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use hands::ssh::Ssh;
use hands::{Hand, InstanceId, Lease};

use super::rig::{Rig, Samples, lease, soon};
use crate::hand::marked::{keepers_of, marked};
use tests::sshd::Sshd;

contract!(every, SshRig);
contract!(posix, SshRig);

pub(crate) struct SshRig {
    hands: Mutex<Vec<Arc<Ssh>>>,
    server: Sshd,
}

#[async_trait]
impl Rig for SshRig {
    async fn new() -> Self {
        let server = Sshd::start().await.unwrap();
        let hand = Arc::new(Ssh::new(server.config().unwrap()));
        Self { hands: Mutex::new(vec![hand]), server }
    }

    fn hand(&self) -> Arc<dyn Hand> {
        Arc::clone(&self.hands.lock().unwrap()[0]) as _
    }

    async fn second(&self) -> Arc<dyn Hand> {
        let hand = Arc::new(Ssh::new(self.server.config().unwrap()));
        self.hands.lock().unwrap().push(Arc::clone(&hand));
        hand
    }

    fn lease(&self, name: &str) -> Lease {
        lease(self.server.folder.path(), name)
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

    /// The two processes of the connection, not what runs behind them.
    async fn kill(&self, instance: &InstanceId) {
        let connections = connections::connections_of(instance);
        assert!(!connections.is_empty());
        for pid in &connections {
            let _ = rustix::process::kill_process(*pid, rustix::process::Signal::KILL);
        }
        soon(|| connections.iter().all(|pid| !connections::is_running(*pid))).await;
    }

    async fn finish(self) {
        let hands = std::mem::take(&mut *self.hands.lock().unwrap());
        for hand in hands {
            hand.shutdown().await;
        }
    }
}
