//! MCP over a pair of pipes: one message a line, in both eras from the first byte on.
//!
//! In front of rmcp stands the same strictness as over HTTP. rmcp alone ends when a client's first line is a
//! notification, and is silent about lines that it cannot read; here every line that is no message is answered with an
//! error, and the next one is read.

use std::collections::HashSet;
use std::sync::Arc;

use rmcp::model::{
    CancelledNotification, CancelledNotificationParam, ClientJsonRpcMessage, ClientNotification,
    ClientRequest, GetMeta, ProtocolVersion, RequestId, ServerJsonRpcMessage,
};
use rmcp::service::{RxJsonRpcMessage, ServerInitializeError, TxJsonRpcMessage, serve_server_with_ct};
use rmcp::transport::Transport;
use rmcp::{RoleServer, ServerHandler};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::envelope::{Envelope, Id};
use super::headers::{self, Era};
use super::raw::{self, RawMethods};
use super::refusal::Refusal;
use super::shape;

/// The longest line, in bytes without its end. Longer ones are skipped without being kept.
pub const MAX_LINE: usize = 16 * 1024 * 1024;

/// How many messages may have been read that rmcp has not taken yet.
const READ_AHEAD: usize = 4;

/// How many messages may wait for the client to read them before no more of its own are read.
const UNWRITTEN_MAX: usize = 256;

/// Why a connection ended other than by its end of file or by `cancel`.
#[derive(Debug, thiserror::Error)]
pub enum StdioError {
    /// The client's first request could not be answered.
    #[error("the connection could not be set up: {0}")]
    Start(#[from] Box<ServerInitializeError>),
    /// rmcp's loop panicked.
    #[error("the server's loop ended: {0}")]
    Loop(#[from] tokio::task::JoinError),
}

/// Serves one client until `reader` ends or `cancel`. Calls that run at the end of `reader` have 5 seconds to be
/// answered, then they are cancelled; on `cancel` 2.
pub async fn serve<H: ServerHandler>(
    reader: impl AsyncRead + Send + Unpin + 'static,
    writer: impl AsyncWrite + Send + Unpin + 'static,
    handler: H,
    cancel: CancellationToken,
) -> Result<(), StdioError> {
    serve_raw(reader, writer, handler, &[], cancel).await
}

/// The same for a handler that answers these methods in `on_custom_request`, as JSON.
pub async fn serve_raw<H: ServerHandler>(
    reader: impl AsyncRead + Send + Unpin + 'static,
    writer: impl AsyncWrite + Send + Unpin + 'static,
    handler: H,
    raw_methods: RawMethods,
    cancel: CancellationToken,
) -> Result<(), StdioError> {
    let writer = Arc::new(Mutex::new(writer));
    let (checked, incoming) = mpsc::channel(READ_AHEAD);
    let supported = handler.supported_protocol_versions().into_owned();
    let pipe = Pipe {
        incoming,
        writer: writer.clone(),
        unwritten: Arc::new(Semaphore::new(UNWRITTEN_MAX)),
        supported,
        opened: false,
        listening: HashSet::new(),
    };
    let run = async {
        let running = match serve_server_with_ct(handler, pipe, cancel).await {
            Ok(running) => running,
            Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => {
                return Ok(());
            }
            Err(error) => return Err(StdioError::from(Box::new(error))),
        };
        running.waiting().await?;
        Ok(())
    };
    let read = async {
        if let Err(error) = pump(Lines::new(reader), raw_methods, checked, &writer).await {
            tracing::debug!(%error, "a stdio client was lost");
        }
        // Its end is the end of `incoming`, after which rmcp still answers what runs.
        std::future::pending().await
    };
    tokio::select! {
        ended = run => ended,
        never = read => never,
    }
}

/// Reads lines until they end, hands on what is a message and answers what is none.
async fn pump<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    mut lines: Lines<R>,
    raw_methods: RawMethods,
    checked: mpsc::Sender<ClientJsonRpcMessage>,
    writer: &Mutex<W>,
) -> std::io::Result<()> {
    let mut initialized = false;
    while let Some(line) = lines.next().await? {
        let accepted = match line {
            Line::Whole(line) if line.trim_ascii().is_empty() => continue,
            Line::Whole(line) => accept(&line, raw_methods, &mut initialized),
            Line::TooLong => {
                Err((Refusal::InvalidRequest(format!("a line has at most {MAX_LINE} bytes")), None))
            }
        };
        match accepted {
            // Nobody takes it any more: the server has ended.
            Ok(message) => {
                if checked.send(message).await.is_err() {
                    break;
                }
            }
            Err((refusal, id)) => {
                tracing::debug!(%refusal, "refused");
                write(writer, refusal.json(id.as_ref()).to_string().into_bytes()).await?;
            }
        }
    }
    Ok(())
}

/// One line, if it is a message that may go to rmcp.
fn accept(
    line: &[u8],
    raw_methods: RawMethods,
    initialized: &mut bool,
) -> Result<ClientJsonRpcMessage, (Refusal, Option<Id>)> {
    let envelope = Envelope::read(line)?;
    check(&envelope, initialized).map_err(|refusal| (refusal, envelope.id().cloned()))?;
    raw::read(raw_methods, &envelope, line)
        .map_err(|error| (Refusal::InvalidRequest(error.to_string()), envelope.id().cloned()))
}

fn check(envelope: &Envelope, initialized: &mut bool) -> Result<(), Refusal> {
    if envelope.requests("initialize") {
        if *initialized {
            return Err(Refusal::InvalidRequest("this connection is initialized already".into()));
        }
        shape::check(envelope)?;
        *initialized = true;
        return Ok(());
    }
    if let (Some(version), Some(_)) = (envelope.meta_version(), envelope.id()) {
        headers::check_modern(version)?;
        headers::check_method(envelope, Era::Modern)?;
    }
    shape::check(envelope)
}

/// Lines of bounded length.
struct Lines<R> {
    reader: BufReader<R>,
}

enum Line {
    Whole(Vec<u8>),
    TooLong,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    fn new(reader: R) -> Self {
        Self { reader: BufReader::with_capacity(64 * 1024, reader) }
    }

    /// The next line without its end; a last one may lack it.
    async fn next(&mut self) -> std::io::Result<Option<Line>> {
        let mut line = Vec::new();
        let mut too_long = false;
        loop {
            let read = self.reader.fill_buf().await?;
            let end = read.iter().position(|byte| *byte == b'\n');
            let piece = &read[..end.unwrap_or(read.len())];
            too_long |= line.len() + piece.len() > MAX_LINE;
            if too_long {
                line = Vec::new();
            } else {
                line.extend_from_slice(piece);
            }
            let (taken, at_end) = (piece.len() + usize::from(end.is_some()), read.is_empty());
            self.reader.consume(taken);
            match () {
                () if too_long && (end.is_some() || at_end) => return Ok(Some(Line::TooLong)),
                () if end.is_some() || (at_end && !line.is_empty()) => return Ok(Some(Line::Whole(line))),
                () if at_end => return Ok(None),
                () => {}
            }
        }
    }
}

/// What rmcp reads from and writes to.
struct Pipe<W> {
    incoming: mpsc::Receiver<ClientJsonRpcMessage>,
    writer: Arc<Mutex<W>>,
    /// A place for each message that is not written yet. rmcp has a task for each: without a bound, a client that sends
    /// and does not read would fill the memory.
    unwritten: Arc<Semaphore>,
    supported: Vec<ProtocolVersion>,
    /// Whether rmcp has an era. Until then it ends at anything but a request.
    opened: bool,
    /// Subscriptions; they would never end of themselves.
    listening: HashSet<RequestId>,
}

impl<W: AsyncWrite + Send + Unpin + 'static> Transport<RoleServer> for Pipe<W> {
    type Error = std::io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        if let ServerJsonRpcMessage::Response(response) = &message {
            self.listening.remove(&response.id);
        }
        let writer = self.writer.clone();
        let place = self.unwritten.clone().try_acquire_owned();
        async move {
            let _place = place;
            write(&writer, serde_json::to_vec(&message)?).await
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        // The client has to read first. Nobody closes this.
        drop(self.unwritten.acquire().await);
        loop {
            let Some(message) = self.incoming.recv().await else {
                return self.listening.iter().next().cloned().map(|id| self.end_listening(id));
            };
            match &message {
                ClientJsonRpcMessage::Request(request) => {
                    self.opened |= self.opens(&request.request);
                    if matches!(request.request, ClientRequest::SubscriptionsListenRequest(_)) {
                        self.listening.insert(request.id.clone());
                    }
                }
                _ if !self.opened => {
                    tracing::debug!("a message before the first request is ignored");
                    continue;
                }
                _ => {}
            }
            return Some(message);
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.writer.lock().await.shutdown().await
    }
}

impl<W> Pipe<W> {
    /// Whether rmcp has an era after this request, as `serve_server` decides it.
    fn opens(&self, request: &ClientRequest) -> bool {
        match request {
            ClientRequest::InitializeRequest(_) => true,
            ClientRequest::PingRequest(_) | ClientRequest::DiscoverRequest(_) => false,
            other => {
                let meta = other.get_meta();
                meta.missing_required_keys(&ProtocolVersion::V_2026_07_28).is_empty()
                    && meta.protocol_version().is_some_and(|version| self.supported.contains(&version))
            }
        }
    }

    /// At the end of input a subscription ends as if the client had said so.
    fn end_listening(&mut self, id: RequestId) -> ClientJsonRpcMessage {
        self.listening.remove(&id);
        let cancelled = CancelledNotification::new(CancelledNotificationParam::new(Some(id), None));
        ClientJsonRpcMessage::notification(ClientNotification::CancelledNotification(cancelled))
    }
}

async fn write<W: AsyncWrite + Unpin>(writer: &Mutex<W>, mut message: Vec<u8>) -> std::io::Result<()> {
    message.push(b'\n');
    let mut writer = writer.lock().await;
    writer.write_all(&message).await?;
    writer.flush().await
}
