//! The headers that mirror the body, and what era a request is of.
//!
//! Whoever stands between a client and the gateway may route or authorise by `Mcp-Method` and `Mcp-Name`. So a header
//! that is there must say what the body says, in every era; since 2026-07-28 it must be there as well.
//! (<https://modelcontextprotocol.io/specification/2026-07-28/basic/transports/streamable-http>)

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName};

use super::envelope::{Envelope, Kind};
use super::refusal::Refusal;

/// The protocol version a request is of.
pub(super) const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// The body's method.
pub(super) const METHOD: HeaderName = HeaderName::from_static("mcp-method");
/// What the method is applied to.
pub(super) const NAME: HeaderName = HeaderName::from_static("mcp-name");
/// The session of the legacy era.
pub(super) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
/// Where a legacy client wants to go on listening.
pub(super) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// How many header lines a request may have.
pub(super) const MAX_LINES: usize = 100;
/// How many bytes the names and values of all header lines may have together.
pub(super) const MAX_BYTES: usize = 64 * 1024;

/// The versions of the stateless era, which a request names in its `_meta`.
const MODERN: &[&str] = &["2026-07-28"];
/// Every version that can be spoken, newest first.
const KNOWN: &[&str] = &["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// Methods that 2026-07-28 took away.
const REMOVED: [&str; 4] = ["ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"];
/// Headers that have one value or none.
const SINGLE: [HeaderName; 8] =
    [PROTOCOL_VERSION, METHOD, NAME, SESSION_ID, LAST_EVENT_ID, AUTHORIZATION, CONTENT_TYPE, CONTENT_LENGTH];

/// How a client speaks, request by request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Era {
    /// 2026-07-28: stateless.
    Modern,
    /// Up to 2025-11-25: `initialize`, and a session.
    Legacy,
}

/// Refuses more header lines or bytes than there is a reason for.
pub(super) fn check_size(headers: &HeaderMap) -> Result<(), Refusal> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if headers.len() > MAX_LINES || bytes > MAX_BYTES {
        return Err(Refusal::HeadersTooLarge { lines: MAX_LINES, bytes: MAX_BYTES });
    }
    Ok(())
}

/// Refuses a header twice, equal or not, where two readers could each take another one.
pub(super) fn check_single(headers: &HeaderMap) -> Result<(), Refusal> {
    match SINGLE.iter().find(|name| headers.get_all(*name).iter().nth(1).is_some()) {
        Some(twice) => Err(mismatch(format!("the header {twice} is there twice"))),
        None => Ok(()),
    }
}

/// The era of a request without a body: the header alone says it.
pub(super) fn era_of_header(headers: &HeaderMap) -> Era {
    let version = headers.get(PROTOCOL_VERSION).and_then(|value| value.to_str().ok());
    if version.is_some_and(|version| version >= MODERN[0]) { Era::Modern } else { Era::Legacy }
}

/// The era of a message, when header and body agree about it and it can be spoken.
pub(super) fn era(headers: &HeaderMap, envelope: &Envelope) -> Result<Era, Refusal> {
    let header = plain(headers, &PROTOCOL_VERSION)?;
    // The handshake exists only in the legacy era, whatever version it names.
    if envelope.requests("initialize") {
        return Ok(Era::Legacy);
    }
    if let (Some(meta), Kind::Request(_)) = (envelope.meta_version(), &envelope.kind) {
        return match header {
            None => Err(mismatch(
                "_meta names a protocol version, so MCP-Protocol-Version must name it as well".into(),
            )),
            Some(header) if header != meta => {
                Err(mismatch(format!("MCP-Protocol-Version says {header}, _meta says {meta}")))
            }
            Some(_) => check_modern(meta).map(|()| Era::Modern),
        };
    }
    match header {
        Some(version) if !KNOWN.contains(&version) => Err(unsupported(version, KNOWN)),
        _ => Ok(era_of_header(headers)),
    }
}

/// Refuses a version in `_meta` that is not of the stateless era: that would be a request without a session in a
/// protocol that has sessions, and no header of it would have to be true.
pub(super) fn check_modern(meta: &str) -> Result<(), Refusal> {
    match meta {
        _ if MODERN.contains(&meta) => Ok(()),
        _ if KNOWN.contains(&meta) => Err(unsupported(meta, MODERN)),
        _ => Err(unsupported(meta, KNOWN)),
    }
}

/// Holds `Mcp-Method` and `Mcp-Name` against the body.
pub(super) fn check_mirrors(headers: &HeaderMap, envelope: &Envelope, era: Era) -> Result<(), Refusal> {
    if envelope.kind == Kind::Response {
        return Ok(());
    }
    match (plain(headers, &METHOD)?, era) {
        (Some(method), _) if method != envelope.method => {
            return Err(mismatch(format!("Mcp-Method says {method:?}, the body says {:?}", envelope.method)));
        }
        (None, Era::Modern) => return Err(mismatch("Mcp-Method is missing".into())),
        _ => {}
    }
    let expected = named(&envelope.method).and_then(|key| envelope.text(key));
    match (decoded(headers, &NAME)?, expected, era) {
        (Some(name), Some(expected), _) if name == expected => Ok(()),
        (Some(name), Some(expected), _) => {
            Err(mismatch(format!("Mcp-Name says {name:?}, the body says {expected:?}")))
        }
        (Some(_), None, _) => Err(mismatch("Mcp-Name names what the body does not".into())),
        (None, Some(_), Era::Modern) => Err(mismatch("Mcp-Name is missing".into())),
        (None, _, _) => Ok(()),
    }
}

/// Refuses what a modern client can no longer ask for.
pub(super) fn check_method(envelope: &Envelope, era: Era) -> Result<(), Refusal> {
    if era == Era::Modern && envelope.id().is_some() && REMOVED.contains(&envelope.method.as_str()) {
        return Err(Refusal::MethodNotFound(envelope.method.clone()));
    }
    Ok(())
}

/// A header's only value, decoded from `=?base64?…?=` when it comes so.
pub(super) fn decoded(headers: &HeaderMap, name: &HeaderName) -> Result<Option<String>, Refusal> {
    let Some(value) = plain(headers, name)? else { return Ok(None) };
    let Some(encoded) = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Ok(Some(value.to_owned()));
    };
    let bytes =
        BASE64_STANDARD.decode(encoded).map_err(|_| mismatch(format!("{name} is not valid base64")))?;
    let text =
        String::from_utf8(bytes).map_err(|_| mismatch(format!("{name} is not UTF-8 inside its base64")))?;
    Ok(Some(text))
}

/// A header's only value, when it is visible ASCII and blanks.
fn plain<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return if headers.contains_key(name) {
            Err(mismatch(format!("{name} is there twice")))
        } else {
            Ok(None)
        };
    };
    match value.to_str() {
        Ok(value) if !value.contains('\t') => Ok(Some(value)),
        _ => Err(mismatch(format!("{name} holds more than plain ASCII, which has to be sent as base64"))),
    }
}

/// Which param `Mcp-Name` repeats.
fn named(method: &str) -> Option<&'static str> {
    match method {
        "tools/call" | "prompts/get" => Some("name"),
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" => Some("uri"),
        "tasks/get" | "tasks/update" | "tasks/cancel" => Some("taskId"),
        _ => None,
    }
}

fn mismatch(why: String) -> Refusal {
    Refusal::HeaderMismatch(why)
}

fn unsupported(requested: &str, supported: &'static [&'static str]) -> Refusal {
    Refusal::UnsupportedVersion { requested: requested.to_owned(), supported }
}
