//! Own the data, accept, route, drain.
//!
//! `Gateway::open` builds everything over one data directory; `run` serves it until it is told to stop. Nothing
//! in here is detached: every task is tracked, and waited for at shutdown.

mod background;
pub mod control;
mod http;
mod own;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::token::{TokenError, Tokens};
use crate::calls::Calls;
use crate::config::{Config, HandConfig};
use crate::database::{Database, DatabaseConfig, DatabaseError};
use crate::leases::node::{Me, Nodes};
use crate::leases::{LeaseError, Leases};
use crate::registry::{HandName, Registry, RegistryError};
use crate::session::{Quotas, Sessions, SqlLog};

pub use own::{OwnError, TOKEN_FILE, SOCKET_FILE};

/// How long a clean end may take after running calls have been cancelled.
const END_MAX: Duration = Duration::from_secs(20);

/// Whether callers must say who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// By a bearer token.
    Token,
    /// Everybody is the owner. On loopback only.
    Off,
}

/// Everything that one data directory has, opened.
pub struct Gateway {
    /// What it was told.
    pub config: Config,
    /// The sessions and their logs.
    pub sessions: Arc<Sessions>,
    /// The hands there are.
    pub registry: Arc<Registry>,
    /// The hands that are held.
    pub leases: Arc<Leases>,
    /// The calls that run.
    pub calls: Calls,
    /// The bearer tokens.
    pub tokens: Tokens,
    /// Fires when the gateway goes down: streams end.
    pub closing: CancellationToken,
    /// Everything that runs beside a request.
    pub tasks: TaskTracker,
    nodes: Arc<Nodes>,
    database: Database,
    /// Fires when running calls have had their time.
    hurry: CancellationToken,
    own: own::Own,
}

/// Why the gateway is not there.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The data directory can't be had.
    #[error(transparent)]
    Own(#[from] OwnError),
    /// The database can't be opened.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// A hand can't be set up.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// What an earlier start left can't be cleared.
    #[error("what an earlier start left behind can't be cleared: {0}")]
    Leases(#[from] LeaseError),
    /// The owner's token can't be made.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The address can't be had.
    #[error("{address} can't be listened on ({source}): stop what listens there, or choose another address with --listen")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// Anybody on the network would be the owner.
    #[error("--no-auth makes everybody the owner, so it works on loopback only: {0} is not loopback")]
    OpenToAll(SocketAddr),
    /// The program can't find itself, which sandboxes need.
    #[error("the program's own file can't be found: {0}")]
    NoProgram(std::io::Error),
    /// Serving failed.
    #[error("serving failed: {0}")]
    Serving(std::io::Error),
}

impl Gateway {
    /// Takes the data directory, opens the database, and clears what earlier starts left.
    pub async fn open(config: Config) -> Result<Arc<Self>, ServeError> {
        let own = own::Own::take(&config.data)?;
        let program = std::env::current_exe().map_err(ServeError::NoProgram)?;
        let at = match &config.database_url {
            Some(url) => DatabaseConfig::Url(url.clone()),
            None => DatabaseConfig::Directory(config.data.clone()),
        };
        let database = Database::open(at).await?;
        let me = Me::new();
        let (home, host) = (own.home().to_owned(), own::host());
        let nodes = Nodes::join(database.clone(), me.clone(), home, host, config.nodes.dead_after()).await?;
        let nodes = Arc::new(nodes);
        let log = Arc::new(SqlLog::new(database.clone(), me));
        let quotas = Quotas { sessions: config.limits.sessions, stored_bytes: config.limits.stored_bytes };
        let sessions = Arc::new(Sessions::new(database.clone(), log.clone(), quotas));
        let maker = maker(program, own.runtime());
        let registry = Arc::new(Registry::open(database.clone(), &config.hands, maker).await?);
        let leases = Arc::new(Leases::new(
            database.clone(),
            log,
            nodes.clone(),
            registry.clone(),
            config.data.join("work"),
            config.limits.instances,
        ));
        leases.reap().await?;
        leases.settle().await?;
        let hurry = CancellationToken::new();
        let calls = Calls::new(sessions.clone(), leases.clone(), config.limits.running_calls, hurry.clone());
        let tokens = Tokens::new(database.clone());
        own.owner_token(&tokens).await?;
        let gateway = Arc::new(Self {
            config,
            sessions,
            registry,
            leases,
            calls,
            tokens,
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
            nodes,
            database,
            hurry,
            own,
        });
        background::start(&gateway);
        Ok(gateway)
    }

    /// Ends: no new calls, running ones get [`Config::drain_s`], then are cancelled; instances are released.
    pub async fn shutdown(&self) {
        self.closing.cancel();
        let patience = Duration::from_secs(self.config.drain_s);
        if tokio::time::timeout(patience, self.calls.drained()).await.is_err() {
            tracing::info!(calls = self.calls.running(), "running calls are being cancelled");
            self.hurry.cancel();
            if tokio::time::timeout(END_MAX, self.calls.drained()).await.is_err() {
                tracing::warn!(calls = self.calls.running(), "calls did not end in time; the next start settles them");
            }
        }
        self.leases.release_all(None).await;
        if let Err(error) = self.nodes.leave().await {
            tracing::warn!(error = %error, "this process could not be signed off");
        }
        self.tasks.close();
        let _ = tokio::time::timeout(END_MAX, self.tasks.wait()).await;
        self.database.close().await;
        self.own.leave();
    }
}

/// A gateway that listens.
pub struct Server {
    gateway: Arc<Gateway>,
    listener: TcpListener,
    control: tokio::net::UnixListener,
    auth: Auth,
    address: SocketAddr,
}

impl Server {
    /// Binds first, so that a second gateway on the port says so before it touches anything.
    pub async fn bind(config: Config, auth: Auth) -> Result<Self, ServeError> {
        let address = config.listen;
        if auth == Auth::Off && !address.ip().is_loopback() {
            return Err(ServeError::OpenToAll(address));
        }
        let listen = |source| ServeError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let gateway = Gateway::open(config).await?;
        let control = gateway.own.socket()?;
        Ok(Self { gateway, listener, control, auth, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The owner's token, for the line that a person pastes into a client.
    pub fn owner_token(&self) -> Result<SecretString, OwnError> {
        self.gateway.own.read_token()
    }

    /// Serves until `stop` fires, then ends everything.
    pub async fn run(self, stop: CancellationToken) -> Result<(), ServeError> {
        let gateway = self.gateway;
        let closing = gateway.closing.clone();
        gateway.tasks.spawn({
            let gateway = gateway.clone();
            async move {
                stop.cancelled().await;
                gateway.closing.cancel();
            }
        });
        let control = control::serve(self.control, gateway.clone());
        let http = http::serve(self.listener, gateway.clone(), self.auth, self.address);
        let (served, ()) = tokio::join!(http, control);
        closing.cancel();
        gateway.shutdown().await;
        served.map_err(ServeError::Serving)
    }
}

/// Builds hands by their configuration.
fn maker(program: PathBuf, runtime: PathBuf) -> crate::registry::Maker {
    Box::new(move |name: &HandName, config: &HandConfig| match config {
        HandConfig::Sandbox(settings) => {
            let _ = name;
            Arc::new(hands::sandbox::Sandbox::new(settings.resolve(program.clone(), runtime.clone())))
        }
    })
}

/// The whole line that adds this gateway to Claude Code.
pub fn claude_line(base: &str, session: &str, token: &SecretString) -> String {
    format!(
        "claude mcp add --transport http manyhands {base}/mcp/sessions/{session} --header \"Authorization: Bearer {}\"",
        token.expose_secret()
    )
}
