//! The Docker daemon: reaching it, and saying in one sentence why it can't be reached.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bollard::errors::Error;
use bollard::{API_DEFAULT_VERSION, Docker};
use tokio::sync::Mutex;

use super::{ContainerConfig, DEFAULT_HOST, Tls, tls};
use crate::HandError;

/// How long the daemon may take for the head of an answer, in seconds. Stopping a busy container takes it long.
const ANSWER: u64 = 120;
/// How long the first contact may take.
const CONTACT: Duration = Duration::from_secs(10);

/// A daemon, connected to when it is first needed.
pub(super) struct Engine {
    host: String,
    tls: Option<Tls>,
    docker: Mutex<Option<Docker>>,
}

/// A lack, and the one thing to do about it.
#[derive(Debug)]
pub(super) struct Lack {
    pub(super) why: String,
    pub(super) remedy: String,
}

impl From<Lack> for HandError {
    fn from(Lack { why, remedy }: Lack) -> Self {
        Self::Unavailable { why, remedy }
    }
}

impl Engine {
    pub(super) fn new(config: &ContainerConfig) -> Self {
        Self { host: config.host.clone(), tls: config.tls.clone(), docker: Mutex::default() }
    }

    /// The daemon, in a version of its API that both know.
    pub(super) async fn docker(&self) -> Result<Docker, Lack> {
        let mut docker = self.docker.lock().await;
        if let Some(docker) = &*docker {
            return Ok(docker.clone());
        }
        let client = self.client()?;
        let agreed = tokio::time::timeout(CONTACT, client.negotiate_version()).await;
        let found = match agreed {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return Err(self.explain(&error)),
            Err(_) => {
                let why = format!("the Docker daemon at {} takes more than {CONTACT:?} to answer", self.host);
                return Err(Lack { why, remedy: "look whether it is well: docker info".into() });
            }
        };
        *docker = Some(found.clone());
        Ok(found)
    }

    fn client(&self) -> Result<Docker, Lack> {
        let client = match (self.host.strip_prefix("unix://"), &self.tls) {
            (Some(path), _) => Docker::connect_with_unix(path, ANSWER, API_DEFAULT_VERSION),
            (None, None) => Docker::connect_with_http(&self.host, ANSWER, API_DEFAULT_VERSION),
            (None, Some(tls)) => return tls::client(&self.host, tls, ANSWER),
        };
        client.map_err(|error| self.explain(&error))
    }

    /// Why the daemon can't be used, by what was seen of it.
    pub(super) fn explain(&self, error: &Error) -> Lack {
        let host = &self.host;
        if let Error::DockerResponseServerError { message, .. } = error {
            if message.contains("HTTP request to an HTTPS server") {
                let why = format!("the Docker daemon at {host} speaks TLS only");
                return Lack {
                    why,
                    remedy: "name its CA, a certificate and its key by tls of the hand".into(),
                };
            }
            let why = format!("the Docker daemon refuses: {}", message.trim());
            return Lack { why, remedy: "see what manyhands doctor says".into() };
        }
        let Some(path) = host.strip_prefix("unix://") else {
            return elsewhere(host, &root(error));
        };
        match UnixStream::connect(path).map_err(|error| error.kind()) {
            Err(io::ErrorKind::PermissionDenied) => Lack {
                why: format!("this user may not use the Docker daemon at {path}"),
                remedy: "let it: sudo usermod -aG docker $USER, then log in again".into(),
            },
            Err(_) => Lack {
                why: format!("there is no Docker daemon at {path}"),
                remedy: if host == DEFAULT_HOST {
                    "start it: sudo systemctl start docker, or install it: sudo apt-get install docker.io"
                        .into()
                } else {
                    "start it, or name another by host of the hand".into()
                },
            },
            Ok(_) => Lack {
                why: format!("the Docker daemon at {path} does not answer as one ({})", root(error)),
                remedy: "look whether it is well: docker info".into(),
            },
        }
    }
}

/// Why a daemon on the network can't be used.
fn elsewhere(host: &str, why: &str) -> Lack {
    let (why, remedy) = if why.contains("invalid peer certificate") {
        (
            format!("the Docker daemon at {host} can't be trusted ({why})"),
            "name the CA that signed its certificate by tls.ca of the hand",
        )
    } else if why.contains("received fatal alert") {
        (
            format!("the Docker daemon at {host} does not trust this hand ({why})"),
            "name a certificate that its CA signed, and its key, by tls of the hand",
        )
    } else if why.contains("InvalidContentType") {
        (
            format!("the Docker daemon at {host} does not speak TLS"),
            "set up the hand without tls, or the daemon with it",
        )
    } else {
        (
            format!("no Docker daemon answers at {host} ({why})"),
            "start one there, or name another by host and tls of the hand",
        )
    };
    Lack { why, remedy: remedy.into() }
}

/// The innermost cause: what a person can do something about.
pub(super) fn root(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// The status with which the daemon refused, if it was the daemon.
pub(super) fn status(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// What an error of a request about a container says about the container, when it says that it is of no use.
pub(super) fn why_gone(error: &Error) -> Option<String> {
    match error {
        Error::DockerResponseServerError { status_code: 404, .. } => Some("its container was removed".into()),
        Error::DockerResponseServerError { status_code: 409, message } => {
            Some(if message.contains("paused") {
                "its container is paused".into()
            } else {
                "its container has ended".into()
            })
        }
        Error::DockerResponseServerError { .. } => None,
        other => Some(format!("the Docker daemon went away ({})", root(other))),
    }
}
