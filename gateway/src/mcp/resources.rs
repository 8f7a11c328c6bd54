//! Sessions as resources: their state, slices of their logs, single events, stored outputs.
//!
//! A URI that is malformed, unknown, or another principal's is answered the same.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rmcp::ErrorData;
use rmcp::model::{
    ListResourceTemplatesResult, ListResourcesResult, PaginatedRequestParams, ReadResourceResponse,
    ReadResourceResult, Resource, ResourceContents, ResourceTemplate,
};

use super::session_tools::{ANSWER_CHARS_MAX, within};
use super::{Face, HandsInView, View, results};
use crate::error;
use crate::session::{Body, Listing, Seq, SessionError, SessionInfo, SessionRef, Slice};

/// Sessions in one page of `resources/list`; each is two resources.
const PAGE: u32 = 100;
/// Most bytes of a stored output that one read shows: what it shows is at most as many characters.
const OUTPUT_BYTES_MAX: u64 = ANSWER_CHARS_MAX as u64 - 1_000;
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
    Events(Slice),
    Event(Seq),
    Output { seq: Seq, offset: u64 },
}

/// The templates, in one page.
pub(super) fn templates(view: &View, modern: bool) -> ListResourceTemplatesResult {
    let template = |uri: &str, name: &str, about: &str| {
        ResourceTemplate::new(uri, name).with_description(about).with_mime_type(JSON)
    };
    let all = match view.hands {
        HandsInView::One(_) => vec![],
        HandsInView::All => vec![
            template("session://{id}", "session", "A session's state. Its name may stand for its id."),
            template(
                "session://{id}/events{?after,before,limit,type}",
                "session-events",
                "A slice of a session's log, ascending; `type` repeats. has_more and next say how to go on.",
            ),
            template("session://{id}/events/{seq}", "session-event", "One event of a session's log."),
            template(
                "session://{id}/outputs/{seq}{?offset}",
                "session-output",
                "The complete output of the event at seq, in pieces of up to 47000 bytes from offset on.",
            ),
        ],
    };
    let mut list = ListResourceTemplatesResult::with_all_items(all);
    list.meta = results::meta(modern);
    list.ttl_ms = Some(results::TTL_MS);
    list.cache_scope = Some(results::SCOPE);
    list
}

impl Face {
    pub(super) async fn resources(
        &self,
        view: &View,
        request: Option<PaginatedRequestParams>,
        modern: bool,
    ) -> Result<ListResourcesResult, ErrorData> {
        let after = match request.and_then(|request| request.cursor) {
            None => None,
            Some(cursor) => Some(cursor.parse().map_err(|_| results::bad_cursor())?),
        };
        let (sessions, more) = match view.hands {
            HandsInView::One(_) => (Vec::new(), false),
            HandsInView::All => {
                let listing = Listing { before: after, limit: Some(PAGE), status: None };
                let listed = self.gateway.sessions.list(&view.principal, &listing).await;
                listed.map_err(|error| error::rpc(&error))?
            }
        };
        let next = sessions.last().filter(|_| more).map(|info| info.id.to_string());
        let resources = sessions.iter().flat_map(listed).collect();
        let mut list = ListResourcesResult::with_all_items(resources);
        list.next_cursor = next;
        list.meta = results::meta(modern);
        list.ttl_ms = Some(results::TTL_MS);
        list.cache_scope = Some(results::SCOPE);
        Ok(list)
    }

    pub(super) async fn read(
        &self,
        view: &View,
        uri: &str,
        modern: bool,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let missing = || results::no_resource(uri);
        if view.hands != HandsInView::All {
            return Err(missing());
        }
        let target = parse(uri).ok_or_else(missing)?;
        let found = self.gateway.sessions.find(&view.principal, &target.session).await;
        let info = match found {
            Err(SessionError::NoSession) => return Err(missing()),
            found => found.map_err(|error| error::rpc(&error))?,
        };
        let contents = match target.part {
            Part::State => json(uri, &self.state(&info)),
            Part::Events(slice) => {
                let page = self.gateway.sessions.slice(&info, slice.clone()).await;
                json(uri, &within(&page.map_err(|error| error::rpc(&error))?, &slice))
            }
            Part::Event(seq) => self.event(uri, &info, seq).await?.ok_or_else(missing)?,
            Part::Output { seq, offset } => {
                self.output(uri, &info, seq, offset).await?.ok_or_else(missing)?
            }
        };
        let mut result = ReadResourceResult::new(vec![contents]);
        result.meta = results::meta(modern);
        result.ttl_ms = Some(results::TTL_MS);
        result.cache_scope = Some(results::SCOPE);
        Ok(result.into())
    }

    async fn event(
        &self,
        uri: &str,
        info: &SessionInfo,
        seq: Seq,
    ) -> Result<Option<ResourceContents>, ErrorData> {
        let event = self.gateway.sessions.event(info, seq).await.map_err(|error| error::rpc(&error))?;
        Ok(event.map(|event| json(uri, &event.to_json())))
    }

    async fn output(
        &self,
        uri: &str,
        info: &SessionInfo,
        seq: Seq,
        offset: u64,
    ) -> Result<Option<ResourceContents>, ErrorData> {
        let sessions = &self.gateway.sessions;
        let event = sessions.event(info, seq).await.map_err(|error| error::rpc(&error))?;
        let Some(Body::ToolResult { output: Some(output), .. }) = event.and_then(|event| event.known())
        else {
            return Ok(None);
        };
        let read =
            sessions.outputs().read(info.id, &output, offset..offset.saturating_add(OUTPUT_BYTES_MAX)).await;
        let bytes = read.map_err(|error| error::rpc(&error))?;
        let end = offset + bytes.len() as u64;
        let more = (end < output.bytes)
            .then(|| format!("\n[bytes {offset} to {end} of {}: go on with ?offset={end}]", output.bytes));
        Ok(Some(match String::from_utf8(bytes) {
            Ok(text) => ResourceContents::text(text + &more.unwrap_or_default(), uri),
            Err(error) if is_text_cut(&error) => {
                let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
                ResourceContents::text(text + &more.unwrap_or_default(), uri)
            }
            Err(error) => ResourceContents::blob(BASE64_STANDARD.encode(error.as_bytes()), uri),
        }))
    }
}

/// Whether the bytes are text that a piece's borders cut through a character.
fn is_text_cut(error: &std::string::FromUtf8Error) -> bool {
    let bytes = error.as_bytes();
    let begin = bytes.iter().take(3).take_while(|byte| (0x80..0xc0).contains(*byte)).count();
    match std::str::from_utf8(&bytes[begin..]) {
        Ok(_) => true,
        Err(inner) => inner.error_len().is_none(),
    }
}

fn listed(info: &SessionInfo) -> [Resource; 2] {
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
        (Some("events"), None, None) => Part::Events(slice(query.unwrap_or_default())?),
        (Some("events"), Some(seq), None) if query.is_none() => Part::Event(place(seq)?),
        (Some("outputs"), Some(seq), None) => {
            let offset = match query {
                None => 0,
                Some(query) => query.strip_prefix("offset=")?.parse().ok()?,
            };
            Part::Output { seq: place(seq)?, offset }
        }
        _ => return None,
    };
    Some(Target { session, part })
}

fn place(text: &str) -> Option<Seq> {
    text.parse().ok().filter(|seq| *seq > 0).map(Seq)
}

fn slice(query: &str) -> Option<Slice> {
    let mut seen = BTreeMap::new();
    let mut types = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=')?;
        match name {
            "type" => types.push(value.to_owned()),
            "after" | "before" | "limit" => {
                let value: u32 = value.parse().ok()?;
                if seen.insert(name, value).is_some() {
                    return None;
                }
            }
            _ => return None,
        }
    }
    let at = |name: &str| seen.get(name).map(|seq| Seq(i64::from(*seq)));
    Some(Slice { after: at("after"), before: at("before"), limit: seen.get("limit").copied(), types })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_uris_mean_something() {
        let demo = || "demo".parse::<SessionRef>().unwrap();
        assert_eq!(parse("session://demo"), Some(Target { session: demo(), part: Part::State }));
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
            "file:///etc/passwd",
            "session://demo/outputs/1?offset=-1",
            "session://demo#events",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
