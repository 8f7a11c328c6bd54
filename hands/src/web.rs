//! Servers elsewhere, over HTTP: pooled connections, and bodies that are streams of events. MCP servers are reached with
//! it, and so are models.
//!
//! Redirects are not followed, and no environment variable is looked at. What is to be reached over TLS is never reached
//! without.

pub mod events;
mod secure;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming as Body;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

pub use self::secure::Trust;

/// How long a connection may take to be made. Whoever limits a whole request counts the answer, too.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// How long an unused connection is kept: below the 5 s after which many servers close it, since a request that meets
/// the close can't be told from one that ran.
const IDLE: Duration = Duration::from_secs(4);

/// Connections to servers.
pub struct Client(Pool);

enum Pool {
    Plain(hyper_util::client::legacy::Client<HttpConnector, Full<Bytes>>),
    Tls(Trust, Mutex<Option<TlsClient>>),
}

/// Made when it is first used, of the certificates that are trusted then.
type TlsClient = hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Why there is no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsent {
    /// There was no connection: nothing was sent.
    Unreached(String),
    /// Some or all of the request was sent.
    Cut(String),
}

impl Client {
    /// For URLs of this one's scheme. Touches nothing. The error is a sentence.
    pub fn new(uri: &Uri) -> Result<Self, String> {
        Self::trusting(uri, Trust::Machine)
    }

    /// The same, where servers behind https are believed by other certificates.
    pub fn trusting(uri: &Uri, trust: Trust) -> Result<Self, String> {
        match uri.scheme_str() {
            Some("http") => Ok(Self(Pool::Plain(builder().build(connector())))),
            Some("https") => Ok(Self(Pool::Tls(trust, Mutex::default()))),
            _ => Err("the URL begins with neither http:// nor https://".to_owned()),
        }
    }

    /// Sends a request and waits for the headers of the response.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Body>, Unsent> {
        let (trust, made) = match &self.0 {
            Pool::Plain(client) => {
                return client.request(request).await.map_err(|error| {
                    let why = causes(&error);
                    if error.is_connect() { Unsent::Unreached(why) } else { Unsent::Cut(why) }
                });
            }
            Pool::Tls(trust, made) => (trust, made),
        };
        let sent = tls_client(trust, made).map_err(Unsent::Unreached)?.request(request).await;
        sent.map_err(|error| match secure::doubt(&error, trust) {
            Some(why) => {
                // The file may be another one when the next request comes.
                *made.lock().unwrap_or_else(PoisonError::into_inner) = None;
                Unsent::Unreached(why)
            }
            None if error.is_connect() => Unsent::Unreached(causes(&error)),
            None => Unsent::Cut(causes(&error)),
        })
    }
}

fn tls_client(trust: &Trust, made: &Mutex<Option<TlsClient>>) -> Result<TlsClient, String> {
    let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(client) = &*made {
        return Ok(client.clone());
    }
    let client = builder().build(secure::connector(trust, connector())?);
    Ok(made.insert(client).clone())
}

/// An error with what is behind it.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

fn builder() -> hyper_util::client::legacy::Builder {
    let mut builder = hyper_util::client::legacy::Client::builder(TokioExecutor::new());
    builder.pool_idle_timeout(IDLE).pool_timer(TokioTimer::new());
    builder
}

fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.enforce_http(false);
    connector.set_connect_timeout(Some(CONNECT_MAX));
    connector.set_keepalive(Some(Duration::from_secs(30)));
    connector
}
