//! A host over SSH against the contract: a real sshd on a loopback port.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

mod calls;
pub(super) mod server;
mod trust;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use hands::ssh::Ssh;
use hands::{Hand, InstanceId};

use self::server::Server;
use super::host::{Host, HostRig};
use super::rig::soon;

contract!(every, HostRig<Server>);
contract!(posix, HostRig<Server>);

#[async_trait]
impl Host for Server {
    async fn start() -> Self {
        Self::start_with("").await
    }

    fn hand(&self) -> Arc<dyn Hand> {
        Arc::new(Ssh::new(self.config()))
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The two processes of the connection, not what runs behind them.
    async fn kill(&self, instance: &InstanceId) {
        let connections = server::connections_of(instance);
        assert!(!connections.is_empty());
        for pid in &connections {
            let _ = rustix::process::kill_process(*pid, rustix::process::Signal::KILL);
        }
        soon(|| connections.iter().all(|pid| !server::is_running(*pid))).await;
    }
}
