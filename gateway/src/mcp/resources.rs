//! Sessions as resources: their state, slices of their logs, single events, stored outputs.
//!
//! A URI that is malformed, unknown, or another principal's is answered the same.

use std::collections::BTreeMap;

use rmcp::ErrorData;
use rmcp::model::{ReadResourceResult, Resource, ResourceContents, ResourceTemplate};

use super::pieces::{self, PIECE_BYTES, piece};
use super::{Face, View, results};
use crate::error;
use crate::harness::context;
use crate::session::{
    Body, OutputError, SLICE_EVENTS_MAX, SLICE_TYPES_MAX, Seq, SessionError, SessionInfo, SessionRef, Slice,
};

const JSON: &str = "application/json";

/// What a URI asks for.
#[derive(Debug, PartialEq)]
pub(super) struct Target {
    /// Whose.
    pub(super) session: SessionRef,
    /// What of it.
    pub(super) part: Part,
}

/// A part of a session.
#[derive(Debug, PartialEq)]
pub(super) enum Part {
    State,
    /// What a brain needs to go on with it.
    Context,
    Events(Slice),
    /// As JSON; from an offset on, a piece of that text.
    Event {
        seq: Seq,
        offset: Option<u64>,
    },
    Output {
        seq: Seq,
        offset: u64,
    },
}

/// The templates of sessions.
pub(super) fn templates() -> [ResourceTemplate; 5] {
    let template = |uri: &str, name: &str, about: &str| {
        ResourceTemplate::new(uri, name).with_description(about).with_mime_type(JSON)
    };
    [
        template("session://{id}", "session", "A session's state. Its name may stand for its id."),
        template(
            "session://{id}/context",
            "session-context",
            "What a brain needs to go on with a session that another one began: what was said and done, and what is still \
             open.",
        )
        .with_mime_type("text/plain"),
        template(
            "session://{id}/events{?after,before,limit,type}",
            "session-events",
            "A slice of a session's log, ascending; `type` repeats. has_more and next say how to go on.",
        ),
        template(
            "session://{id}/events/{seq}{?offset}",
            "session-event",
            "One event of a session's log. One that is too large shows head and tail of its texts; with an offset \
             its JSON comes in pieces from that byte on.",
        ),
        template(
            "session://{id}/outputs/{seq}{?offset}",
            "session-output",
            "The complete output of the event at seq, in pieces from the byte offset on. Each says where the next \
             begins.",
        )
        .with_mime_type("text/plain"),
    ]
}

impl Face {
    /// A session's resource.
    pub(super) async fn read_session(&self, view: &View, uri: &str) -> Result<ReadResourceResult, ErrorData> {
        let missing = || results::no_resource(uri);
        let target = parse(uri).ok_or_else(missing)?;
        let found = self.gateway.sessions.find(&view.principal, &target.session).await;
        let info = match found {
            Err(SessionError::NoSession) => return Err(missing()),
            found => found.map_err(|error| error::rpc(&error))?,
        };
        let contents = match target.part {
            Part::State => vec![json(uri, &self.state(&info))],
            Part::Context => {
                let state = self.gateway.sessions.state(info.id).await.map_err(|error| error::rpc(&error))?;
                let text = context::handover(&state, &info.id.to_string());
                vec![ResourceContents::text(text, uri).with_mime_type("text/plain")]
            }
            Part::Events(slice) => {
                let page = self.gateway.sessions.slice(&info, slice.clone()).await;
                vec![json(uri, &pieces::page(&page.map_err(|error| error::rpc(&error))?, &slice))]
            }
            Part::Event { seq, offset } => self.event(uri, &info, seq, offset).await?.ok_or_else(missing)?,
            Part::Output { seq, offset } => {
                self.output(uri, &info, seq, offset).await?.ok_or_else(missing)?
            }
        };
        Ok(ReadResourceResult::new(contents))
    }

    async fn event(
        &self,
        uri: &str,
        info: &SessionInfo,
        seq: Seq,
        offset: Option<u64>,
    ) -> Result<Option<Vec<ResourceContents>>, ErrorData> {
        let event = self.gateway.sessions.event(info, seq).await.map_err(|error| error::rpc(&error))?;
        let Some(event) = event.map(|event| event.to_json()) else { return Ok(None) };
        let Some(offset) = offset else { return Ok(Some(vec![json(uri, &pieces::fitted(event))])) };
        let text = event.to_string();
        let total = text.len() as u64;
        let within = |place: u64| usize::try_from(place.min(total)).unwrap_or(text.len());
        let bytes = &text.as_bytes()[within(offset)..within(offset.saturating_add(PIECE_BYTES))];
        Ok(Some(piece(base(uri), uri, bytes, offset, total)))
    }

    async fn output(
        &self,
        uri: &str,
        info: &SessionInfo,
        seq: Seq,
        offset: u64,
    ) -> Result<Option<Vec<ResourceContents>>, ErrorData> {
        let sessions = &self.gateway.sessions;
        let event = sessions.event(info, seq).await.map_err(|error| error::rpc(&error))?;
        let Some(Body::ToolResult { output: Some(output), .. }) = event.and_then(|event| event.known())
        else {
            return Ok(None);
        };
        let range = offset..offset.saturating_add(PIECE_BYTES);
        match sessions.outputs().read(info.id, &output, range).await {
            Ok(bytes) => Ok(Some(piece(base(uri), uri, &bytes, offset, output.bytes))),
            Err(OutputError::NoOutput | OutputError::NoSession) => Ok(None),
            Err(error) => Err(error::rpc(&error)),
        }
    }
}

/// A URI without its query.
fn base(uri: &str) -> &str {
    uri.split_once('?').map_or(uri, |(base, _)| base)
}

/// A session as `resources/list` has it.
pub(super) fn listed(info: &SessionInfo) -> [Resource; 2] {
    let name = info.name.as_ref().map_or_else(|| info.id.to_string(), ToString::to_string);
    [
        Resource::new(format!("session://{}", info.id), name.clone())
            .with_description("The session's state")
            .with_mime_type(JSON),
        Resource::new(format!("session://{}/events", info.id), format!("{name} events"))
            .with_description("The last events of the session's log")
            .with_mime_type(JSON),
    ]
}

fn json(uri: &str, value: &serde_json::Value) -> ResourceContents {
    ResourceContents::text(value.to_string(), uri).with_mime_type(JSON)
}

/// What `uri` asks for. Only the exact spelling counts: nothing is decoded, normalised or forgiven.
pub(super) fn parse(uri: &str) -> Option<Target> {
    let (path, query) = match uri.strip_prefix("session://")?.split_once('?') {
        None => (uri.strip_prefix("session://")?, None),
        Some((path, query)) => (path, Some(query)),
    };
    let mut parts = path.split('/');
    let session: SessionRef = parts.next()?.parse().ok()?;
    let part = match (parts.next(), parts.next(), parts.next()) {
        (None, None, None) if query.is_none() => Part::State,
        (Some("context"), None, None) if query.is_none() => Part::Context,
        (Some("events"), None, None) => Part::Events(slice(query.unwrap_or_default())?),
        (Some("events"), Some(seq), None) => Part::Event { seq: place(seq)?, offset: offset(query)? },
        (Some("outputs"), Some(seq), None) => {
            Part::Output { seq: place(seq)?, offset: offset(query)?.unwrap_or_default() }
        }
        _ => return None,
    };
    Some(Target { session, part })
}

/// The offset that a query asks for, if it asks. `None`: it asks for something else.
#[expect(clippy::option_option, reason = "an absent offset is not a bad one")]
fn offset(query: Option<&str>) -> Option<Option<u64>> {
    let Some(query) = query else { return Some(None) };
    number(query.strip_prefix("offset=")?).map(|offset| Some(offset.unsigned_abs()))
}

fn place(text: &str) -> Option<Seq> {
    number(text).filter(|seq| *seq > 0).map(Seq)
}

/// A number as we write it: digits, without a sign or leading zeros.
fn number(text: &str) -> Option<i64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

fn slice(query: &str) -> Option<Slice> {
    let mut seen = BTreeMap::new();
    let mut types = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=')?;
        match name {
            "type" => types.push(value.to_owned()),
            "after" | "before" | "limit" => {
                if seen.insert(name, number(value)?).is_some() {
                    return None;
                }
            }
            _ => return None,
        }
    }
    let at = |name: &str| seen.get(name).copied().map(Seq);
    let limit = match seen.get("limit") {
        None => None,
        Some(limit) => Some(u32::try_from(*limit).ok()?),
    };
    let slice = Slice { after: at("after"), before: at("before"), limit, types };
    check_slice(&slice).is_ok().then_some(slice)
}

/// Whether a slice can be read, else what is wrong with it.
pub(super) fn check_slice(slice: &Slice) -> Result<(), String> {
    if slice.limit.is_some_and(|limit| !(1..=SLICE_EVENTS_MAX).contains(&limit)) {
        return Err(format!("`limit` must be from 1 to {SLICE_EVENTS_MAX}"));
    }
    if slice.after.is_some_and(|seq| seq.0 < 0) || slice.before.is_some_and(|seq| seq.0 < 0) {
        return Err("`after` and `before` are places in the log: 0 or more".to_owned());
    }
    if slice.types.len() > SLICE_TYPES_MAX {
        return Err(format!("`type` takes at most {SLICE_TYPES_MAX} types"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_uris_mean_something() {
        let demo = || "demo".parse::<SessionRef>().unwrap();
        assert_eq!(parse("session://demo"), Some(Target { session: demo(), part: Part::State }));
        assert_eq!(parse("session://demo/context"), Some(Target { session: demo(), part: Part::Context }));
        let slice = Slice {
            after: Some(Seq(3)),
            limit: Some(2),
            types: vec!["a.b".into(), "c.d".into()],
            before: None,
        };
        assert_eq!(
            parse("session://demo/events?after=3&limit=2&type=a.b&type=c.d"),
            Some(Target { session: demo(), part: Part::Events(slice) })
        );
        assert_eq!(
            parse("session://demo/outputs/7?offset=10"),
            Some(Target { session: demo(), part: Part::Output { seq: Seq(7), offset: 10 } })
        );
        assert_eq!(
            parse("session://demo/events/7?offset=0"),
            Some(Target { session: demo(), part: Part::Event { seq: Seq(7), offset: Some(0) } })
        );
        for bad in [
            "",
            "session:",
            "session://",
            "session://../x",
            "session://%2e%2e/events",
            "session://demo/",
            "session://demo/events/",
            "session://demo/events/0",
            "session://demo/events/-1",
            "session://demo/events/1/2",
            "session://demo/../other/events",
            "session://DEMO",
            "session://demo/events?after=1&after=2",
            "session://demo/events?x=1",
            "session://demo?x=1",
            "session://demo/context?x=1",
            "session://demo/context/1",
            "file:///etc/passwd",
            "session://demo/outputs/1?offset=-1",
            "session://demo/outputs/1?offset=",
            "session://demo/outputs/1?offset=1&offset=2",
            "session://demo/events/+1",
            "session://demo/events/01",
            "session://demo/events?limit=0",
            "session://demo/events?limit=1001",
            "session://demo/events?after=-1",
            "session://demo/events?after=+1",
            "session://demo#events",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
