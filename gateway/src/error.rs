//! The one table: what every room's errors are to a client.
//!
//! **Invariant:** text that was not written for a client never reaches one. What is our own fault is logged with a
//! reference, and the client is given the reference.

use http::StatusCode;
use rmcp::ErrorData;
use rmcp::model::ErrorCode;

use crate::access::token::TokenError;
use crate::calls::CallError;
use crate::clock;
use crate::database::DatabaseError;
use crate::leases::LeaseError;
use crate::registry::RegistryError;
use crate::session::{BadName, LogError, OutputError, SessionError};

/// What an error is to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request says something that can't be.
    Invalid,
    /// There is no such thing, or it is somebody else's.
    Missing,
    /// Something stands in the way that may go away.
    Busy,
    /// A limit of the caller's is reached.
    Limited,
    /// This machine can't do it now. The text says what to do.
    Unavailable,
    /// The database does not answer. Its words are for the log.
    Away,
    /// Our own fault.
    Internal,
}

/// An error that a client may meet.
pub trait Faced: std::error::Error {
    /// What it is to a client.
    fn kind(&self) -> Kind;

    /// What it means for what was asked, where that must be said even if the error itself is not for the client.
    fn consequence(&self) -> Option<&'static str> {
        None
    }
}

impl Faced for LogError {
    fn kind(&self) -> Kind {
        match self {
            Self::Conflict | Self::Fenced(_) | Self::Settled | Self::InstanceGone | Self::KeyTaken => {
                Kind::Busy
            }
            Self::NoSession => Kind::Missing,
            Self::Archived | Self::TooLarge(_) | Self::Malformed(_) => Kind::Invalid,
            Self::Corrupt { .. } => Kind::Internal,
            Self::Database(error) => error.kind(),
        }
    }
}

impl Faced for SessionError {
    fn kind(&self) -> Kind {
        match self {
            Self::NoSession => Kind::Missing,
            Self::NameTaken(_) => Kind::Invalid,
            Self::TooManySessions { .. } | Self::TooManyBytes { .. } => Kind::Limited,
            Self::Running => Kind::Busy,
            Self::Log(error) => error.kind(),
            Self::Database(error) => error.kind(),
        }
    }
}

impl Faced for BadName {
    fn kind(&self) -> Kind {
        match self {
            Self::Form | Self::Id => Kind::Invalid,
        }
    }
}

impl Faced for OutputError {
    fn kind(&self) -> Kind {
        match self {
            Self::TooLarge | Self::NoRoom { .. } => Kind::Limited,
            Self::Unreadable(_) => Kind::Internal,
            Self::NoSession | Self::NoOutput => Kind::Missing,
            Self::Database(error) => error.kind(),
        }
    }
}

impl Faced for DatabaseError {
    fn kind(&self) -> Kind {
        match self {
            Self::Full(_) | Self::Low { .. } | Self::ReadOnly | Self::Locked | Self::Closed => {
                Kind::Unavailable
            }
            Self::Gone(_) | Self::Unreachable { .. } => Kind::Away,
            // Paths, addresses and the driver's words are for the log.
            Self::BadUrl
            | Self::Directory { .. }
            | Self::PathNotText(_)
            | Self::NotADatabase(_)
            | Self::CannotOpen { .. }
            | Self::Refused { .. }
            | Self::Newer(_)
            | Self::Changed(_)
            | Self::Migration { .. }
            | Self::Weak { .. }
            | Self::NoThread(_)
            | Self::Panicked
            | Self::Failed(_)
            | Self::FailedScript(_) => Kind::Internal,
        }
    }
}

impl Faced for CallError {
    fn kind(&self) -> Kind {
        match self {
            Self::TooMany { .. } => Kind::Limited,
            Self::KeyMismatch => Kind::Invalid,
            Self::Closing | Self::Cancelled => Kind::Unavailable,
            Self::Panicked => Kind::Internal,
            Self::Log(error) | Self::Unrecorded { source: error, .. } => error.kind(),
            Self::Session(error) => error.kind(),
        }
    }

    fn consequence(&self) -> Option<&'static str> {
        match self {
            Self::Log(_) | Self::Session(_) => Some("The call did not run."),
            Self::Unrecorded { .. } => Some(
                "The call has ended, but its outcome is not in the log: look at what it did before you repeat it.",
            ),
            Self::Panicked => Some("Look at the session's events before you repeat the call."),
            Self::TooMany { .. } | Self::KeyMismatch | Self::Closing | Self::Cancelled => None,
        }
    }
}

impl Faced for LeaseError {
    fn kind(&self) -> Kind {
        match self {
            Self::TooMany { .. } | Self::TooManyStates { .. } => Kind::Limited,
            Self::Busy(_) | Self::Elsewhere(_) | Self::Woken | Self::HasOne(_) | Self::NothingToMove(_) => {
                Kind::Busy
            }
            Self::SameSession | Self::Unmovable(_) | Self::NoStates(_) | Self::BadState => Kind::Invalid,
            Self::Slow { .. } | Self::Dead | Self::GivenUp => Kind::Unavailable,
            Self::Panicked => Kind::Internal,
            // A hand's sentences are written for people: what is missing, what to do.
            Self::Hand(_) => Kind::Unavailable,
            Self::Registry(error) => error.kind(),
            Self::Log(error) => error.kind(),
            Self::Database(error) => error.kind(),
        }
    }
}

impl Faced for RegistryError {
    fn kind(&self) -> Kind {
        match self {
            Self::BadName(_)
            | Self::Exists { .. }
            | Self::Twice(_)
            | Self::ReadOnly(_)
            | Self::Senseless { .. } => Kind::Invalid,
            Self::Unknown(_) => Kind::Missing,
            Self::Hand { .. } | Self::NoAnswer { .. } => Kind::Unavailable,
            Self::Corrupt(_) => Kind::Internal,
            Self::Database(error) => error.kind(),
        }
    }
}

impl Faced for TokenError {
    fn kind(&self) -> Kind {
        match self {
            Self::BadName(_) | Self::Exists(_) | Self::Expired(_) => Kind::Invalid,
            Self::Unknown(_) => Kind::Missing,
            Self::Database(error) => error.kind(),
        }
    }
}

/// The sentence for the client.
pub fn say<E: Faced + ?Sized>(error: &E) -> String {
    match error.kind() {
        Kind::Invalid | Kind::Missing | Kind::Busy | Kind::Limited | Kind::Unavailable => error.to_string(),
        Kind::Away => {
            let reference = logged(error);
            referred(
                error,
                &format!("the database does not answer: try again in a moment (reference {reference})"),
            )
        }
        Kind::Internal => {
            let reference = logged(error);
            referred(
                error,
                &format!(
                    "the gateway failed, and its log has the details: tell who runs it (reference {reference})"
                ),
            )
        }
    }
}

/// Writes the error to the log and returns the reference that finds it there.
fn logged<E: Faced + ?Sized>(error: &E) -> String {
    let reference = clock::id().simple().to_string();
    tracing::error!(reference, error = %chain(error), "a request met a fault that is not its own");
    reference
}

fn referred<E: Faced + ?Sized>(error: &E, sentence: &str) -> String {
    match error.consequence() {
        None => sentence.to_owned(),
        Some(consequence) => format!("{sentence}. {consequence}"),
    }
}

/// The error as JSON-RPC has it.
pub fn rpc<E: Faced + ?Sized>(error: &E) -> ErrorData {
    let code = match error.kind() {
        Kind::Invalid | Kind::Missing => ErrorCode::INVALID_PARAMS,
        Kind::Busy | Kind::Limited | Kind::Unavailable | Kind::Away | Kind::Internal => {
            ErrorCode::INTERNAL_ERROR
        }
    };
    ErrorData::new(code, say(error), None)
}

/// The error as HTTP has it.
pub fn status<E: Faced + ?Sized>(error: &E) -> StatusCode {
    match error.kind() {
        Kind::Invalid => StatusCode::BAD_REQUEST,
        Kind::Missing => StatusCode::NOT_FOUND,
        Kind::Busy => StatusCode::CONFLICT,
        Kind::Limited => StatusCode::TOO_MANY_REQUESTS,
        Kind::Unavailable | Kind::Away => StatusCode::SERVICE_UNAVAILABLE,
        Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// An error with its causes, for the log.
pub fn chain(error: &(impl std::error::Error + ?Sized)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
