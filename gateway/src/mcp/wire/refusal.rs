//! What the guard answers instead of handing a request on, and the one table from it to HTTP and JSON-RPC.

use axum::body::Body;
use axum::response::IntoResponse;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::envelope::Id;

/// After how many seconds a refused caller may ask again: the unit of `Retry-After`.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("5");

/// Our own JSON-RPC code for a limit that was reached; outside -32768..-32000, which JSON-RPC and MCP reserve.
pub const TOO_MANY: i64 = 429;

/// Why a request went no further.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The `Host` header, or the authority of the request line, is not one of ours: DNS rebinding.
    #[error("Forbidden: this Host is not allowed; add it to the allowed hosts when it is yours")]
    Host,
    /// No `Host`, two of them, or one that is not an authority.
    #[error("Bad Request: exactly one valid Host header is needed")]
    HostMalformed,
    /// A browser page of somebody else's is behind the request.
    #[error("Forbidden: this Origin is not allowed")]
    Origin,
    /// More header lines or bytes than a client of ours has a reason to send.
    #[error("Request Header Fields Too Large: at most {lines} header lines with {bytes} bytes")]
    HeadersTooLarge {
        /// How many lines are allowed.
        lines: usize,
        /// How many bytes, names and values together, are allowed.
        bytes: usize,
    },
    /// The body is over the limit; nothing of it was parsed.
    #[error("Payload Too Large: a request body has at most {0} bytes")]
    BodyTooLarge(usize),
    /// The body did not arrive in time.
    #[error("Request Timeout: the body did not arrive in time")]
    BodyTooSlow,
    /// The connection broke while the body was read.
    #[error("Bad Request: the body could not be read")]
    BodyBroken,
    /// Not JSON, or not UTF-8.
    #[error("Parse error: {0}")]
    NotJson(String),
    /// JSON, but not one JSON-RPC 2.0 message; or one that cannot be accepted here.
    #[error("Invalid Request: {0}")]
    InvalidRequest(String),
    /// A header is missing, doubled, unreadable or contradicts the body.
    #[error("Header mismatch: {0}")]
    HeaderMismatch(String),
    /// The client named a protocol version that cannot be spoken in the place where it named it.
    #[error("Unsupported protocol version")]
    UnsupportedVersion {
        /// What the client asked for.
        requested: String,
        /// What it could have asked for.
        supported: &'static [&'static str],
    },
    /// A method that does not exist, or no longer in this protocol version.
    #[error("Method not found: {0}")]
    MethodNotFound(String),
    /// The method exists, but its params do not have its shape.
    #[error("Invalid params: {0}")]
    InvalidParams(String),
    /// A legacy session that does not exist, ended, belongs to somebody else or to another endpoint.
    /// The text is rmcp's own, so that no two of these can be told apart.
    #[error("Not Found: Session not found")]
    SessionUnknown,
    /// The principal has as many legacy sessions as it may have.
    #[error(
        "Too many MCP sessions: at most {0} at a time (limits.mcp_sessions); end one with DELETE, or wait until an idle one expires"
    )]
    TooManySessions(usize),
    /// The principal has as many listening streams as it may have.
    #[error("Too many listening streams: at most {0} at a time (limits.streams); close one first")]
    TooManyStreams(usize),
    /// Nothing in front of the guard said who is calling: an error of ours, so nobody is let in.
    #[error("Internal Server Error")]
    NobodyCalls,
}

impl Refusal {
    /// The HTTP status and, where the answer is a JSON-RPC error, its code.
    fn status(&self) -> (StatusCode, Option<i64>) {
        match self {
            Self::Host | Self::Origin => (StatusCode::FORBIDDEN, None),
            Self::HostMalformed | Self::BodyBroken => (StatusCode::BAD_REQUEST, None),
            Self::HeadersTooLarge { .. } => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, None),
            Self::BodyTooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, None),
            Self::BodyTooSlow => (StatusCode::REQUEST_TIMEOUT, None),
            Self::NotJson(_) => (StatusCode::BAD_REQUEST, Some(-32700)),
            Self::InvalidRequest(_) => (StatusCode::BAD_REQUEST, Some(-32600)),
            Self::HeaderMismatch(_) => (StatusCode::BAD_REQUEST, Some(-32020)),
            Self::UnsupportedVersion { .. } => (StatusCode::BAD_REQUEST, Some(-32022)),
            Self::MethodNotFound(_) => (StatusCode::NOT_FOUND, Some(-32601)),
            Self::InvalidParams(_) => (StatusCode::OK, Some(-32602)),
            Self::SessionUnknown => (StatusCode::NOT_FOUND, None),
            Self::TooManySessions(_) | Self::TooManyStreams(_) => {
                (StatusCode::TOO_MANY_REQUESTS, Some(TOO_MANY))
            }
            Self::NobodyCalls => (StatusCode::INTERNAL_SERVER_ERROR, None),
        }
    }

    /// The JSON-RPC error object with the id it answers; `null` when there is none to answer.
    pub(super) fn json(&self, id: Option<&Id>) -> Value {
        let mut error = json!({ "code": self.status().1.unwrap_or(-32603), "message": self.to_string() });
        if let Self::UnsupportedVersion { requested, supported } = self {
            error["data"] = json!({ "requested": requested, "supported": supported });
        }
        json!({ "jsonrpc": "2.0", "id": id, "error": error })
    }

    /// The whole HTTP answer.
    pub(super) fn response(&self, id: Option<&Id>) -> Response<Body> {
        let (status, code) = self.status();
        let mut response = match code {
            Some(_) => {
                let mut response = Response::new(Body::from(self.json(id).to_string()));
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                response
            }
            None => Response::new(Body::from(self.to_string())),
        };
        *response.status_mut() = status;
        if status == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
        }
        response
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response<Body> {
        self.response(None)
    }
}
