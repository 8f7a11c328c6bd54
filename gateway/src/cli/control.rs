//! The owner of the data directory, wherever it is: another process behind its socket, or this one.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use axum::body::Body;
use hands::open_files;
use http::{Method, Request, Response, header};
use http_body_util::BodyExt as _;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tower::ServiceExt as _;

use super::terminal::note;
use super::{Interrupted, Setting};
use crate::config::Config;
use crate::serve::{
    Gateway, LOOK_EVERY, OwnError, PASSING, SOCKET_FILE, Scope, ServeError, control, has_data,
};

/// How long a command may take to leave before it says why.
const QUIET: Duration = Duration::from_secs(1);

/// How a command uses the data directory when nobody owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stay {
    /// It reads, and is done in a moment: what is not there is not made.
    Read,
    /// It is done in a moment: other commands wait for it.
    Brief,
    /// It may take long: meanwhile it answers other commands, and the built-in loop answers those who speak to it.
    Long,
}

/// Whoever answers commands.
pub(super) enum Owner {
    /// The process that owns the data directory.
    There { sender: SendRequest<Body>, _driver: Driver },
    /// This process, until the command is done.
    Here(Arc<Gateway>),
}

/// Reaches the owner, or becomes it when there is none, and works with it. Whatever ends the work, what it began
/// is ended cleanly.
pub(super) async fn with_owner<T>(
    setting: &Setting,
    stay: Stay,
    work: impl AsyncFnOnce(&mut Owner) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    with_owner_or(setting, stay, |_| {}, work).await
}

/// The same; `interrupted` is called at once when somebody interrupts the work, before what was begun is ended.
pub(super) async fn with_owner_or<T>(
    setting: &Setting,
    stay: Stay,
    interrupted: impl FnOnce(&Owner),
    work: impl AsyncFnOnce(&mut Owner) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let stop = super::serve::stop_on_signal(&setting.signals)?;
    let mut owner = Owner::reach(setting, stay).await?;
    let done = tokio::select! {
        done = work(&mut owner) => done,
        () = stop.cancelled() => {
            interrupted(&owner);
            Err(Interrupted.into())
        }
    };
    owner.leave().await;
    done
}

impl Owner {
    async fn reach(setting: &Setting, stay: Stay) -> anyhow::Result<Self> {
        let data = &setting.config.data;
        if stay == Stay::Read && !has_data(&setting.config) {
            // A gateway that answers here may keep it at a URL that this command was not told.
            if let Some(Found::There { sender, driver, .. }) = answering(data).await? {
                return Ok(Self::There { sender, _driver: driver });
            }
            bail!(
                "there is no data in {} yet: start the gateway once (`manyhands`), or name another directory with \
                 --data",
                data.display()
            );
        }
        match find(&setting.config).await? {
            Found::There { sender, driver, .. } => Ok(Self::There { sender, _driver: driver }),
            Found::Here(gateway) => {
                if stay == Stay::Long {
                    open_files::raise()?;
                    gateway.answer_commands(Scope::Spoken)?;
                }
                Ok(Self::Here(gateway))
            }
        }
    }

    /// Asks, and returns the answer as JSON. A refusal is an error in the owner's words.
    pub(super) async fn ask(
        &mut self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> anyhow::Result<Value> {
        let response = self.send(method, path, body).await?;
        let status = response.status();
        let bytes = response.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            bail!("{}", refusal(&bytes));
        }
        serde_json::from_slice(&bytes).context("the gateway answered something that is not JSON")
    }

    /// Asks, and returns the answer as it comes.
    pub(super) async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> anyhow::Result<Response<Body>> {
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "manyhands")
            .header(header::CONTENT_TYPE, "application/json")
            // Without it, no trailer is sent that says why a stream broke off.
            .header(header::TE, "trailers")
            .body(body)?;
        self.request(request).await
    }

    /// Sends a request as it is.
    pub(super) async fn request(&mut self, request: Request<Body>) -> anyhow::Result<Response<Body>> {
        Ok(match self {
            Self::There { sender, .. } => {
                // The connection is busy until the answer before has been read to its end.
                let sent = async {
                    sender.ready().await?;
                    sender.send_request(request).await
                };
                sent.await
                    .context("the manyhands that owns the data ended before it answered: try again")?
                    .map(Body::new)
            }
            Self::Here(gateway) => match control::router(gateway.clone()).oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            },
        })
    }

    /// Says what it waits for when that takes long.
    async fn leave(self) {
        let Self::Here(gateway) = self else { return };
        let mut leaving = pin!(gateway.shutdown());
        if timeout(QUIET, &mut leaving).await.is_ok() {
            return;
        }
        let calls = gateway.calls.running();
        if calls > 0 {
            note(format_args!(
                "manyhands: waiting up to {} s for {calls} running call{} to end; press Ctrl-C to leave at once",
                gateway.config.drain_s,
                if calls == 1 { "" } else { "s" }
            ));
        }
        leaving.await;
    }
}

/// An answer that comes as lines of JSON.
pub(super) struct Lines {
    body: Body,
    waiting: Vec<u8>,
}

impl Lines {
    /// A refusal is an error in the owner's words.
    pub(super) async fn of(response: Response<Body>) -> anyhow::Result<Self> {
        let (status, body) = (response.status(), response.into_body());
        if !status.is_success() {
            bail!("{}", refusal(&body.collect().await?.to_bytes()));
        }
        Ok(Self { body, waiting: Vec::new() })
    }

    /// The next line; `None` when the gateway has ended. One that says what went wrong is an error.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<Value>> {
        loop {
            if let Some(end) = self.waiting.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.waiting.drain(..=end).collect();
                let line: Value = serde_json::from_slice(&line)?;
                return line["error"].as_str().map_or(Ok(Some(line.clone())), |error| bail!("{error}"));
            }
            let Some(Ok(frame)) = self.body.frame().await else { return Ok(None) };
            if let Ok(data) = frame.into_data() {
                self.waiting.extend_from_slice(&data);
            }
        }
    }
}

/// Carries a connection for as long as it is held.
pub(super) type Driver = AbortOnDropHandle<()>;

/// Begins to speak HTTP on a socket.
async fn dial(stream: UnixStream) -> anyhow::Result<(SendRequest<Body>, Driver)> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let driver = TaskTracker::new().spawn(async move {
        // What breaks the connection is told to whoever waits for an answer on it.
        let _ = connection.with_upgrades().await;
    });
    Ok((sender, AbortOnDropHandle::new(driver)))
}

/// What a refusal says.
pub(super) fn refusal(bytes: &[u8]) -> String {
    serde_json::from_slice::<Value>(bytes)
        .ok()
        .and_then(|body| body["error"].as_str().map(str::to_owned))
        .unwrap_or_else(|| String::from_utf8_lossy(bytes).trim().to_owned())
}

/// Who answers for a data directory.
pub(super) enum Found {
    /// Another process.
    There {
        /// Where to ask.
        sender: SendRequest<Body>,
        /// Holds the connection.
        driver: Driver,
        /// What it says of itself.
        about: Value,
    },
    /// This process, which has opened it.
    Here(Arc<Gateway>),
}

/// The owner of the data directory: whoever answers on its socket, else this process. Another command that has it
/// for a moment is waited for.
pub(super) async fn find(config: &Config) -> anyhow::Result<Found> {
    let start = tokio::time::Instant::now();
    loop {
        if let Some(found) = answering(&config.data).await? {
            return Ok(found);
        }
        match Gateway::open(config.clone()).await {
            Ok(gateway) => return Ok(Found::Here(gateway)),
            // It answers by now, or is just going.
            Err(ServeError::Own(OwnError::Taken { .. })) if start.elapsed() < PASSING => {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The process that answers on the socket of a data directory. One that is just going counts as gone.
pub(super) async fn answering(data: &Path) -> anyhow::Result<Option<Found>> {
    let path = data.join(SOCKET_FILE);
    let stream = match UnixStream::connect(&path).await {
        Ok(stream) => stream,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            bail!(
                "{} belongs to another user: run this as that user, or choose another directory with --data",
                path.display()
            )
        }
        Err(_) => return Ok(None),
    };
    let (mut sender, driver) = dial(stream).await?;
    let request = Request::builder().uri("/about").header(header::HOST, "manyhands").body(Body::empty())?;
    let Ok(response) = sender.send_request(request).await else { return not_us(&path) };
    let status = response.status();
    let Ok(body) = response.into_body().collect().await else { return not_us(&path) };
    if !status.is_success() {
        bail!("{}", refusal(&body.to_bytes()));
    }
    let about = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
    Ok(Some(Found::There { sender, driver, about }))
}

/// Nobody who hung up is there, unless it hung up because of who we are.
fn not_us(socket: &Path) -> anyhow::Result<Option<Found>> {
    let me = rustix::process::geteuid();
    match std::fs::metadata(socket) {
        Ok(metadata) if !me.is_root() && metadata.uid() != me.as_raw() => bail!(
            "the manyhands behind {} answers only the user that runs it: run this as that user",
            socket.display()
        ),
        _ => Ok(None),
    }
}

/// A path segment or query value, percent-encoded.
pub(super) fn encoded(text: &str) -> String {
    use std::fmt::Write as _;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            _ => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}
