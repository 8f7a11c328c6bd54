//! Finding out which era a server speaks, and beginning in it.
//! (<https://modelcontextprotocol.io/specification/2026-07-28/basic/versioning>)

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use serde_json::{Value, json};
use tokio_util::sync::DropGuard;

use super::connection::{Agreed, Connection, Exchange, Transport};
use super::http::Spoken;
use super::stdio::{Process, Start};
use super::wire::{ClientInfo, Era, Failure, LEGACY, MODERN, Outgoing};
use super::{Protocol, Reach, Shared};
use crate::InstanceId;
use crate::mcp::{Object, RpcError};

/// The errors by which a server shows that it speaks 2026-07-28.
const MODERN_ERRORS: [i64; 3] = [-32020, -32021, -32022];
/// How long a server may take to answer a ping before it is used without.
const SETTLE_MAX: Duration = Duration::from_secs(5);
/// How long a server that refuses to be asked the old way may still answer what it was asked before.
const LATE_MAX: Duration = Duration::from_secs(5);
/// Where a stateless result says who the server is.
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// What asking about the era told.
enum Probed {
    Modern(Agreed),
    /// It is to be asked the old way, for this reason.
    Legacy(Failure),
    /// It is to be asked the old way, and may still answer.
    Silent(Box<Exchange>),
}

/// Makes a connection, within `limits.connect`.
pub(super) async fn connect(shared: &Arc<Shared>, instance: &InstanceId) -> Result<Arc<Connection>, Failure> {
    let limit = shared.limits.connect;
    let connecting = async {
        match &shared.config.reach {
            Reach::Http { .. } => over_http(shared).await.map(|connection| Started(connection, None)),
            Reach::Stdio { .. } => over_pipes(shared, instance).await,
        }
    };
    let connected = match tokio::time::timeout(limit, connecting).await {
        Ok(Ok(started)) => {
            settle(&started.0).await;
            Ok(started.keep())
        }
        Ok(Err(failure)) => Err(failure),
        Err(_) => Err(Failure::Slow(limit.as_secs())),
    };
    match &connected {
        Ok(connection) => {
            shared.remember(Some(connection.era()));
            shared.reached();
        }
        Err(failure) => {
            shared.remember(None);
            shared.unreached(&failure.to_string());
        }
    }
    connected
}

async fn over_http(shared: &Arc<Shared>) -> Result<Arc<Connection>, Failure> {
    let http = shared.http.as_ref().ok_or_else(|| Failure::Unreached("it has no URL".to_owned()))?;
    let http = http.as_ref().map_err(|why| Failure::Unreached(why.clone()))?;
    let connection = Connection::new(shared, Transport::Http(Arc::clone(http)));
    if shared.era() == Some(Era::Modern) && shared.knows_tools() {
        // A stateless server needs no greeting.
        let known = shared.catalogue();
        connection.agree(Agreed {
            era: Era::Modern,
            version: known.version.clone(),
            spoken: Spoken::modern(),
            server: known.server.clone(),
            capabilities: known.capabilities.clone(),
            instructions: known.instructions.clone(),
        });
        return Ok(connection);
    }
    if shared.era() != Some(Era::Legacy) {
        match probe(&connection).await? {
            Probed::Modern(agreed) => {
                connection.agree(agreed);
                return Ok(connection);
            }
            Probed::Legacy(why) => no_fallback(shared, why)?,
            Probed::Silent(_) => {}
        }
    }
    initialize(&connection, None).await?;
    Ok(connection)
}

async fn over_pipes(shared: &Arc<Shared>, instance: &InstanceId) -> Result<Started, Failure> {
    let mut connection = Started::new(shared, instance)?;
    if shared.era() != Some(Era::Legacy) {
        let silent = match probe(&connection.0).await {
            Ok(Probed::Modern(agreed)) => {
                connection.0.agree(agreed);
                return Ok(connection);
            }
            Ok(Probed::Silent(exchange)) => {
                no_fallback(shared, Failure::Slow(shared.limits.connect.as_secs()))?;
                Some(exchange)
            }
            Ok(Probed::Legacy(why)) | Err(why) => {
                no_fallback(shared, why)?;
                None
            }
        };
        if connection.0.why_gone().is_some() {
            // Many servers from before 2026-07-28 exit when the first request is not `initialize`.
            connection = Started::new(shared, instance)?;
        }
        initialize(&connection.0, silent).await?;
        return Ok(connection);
    }
    initialize(&connection.0, None).await?;
    Ok(connection)
}

fn no_fallback(shared: &Shared, why: Failure) -> Result<(), Failure> {
    match shared.config.protocol {
        Protocol::Modern => Err(why),
        Protocol::Auto | Protocol::Legacy => Ok(()),
    }
}

/// A process that is ended when nobody wants it after all.
struct Started(Arc<Connection>, Option<DropGuard>);

impl Started {
    fn new(shared: &Arc<Shared>, instance: &InstanceId) -> Result<Self, Failure> {
        let Reach::Stdio { command, directory, environment } = &shared.config.reach else {
            return Err(Failure::Unreached("it has no command".to_owned()));
        };
        let start = Start { command, directory: directory.as_ref(), environment };
        let (process, pipes) = Process::start(start, instance)?;
        let process = Arc::new(process);
        let connection = Connection::new(shared, Transport::Stdio(Arc::clone(&process)));
        pipes.run(shared, &connection, &process);
        Ok(Self(connection, Some(process.ends_with_this())))
    }

    fn keep(mut self) -> Arc<Connection> {
        self.1.take().map(DropGuard::disarm);
        self.0
    }
}

/// Asks a server whether it speaks 2026-07-28. An error only when nothing was sent, or a process died of it.
async fn probe(connection: &Arc<Connection>) -> Result<Probed, Failure> {
    let nothing = Object::new();
    let outgoing = Outgoing::plain("server/discover", &nothing);
    let (id, spoken) = (connection.id(), Spoken::modern());
    let opening = connection.open_as(id, &outgoing, None, &[], Era::Modern, &spoken);
    let limits = connection.shared.limits;
    let only = connection.shared.config.protocol == Protocol::Modern;
    let limit = if only { limits.connect } else { limits.probe };
    let (begun, slow) = (tokio::time::Instant::now(), Failure::Slow(limit.as_secs()));
    let mut exchange = match tokio::time::timeout(limit, opening).await {
        Err(_) => return Ok(Probed::Legacy(slow)),
        Ok(Err(failure @ Failure::Unreached(_))) => return Err(failure),
        Ok(Err(why)) => return Ok(Probed::Legacy(why)),
        Ok(Ok(exchange)) => Box::new(exchange),
    };
    match tokio::time::timeout(limit.saturating_sub(begun.elapsed()), exchange.answer()).await {
        Err(_) if connection.is_process() => Ok(Probed::Silent(exchange)),
        Err(_) => Ok(Probed::Legacy(slow)),
        Ok(Err(failure)) if connection.is_process() => Err(failure),
        Ok(Err(why)) => Ok(Probed::Legacy(why)),
        Ok(Ok(answer)) => {
            let other = || Probed::Legacy(Failure::Nonsense(format!("it does not speak {MODERN}")));
            Ok(judge(answer).map_or_else(other, Probed::Modern))
        }
    }
}

/// What an answer to `server/discover` says of a server, when it speaks 2026-07-28.
fn judge(answer: Result<Object, RpcError>) -> Option<Agreed> {
    match answer {
        Ok(mut result) => {
            let versions = result.get("supportedVersions")?.as_array()?;
            if !versions.iter().any(|version| version == MODERN) {
                return None;
            }
            Some(modern(&mut result))
        }
        Err(error) => {
            let speaks = match &error.data {
                Some(data) if error.code == -32022 => {
                    data["supported"].as_array()?.iter().any(|version| version == MODERN)
                }
                _ => MODERN_ERRORS.contains(&error.code),
            };
            speaks.then(|| modern(&mut Object::new()))
        }
    }
}

fn modern(result: &mut Object) -> Agreed {
    let server = result.get("_meta").and_then(|meta| meta.get(SERVER_INFO));
    let server = server.or_else(|| result.get("serverInfo")).and_then(Value::as_object).cloned();
    Agreed {
        era: Era::Modern,
        version: MODERN.to_owned(),
        spoken: Spoken::modern(),
        server: server.unwrap_or_default(),
        capabilities: object(result.remove("capabilities")),
        instructions: text(result.remove("instructions")),
    }
}

/// Begins in the old way. What was asked before may still be answered; whichever comes first decides.
async fn initialize(connection: &Arc<Connection>, silent: Option<Box<Exchange>>) -> Result<(), Failure> {
    let params = json!({
        "protocolVersion": LEGACY[0],
        // All that can be carried to some client; what one client lacks is refused request by request.
        "capabilities": {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}},
        "clientInfo": ClientInfo::OURS,
    });
    let params = object(Some(params));
    let outgoing = Outgoing::plain("initialize", &params);
    let id = connection.id();
    let mut exchange = connection.open_as(id, &outgoing, None, &[], Era::Legacy, &Spoken::default()).await?;
    let answer = match silent {
        None => exchange.answer().await?,
        Some(mut silent) => {
            let first = tokio::select! {
                biased;
                Some(agreed) = late(&mut silent) => Err(agreed),
                answer = exchange.answer() => Ok(answer?),
            };
            match first {
                // Refused by a stateless server, perhaps, whose answer is on its way.
                Ok(Err(error)) => match tokio::time::timeout(LATE_MAX, late(&mut silent)).await {
                    Ok(Some(agreed)) => {
                        connection.agree(agreed);
                        return Ok(());
                    }
                    _ => Err(error),
                },
                Ok(answer) => answer,
                Err(agreed) => {
                    connection.agree(agreed);
                    return Ok(());
                }
            }
        }
    };
    let mut result = answer.map_err(|error| {
        let message: String = error.message.chars().filter(|c| !c.is_control()).take(300).collect();
        Failure::Nonsense(format!("it refused to begin: {message} ({})", error.code))
    })?;
    let version = text(result.remove("protocolVersion")).unwrap_or_default();
    if !LEGACY.contains(&version.as_str()) {
        return Err(Failure::Nonsense(format!("it wants to speak the protocol version {version:?}")));
    }
    let spoken = Spoken { version: HeaderValue::from_str(&version).ok(), session: exchange.session() };
    connection.agree(Agreed {
        era: Era::Legacy,
        version,
        spoken,
        server: object(result.remove("serverInfo")),
        capabilities: object(result.remove("capabilities")),
        instructions: text(result.remove("instructions")),
    });
    connection.notify("notifications/initialized", &json!({})).await
}

/// Lets a server ask what it wants to know at its start, `roots/list` mostly, before there is a call that the question
/// could be taken for a part of: by the answer to a ping, its questions have come over the same pipe and are answered
/// as those that belong to no call. One that answers no ping is used all the same.
async fn settle(connection: &Arc<Connection>) {
    if connection.era() == Era::Legacy && connection.is_process() {
        let _ = connection.ask(&Outgoing::plain("ping", &Object::new()), SETTLE_MAX).await;
    }
}

/// A stateless answer that came after all.
async fn late(exchange: &mut Exchange) -> Option<Agreed> {
    judge(exchange.answer().await.ok()?)
}

fn object(value: Option<Value>) -> Object {
    match value {
        Some(Value::Object(object)) => object,
        _ => Object::new(),
    }
}

fn text(value: Option<Value>) -> Option<String> {
    match value {
        Some(Value::String(text)) => Some(text),
        _ => None,
    }
}

/// How long the steps of a connection may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The whole of a first connection.
    pub connect: Duration,
    /// The answer to `server/discover`, before a server is asked the old way.
    pub probe: Duration,
    /// Listing everything.
    pub lists: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(30),
            probe: Duration::from_secs(5),
            lists: Duration::from_secs(30),
        }
    }
}
