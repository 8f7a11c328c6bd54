//! A provider over HTTP: one POST, answered by a stream of events, whichever API it has.
//!
//! **Invariant:** the key is read for each request, stands in one header of it, and is in no error: what a provider says
//! is looked through for it before it is shown.

mod refusal;

use std::time::Duration;

use bytes::Bytes;
use hands::web::events::{Broken, Events};
use hands::web::{Client, Unsent, causes};
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming as Body;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::ModelError;
use crate::brain;
use crate::hand::{Source, Variables};

use refusal::{Said, judged};

/// Most bytes of one event of an answer: 16 MiB.
const EVENT_MAX: usize = 16 << 20;
/// Most bytes of an answer: 64 MiB.
const ANSWER_MAX: usize = 64 << 20;
/// How long an answer may go on.
const ANSWER_TIME: Duration = Duration::from_hours(1);
/// Most bytes of a refusal that are read, for its sentence.
const REFUSAL_MAX: usize = 64 << 10;
/// How long the body of a refusal may take.
const REFUSAL_TIME: Duration = Duration::from_secs(10);
/// Shortest key that is looked for in what a provider says: a shorter one would tear words apart, and is none.
const KEY_MIN: usize = 6;

/// In which header the key stands.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeyHeader {
    /// `x-api-key`.
    ApiKey,
    /// `Authorization: Bearer`.
    Bearer,
}

/// Where a provider is, and the connections to it.
pub(super) struct Provider {
    uri: Uri,
    client: Client,
    key: Option<Source>,
    key_header: KeyHeader,
    variables: Variables,
    silence: Duration,
}

impl Provider {
    /// Touches nothing. `path` is put behind the URL. The error is a sentence.
    pub(super) fn new(
        endpoint: &brain::Endpoint,
        path: &str,
        key_header: KeyHeader,
        variables: Variables,
    ) -> Result<Self, String> {
        let url = format!("{}{path}", endpoint.base_url);
        let uri: Uri = url.parse().map_err(|error| format!("the URL {url} is not one: {error}"))?;
        let client = Client::new(&uri)?;
        Ok(Self { uri, client, key: endpoint.key.clone(), key_header, variables, silence: endpoint.silence })
    }

    /// Asks. Returns once the answer has begun.
    pub(super) async fn ask(
        &self,
        body: &Value,
        headers: &[(HeaderName, HeaderValue)],
    ) -> Result<Answer, ModelError> {
        let key = match &self.key {
            Some(source) => Some(source.read(self.variables).map_err(|why| ModelError::NoKey { why })?),
            None => None,
        };
        let mut request = Request::new(Full::new(Bytes::from(body.to_string())));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        let all = request.headers_mut();
        all.insert(USER_AGENT, HeaderValue::from_static(concat!("manyhands/", env!("CARGO_PKG_VERSION"))));
        all.insert(ACCEPT, HeaderValue::from_static("text/event-stream, application/json"));
        all.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        all.extend(headers.iter().cloned());
        if let Some(key) = &key {
            let (name, value) = self.key_header.with(key)?;
            all.insert(name, value);
        }
        let sent = timeout(self.silence, self.client.send(request)).await;
        let response = match sent {
            Err(_) => return Err(ModelError::Silent { silence: self.silence }),
            Ok(Err(Unsent::Unreached(why))) => return Err(ModelError::Unreachable { why }),
            Ok(Err(Unsent::Cut(why))) => return Err(ModelError::BrokenOff { why }),
            Ok(Ok(response)) => response,
        };
        if response.status() != StatusCode::OK {
            return Err(self.refused(response, key.as_ref()).await);
        }
        self.answer(response, key).await
    }

    async fn answer(
        &self,
        response: Response<Body>,
        key: Option<SecretString>,
    ) -> Result<Answer, ModelError> {
        let kind =
            response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let place = self.place();
        if kind.starts_with("text/event-stream") {
            let events = Events::new(response.into_body(), EVENT_MAX);
            let (body, begun) = (Came::Events(events), Instant::now());
            return Ok(Answer { body, begun, silence: self.silence, key, place });
        }
        if !kind.starts_with("application/json") {
            let why = format!("it came as {kind:?} and not as a stream of events");
            return Err(ModelError::Nonsense { why: hidden(&why, key.as_ref()) });
        }
        // A server that does not stream: some ignore that they are asked to.
        let whole = timeout(self.silence, Limited::new(response.into_body(), ANSWER_MAX).collect()).await;
        match whole {
            Err(_) => Err(ModelError::Silent { silence: self.silence }),
            Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
                Err(ModelError::TooLarge { max: ANSWER_MAX })
            }
            Ok(Err(error)) => Err(ModelError::BrokenOff { why: causes(&*error) }),
            Ok(Ok(body)) => {
                let (body, begun) = (Came::Whole(Some(body.to_bytes())), Instant::now());
                Ok(Answer { body, begun, silence: self.silence, key, place })
            }
        }
    }

    async fn refused(&self, response: Response<Body>, key: Option<&SecretString>) -> ModelError {
        let (head, body) = response.into_parts();
        let body = timeout(REFUSAL_TIME, Limited::new(body, REFUSAL_MAX).collect()).await;
        let body = match body {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(_)) | Err(_) => Bytes::new(),
        };
        // Before anything is cut off: a part of a key is one, too.
        let said = Said::of(&hidden(&String::from_utf8_lossy(&body), key));
        refusal::of(head.status, &head.headers, &said, &self.place())
    }

    fn place(&self) -> String {
        self.key
            .as_ref()
            .map_or("key_file or key_env of [brain], which are not set".to_owned(), Source::place)
    }
}

impl KeyHeader {
    fn with(self, key: &SecretString) -> Result<(HeaderName, HeaderValue), ModelError> {
        let key = key.expose_secret().trim();
        let (name, value) = match self {
            Self::ApiKey => (HeaderName::from_static("x-api-key"), HeaderValue::from_str(key)),
            Self::Bearer => (http::header::AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {key}"))),
        };
        let mut value = value
            .map_err(|_| ModelError::NoKey { why: "it has characters that no header can have".to_owned() })?;
        value.set_sensitive(true);
        Ok((name, value))
    }
}

/// An answer, while it comes.
pub(super) struct Answer {
    body: Came,
    begun: Instant,
    silence: Duration,
    key: Option<SecretString>,
    place: String,
}

enum Came {
    Events(Events),
    Whole(Option<Bytes>),
}

impl Answer {
    /// The data of the next event; the whole body once, when it is no stream. None: it ended.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, ModelError> {
        let events = match &mut self.body {
            Came::Whole(body) => return Ok(body.take()),
            Came::Events(events) => events,
        };
        loop {
            let before = events.received();
            if before > ANSWER_MAX as u64 {
                return Err(ModelError::TooLarge { max: ANSWER_MAX });
            }
            if self.begun.elapsed() > ANSWER_TIME {
                let why = format!("it was not complete after {} s", ANSWER_TIME.as_secs());
                return Err(ModelError::BrokenOff { why });
            }
            match timeout(self.silence, events.next()).await {
                // Comments are no events, and show that somebody is there.
                Err(_) if events.received() > before => {}
                Err(_) => return Err(ModelError::Silent { silence: self.silence }),
                Ok(Err(Broken::TooLarge)) => return Err(ModelError::TooLarge { max: EVENT_MAX }),
                Ok(Err(Broken::Cut(why))) => return Err(ModelError::BrokenOff { why }),
                Ok(Ok(None)) => return Ok(None),
                Ok(Ok(Some(event))) => {
                    if let Some(data) = event.data.filter(|data| !data.trim().is_empty()) {
                        return Ok(Some(data.into()));
                    }
                }
            }
        }
    }

    /// What an error in the stream means.
    pub(super) fn judged(&self, error: &Value) -> ModelError {
        judged(&Said::of(&hidden(&error.to_string(), self.key.as_ref())), &self.place)
    }
}

/// An event that is not as it should be. Its own words are left out: they repeat what stands there.
pub(super) fn malformed(error: &serde_json::Error) -> ModelError {
    let kind = if error.is_data() { "has fields that make no sense" } else { "is no JSON" };
    ModelError::Nonsense { why: format!("an event {kind}, at column {}", error.column()) }
}

/// `text` without the key.
fn hidden(text: &str, key: Option<&SecretString>) -> String {
    match key.map(|key| key.expose_secret().trim()) {
        Some(key) if key.len() >= KEY_MIN => text.replace(key, "…"),
        Some(_) | None => text.to_owned(),
    }
}
