//! An event as a row of the table `event`, and back.

use std::fmt::Write as _;

use serde_json::Value;
use sha2::{Digest, Sha256};
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::{CallKey, EVENT_BYTES_MAX, Event, EventId, LogError, NewEvent, Private, Seq, SessionId, Via};
use crate::database::DatabaseError;

/// Most bytes of an event's `type`: it is part of an index.
pub const EVENT_TYPE_MAX: usize = 128;
/// At least what an event's JSON has beside its `by` and its own fields: names, ids, place and time.
const ENVELOPE_BYTES: usize = 192;
/// Fields of [`Event::to_json`] that the log itself fills in.
const ENVELOPE: [&str; 5] = ["id", "seq", "session", "at", "by"];

/// What a row holds beside its session, place and time.
#[derive(Clone, Debug)]
pub(super) struct NewRow {
    pub(super) id: String,
    pub(super) kind: String,
    pub(super) tool_use_id: Option<String>,
    pub(super) call_key: Option<String>,
    pub(super) resend_key: Option<String>,
    pub(super) output_id: Option<String>,
    pub(super) size: i64,
    pub(super) by: String,
    pub(super) body: String,
    pub(super) private: Option<String>,
    /// What it does to the index of open calls.
    pub(super) call: CallChange,
    /// What it does to the index of instances.
    pub(super) instance: InstanceChange,
    /// Whether the built-in loop is to look at it.
    pub(super) wakes: Wakes,
}

/// Whether an event gives the built-in loop something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wakes {
    Nobody,
    /// If it has worked on the session before: what other brains do in theirs is none of its business.
    LoopOfOld,
    /// In any case.
    Loop,
}

/// How an event changes which instances the log says are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InstanceChange {
    None,
    /// It is used, and must not be gone.
    Used(String),
    There(String),
    Gone(String),
}

/// How an event changes which calls are open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallChange {
    None,
    /// Asked for by a client: this node is to run it.
    Asked {
        call: String,
    },
    Started {
        call: String,
        node: String,
    },
    Ended {
        call: String,
    },
}

impl NewRow {
    /// Refuses what can't be stored, before anything is written.
    pub(super) fn of(event: &NewEvent) -> Result<Self, LogError> {
        let kind = event.kind();
        if kind.is_empty() || kind.len() > EVENT_TYPE_MAX || kind.contains(char::is_control) {
            return Err(LogError::Malformed("its type is not 1 to 128 bytes of text"));
        }
        if ENVELOPE.iter().any(|field| event.fields.contains_key(*field)) {
            return Err(LogError::Malformed("id, seq, session, at and by are the log's to fill in"));
        }
        let body = text(&event.fields);
        if body.len() > EVENT_BYTES_MAX {
            return Err(LogError::TooLarge(body.len()));
        }
        let private = event.private.as_ref().map(|private| text(&private.0));
        let private_bytes = private.as_ref().map_or(0, String::len);
        if private_bytes > EVENT_BYTES_MAX {
            return Err(LogError::TooLarge(private_bytes));
        }
        let by = text(&event.by);
        let (tool_use_id, call) = call_change(event)?;
        let (call_key, resend_key) = match &event.key {
            Some(CallKey::Forever(key)) => (Some(digest(key)), None),
            Some(CallKey::Resend(key)) => (None, Some(digest(key))),
            None => (None, None),
        };
        Ok(Self {
            id: event.id.to_string(),
            kind: kind.to_owned(),
            tool_use_id,
            call_key,
            resend_key,
            output_id: event
                .fields
                .get("output")
                .and_then(|output| Some(output.get("id")?.as_str()?.to_owned())),
            size: i64::try_from(body.len() + private_bytes + by.len() + ENVELOPE_BYTES).unwrap_or(i64::MAX),
            by,
            body,
            private,
            call,
            instance: instance_change(event),
            wakes: wakes(event),
        })
    }
}

fn text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("an event is plain data")
}

/// Keys are stored by their digest: of any length and any characters, they fit an index.
pub(super) fn digest(key: &str) -> String {
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(key) {
        // Writing to a string does not fail.
        write!(hex, "{byte:02x}").ok();
    }
    hex
}

fn call_change(event: &NewEvent) -> Result<(Option<String>, CallChange), LogError> {
    match event.kind() {
        "agent.tool_use" if matches!(event.by.via, Via::Mcp | Via::Cli) => {
            Ok((None, CallChange::Asked { call: event.id.to_string() }))
        }
        "hand.call_started" => {
            let call = tool_use_id(event)?;
            let node = event.fields.get("node").and_then(Value::as_str).unwrap_or_default().to_owned();
            Ok((Some(call.clone()), CallChange::Started { call, node }))
        }
        "agent.tool_result" => {
            let call = tool_use_id(event)?;
            Ok((Some(call.clone()), CallChange::Ended { call }))
        }
        "user.tool_confirmation" => Ok((Some(tool_use_id(event)?), CallChange::None)),
        _ => Ok((None, CallChange::None)),
    }
}

fn instance_change(event: &NewEvent) -> InstanceChange {
    let instance = || event.fields.get("instance").and_then(Value::as_str).unwrap_or_default().to_owned();
    match event.kind() {
        "hand.provisioned" => InstanceChange::There(instance()),
        "hand.call_started" => InstanceChange::Used(instance()),
        "hand.lost" | "hand.released" => InstanceChange::Gone(instance()),
        _ => InstanceChange::None,
    }
}

fn wakes(event: &NewEvent) -> Wakes {
    match (event.kind(), event.by.via) {
        ("session.status_running" | "session.status_rescheduled", _) => Wakes::Loop,
        ("user.message", Via::Cli) => Wakes::Loop,
        ("user.message" | "user.interrupt" | "user.tool_confirmation", _) => Wakes::LoopOfOld,
        _ => Wakes::Nobody,
    }
}

fn tool_use_id(event: &NewEvent) -> Result<String, LogError> {
    let id = event.fields.get("tool_use_id").and_then(Value::as_str).unwrap_or_default();
    id.parse::<EventId>()
        .map(|id| id.to_string())
        .map_err(|_| LogError::Malformed("its tool_use_id is not the id of an event"))
}

/// The columns that [`event`] needs.
pub(super) const COLUMNS: &str = "e.seq, e.id, e.at, e.by, e.body, e.private";

/// The event in a row of [`COLUMNS`].
pub(super) fn event(session: SessionId, row: &AnyRow) -> Result<Event, LogError> {
    let seq = Seq(column(row, "seq")?);
    let corrupt = |source| LogError::Corrupt { seq, source };
    let id: String = column(row, "id")?;
    let at: String = column(row, "at")?;
    Ok(Event {
        id: id.parse().map_err(serde::de::Error::custom).map_err(corrupt)?,
        seq,
        session,
        at: at.parse().map_err(serde::de::Error::custom).map_err(corrupt)?,
        by: serde_json::from_str(&column::<String>(row, "by")?).map_err(corrupt)?,
        fields: serde_json::from_str(&column::<String>(row, "body")?).map_err(corrupt)?,
        private: column::<Option<String>>(row, "private")?
            .map(|private| serde_json::from_str(&private).map(Private))
            .transpose()
            .map_err(corrupt)?,
    })
}

/// A column of a row.
pub(super) fn column<'r, T>(row: &'r AnyRow, name: &str) -> Result<T, DatabaseError>
where
    T: sqlx::Decode<'r, sqlx::Any> + sqlx::Type<sqlx::Any>,
{
    Ok(row.try_get(name)?)
}
