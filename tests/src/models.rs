//! Servers of models on loopback: what the gateway's scripted provider does, as the Messages, the Chat Completions and the
//! Responses API put it on the wire, with the rules that the real ones refuse requests by.
//!
//! It is written against the documentation of the APIs and on none of the code that reads them in the gateway. The
//! official Python SDK is the judge of the Messages half.

mod chat;
mod lawful;
mod messages;
mod prefix;
mod responses;

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, State as Shared};
use axum::response::Response;
use axum::routing::{get, post};
use bytes::Bytes;
use futures_util::StreamExt as _;
use gateway::harness::model::scripted::{Act, Failure, Play, play};
use gateway::harness::model::{Request, Settings, ThinkingSetting, ToolDefinition, Transcript};
use http::HeaderMap;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use self::prefix::Prefixes;

/// The key that it takes.
pub const KEY: &str = "sk-test-1234567890-canary";

/// A running server.
pub struct Models {
    /// Its URL, without a path.
    pub url: String,
    state: Arc<State>,
    /// Ends with this value.
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct State {
    seen: Mutex<Vec<Seen>>,
    next: Mutex<VecDeque<Canned>>,
    prefixes: Mutex<Prefixes>,
}

/// A request that it got.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its path.
    pub path: String,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Value,
}

/// An answer that a test has written.
#[derive(Clone, Debug)]
pub struct Canned {
    /// The status.
    pub status: u16,
    /// Headers.
    pub headers: Vec<(&'static str, String)>,
    /// What comes, and when.
    pub frames: Vec<Frame>,
    /// How it ends.
    pub end: End,
}

/// A piece of an answer.
#[derive(Clone, Debug)]
pub enum Frame {
    /// These bytes, as a chunk of their own.
    Bytes(Bytes),
    /// Nothing, for so long.
    Wait(Duration),
}

/// How an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As it should.
    Clean,
    /// The connection breaks.
    Cut,
    /// It never does.
    Never,
}

impl Canned {
    /// A stream of events.
    pub fn events(text: &str) -> Self {
        Self::of(200, "text/event-stream", text)
    }

    /// JSON with a status.
    pub fn json(status: u16, body: &Value) -> Self {
        Self::of(status, "application/json", &body.to_string())
    }

    /// A text of this media type, with a status.
    pub fn of(status: u16, kind: &str, text: &str) -> Self {
        let frames = vec![Frame::Bytes(Bytes::copy_from_slice(text.as_bytes()))];
        Self { status, headers: vec![("content-type", kind.to_owned())], frames, end: End::Clean }
    }

    /// With one more header.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    /// With another end.
    #[must_use]
    pub fn ending(mut self, end: End) -> Self {
        self.end = end;
        self
    }

    /// Cut into chunks of so many bytes.
    #[must_use]
    pub fn in_chunks_of(mut self, size: usize) -> Self {
        let bytes: Vec<u8> = self.bytes();
        self.frames = bytes.chunks(size).map(|chunk| Frame::Bytes(Bytes::copy_from_slice(chunk))).collect();
        self
    }

    /// Cut once.
    #[must_use]
    pub fn cut_at(mut self, at: usize) -> Self {
        let bytes = self.bytes();
        let (one, other) = bytes.split_at(at.min(bytes.len()));
        self.frames = [one, other].map(|part| Frame::Bytes(Bytes::copy_from_slice(part))).to_vec();
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let bytes = self.frames.iter().filter_map(|frame| match frame {
            Frame::Bytes(bytes) => Some(&bytes[..]),
            Frame::Wait(_) => None,
        });
        bytes.collect::<Vec<_>>().concat()
    }

    fn response(self) -> Response {
        let mut builder = Response::builder().status(self.status);
        for (name, value) in self.headers {
            builder = builder.header(name, value);
        }
        let frames = futures_util::stream::iter(self.frames).filter_map(|frame| async {
            match frame {
                Frame::Bytes(bytes) if bytes.is_empty() => None,
                Frame::Bytes(bytes) => Some(Ok::<_, io::Error>(bytes)),
                Frame::Wait(time) => {
                    tokio::time::sleep(time).await;
                    None
                }
            }
        });
        let body = match self.end {
            End::Clean => Body::from_stream(frames),
            End::Cut => {
                let cut = futures_util::stream::once(async {
                    // What came before is sent first.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    Err(io::Error::other("cut"))
                });
                Body::from_stream(frames.chain(cut))
            }
            End::Never => Body::from_stream(frames.chain(futures_util::stream::pending())),
        };
        builder.body(body).unwrap_or_default()
    }
}

impl Models {
    /// On a free port of loopback.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let state = Arc::new(State::default());
        let router = Router::new()
            .route("/v1/messages", post(messages::answer))
            .route("/v1/chat/completions", post(chat::answer))
            .route("/v1/responses", post(responses::answer))
            .route("/v1/models", get(async || axum::Json(json!({"data": [], "has_more": false}))))
            .layer(DefaultBodyLimit::disable())
            .with_state(Arc::clone(&state));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { url, state, _tasks: tasks })
    }

    /// What it was asked so far.
    pub fn seen(&self) -> Vec<Seen> {
        locked(&self.state.seen).clone()
    }

    /// The body of the last request.
    pub fn last(&self) -> Value {
        locked(&self.state.seen).last().map(|seen| seen.body.clone()).unwrap_or_default()
    }

    /// Answers a request to come with this, whatever it asks; then those that were given later.
    pub fn answer_next(&self, canned: Canned) {
        locked(&self.state.next).push_back(canned);
    }
}

/// What an API reads out of a request.
struct Asked {
    transcript: Transcript,
    tools: Vec<ToolDefinition>,
    way: Way,
}

/// How an answer is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// As a stream of events.
    Events,
    /// In one piece.
    Whole,
}

impl Way {
    fn of(body: &Value) -> Self {
        if body["stream"] == true { Self::Events } else { Self::Whole }
    }
}

/// How an API says something.
trait Wire {
    /// Whether the headers are as they must be; else the status and the words of the refusal.
    fn admit(headers: &HeaderMap) -> Result<(), (u16, String)>;
    /// The request, or why it is refused: an error of status 400.
    fn parse(body: &Value) -> Result<Asked, String>;
    /// Events, up to the failure.
    fn stream(play: &Play, body: &Value) -> Vec<Frame>;
    /// The whole answer.
    fn whole(play: &Play, body: &Value) -> Value;
    /// An error.
    fn error(status: u16, words: &str) -> Value;
    /// An error as an event.
    fn error_event(status: u16, words: &str) -> String;
}

/// Records a request and answers it: with what a test has written, else as its script says.
fn answer<W: Wire>(state: &State, path: &str, headers: HeaderMap, body: &Bytes) -> Response {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let admitted = W::admit(&headers);
    locked(&state.seen).push(Seen { path: path.to_owned(), headers, body: body.clone() });
    if let Some(canned) = locked(&state.next).pop_front() {
        return canned.response();
    }
    if let Err((status, words)) = admitted {
        return Canned::json(status, &W::error(status, &words)).response();
    }
    let asked = match W::parse(&body) {
        Ok(asked) => asked,
        Err(why) => return Canned::json(400, &W::error(400, &why)).response(),
    };
    let settings = Settings {
        model: body["model"].as_str().unwrap_or_default().to_owned(),
        max_output_tokens: u32::MAX,
        thinking: ThinkingSetting::Off,
    };
    let request = Request { transcript: &asked.transcript, tools: &asked.tools, settings: &settings };
    let mut play = play(&request);
    if let Some(usage) = locked(&state.prefixes).read(&body) {
        play.usage = gateway::harness::model::Usage { output: play.usage.output, ..usage };
    }
    played::<W>(&play, &body, asked.way)
}

fn played<W: Wire>(play: &Play, body: &Value, way: Way) -> Response {
    let failure = play.acts.last().and_then(|act| match act {
        Act::Fail(failure) => Some(failure),
        Act::Say(_) | Act::Think(_) | Act::Call { .. } | Act::Wait(_) => None,
    });
    let begun = play.acts.iter().any(|act| !matches!(act, Act::Fail(_) | Act::Wait(_)));
    let mut canned = Canned::events("");
    match failure {
        None if way == Way::Whole => return Canned::json(200, &W::whole(play, body)).response(),
        None => canned.frames = W::stream(play, body),
        Some(Failure::Silent) => canned.end = End::Never,
        Some(Failure::BrokenOff | Failure::Unreachable) => {
            canned.frames = W::stream(play, body);
            canned.end = End::Cut;
        }
        Some(Failure::Nonsense) => {
            canned.frames = W::stream(play, body);
            canned.frames.push(Frame::Bytes(Bytes::from_static(b"data: {nonsense\n\n")));
        }
        Some(failure) => {
            let (status, words) = status(failure);
            if !begun || way == Way::Whole {
                let mut refused = Canned::json(status, &W::error(status, words));
                if let Failure::RateLimited(Some(time)) = failure {
                    refused = refused.header("retry-after", &time.as_secs_f64().to_string());
                }
                return refused.response();
            }
            canned.frames = W::stream(play, body);
            canned.frames.push(Frame::Bytes(W::error_event(status, words).into()));
        }
    }
    canned.response()
}

/// How a failure looks over HTTP.
fn status(failure: &Failure) -> (u16, &'static str) {
    match failure {
        Failure::RateLimited(_) => (429, "This request would exceed your rate limit."),
        Failure::Overloaded => (529, "Overloaded"),
        Failure::Refused(_) => (400, "The request is not as it should be."),
        Failure::NotFound => (404, "model: there is no such model"),
        Failure::BadKey => (401, "invalid x-api-key"),
        Failure::ContextTooLong => (400, "prompt is too long: 210000 tokens > 200000 maximum"),
        Failure::Failed | Failure::Unreachable | Failure::BrokenOff | Failure::Silent | Failure::Nonsense => {
            (500, "Internal server error")
        }
    }
}

/// Whether a bearer token is the key.
fn bearer(headers: &HeaderMap) -> Result<(), (u16, String)> {
    let text = headers.get("authorization").and_then(|value| value.to_str().ok());
    match text.and_then(|text| text.strip_prefix("Bearer ")) {
        Some(KEY) => Ok(()),
        // As the real one does, it repeats what it was given.
        other => Err((401, format!("Incorrect API key provided: {}", other.unwrap_or_default()))),
    }
}

/// Texts in pieces, as tokens come.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(' ')
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Server = Shared<Arc<State>>;
