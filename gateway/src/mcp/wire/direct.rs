//! Requests of the stateless era that a handler answers as JSON: on the task of their connection, without rmcp's loop.
//!
//! That loop costs three tasks for each request, and what a handler tells of itself, made anew. Nothing of it is needed
//! where a request stands alone: news goes out ahead of the answer, and a client that is gone is noticed by its
//! connection.

use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http::Response;
use http::request::Parts;
use rmcp::model::{
    CustomRequest, CustomResult, ErrorCode, Extensions, GetExtensions as _, GetMeta as _, Implementation,
    ProtocolVersion, RequestId, RequestMetaObject, ServerJsonRpcMessage, ServerNotification, ServerResult,
};
use rmcp::service::{Peer, RequestContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::modern::{self, Serving};

/// News that waits for a slow client before the handler waits with it.
const NEWS_WAITING_MAX: usize = 16;

/// Who asks for something that is answered as JSON: what came with the request, and how it is told of things before the
/// answer.
pub struct Asker {
    /// Fires when nobody waits for the answer any more.
    pub gone: CancellationToken,
    /// The request's id.
    pub id: RequestId,
    /// How the client calls itself.
    pub client: Option<Implementation>,
    /// Its `_meta`.
    pub meta: RequestMetaObject,
    /// What was put into it on the way.
    pub extensions: Extensions,
    voice: Voice,
}

enum Voice {
    /// A connection or session that rmcp keeps.
    Session(Peer<RoleServer>),
    /// This request alone.
    Request(mpsc::Sender<ServerNotification>),
}

impl Asker {
    /// Tells it something. Whoever is gone hears nothing.
    pub async fn tell(&self, news: ServerNotification) {
        match &self.voice {
            Voice::Session(peer) => drop(peer.send_notification(news).await),
            Voice::Request(news_of) => drop(news_of.send(news).await),
        }
    }

    /// The client's end of the session, where there is one.
    pub fn session(&self) -> Option<&Peer<RoleServer>> {
        match &self.voice {
            Voice::Session(peer) => Some(peer),
            Voice::Request(_) => None,
        }
    }

    /// The version that it speaks.
    pub fn protocol_version(&self) -> Option<ProtocolVersion> {
        let of_session = || Some(self.session()?.peer_info()?.protocol_version.clone());
        self.meta.protocol_version().or_else(of_session)
    }
}

impl From<RequestContext<RoleServer>> for Asker {
    fn from(context: RequestContext<RoleServer>) -> Self {
        let client = context.client_info();
        let RequestContext { ct, id, meta, extensions, peer, .. } = context;
        Self { gone: ct, id, client, meta, extensions, voice: Voice::Session(peer) }
    }
}

/// A handler that answers some methods as JSON.
pub trait RawHandler: ServerHandler {
    /// The whole result of a request for one of them, as a `CustomRequest` without `_meta`. Dropped when nobody waits for
    /// it any more: what must not stay half done belongs on a task of its own.
    fn answer_raw(
        &self,
        request: CustomRequest,
        asker: Asker,
    ) -> impl Future<Output = Result<CustomResult, ErrorData>> + Send {
        drop(asker);
        std::future::ready(Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, request.method, None)))
    }
}

/// The answer of a handler, on its way.
type Answering = Pin<Box<dyn Future<Output = ServerJsonRpcMessage> + Send>>;

/// Answers one request. Dropping the answer, or the wait for it, gives up what runs for it.
pub(super) async fn answer<H: RawHandler>(
    handler: H,
    mut request: CustomRequest,
    id: RequestId,
    parts: Parts,
    serving: Serving,
) -> Response<Body> {
    if let Some(refused) = modern::incomplete(request.get_meta(), &id) {
        return refused;
    }
    let mut extensions = std::mem::take(request.extensions_mut());
    let meta = extensions.remove::<RequestMetaObject>().unwrap_or_default();
    extensions.insert(parts);
    let (told, mut news) = mpsc::channel(NEWS_WAITING_MAX);
    let gone = CancellationToken::new();
    let client = meta.client_info();
    let asker = Asker { gone, id: id.clone(), client, meta, extensions, voice: Voice::Request(told) };
    let mut answer: Answering = Box::pin(async move {
        match handler.answer_raw(request, asker).await {
            Ok(result) => ServerJsonRpcMessage::response(ServerResult::CustomResult(result), id),
            Err(error) => ServerJsonRpcMessage::error(of_this_era(error), Some(id)),
        }
    });
    tokio::select! {
        biased;
        Some(first) = news.recv() => {
            let Serving { keep_alive, cancel, .. } = serving;
            let first = Some(ServerJsonRpcMessage::notification(first));
            events(Events { first, news, answer: Some(answer), last: None, keep_alive, cancel })
        }
        answer = &mut answer => match news.try_recv() {
            Err(_) => modern::json(&answer),
            // Said last, and not taken yet.
            Ok(first) => {
                let Serving { keep_alive, cancel, .. } = serving;
                let first = Some(ServerJsonRpcMessage::notification(first));
                events(Events { first, news, answer: None, last: Some(answer), keep_alive, cancel })
            }
        },
        () = serving.cancel.cancelled() => modern::unanswered(),
    }
}

/// 2026-07-28 has no code of its own for a resource that is not there.
fn of_this_era(mut error: ErrorData) -> ErrorData {
    if error.code == ErrorCode::RESOURCE_NOT_FOUND {
        error.code = ErrorCode::INVALID_PARAMS;
    }
    error
}

/// An answer with news ahead of it.
struct Events {
    first: Option<ServerJsonRpcMessage>,
    news: mpsc::Receiver<ServerNotification>,
    answer: Option<Answering>,
    last: Option<ServerJsonRpcMessage>,
    keep_alive: Duration,
    cancel: CancellationToken,
}

impl Events {
    /// What to write next; nothing more after the answer.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return modern::event(&first);
        }
        if let Some(answer) = &mut self.answer {
            tokio::select! {
                biased;
                Some(news) = self.news.recv() => {
                    return modern::event(&ServerJsonRpcMessage::notification(news));
                }
                answer = answer => self.last = Some(answer),
                () = tokio::time::sleep(self.keep_alive) => return Some(Bytes::from_static(b":\n\n")),
                () = self.cancel.cancelled() => return None,
            }
            self.answer = None;
        }
        // What was said before the answer comes before it.
        match self.news.try_recv() {
            Ok(news) => modern::event(&ServerJsonRpcMessage::notification(news)),
            Err(_) => modern::event(&self.last.take()?),
        }
    }
}

fn events(events: Events) -> Response<Body> {
    let chunks = stream::unfold(events, |mut events| async {
        let chunk = events.next().await?;
        Some((Ok::<_, Infallible>(chunk), events))
    });
    modern::event_stream(Body::from_stream(chunks))
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use rmcp::model::{MetaObject, ProgressNotification, ProgressNotificationParam, ProgressToken};
    use serde_json::{Value, json};
    use tokio_util::task::TaskTracker;

    use super::*;

    /// Says something as often as it is told to, and answers without a pause.
    struct Teller;

    impl ServerHandler for Teller {}

    impl RawHandler for Teller {
        async fn answer_raw(&self, request: CustomRequest, asker: Asker) -> Result<CustomResult, ErrorData> {
            let times = request.params.and_then(|params| params["times"].as_u64()).unwrap_or_default();
            for time in 0..times {
                let token = ProgressToken(asker.id.clone());
                #[expect(clippy::cast_precision_loss, reason = "a few")]
                let news = ProgressNotification::new(ProgressNotificationParam::new(token, time as f64));
                asker.tell(ServerNotification::ProgressNotification(news)).await;
            }
            Ok(CustomResult(json!({ "said": times })))
        }
    }

    async fn ask(times: u64) -> (StatusCode, String) {
        let mut request = CustomRequest::new("tools/call", Some(json!({ "times": times })));
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        });
        let Value::Object(meta) = meta else { panic!("no object") };
        request.extensions.insert(RequestMetaObject(MetaObject(meta)));
        let (parts, ()) = http::Request::new(()).into_parts();
        let serving = Serving {
            keep_alive: Duration::from_mins(1),
            cancel: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        let response = answer(Teller, request, RequestId::Number(7), parts, serving).await;
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    /// Also what was said right before it, and more of it than waits.
    #[tokio::test]
    async fn what_is_told_comes_before_the_answer() {
        for times in [0, 1, 3, 100] {
            let (status, body) = ask(times).await;
            assert_eq!(status, StatusCode::OK, "{body}");
            let messages: Vec<Value> = match times {
                0 => vec![serde_json::from_str(&body).unwrap()],
                _ => body
                    .split("\n\n")
                    .filter_map(|event| serde_json::from_str(event.strip_prefix("data: ")?).ok())
                    .collect(),
            };
            let (answer, news) = messages.split_last().unwrap();
            assert_eq!((&answer["id"], &answer["result"]["said"]), (&json!(7), &json!(times)));
            let told: Vec<_> = news.iter().filter_map(|news| news["params"]["progress"].as_f64()).collect();
            assert_eq!(told.len() as u64, times, "{body}");
            assert!(told.is_sorted(), "{body}");
        }
    }
}
