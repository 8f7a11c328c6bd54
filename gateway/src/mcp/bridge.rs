//! Between clients and the MCP servers behind hands, each in its own protocol era.
//!
//! What a hand needs to know of a client goes one way ([`Face::caller`]); answers, news and questions come back and are
//! put in the way of the client's era. Ids, tokens, cursors and states of either side never reach the other.

mod ask;
pub(super) mod follow;
mod known;
mod news;
pub(super) mod parked;
mod relay;
pub(super) mod replies;
mod tasks;

use std::sync::PoisonError;
use std::time::Duration;

use hands::mcp::{Caller, Object};
use rmcp::ErrorData;
use rmcp::service::Peer;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use self::known::Known;
pub(super) use self::news::Heard;
use self::parked::Parked;
use super::Face;
use super::results::{Cached, finish};
use super::service::Asked;
use super::wire::Era;
use crate::hand::HandName;
use crate::session::{LogError, SessionError, SessionId, SessionStatus};

/// What concerns client and gateway alone begins so in `_meta`.
const RESERVED: [&str; 2] = ["io.modelcontextprotocol/", "manyhands/"];
const PROGRESS_TOKEN: &str = "progressToken";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
/// The levels of log messages (RFC 5424), least severe first.
const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
/// What a client from before 2026-07-28 hears that has set no level.
const LEVEL_DEFAULT: &str = "info";

/// What the bridge keeps beyond a request. One for the whole gateway.
#[derive(Default)]
pub struct Bridge {
    /// Calls that wait for a client to come back with answers.
    pub(super) parked: Parked,
    known: Known,
}

impl Bridge {
    /// For tests: how long a call waits for its client. Ten minutes otherwise.
    pub fn wait_for_clients(&self, time: Duration) {
        self.parked.wait(time);
    }

    /// How many calls wait for their client.
    pub fn waiting(&self) -> usize {
        self.parked.len()
    }
}

/// What a request is about: a retry must be about the same.
#[derive(Debug, Serialize)]
pub(super) struct Subject {
    pub(super) method: &'static str,
    pub(super) session: SessionId,
    pub(super) hand: HandName,
    /// The tool, prompt or resource, as its server calls it.
    pub(super) name: String,
    pub(super) arguments: [u8; 32],
}

/// SHA-256 of a value's JSON. Our maps are sorted by their keys, so equal values have equal digests.
pub(super) fn digest(value: &impl Serialize) -> [u8; 32] {
    Sha256::digest(serde_json::to_vec(value).unwrap_or_default()).into()
}

impl Face {
    /// What a hand may know of who asks.
    pub(super) fn caller(&self, asked: &Asked<'_>) -> Caller {
        let meta = &asked.asker.meta.0.0;
        let log_level = match asked.era {
            Era::Modern => meta.get(LOG_LEVEL).and_then(Value::as_str).map(str::to_owned),
            Era::Legacy => Some(self.log_level()),
        };
        let vendors = |key: &str| key != PROGRESS_TOKEN && !RESERVED.iter().any(|own| key.starts_with(own));
        let meta = meta.iter().filter(|(key, _)| vendors(key));
        Caller {
            capabilities: capabilities(asked),
            log_level: log_level.filter(|level| LEVELS.contains(&level.as_str())),
            meta: meta.map(|(key, value)| (key.clone(), value.clone())).collect(),
        }
    }

    /// `logging/setLevel`, for the rest of the session.
    pub(super) fn set_log_level(&self, asked: &Asked<'_>) -> Result<Object, ErrorData> {
        let level = asked.text("level");
        if !LEVELS.contains(&level) {
            let hint = format!("`level` must be one of {}", LEVELS.join(", "));
            return Err(ErrorData::invalid_params(hint, None));
        }
        *self.level.lock().unwrap_or_else(PoisonError::into_inner) = Some(level.to_owned());
        Ok(finish(Object::new(), asked.era, Cached::No))
    }

    fn log_level(&self) -> String {
        let level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        level.clone().unwrap_or_else(|| LEVEL_DEFAULT.to_owned())
    }

    /// The session that a request is for, made when there is none of its name.
    pub(super) async fn session_for(&self, asked: &Asked<'_>) -> Result<SessionId, SessionError> {
        Ok(self.known_session_for(asked).await?.0)
    }

    /// The same for what leaves no trace in its log, which would refuse it: never one that is archived.
    pub(super) async fn active_session_for(&self, asked: &Asked<'_>) -> Result<SessionId, SessionError> {
        match self.known_session_for(asked).await? {
            (id, SessionStatus::Active) => Ok(id),
            (_, SessionStatus::Archived) => Err(SessionError::Log(LogError::Archived)),
        }
    }

    async fn known_session_for(&self, asked: &Asked<'_>) -> Result<(SessionId, SessionStatus), SessionError> {
        let by = || Self::by(&asked.view, asked.asker);
        let (principal, session) = (&asked.view.principal, &asked.view.session);
        self.gateway.mcp.known.open(&self.gateway.sessions, principal, session, by).await
    }
}

/// The capabilities that the client declared: with this request, or for its session.
pub(super) fn capabilities(asked: &Asked<'_>) -> Object {
    let declared = match asked.era {
        Era::Modern => asked.asker.meta.0.0.get(CAPABILITIES).cloned(),
        Era::Legacy => {
            let info = asked.asker.session().and_then(Peer::peer_info);
            info.and_then(|info| serde_json::to_value(&info.capabilities).ok())
        }
    };
    match declared {
        Some(Value::Object(declared)) => declared,
        _ => Object::new(),
    }
}
