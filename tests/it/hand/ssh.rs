//! A host over SSH against the contract: a real sshd on a loopback port.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

mod calls;
mod connections;
mod copies;
mod trust;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use hands::ssh::Ssh;
use hands::{Hand, InstanceId};

use tests::sshd::Sshd;

use super::host::{Host, HostRig};
use super::rig::soon;

contract!(every, HostRig<Sshd>);
contract!(posix, HostRig<Sshd>);

#[async_trait]
impl Host for Sshd {
    async fn start() -> Self {
        Self::start().await.unwrap()
    }

    fn hand(&self) -> Arc<dyn Hand> {
        Arc::new(Ssh::new(self.config().unwrap()))
    }

    fn folder(&self) -> &Path {
        self.folder.path()
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
}
