//! Which server serves which handle, and making it when it is first needed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::lists::First;
use super::wire::{Era, Failure};
use super::{Reach, Share, Shared, lifecycle, lists};
use crate::{HandError, Handle, InstanceId, Lease, Owner};

/// Who has a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Instance(InstanceId),
    Owner(Owner),
    All,
}

/// All servers of a hand.
pub(super) struct Servers {
    shared: Arc<Shared>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    handles: HashMap<InstanceId, Link>,
    servers: HashMap<Key, Arc<Server>>,
    /// The one connection to a stateless URL that is listened to for all.
    heard: Option<Arc<Connection>>,
}

/// One server, or one session of it, and those who share it.
pub(super) struct Server {
    shared: Arc<Shared>,
    key: Key,
    /// The connection as it is now.
    current: Mutex<Option<Arc<Connection>>>,
    /// Fires when its last handle is released.
    closed: CancellationToken,
    /// Held while one is made, so that ten first calls make one.
    making: tokio::sync::Mutex<()>,
}

/// What a handle stands for.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) server: Arc<Server>,
    /// The process that it was made for: its state goes with it. None for a URL.
    process: Option<Arc<Connection>>,
}

impl Servers {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, table: Mutex::default() }
    }

    /// Makes a server ready for a lease. A URL needs nothing yet.
    pub(super) async fn provision(&self, lease: &Lease) -> Result<Handle, HandError> {
        let handle = Handle { instance: lease.instance.clone() };
        if let Some(link) = self.lock().handles.get(&lease.instance)
            && link.alive()
        {
            return Ok(handle);
        }
        let key = match self.shared.config.share {
            Share::Session => Key::Instance(lease.instance.clone()),
            Share::Principal => Key::Owner(lease.owner.clone()),
            Share::All => Key::All,
        };
        let server = {
            let mut table = self.lock();
            let server = table.servers.entry(key.clone()).or_insert_with(|| {
                Arc::new(Server {
                    shared: Arc::clone(&self.shared),
                    key,
                    current: Mutex::default(),
                    closed: CancellationToken::new(),
                    making: tokio::sync::Mutex::default(),
                })
            });
            let server = Arc::clone(server);
            // Counted from now on, so that nobody ends the server while this waits for it.
            let link = Link { server: Arc::clone(&server), process: None };
            table.handles.insert(lease.instance.clone(), link);
            server
        };
        if matches!(self.shared.config.reach, Reach::Stdio { .. }) {
            let process = server.connection(self, &lease.instance).await?;
            let link = Link { server, process: Some(process) };
            self.lock().handles.insert(lease.instance.clone(), link);
        }
        Ok(handle)
    }

    /// What a handle stands for.
    pub(super) fn link(&self, handle: &Handle) -> Result<Link, HandError> {
        self.lock().handles.get(&handle.instance).cloned().ok_or_else(|| released(&self.shared))
    }

    pub(super) fn alive(&self, handle: &Handle) -> bool {
        self.lock().handles.get(&handle.instance).is_some_and(Link::alive)
    }

    /// Lets go of a handle. The server ends with its last.
    pub(super) async fn release(&self, instance: &InstanceId) {
        let ended = {
            let mut table = self.lock();
            let Some(link) = table.handles.remove(instance) else { return };
            let key = &link.server.key;
            let last = !table.handles.values().any(|other| other.server.key == *key);
            last.then(|| table.servers.remove(key)).flatten()
        };
        if let Some(server) = ended {
            // Whoever is just making a connection gives it up.
            server.closed.cancel();
            let _made = server.making.lock().await;
            let connection = server.lock().take();
            match connection {
                Some(connection) if self.is_heard(&connection) => connection.follows.clear(),
                Some(connection) => connection.close().await,
                None => {}
            }
        }
    }

    /// Ends everything.
    pub(super) async fn shutdown(&self) {
        let handles: Vec<_> = self.lock().handles.keys().cloned().collect();
        // All at once: one that has to be killed takes seconds.
        join_all(handles.iter().map(|instance| self.release(instance))).await;
        self.shared.cancel.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    /// A connection to look what the server offers, for the time of looking.
    pub(super) async fn look(&self) -> Result<(), HandError> {
        let any = {
            let table = self.lock();
            table.servers.values().find_map(|server| server.now())
        };
        if let Some(connection) = any {
            let listed = lists::relist(&connection).await;
            return listed.map_err(|failure| self.shared.error(&not_run(failure)));
        }
        let instance = InstanceId(format!("look-{}", std::process::id()));
        let connected = lifecycle::connect(&self.shared, &instance).await;
        let connection = connected.map_err(|failure| self.shared.error(&failure))?;
        if is_stateless(&connection) {
            self.hear(&connection, First::WhenChanged);
        }
        let listed = lists::relist(&connection).await;
        if !self.is_heard(&connection) {
            connection.close().await;
        }
        listed.map_err(|failure| self.shared.error(&not_run(failure)))
    }

    /// Whether this is the one that is listened to for all.
    fn is_heard(&self, connection: &Arc<Connection>) -> bool {
        self.lock().heard.as_ref().is_some_and(|heard| Arc::ptr_eq(heard, connection))
    }

    /// Listens to what belongs to no request, and lists again when something changed.
    fn hear(&self, connection: &Arc<Connection>, first: First) {
        if is_stateless(connection) {
            let mut table = self.lock();
            if table.heard.as_ref().is_some_and(|heard| heard.why_gone().is_none()) {
                return;
            }
            table.heard = Some(Arc::clone(connection));
        }
        lists::watch(connection, first);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Connection>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, if there is a usable one.
    fn now(&self) -> Option<Arc<Connection>> {
        self.lock().as_ref().filter(|connection| connection.why_gone().is_none()).cloned()
    }

    /// The connection, made when there is none, and listened to.
    pub(super) async fn connection(
        &self,
        servers: &Servers,
        instance: &InstanceId,
    ) -> Result<Arc<Connection>, HandError> {
        let connection = self.made(servers, instance).await?;
        connection.listened().await;
        Ok(connection)
    }

    async fn made(&self, servers: &Servers, instance: &InstanceId) -> Result<Arc<Connection>, HandError> {
        if let Some(connection) = self.now() {
            return Ok(connection);
        }
        let _making = self.making.lock().await;
        if let Some(connection) = self.now() {
            return Ok(connection);
        }
        let making = async {
            if matches!(self.shared.config.reach, Reach::Stdio { .. }) {
                self.shared.may_start().await?;
            }
            let connected = lifecycle::connect(&self.shared, instance).await;
            connected.map_err(|failure| self.shared.error(&not_run(failure)))
        };
        let Some(connection) = self.closed.run_until_cancelled(making).await else {
            return Err(released(&self.shared));
        };
        let connection = connection?;
        *self.lock() = Some(Arc::clone(&connection));
        servers.hear(&connection, First::Now);
        Ok(connection)
    }
}

/// Whether a connection is nothing but a URL: one that is listened to is enough for all.
fn is_stateless(connection: &Connection) -> bool {
    connection.era() == Era::Modern && !connection.is_process()
}

fn released(shared: &Shared) -> HandError {
    HandError::Lost { may_have_run: false, why: format!("{} was released", shared.whom()) }
}

/// While a connection is made, nothing of a call has been sent.
fn not_run(failure: Failure) -> Failure {
    match failure {
        Failure::Cut(why) => Failure::Unreached(why),
        Failure::Refused { status, why } => Failure::Unreached(Failure::Refused { status, why }.to_string()),
        Failure::SessionGone => Failure::Unreached(failure.to_string()),
        other => other,
    }
}

impl Link {
    /// Whether what it stands for is there, as far as can be told without asking.
    fn alive(&self) -> bool {
        self.process.as_ref().is_none_or(|process| process.why_gone().is_none())
    }

    /// The connection to use.
    pub(super) async fn connection(
        &self,
        servers: &Servers,
        instance: &InstanceId,
    ) -> Result<Arc<Connection>, HandError> {
        let Some(process) = &self.process else { return self.server.connection(servers, instance).await };
        match process.why_gone() {
            None => Ok(Arc::clone(process)),
            Some(why) => Err(HandError::Lost {
                may_have_run: false,
                why: format!("{} is gone: {why}", self.server.shared.whom()),
            }),
        }
    }
}
