//! Own the data, accept, route, drain.
//!
//! `Gateway::open` builds everything over one data directory; `run` serves it until it is told to stop. Nothing
//! in here is detached: every task is tracked, and waited for at shutdown.

mod background;
mod brains;
mod connections;
pub mod control;
mod guard;
mod http;
mod making;
mod own;
mod reload;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use hands::Spool;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::net::TcpListener;
use tokio::sync::{Notify, OnceCell};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::token::{TokenError, Tokens};
use crate::calls::Calls;
use crate::config::{Config, Question};
use crate::database::{self, Database, DatabaseConfig, DatabaseError, SQLITE_FILE};
use crate::hand::HandName;
use crate::harness::{self, Harness};
use crate::leases::node::{Me, Nodes};
use crate::leases::{LeaseError, Leases};
use crate::mcp::Bridge;
use crate::mcp::wire::host_origin::NotAPlace;
use crate::registry::{Maker, Registry, RegistryError};
use crate::seal::Sealer;
use crate::session::{SessionId, SessionLimits, Sessions};
use crate::text::{Layout, escaped};

pub use crate::harness::Scope;
use connections::Bounds;
pub use making::ground;
pub(crate) use own::{LOOK_EVERY, PASSING};
pub use own::{OwnError, SOCKET_FILE, TOKEN_FILE, read_token};

/// How long cancelled calls may take to end at shutdown. A call that ignores everything takes the five seconds after
/// which its whole sandbox is ended.
const CANCEL_MAX: Duration = Duration::from_secs(10);
/// How long each further step of a clean end may take: answers that are under way, instances, tasks, the database.
const STEP_MAX: Duration = Duration::from_secs(5);

/// How long the answers of calls that have ended may be on their way.
const ANSWERS_MAX: Duration = Duration::from_secs(2);

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
    /// The built-in loop.
    pub harness: Arc<Harness>,
    /// The bearer tokens.
    pub tokens: Tokens,
    /// Seals what clients bring back.
    pub sealer: Sealer,
    /// What lies between clients and MCP servers.
    pub mcp: Arc<Bridge>,
    /// Fires when the gateway goes down: nothing new begins, and who only listens is let go.
    pub closing: CancellationToken,
    /// Everything that runs beside a request.
    pub tasks: TaskTracker,
    /// Requests without a complete answer. Those that listen do not count.
    pub requests: TaskTracker,
    /// Fires when every answer is out that will be: what is still connected is cut off.
    pub hung_up: CancellationToken,
    /// Has the configuration file read again.
    pub reread: Notify,
    /// What the configuration file says now and a person has to be asked before.
    unasked: Mutex<Option<Question>>,
    nodes: Arc<Nodes>,
    database: Database,
    /// Fires when running calls have had their time.
    hurry: CancellationToken,
    drained: OnceCell<()>,
    /// Fires last: until then this process shows signs of life.
    gone: CancellationToken,
    own: own::Own,
    /// Where HTTP is served, when it is.
    address: OnceLock<SocketAddr>,
    /// Set when its loop works on sessions.
    works: OnceLock<Scope>,
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
    #[error(
        "{address} can't be listened on ({source}): stop what listens there, or choose another address with --listen"
    )]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// Anybody on the network would be the owner.
    #[error("--no-auth makes everybody the owner, so it works on loopback only: {0} is not loopback")]
    OpenToAll(SocketAddr),
    /// A configured host or origin is none.
    #[error("allowed_hosts or allowed_origins: {0}")]
    NotAPlace(#[from] NotAPlace),
    /// An agent may have written the configuration, which nobody named.
    #[error(
        "{} lies where the hand {hand} may write, so it is not read without your yes: look at it and type `{}`, or name it \
         with --config",
        escaped(&question.file.display().to_string(), Layout::Line), question.command()
    )]
    AgentsFile {
        /// What a person is to be asked.
        question: Box<Question>,
        /// Who may have written it.
        hand: HandName,
    },
}

impl Gateway {
    /// Takes the data directory, opens the database, and clears what earlier starts left.
    pub async fn open(config: Config) -> Result<Arc<Self>, ServeError> {
        let maker = making::maker(&config);
        Self::open_with(config, maker).await
    }

    /// The same with hands that `maker` makes.
    pub async fn open_with(config: Config, maker: Maker) -> Result<Arc<Self>, ServeError> {
        let own = own::Own::take(&config.data).await?;
        let at = match &config.database_url {
            Some(url) => DatabaseConfig::Url(url.clone()),
            None => DatabaseConfig::Directory(config.data.clone()),
        };
        let database = Database::open(at).await?;
        database.keep_free(config.limits.free_disk());
        match Self::open_on(database.clone(), own, config, maker).await {
            Ok(gateway) => {
                background::start(&gateway);
                Ok(gateway)
            }
            Err(error) => {
                // Else its files would stay as they are, in the way of the next start.
                database.close().await;
                Err(error)
            }
        }
    }

    async fn open_on(
        database: Database,
        own: own::Own,
        config: Config,
        maker: Maker,
    ) -> Result<Arc<Self>, ServeError> {
        if let Some((question, hand)) = guard::written_by_an_agent(&config, &database).await? {
            return Err(ServeError::AgentsFile { question: Box::new(question), hand });
        }
        let (home, host) = (own.home().to_owned(), own::host());
        let me = Me::new(&home);
        let nodes = Nodes::join(database.clone(), me.clone(), home, host, config.nodes.dead_after()).await?;
        let nodes = Arc::new(nodes);
        let stored_bytes = config.limits.stored_bytes_on(database.disk_size());
        let limits = SessionLimits { sessions: config.limits.sessions, stored_bytes };
        let sessions = Arc::new(Sessions::new(database.clone(), me.id().0, limits));
        let registry = Arc::new(Registry::open(database.clone(), &config.hands, maker).await?);
        let leases = Arc::new(Leases::new(
            database.clone(),
            Arc::new(sessions.log().clone()),
            nodes.clone(),
            registry.clone(),
            config.data.join("work"),
            config.limits.instances,
        ));
        leases.reap().await?;
        leases.settle().await?;
        let hurry = CancellationToken::new();
        let log = Arc::new(sessions.log().clone());
        let running_max = config.limits.running_calls;
        let spool = Spool::new(&config.data, config.limits.free_disk());
        let calls = Calls::new(sessions.clone(), log, leases.clone(), running_max, spool, hurry.clone());
        let harness = brains::harness(&config, &sessions, &leases, &registry, &calls);
        let tokens = Tokens::new(database.clone());
        let sealer = Sealer::open_key(&database).await?;
        own.owner_token(&tokens, &nodes).await?;
        Ok(Arc::new(Self {
            config,
            sessions,
            registry,
            leases,
            calls,
            harness,
            tokens,
            sealer,
            mcp: Arc::default(),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
            requests: TaskTracker::new(),
            hung_up: CancellationToken::new(),
            reread: Notify::new(),
            unasked: Mutex::default(),
            nodes,
            database,
            hurry,
            drained: OnceCell::new(),
            gone: CancellationToken::new(),
            own,
            address: OnceLock::new(),
            works: OnceLock::new(),
        }))
    }

    /// Answers commands of this machine on the socket, and works on sessions within the scope, until it closes.
    pub fn answer_commands(self: &Arc<Self>, scope: Scope) -> Result<(), ServeError> {
        let listener = self.own.socket()?;
        self.tasks.spawn(control::serve(listener, self.clone()));
        // Who answers others is here to stay, unlike a command that is done in a moment.
        self.registry.live();
        let leases = self.leases.clone();
        self.tasks.spawn(async move { leases.reap_shared().await });
        self.tasks.spawn(harness::pool(self.harness.clone(), scope, self.closing.clone()));
        let _ = self.works.set(scope);
        self.tasks.spawn(reload::follow(self.clone()));
        self.tasks.spawn(reload::follow_others(self.clone()));
        Ok(())
    }

    /// What the configuration file says now and a person has to be asked before it applies.
    pub fn unasked(&self) -> Option<Question> {
        self.unasked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn waits_for(&self, question: Option<Question>) {
        *self.unasked.lock().unwrap_or_else(PoisonError::into_inner) = question;
    }

    /// Where HTTP is served, when it is.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address.get().copied()
    }

    /// What this process is called among those on the database.
    pub fn node(&self) -> String {
        self.nodes.me().0
    }

    /// Whether the process that is called so is there.
    pub async fn lives(&self, node: &str) -> Result<bool, DatabaseError> {
        Ok(self.nodes.alive().await?.contains(node))
    }

    /// Whether its loop goes on with the session: in a command that is done in a moment, it does with none.
    pub fn works_on(&self, id: SessionId) -> bool {
        match self.works.get() {
            Some(Scope::All) => true,
            Some(Scope::Spoken) => self.harness.has_taken_on(id),
            None => false,
        }
    }

    /// Has its loop go on with a session in which somebody speaks to it.
    pub fn take_on(&self, id: SessionId) {
        // Where it goes on with all, none needs to be known.
        if self.works.get() == Some(&Scope::Spoken) {
            self.harness.take_on(id);
        }
    }

    /// Takes no more calls; running ones get [`Config::drain_s`], then are cancelled. Then hangs up. Once, whoever
    /// asks again.
    async fn drain(&self) {
        let drain = async {
            self.end_calls().await;
            self.requests.close();
            if tokio::time::timeout(ANSWERS_MAX, self.requests.wait()).await.is_err() {
                tracing::warn!(requests = self.requests.len(), "some answers were not fetched in time");
            }
            self.hung_up.cancel();
        };
        self.drained.get_or_init(|| drain).await;
    }

    async fn end_calls(&self) {
        let patience = Duration::from_secs(self.config.drain_s);
        if tokio::time::timeout(patience, self.calls.drained()).await.is_ok() {
            return;
        }
        tracing::info!(calls = self.calls.running(), "running calls are being cancelled");
        self.hurry.cancel();
        if tokio::time::timeout(CANCEL_MAX, self.calls.drained()).await.is_err() {
            tracing::warn!(
                calls = self.calls.running(),
                "calls did not end in time; the next start settles them"
            );
        }
    }

    /// Ends everything: calls, streams, instances, this process's part of the database. Takes at most
    /// [`Config::drain_s`], the time for cancelled calls to end, and five seconds for each step that hangs.
    pub async fn shutdown(&self) {
        self.closing.cancel();
        self.drain().await;
        step("releasing instances", self.leases.release_all()).await;
        step("storing what servers offer", self.registry.close()).await;
        self.gone.cancel();
        self.tasks.close();
        step("ending what runs beside requests", self.tasks.wait()).await;
        step("signing off", async {
            if let Err(error) = self.nodes.leave().await {
                tracing::warn!(error = %error, "this process could not be signed off");
            }
        })
        .await;
        step("closing the database", self.database.close()).await;
        self.own.leave();
    }
}

/// One step of a clean end. One that hangs is left behind, for the next start to clear up.
async fn step(doing: &'static str, work: impl Future<Output = ()>) {
    if tokio::time::timeout(STEP_MAX, work).await.is_err() {
        tracing::warn!(doing, "a step of the shutdown took too long and is left behind");
    }
}

/// A gateway that listens.
pub struct Server {
    gateway: Arc<Gateway>,
    listener: TcpListener,
    router: axum::Router,
    address: SocketAddr,
}

impl Server {
    /// Binds first, so that a second gateway on the port says so before it touches anything.
    pub async fn bind(config: Config, auth: Auth) -> Result<Self, ServeError> {
        let maker = making::maker(&config);
        Self::bind_with(config, auth, maker).await
    }

    /// The same with hands that `maker` makes.
    pub async fn bind_with(config: Config, auth: Auth, maker: Maker) -> Result<Self, ServeError> {
        let address = config.listen;
        if auth == Auth::Off && !address.ip().is_loopback() {
            return Err(ServeError::OpenToAll(address));
        }
        let listen = |source| ServeError::Listen { address, source };
        let listener = match TcpListener::bind(address).await {
            Ok(listener) => listener,
            // Most often it is this gateway, started twice.
            Err(source) => return Err(own::taken(&config.data).map_or_else(|| listen(source), Into::into)),
        };
        let address = listener.local_addr().map_err(listen)?;
        let settings = http::settings(&config, address)?;
        let gateway = Gateway::open_with(config, maker).await?;
        let _ = gateway.address.set(address);
        if let Err(error) = gateway.answer_commands(Scope::All) {
            gateway.shutdown().await;
            return Err(error);
        }
        let router = http::router(gateway.clone(), auth, settings);
        Ok(Self { gateway, listener, router, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it serves.
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// The owner's token, for the line that a person pastes into a client.
    pub fn owner_token(&self) -> Result<SecretString, OwnError> {
        self.gateway.own.read_token()
    }

    /// Has the configuration file read again, whenever it is called.
    pub fn reread(&self) -> impl Fn() + Send + use<> {
        let gateway = Arc::downgrade(&self.gateway);
        move || {
            if let Some(gateway) = gateway.upgrade() {
                gateway.reread.notify_one();
            }
        }
    }

    /// Serves until `stop` fires, then ends everything.
    pub async fn run(self, stop: CancellationToken) -> Result<(), ServeError> {
        let Self { gateway, listener, router, .. } = self;
        let closing = gateway.closing.clone();
        let stopped = async {
            stop.cancelled().await;
            closing.cancel();
            gateway.drain().await;
            // A client that never reads its answer, or never ends its request, keeps nobody from the end.
            tokio::time::sleep(STEP_MAX).await;
        };
        let bounds = Bounds::http(gateway.config.limits.connections);
        tokio::select! {
            () = connections::serve(listener, router, bounds, closing.clone()) => {}
            () = stopped => {}
        }
        gateway.shutdown().await;
        Ok(())
    }
}

/// Whether anything was ever kept where this configuration keeps it. A database at a URL speaks for itself; so does a
/// gateway that is there, which may have been told its URL otherwise.
pub fn has_data(config: &Config) -> bool {
    config.database_url.is_some()
        || config.data.join(SQLITE_FILE).exists()
        || own::taken(&config.data).is_some()
}

/// Whether the space of what is deleted comes back, where that depends on the file: none of PostgreSQL, or before the
/// first start.
pub fn is_given_back(config: &Config) -> Option<bool> {
    database::is_given_back(&config.data).filter(|_| config.database_url.is_none())
}

/// The whole line that adds this gateway to Claude Code.
pub fn claude_line(base: &str, session: &str, token: &SecretString) -> String {
    format!(
        "claude mcp add --transport http manyhands {base}/mcp/sessions/{session} --header \"Authorization: Bearer {}\"",
        token.expose_secret()
    )
}
