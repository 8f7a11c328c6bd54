//! Where session logs live.

use async_trait::async_trait;

use super::{Event, NewEvent, Seq, SessionId};

/// Most events one slice holds.
pub const SLICE_EVENTS_MAX: u32 = 1_000;
/// Events a slice holds when nobody says.
pub const SLICE_EVENTS_DEFAULT: u32 = 100;
/// Most bytes of JSON one slice holds. A single larger event still comes, alone.
pub const SLICE_BYTES_MAX: usize = 1 << 20;
/// Most bytes of JSON one event holds. What is larger is stored beside the log and named in it.
pub const EVENT_BYTES_MAX: usize = 1 << 20;

/// An append-only log per session.
///
/// **Invariant:** the sequence of a session's events starts at 1, has no gap and no duplicate, and no
/// event ever changes; what was acknowledged survives power loss. `tests/it/log.rs` holds it for every
/// implementation.
#[async_trait]
pub trait EventLog: Send + Sync + 'static {
    /// Appends all of `events`, durably, or none. Returns the place of the last one.
    async fn append(&self, id: SessionId, at: At, events: &[NewEvent]) -> Result<Seq, LogError>;

    /// Reads a slice, ascending. Past the end it is empty, which is no error.
    async fn read(&self, id: SessionId, slice: Slice) -> Result<Vec<Event>, LogError>;
}

/// On which condition an append goes through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// None: client events and outcomes go to the end. Two of these never conflict.
    End,
    /// The log ends here ([`LogError::Conflict`] otherwise).
    After(Seq),
    /// Each of these leases is still held, compared in the same transaction ([`LogError::Fenced`] otherwise).
    Held(Vec<Held>),
    /// Both: each of these leases is still held, and the log ends here.
    HeldAfter(Vec<Held>, Seq),
}

/// A claim that a lease has not changed hands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// What is leased: `session/{id}` or `hand/{session}/{hand}`.
    pub subject: String,
    /// How often it has changed hands, at the time the claimer got it.
    pub epoch: i64,
}

/// Which events to read. `after` and `before` are exclusive.
///
/// `after` alone: the first `limit` behind it. `before` alone: the last `limit` ahead of it. Both: the first
/// `limit` between them. Neither: the last `limit`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Only behind this place.
    pub after: Option<Seq>,
    /// Only ahead of this place.
    pub before: Option<Seq>,
    /// At most so many; 1 to [`SLICE_EVENTS_MAX`], [`SLICE_EVENTS_DEFAULT`] when absent.
    pub limit: Option<u32>,
    /// Only of these types, when there are any. Applied before `limit`.
    pub types: Vec<String>,
}

/// Why a log operation failed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The log does not end where the writer thought.
    #[error("the session log has moved on")]
    Conflict,
    /// A lease changed hands.
    #[error("the lease on {0} has been taken over")]
    Fenced(String),
    /// The call already started, or already has its outcome.
    #[error("the call is already settled")]
    Settled,
    /// The log says already that the instance is gone, or never said that it was there.
    #[error("the instance is gone already")]
    InstanceGone,
    /// A call with this key exists.
    #[error("a call with this key exists")]
    KeyTaken,
    /// There is no such session (or it is being deleted).
    #[error("no such session")]
    NoSession,
    /// The session is archived: it can be read, not written.
    #[error("the session is archived and read-only")]
    Archived,
    /// An event is larger than [`EVENT_BYTES_MAX`].
    #[error("an event of {0} bytes is over the limit of {EVENT_BYTES_MAX}")]
    TooLarge(usize),
    /// An event, or what is asked of the log, has not the form it must have.
    #[error("this can't be in a session log: {0}")]
    Malformed(&'static str),
    /// A stored event can't be read back.
    #[error("the session log is corrupt at {seq}")]
    Corrupt {
        /// Where.
        seq: Seq,
        /// How.
        source: serde_json::Error,
    },
    /// The database failed.
    #[error(transparent)]
    Database(#[from] crate::database::DatabaseError),
}
