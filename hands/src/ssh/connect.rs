//! From nothing to a connection on which commands can be run, with one clear sentence for each way to fail.

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use russh::client::{self, AuthResult, DisconnectReason, Handle};
use russh::keys::agent::AgentIdentity;
use russh::keys::agent::client::AgentClient;
use russh::keys::{PrivateKeyWithHashAlg, PublicKeyOrCertificate};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::key::{self, Pins, ShownKey, Verdict, unavailable};
use super::{Auth, SshConfig};
use crate::HandError;

/// How long connecting may take, each for TCP and for everything after it.
const CONNECT: Duration = Duration::from_secs(20);
/// Most keys of an agent that are tried: servers close the connection at the sixth failure.
const MOST_KEYS: usize = 5;
/// A connection is broken when this many questions whether it is there were not answered.
const UNANSWERED: usize = 3;
/// What is read of a channel before its sender has to wait, in bytes.
const WINDOW: u32 = 2 << 20;

/// What watches a connection: checks the host's key, and remembers why the connection ended.
pub(super) struct Watch {
    pins: Pins,
    verdict: Arc<Mutex<Option<Verdict>>>,
    broken: Arc<OnceLock<String>>,
}

impl client::Handler for Watch {
    type Error = russh::Error;

    async fn check_server_key(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        let PublicKeyOrCertificate::PublicKey { key, .. } = shown else { return Ok(false) };
        let verdict = self.pins.check(key);
        let good = verdict == Verdict::Pinned;
        *self.verdict.lock().unwrap_or_else(PoisonError::into_inner) = Some(verdict);
        Ok(good)
    }

    async fn disconnected(&mut self, reason: DisconnectReason<russh::Error>) -> Result<(), russh::Error> {
        let why = match reason {
            DisconnectReason::ReceivedDisconnect(said) => {
                let said: String = said.message.chars().filter(|c| !c.is_control()).take(200).collect();
                format!("the host closed the connection: {said}")
            }
            DisconnectReason::Error(russh::Error::KeepaliveTimeout) => {
                "the host does not answer any more, so the connection was closed".to_owned()
            }
            DisconnectReason::Error(russh::Error::IO(error)) => format!("the connection broke ({error})"),
            DisconnectReason::Error(_) => "the connection broke".to_owned(),
        };
        let _ = self.broken.set(why);
        Ok(())
    }
}

/// A connection, and where it is said why it broke.
pub(super) struct Connection {
    pub(super) handle: Handle<Watch>,
    pub(super) broken: Arc<OnceLock<String>>,
}

/// Connects, checks who the host is and says who we are.
pub(super) async fn connect(config: &SshConfig) -> Result<Connection, HandError> {
    let pins = Pins::read(config)?;
    let mut connection = greet(config, pins).await?;
    timeout(CONNECT, authenticate(config, &mut connection.handle))
        .await
        .unwrap_or_else(|_| Err(slow(config)))?;
    Ok(connection)
}

/// The key that a host shows, whatever is pinned.
pub(super) async fn shown_key(config: &SshConfig) -> Result<ShownKey, HandError> {
    let verdict = Arc::default();
    match handshake(config, Pins::none(), &verdict).await {
        Err(Failed::Hand(error)) => return Err(error),
        Ok(_) | Err(Failed::Ssh(_)) => {}
    }
    let seen = verdict.lock().unwrap_or_else(PoisonError::into_inner).take();
    match seen {
        Some(Verdict::Unknown(key) | Verdict::Changed(key)) => Ok(key),
        Some(Verdict::Pinned) | None => Err(no_ssh(config, "it showed no host key")),
    }
}

/// Why there is no connection.
enum Failed {
    Hand(HandError),
    Ssh(russh::Error),
}

async fn greet(config: &SshConfig, pins: Pins) -> Result<Connection, HandError> {
    let verdict = Arc::default();
    let failed = match handshake(config, pins.clone(), &verdict).await {
        Ok(connection) => return Ok(connection),
        Err(Failed::Hand(error)) => return Err(error),
        Err(Failed::Ssh(error)) => error,
    };
    let address = address(config);
    let seen = verdict.lock().unwrap_or_else(PoisonError::into_inner).take();
    Err(match (seen, failed) {
        (Some(Verdict::Unknown(key)), _) => unavailable(
            format!("nobody has said yet that {address} may be trusted; its host key is {}", key.fingerprint),
            "compare that with the host's own, then add the hand with --accept-host-key",
        ),
        (Some(Verdict::Changed(key)), _) => changed(config, &pins, &format!("is {}", key.fingerprint)),
        (_, russh::Error::NoCommonAlgo { .. }) if !pins.expected().is_empty() => {
            changed(config, &pins, "is of another kind, or it offers nothing that is used here")
        }
        (_, russh::Error::NoCommonAlgo { kind, .. }) => {
            no_ssh(config, &format!("it has no {kind:?} algorithm that is used here"))
        }
        (_, russh::Error::Elapsed(_)) => slow(config),
        (_, error) => no_ssh(config, &error.to_string()),
    })
}

fn changed(config: &SshConfig, pins: &Pins, now: &str) -> HandError {
    unavailable(
        format!(
            "the host key of {} changed: pinned is {}, and now it {now}; nothing was sent there",
            address(config),
            pins.expected()
        ),
        "find out whether the host was set up anew: if so, pin its new key with --accept-host-key, if not, somebody \
         may be in between",
    )
}

async fn handshake(
    config: &SshConfig,
    pins: Pins,
    verdict: &Arc<Mutex<Option<Verdict>>>,
) -> Result<Connection, Failed> {
    let preferred = pins.preferred(&config.host).map_err(Failed::Hand)?;
    let stream = match timeout(CONNECT, TcpStream::connect((config.host.as_str(), config.port))).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(Failed::Hand(unreachable(config, &error))),
        Err(_) => return Err(Failed::Hand(slow(config))),
    };
    // Small packets are requests that somebody waits for.
    let _ = stream.set_nodelay(true);
    let settings = client::Config {
        window_size: WINDOW,
        preferred,
        keepalive_interval: Some(config.keepalive),
        keepalive_max: UNANSWERED,
        nodelay: true,
        ..client::Config::default()
    };
    let broken = Arc::new(OnceLock::new());
    let watch = Watch { pins, verdict: Arc::clone(verdict), broken: Arc::clone(&broken) };
    match timeout(CONNECT, client::connect_stream(Arc::new(settings), stream, watch)).await {
        Ok(Ok(handle)) => Ok(Connection { handle, broken }),
        Ok(Err(error)) => Err(Failed::Ssh(error)),
        Err(elapsed) => Err(Failed::Ssh(elapsed.into())),
    }
}

async fn authenticate(config: &SshConfig, handle: &mut Handle<Watch>) -> Result<(), HandError> {
    let lost = |error: russh::Error| no_ssh(config, &error.to_string());
    match &config.auth {
        Auth::Key { file, passphrase } => {
            let key = key::private(file, passphrase.as_ref())?;
            let key = PrivateKeyWithHashAlg::new(Arc::new(key), None);
            match handle.authenticate_publickey(config.user.as_str(), key).await.map_err(lost)? {
                AuthResult::Success => Ok(()),
                AuthResult::Failure { partial_success: true, .. } => Err(second_factor(config)),
                AuthResult::Failure { .. } => Err(refused(config, &format!("the key {}", file.display()))),
            }
        }
        Auth::Agent(socket) => {
            let shown = socket.display();
            let gone = |error: russh::keys::Error| {
                unavailable(
                    format!("the ssh-agent at {shown} does not answer ({error})"),
                    "start one, and name its socket with the hand's setting `agent`",
                )
            };
            let mut agent = AgentClient::connect_uds(socket).await.map_err(gone)?;
            let identities = agent.request_identities().await.map_err(gone)?;
            if identities.is_empty() {
                return Err(unavailable(
                    format!("the ssh-agent at {shown} has no key"),
                    "add one with ssh-add",
                ));
            }
            let hash = handle.best_supported_rsa_hash().await.map_err(lost)?.flatten();
            for identity in identities.into_iter().take(MOST_KEYS) {
                let user = config.user.as_str();
                let tried = match identity {
                    AgentIdentity::PublicKey { key, .. } => {
                        let hash = if key.algorithm().is_rsa() { hash } else { None };
                        handle.authenticate_publickey_with(user, key, hash, &mut agent).await
                    }
                    AgentIdentity::Certificate { certificate, .. } => {
                        handle.authenticate_certificate_with(user, certificate, hash, &mut agent).await
                    }
                };
                match tried {
                    Ok(AuthResult::Success) => return Ok(()),
                    Ok(AuthResult::Failure { partial_success: true, .. }) => {
                        return Err(second_factor(config));
                    }
                    // One that the agent does not sign with is no more use than one that the host refuses.
                    Ok(AuthResult::Failure { .. }) | Err(_) => {}
                }
            }
            Err(refused(config, &format!("every key of the ssh-agent at {shown}")))
        }
    }
}

/// `user@host:port`, without a port that is everybody's.
pub(super) fn address(config: &SshConfig) -> String {
    match config.port {
        22 => config.host.clone(),
        port => format!("{}:{port}", config.host),
    }
}

fn unreachable(config: &SshConfig, error: &io::Error) -> HandError {
    let why = match error.kind() {
        io::ErrorKind::ConnectionRefused => "nothing listens there".to_owned(),
        _ => error.to_string(),
    };
    unavailable(
        format!("{} can't be reached: {why}", address(config)),
        "look whether it is on, whether its SSH server runs, and whether the address is right",
    )
}

fn slow(config: &SshConfig) -> HandError {
    unavailable(
        format!("{} did not answer within {} s", address(config), CONNECT.as_secs()),
        "look whether it is on and whether a firewall is in between",
    )
}

fn no_ssh(config: &SshConfig, why: &str) -> HandError {
    unavailable(
        format!("no SSH connection to {} came about: {why}", address(config)),
        "try `ssh -v` to it from this machine",
    )
}

fn refused(config: &SshConfig, what: &str) -> HandError {
    unavailable(
        format!("{} does not let {} in with {what}", address(config), config.user),
        "add its public half to ~/.ssh/authorized_keys there",
    )
}

fn second_factor(config: &SshConfig) -> HandError {
    unavailable(
        format!("{} wants more of {} than a key", address(config), config.user),
        "let this user in with a key alone",
    )
}
