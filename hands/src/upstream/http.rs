//! Streamable HTTP, of both eras: one POST per message, answered with JSON or with a stream of events.
//!
//! Nothing of a client's headers can reach a server: they never come here. Redirects are not followed.

mod answer;
mod headers;
mod listen;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION, USER_AGENT};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming as Body;
use secrecy::ExposeSecret;

pub(super) use self::answer::Answer;
pub(super) use self::headers::{ParamHeader, param_headers, with_params};
pub(super) use self::listen::{Ended as ListenEnded, listen};

use self::headers::{LAST_EVENT_ID, METHOD, NAME, PROTOCOL_VERSION, SESSION_ID};
use super::Given;
use super::wire::{Era, Failure, Incoming, METHOD_NOT_FOUND, MODERN, Outgoing};
use crate::web::{Client, Trust, Unsent};

/// How long headers that were read from the configuration hold: a rotated token is seen after this.
const HEADERS_HOLD: Duration = Duration::from_secs(5);
/// Most bytes of a refusal that are read, for its sentence.
const REFUSAL_MAX: usize = 64 << 10;
/// Most characters of a refusal that are shown.
const REFUSAL_SHOWN: usize = 300;
/// The error with which they say it.
const NO_SESSION: i64 = -32000;
/// What we can read.
const ACCEPTED: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");

/// One server's URL, and the connections to it.
pub(super) struct Http {
    uri: Uri,
    given: Vec<(http::HeaderName, Given)>,
    headers: Mutex<Option<(Instant, HeaderMap)>>,
    client: Client,
}

/// What the protocol's own headers of a request say.
#[derive(Clone, Debug, Default)]
pub(super) struct Spoken {
    /// The version that was agreed on; none before.
    pub(super) version: Option<HeaderValue>,
    /// The session, of the legacy era.
    pub(super) session: Option<HeaderValue>,
}

impl Spoken {
    /// Of 2026-07-28.
    pub(super) fn modern() -> Self {
        Self { version: Some(HeaderValue::from_static(MODERN)), session: None }
    }
}

impl Http {
    /// Touches nothing. The error is a sentence.
    pub(super) fn new(url: &str, headers: &[(String, Given)], trust: &Trust) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|error| format!("the URL is not one: {error}"))?;
        let mut given = Vec::new();
        for (name, value) in headers {
            let name = name.parse().map_err(|_| format!("{name:?} is no name of a header"))?;
            given.push((name, value.clone()));
        }
        let client = Client::trusting(&uri, trust.clone())?;
        Ok(Self { uri, given, headers: Mutex::default(), client })
    }

    /// Posts a request. The answer may still be running when this returns.
    pub(super) async fn request(
        &self,
        id: u64,
        outgoing: &Outgoing<'_>,
        era: Era,
        spoken: &Spoken,
        params: &[(ParamHeader, HeaderValue)],
    ) -> Result<Answer, Failure> {
        let body = outgoing.body(id, era);
        let mut request = self.prepare(Method::POST, spoken, body)?;
        if era == Era::Modern {
            let headers = request.headers_mut();
            headers.insert(METHOD, headers::encoded(outgoing.method));
            if let Some(name) = outgoing.name() {
                headers.insert(NAME, headers::encoded(name));
            }
            for (name, value) in params {
                headers.insert(name.clone(), value.clone());
            }
        }
        let response = self.send(request).await?;
        Answer::of(self, id, era, spoken, response).await
    }

    /// Posts a notification or a response, to which there is no answer.
    pub(super) async fn tell(&self, body: Bytes, spoken: &Spoken) -> Result<(), Failure> {
        let request = self.prepare(Method::POST, spoken, body)?;
        let response = self.send(request).await?;
        if response.status().is_success() {
            // Read to its end, so that the connection can be used again.
            let _ = Limited::new(response.into_body(), REFUSAL_MAX).collect().await;
            return Ok(());
        }
        Err(self.refusal(response, spoken).await.1)
    }

    /// Ends the session of the legacy era. A server may refuse that.
    pub(super) async fn end_session(&self, spoken: &Spoken) {
        if let Ok(request) = self.prepare(Method::DELETE, spoken, Bytes::new())
            && let Ok(response) = self.send(request).await
        {
            let _ = Limited::new(response.into_body(), REFUSAL_MAX).collect().await;
        }
    }

    /// Opens a stream of events: for what belongs to no request, or the rest of one that broke off.
    async fn events(
        &self,
        spoken: &Spoken,
        last_event: Option<&str>,
    ) -> Result<Response<Body>, (StatusCode, Failure)> {
        let none = StatusCode::OK;
        let mut request =
            self.prepare(Method::GET, spoken, Bytes::new()).map_err(|failure| (none, failure))?;
        request.headers_mut().insert(ACCEPT, EVENTS);
        if let Some(id) = last_event.and_then(|id| HeaderValue::from_str(id).ok()) {
            request.headers_mut().insert(LAST_EVENT_ID, id);
        }
        let response = self.send(request).await.map_err(|failure| (none, failure))?;
        if response.status() == StatusCode::OK && is(&response, &EVENTS) {
            return Ok(response);
        }
        let status = response.status();
        Err((status, self.refusal(response, spoken).await.1))
    }

    fn prepare(&self, method: Method, spoken: &Spoken, body: Bytes) -> Result<Request<Full<Bytes>>, Failure> {
        let mut request = Request::new(Full::new(body));
        *request.headers_mut() = self.configured()?;
        let headers = request.headers_mut();
        if method == Method::POST {
            headers.insert(ACCEPT, ACCEPTED);
            headers.insert(CONTENT_TYPE, JSON);
        }
        if let Some(version) = &spoken.version {
            headers.insert(PROTOCOL_VERSION, version.clone());
        }
        if let Some(session) = &spoken.session {
            headers.insert(SESSION_ID, session.clone());
        }
        *request.method_mut() = method;
        *request.uri_mut() = self.uri.clone();
        Ok(request)
    }

    /// The headers of the configuration, without those that are the protocol's.
    fn configured(&self) -> Result<HeaderMap, Failure> {
        let mut held = self.headers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, headers)) = &*held
            && at.elapsed() < HEADERS_HOLD
        {
            return Ok(headers.clone());
        }
        let mut headers = HeaderMap::with_capacity(self.given.len() + 10);
        headers
            .insert(USER_AGENT, HeaderValue::from_static(concat!("manyhands/", env!("CARGO_PKG_VERSION"))));
        for (name, given) in &self.given {
            if headers::is_of_protocol(name) {
                continue;
            }
            let unreadable = |why| Failure::Unreached(format!("the value of its header {name} {why}"));
            let text = given.read().map_err(|error| unreadable(format!("can't be read: {error}")))?;
            let mut value = HeaderValue::from_str(text.expose_secret())
                .map_err(|_| unreadable("has characters that no header can have".to_owned()))?;
            value.set_sensitive(true);
            headers.append(name.clone(), value);
        }
        *held = Some((Instant::now(), headers.clone()));
        Ok(headers)
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Body>, Failure> {
        self.client.send(request).await.map_err(|unsent| match unsent {
            Unsent::Unreached(why) => Failure::Unreached(why),
            Unsent::Cut(why) => Failure::Cut(why),
        })
    }

    /// What a status other than success means. An answer that is JSON-RPC comes back as such.
    async fn refusal(&self, response: Response<Body>, spoken: &Spoken) -> (Option<Incoming>, Failure) {
        let (status, in_session) = (response.status(), spoken.session.is_some());
        if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
            // A token may have been replaced: it is read anew.
            *self.headers.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        let to = response.headers().get(LOCATION).and_then(|to| to.to_str().ok()).map(str::to_owned);
        let body = Limited::new(response.into_body(), REFUSAL_MAX).collect().await;
        let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let message = Incoming::parse(&body).ok();
        if in_session && says_no_session(status, message.as_ref()) {
            return (message, Failure::SessionGone);
        }
        let why = match to {
            Some(to) if status.is_redirection() => {
                format!(", a redirect to {to}, which is not followed: configure that URL")
            }
            _ => shown(&body),
        };
        (message, Failure::Refused { status: status.as_u16(), why })
    }
}

/// Whether a refusal means that our session is unknown. Many servers say so with another status than 404, and some
/// have that status for a method that they don't have.
fn says_no_session(status: StatusCode, message: Option<&Incoming>) -> bool {
    let error = match message {
        Some(Incoming::Response { reply: Err(error), .. }) => Some(error),
        _ => None,
    };
    match (status, error) {
        (StatusCode::NOT_FOUND, error) => error.is_none_or(|error| error.code != METHOD_NOT_FOUND),
        (StatusCode::BAD_REQUEST, Some(error)) => {
            error.code == NO_SESSION && error.message.to_ascii_lowercase().contains("session")
        }
        _ => false,
    }
}

fn shown(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let text: String = text.chars().filter(|c| !c.is_control()).take(REFUSAL_SHOWN).collect();
    if text.trim().is_empty() { String::new() } else { format!(": {}", text.trim()) }
}

fn is(response: &Response<Body>, wanted: &HeaderValue) -> bool {
    let Some(found) = response.headers().get(CONTENT_TYPE) else { return false };
    let found = found.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
    found.trim_ascii().eq_ignore_ascii_case(wanted.as_bytes())
}
