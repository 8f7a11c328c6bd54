//! `Host` and `Origin`: what keeps a web page from talking to a gateway on its visitor's own machine.
//!
//! A page can make a browser send requests to 127.0.0.1, or point its own name there (DNS rebinding). The browser then
//! tells on it: `Origin` names the page, `Host` the page's name. Programs that are no browsers send no `Origin`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::{HOST, HeaderMap, ORIGIN};
use http::uri::{Authority, Uri};

use super::refusal::Refusal;

/// The names under which a machine knows itself.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// The hosts and origins that are ours. Loopback always is; nothing can be taken away, so it is never empty.
#[derive(Clone, Debug)]
pub struct HostOrigin {
    hosts: Vec<Place>,
    origins: Vec<(Scheme, Place)>,
}

/// A name that is not a host, `host:port` or an origin.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not {1}")]
pub struct NotAPlace(String, &'static str);

/// A host, with a port or with any.
#[derive(Clone, Debug, PartialEq)]
struct Place {
    host: String,
    port: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Scheme {
    Http,
    Https,
}

impl Default for HostOrigin {
    /// Loopback names with any port, over HTTP and HTTPS.
    fn default() -> Self {
        let place = |host: &str| Place { host: host.to_owned(), port: None };
        let both = |host| [(Scheme::Http, place(host)), (Scheme::Https, place(host))];
        Self { hosts: LOOPBACK.map(place).to_vec(), origins: LOOPBACK.into_iter().flat_map(both).collect() }
    }
}

impl HostOrigin {
    /// Adds a host: `gateway.example`, or `gateway.example:8443` for that port alone.
    pub fn with_host(mut self, host: &str) -> Result<Self, NotAPlace> {
        let place = Place::parse(host).ok_or_else(|| NotAPlace(host.to_owned(), "a host or host:port"))?;
        self.hosts.push(place);
        Ok(self)
    }

    /// Adds an origin: `https://console.example`, whose port is the scheme's, or `https://console.example:8443`.
    pub fn with_origin(mut self, origin: &str) -> Result<Self, NotAPlace> {
        let (scheme, mut place) =
            origin_of(origin).ok_or_else(|| NotAPlace(origin.to_owned(), "an origin"))?;
        place.port = Some(place.port.unwrap_or(scheme.port()));
        self.origins.push((scheme, place));
        Ok(self)
    }

    /// Refuses a request that is not for us, or that a foreign web page is behind. No `Origin` at all passes.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        // A proxy request line names the host as well, and then that one counts: both have to be ours.
        if let Some(authority) = uri.authority() {
            self.check_host(authority.as_str())?;
        }
        let mut hosts = headers.get_all(HOST).iter();
        match (hosts.next(), hosts.next()) {
            (Some(host), None) => self.check_host(host.to_str().map_err(|_| Refusal::HostMalformed)?)?,
            // HTTP/2 has the authority in its place.
            (None, None) if uri.authority().is_some() => {}
            _ => return Err(Refusal::HostMalformed),
        }
        let mut origins = headers.get_all(ORIGIN).iter();
        match (origins.next(), origins.next()) {
            (None, _) => Ok(()),
            (Some(origin), None) => self.check_origin(origin.to_str().map_err(|_| Refusal::Origin)?),
            (Some(_), Some(_)) => Err(Refusal::Origin),
        }
    }

    fn check_host(&self, host: &str) -> Result<(), Refusal> {
        let asked = Place::parse(host).ok_or(Refusal::HostMalformed)?;
        if self.hosts.iter().any(|ours| ours.is(&asked, asked.port)) { Ok(()) } else { Err(Refusal::Host) }
    }

    fn check_origin(&self, origin: &str) -> Result<(), Refusal> {
        let (scheme, asked) = origin_of(origin).ok_or(Refusal::Origin)?;
        let port = Some(asked.port.unwrap_or(scheme.port()));
        let ours = self.origins.iter().any(|(ours, place)| *ours == scheme && place.is(&asked, port));
        if ours { Ok(()) } else { Err(Refusal::Origin) }
    }
}

/// The check as a layer in front of everything, so that it comes before authentication too:
/// `axum::middleware::from_fn_with_state(Arc::new(HostOrigin::default()), host_origin::layer)`.
pub async fn layer(State(ours): State<Arc<HostOrigin>>, request: Request, next: Next) -> Response {
    match ours.check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => {
            tracing::warn!(host = ?request.headers().get(HOST), origin = ?request.headers().get(ORIGIN), %refusal, "refused");
            refusal.response(None)
        }
    }
}

impl Place {
    fn parse(text: &str) -> Option<Self> {
        // A bare IPv6 address, as an address prints itself; on the wire it has brackets.
        if text.parse::<std::net::Ipv6Addr>().is_ok() {
            return Some(Self { host: format!("[{}]", text.to_ascii_lowercase()), port: None });
        }
        // `user@host` is an authority too, but no host.
        let authority: Authority = text.parse().ok().filter(|_| !text.contains('@'))?;
        let host = authority.host();
        let after = &text[host.len()..];
        // The parser takes any digits for a port, and none.
        let port = match after.strip_prefix(':') {
            Some(digits) => Some(digits.parse().ok()?),
            None => None,
        };
        (!host.is_empty()).then(|| Self { host: host.to_ascii_lowercase(), port })
    }

    fn is(&self, asked: &Self, port: Option<u16>) -> bool {
        self.host == asked.host && (self.port.is_none() || self.port == port)
    }
}

impl Scheme {
    fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// `scheme://host[:port]` and nothing behind it; `null`, which sandboxed pages send, is none.
fn origin_of(text: &str) -> Option<(Scheme, Place)> {
    let (scheme, place) = text.split_once("://")?;
    let scheme = match scheme {
        "http" => Scheme::Http,
        "https" => Scheme::Https,
        _ => return None,
    };
    Some((scheme, Place::parse(place)?))
}
