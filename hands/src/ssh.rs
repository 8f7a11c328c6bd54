//! A host over SSH: its own shell, its own user, a folder that persists.
//!
//! Each instance has one connection, shared by its calls: an sshd allows ten sessions on one unless told otherwise, of
//! which one is the keeper's ([`crate::remote`]) and three are left to what background processes still print. A copy
//! has a connection of its own, so that a slow receiver holds up no call.
//!
//! **Invariant:** nothing is sent to a host before its key is found among those that are pinned for it.
//!
//! `/workspace` of the file tools is the folder `~/.manyhands/{session's hand}/workspace` there, one for each session, or the
//! one folder that `workspace` names, for all. Within commands it is `$WORKSPACE`, and where they start. It outlives
//! instances, and goes with its session where it is that session's own.

mod connect;
mod doctor;
mod key;
mod line;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

pub use self::doctor::inspect;
pub use self::key::ShownKey;

use self::line::SshLine;
use crate::instances::Instances;
use crate::remote::{self, Line, Reached, Remote, Terms};
use crate::upstream::Given;
use crate::{
    Call, CallContext, FarWork, Files, Hand, HandError, Handle, InstanceId, Lease, Outcome, Progress, Tool,
};

/// Calls of one instance at once; others wait. With the keeper and what is left, they fit into ten sessions.
const CALLS: usize = 6;
/// Channels that background processes may keep open.
const LEFT: usize = 3;

/// How a host is reached and used.
#[derive(Clone, Debug)]
pub struct SshConfig {
    /// Its name or address.
    pub host: String,
    /// The port of its SSH server.
    pub port: u16,
    /// Who we are there.
    pub user: String,
    /// How that is proven.
    pub auth: Auth,
    /// How the host proves who it is.
    pub host_key: HostKey,
    /// The folder that persists, absolute or `~/…`, for all sessions; `{work}` in it stands for a name of each session's
    /// own. `~/.manyhands/{work}/workspace` when there is none.
    pub workspace: Option<String>,
    /// How long a connection may be silent before the host is asked whether it is there. The third silence breaks it.
    pub keepalive: Duration,
    /// What one call may print, in bytes.
    pub output: usize,
}

impl SshConfig {
    /// The usual settings.
    pub fn new(host: impl Into<String>, user: impl Into<String>, auth: Auth, host_key: HostKey) -> Self {
        Self {
            host: host.into(),
            port: 22,
            user: user.into(),
            auth,
            host_key,
            workspace: None,
            keepalive: Duration::from_secs(15),
            output: 64 << 20,
        }
    }
}

/// How we prove who we are.
#[derive(Clone, Debug)]
pub enum Auth {
    /// By a private key in a file that nobody else can read. Ed25519 or ECDSA.
    Key {
        /// The file, in OpenSSH's form or PKCS #8.
        file: PathBuf,
        /// What it is encrypted with.
        passphrase: Option<Given>,
    },
    /// By the keys of an ssh-agent, at this socket. RSA keys as well.
    Agent(PathBuf),
}

/// How a host proves who it is. Ed25519 or ECDSA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostKey {
    /// It is in a file of OpenSSH's form, under its name, `[name]:port` or a hash of these. Patterns and certificate
    /// authorities count for nothing; `@revoked` does.
    KnownHosts(PathBuf),
    /// It is one of these lines of OpenSSH's, as [`host_key`] gives them.
    Accepted(Vec<String>),
}

/// Which key a host shows, for a person to confirm. Proves nothing by itself.
pub async fn host_key(config: &SshConfig) -> Result<ShownKey, HandError> {
    connect::shown_key(config).await
}

/// A kind of hand that gives each lease a connection.
pub struct Ssh {
    config: SshConfig,
    terms: Terms,
    instances: Instances<Remote>,
    /// What runs `bash` commands there, once it is known.
    shell: OnceLock<&'static str>,
}

impl Ssh {
    /// A hand that has connected to nothing yet.
    pub fn new(config: SshConfig) -> Self {
        let terms = Terms {
            host: connect::address(&config),
            workspace: config.workspace.clone().unwrap_or_else(|| "~/.manyhands/{work}/workspace".into()),
            calls: CALLS,
            left: LEFT,
            output: config.output,
            scratch: "/tmp",
            network: "the network of the host it runs on",
        };
        Self { config, terms, instances: Instances::new("its instance"), shell: OnceLock::new() }
    }

    async fn line(&self) -> Result<Arc<dyn Line>, HandError> {
        let connection = connect::connect(&self.config).await?;
        Ok(Arc::new(SshLine::new(connection, &self.instances.tasks)))
    }

    async fn start(&self, lease: &Lease) -> Result<Arc<Remote>, HandError> {
        let line = self.line().await?;
        let remote = Remote::start(line, &self.terms, lease, &self.instances.tasks).await?;
        let _ = self.shell.set(remote.shell());
        Ok(remote)
    }
}

#[async_trait]
impl Hand for Ssh {
    async fn tools(&self) -> Result<Vec<Tool>, HandError> {
        Ok(remote::tools(&self.terms, self.shell.get().copied().unwrap_or("bash")))
    }

    async fn provision(&self, lease: &Lease, _: &dyn Progress) -> Result<Handle, HandError> {
        self.instances.provision(lease, self.start(lease)).await
    }

    async fn execute(
        &self,
        handle: &Handle,
        call: &Call,
        context: CallContext,
    ) -> Result<Outcome, HandError> {
        self.instances.get(handle).await?.execute(call, &context).await
    }

    fn alive(&self, handle: &Handle) -> bool {
        self.instances.alive(handle)
    }

    async fn release(&self, handle: Handle) -> Result<(), HandError> {
        self.instances.release(&handle).await
    }

    async fn reap(&self, instances: &[InstanceId]) -> Result<(), HandError> {
        if instances.is_empty() {
            return Ok(());
        }
        let line = self.line().await?;
        let reaped = remote::reap(&*line, &self.terms, instances).await;
        line.close().await;
        reaped
    }

    async fn shutdown(&self) {
        self.instances.shutdown().await;
    }

    fn files(&self) -> Option<&dyn Files> {
        Some(self)
    }

    fn far_work(&self) -> Option<&dyn FarWork> {
        Some(self)
    }

    fn about(&self) -> Value {
        json!({
            "kind": "ssh",
            "host": self.config.host,
            "port": self.config.port,
            "user": self.config.user,
            "isolation": "none: commands run as this user on this host and can do all that the user can",
            "network": "the host's",
            "workspace": self.terms.workspace.replace("{work}", "{session}"),
            "calls_at_once": CALLS,
            "limits": { "output_bytes": self.config.output },
        })
    }
}

#[async_trait]
impl Reached for Ssh {
    fn instances(&self) -> &Instances<Remote> {
        &self.instances
    }

    /// What is slow on a connection holds up all else on it.
    async fn line_for_a_copy(&self) -> Result<Option<Arc<dyn Line>>, HandError> {
        self.line().await.map(Some)
    }
}

#[async_trait]
impl FarWork for Ssh {
    async fn remove(&self, work: &Path) -> Result<(), HandError> {
        let line = self.line().await?;
        let removed = remote::remove(&*line, &self.terms, work).await;
        line.close().await;
        removed
    }
}
