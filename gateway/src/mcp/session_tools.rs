//! Session tools, for brains that are poor at resources: whatever can be done to sessions and hands in words.
//!
//! **Invariant:** what only a person may say (a confirmation, an approval) no tool can say.

use std::sync::Arc;

use rmcp::model::{CallToolResult, MetaObject, Tool, ToolAnnotations};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{Face, View, is_modern, results};
use crate::error::{self, Faced};
use crate::session::{
    At, Listing, NewEvent, Page, Seq, SessionError, SessionId, SessionInfo, SessionName, SessionRef, Slice,
    check_emitted,
};

/// Most characters that one answer has. (Design 2.2.)
pub(super) const ANSWER_CHARS_MAX: usize = 48_000;
/// Room that a page needs besides its events.
const FRAME_CHARS: usize = 512;
/// Sessions that one listing shows.
const LISTED_MAX: u32 = 100;

const TOOLS: [&str; 7] = [
    "session_create",
    "session_list",
    "session_get",
    "session_events",
    "session_emit",
    "hand_list",
    "hand_release",
];

/// Whether `name` is a session tool.
pub(super) fn knows(name: &str) -> bool {
    TOOLS.contains(&name)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    after: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Get {
    session: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Events {
    session: Option<String>,
    after: Option<i64>,
    before: Option<i64>,
    limit: Option<u32>,
    #[serde(default)]
    r#type: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Emit {
    session: Option<String>,
    r#type: String,
    #[serde(default)]
    content: Option<Value>,
    #[serde(default)]
    data: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Release {
    hand: String,
    session: Option<String>,
}

/// The session tools, as `tools/list` has them.
pub(super) fn list() -> Vec<Tool> {
    let session = json!({"type": "string", "description": "A session's name or id. Default: the one of this endpoint."});
    let none = json!({});
    vec![
        tool(
            "session_create",
            "Creates a session, or finds the one of that name. Answers its id and URI.",
            Reads::No,
            &json!({"name": {"type": "string", "description": "[a-z0-9][a-z0-9._-]{0,63}. Without one the session has only its id."}}),
            &[],
        ),
        tool(
            "session_list",
            "Lists your sessions, newest first, 100 at a time.",
            Reads::Only,
            &json!({"after": {"type": "string", "description": "`next` of the page before."}}),
            &[],
        ),
        tool(
            "session_get",
            "The state of a session: name, status, last event, live hands.",
            Reads::Only,
            &json!({"session": session}),
            &[],
        ),
        tool(
            "session_events",
            "Rereads what happened in a session: a slice of its log, ascending. `after` alone: the first `limit` events behind it; `before` alone: the last `limit` ahead of it; neither: the last `limit`. `has_more` and `next` say how to go on.",
            Reads::Only,
            &json!({
                "session": session,
                "after": {"type": "integer", "minimum": 0, "description": "Only events behind this seq."},
                "before": {"type": "integer", "minimum": 0, "description": "Only events ahead of this seq."},
                "limit": {"type": "integer", "minimum": 1, "maximum": 1000, "description": "At most so many. Default 100."},
                "type": {"type": "array", "items": {"type": "string"}, "description": "Only these types, such as agent.tool_result."},
            }),
            &[],
        ),
        tool(
            "session_emit",
            "Writes an event into a session's log: user.message, user.interrupt or agent.message (with content), or a type of your own with a dot in it, such as note.plan (with data).",
            Reads::No,
            &json!({
                "session": session,
                "type": {"type": "string"},
                "content": {"description": "For messages: a text, or content blocks."},
                "data": {"type": "object", "description": "For types of your own: their fields."},
            }),
            &["type"],
        ),
        tool(
            "hand_list",
            "The hands you can use, their tools, and which are alive in this session.",
            Reads::Only,
            &none,
            &[],
        ),
        tool(
            "hand_release",
            "Ends the live instance of a hand in a session: its processes end, /workspace stays. The next call gets a fresh one.",
            Reads::No,
            &json!({"hand": {"type": "string", "description": "The hand's name, such as sandbox."}, "session": session}),
            &["hand"],
        ),
    ]
}

/// Whether a tool leaves everything as it was.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    Only,
    No,
}

fn tool(
    name: &'static str,
    description: &'static str,
    reads: Reads,
    properties: &Value,
    required: &[&str],
) -> Tool {
    let schema = json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false,
    });
    let Value::Object(schema) = schema else { unreachable!("an object is written above") };
    let annotations =
        ToolAnnotations::new().read_only(reads == Reads::Only).destructive(false).open_world(false);
    let mut tool = Tool::new(name, description, Arc::new(schema)).with_annotations(annotations);
    let mut meta = MetaObject::default();
    meta.0.insert("anthropic/alwaysLoad".to_owned(), Value::Bool(true));
    tool.meta = Some(meta);
    tool
}

/// An answer, and the session that it is about.
type Answered = (Value, Option<SessionId>);

impl Face {
    pub(super) async fn session_tool(
        &self,
        view: &View,
        name: &str,
        arguments: Map<String, Value>,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ErrorData> {
        let modern = is_modern(context);
        let answered = match name {
            "session_create" => self.create(view, decode(name, arguments)?, context).await,
            "session_list" => self.list(view, decode(name, arguments)?).await,
            "session_get" => self.get(view, decode(name, arguments)?).await,
            "session_events" => self.events(view, decode(name, arguments)?).await,
            "session_emit" => return self.emit(view, decode(name, arguments)?, context).await,
            "hand_list" => {
                let Nothing {} = decode(name, arguments)?;
                self.hands(view).await
            }
            _ => self.release(view, decode(name, arguments)?).await,
        };
        Ok(match answered {
            Ok((value, session)) => results::answer(value, session, modern),
            Err(sentence) => results::refusal(sentence, modern),
        })
    }

    async fn create(
        &self,
        view: &View,
        wanted: Create,
        context: &RequestContext<RoleServer>,
    ) -> Result<Answered, String> {
        let name = wanted.name.map(|name| name.parse::<SessionName>()).transpose().map_err(said)?;
        let by = Self::by(view, context);
        let sessions = &self.gateway.sessions;
        let info = match name {
            Some(name) => sessions.open(&view.principal, &SessionRef::Name(name), &by).await,
            None => sessions.create(&view.principal, None, &by).await,
        }
        .map_err(said)?;
        Ok((self.state(&info), Some(info.id)))
    }

    async fn list(&self, view: &View, wanted: List) -> Result<Answered, String> {
        let after = wanted
            .after
            .map(|id| id.parse())
            .transpose()
            .map_err(|_| "`after` must be `next` of an earlier answer")?;
        let listing = Listing { before: after, limit: Some(LISTED_MAX), status: None };
        let (page, more) = self.gateway.sessions.list(&view.principal, &listing).await.map_err(said)?;
        let next = page.last().filter(|_| more).map(|info| info.id.to_string());
        let sessions: Vec<_> = page.iter().map(|info| self.state(info)).collect();
        Ok((json!({"sessions": sessions, "next": next}), None))
    }

    async fn get(&self, view: &View, wanted: Get) -> Result<Answered, String> {
        let info = self.session_of(view, wanted.session).await?;
        Ok((self.state(&info), Some(info.id)))
    }

    async fn events(&self, view: &View, wanted: Events) -> Result<Answered, String> {
        let info = self.session_of(view, wanted.session).await?;
        let slice = Slice {
            after: wanted.after.map(Seq),
            before: wanted.before.map(Seq),
            limit: wanted.limit,
            types: wanted.r#type,
        };
        let page = self.gateway.sessions.slice(&info, slice.clone()).await.map_err(said)?;
        Ok((within(&page, &slice), Some(info.id)))
    }

    async fn emit(
        &self,
        view: &View,
        wanted: Emit,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ErrorData> {
        let modern = is_modern(context);
        let fields = check_emitted(&wanted.r#type, wanted.content, wanted.data)
            .map_err(|error| ErrorData::invalid_params(error.to_string(), None))?;
        let by = Self::by(view, context);
        let written = async {
            let session = self.named(view, wanted.session)?;
            let info = self.gateway.sessions.open(&view.principal, &session, &by).await.map_err(said)?;
            let event = NewEvent::emitted(by, fields);
            let id = event.id;
            let seq = self.gateway.sessions.append(&info, At::End, &[event]).await.map_err(said)?;
            Ok::<_, String>((
                json!({"id": id.to_string(), "seq": seq.0, "session": info.id.to_string()}),
                info.id,
            ))
        };
        Ok(match written.await {
            Ok((value, id)) => results::answer(value, Some(id), modern),
            Err(sentence) => results::refusal(sentence, modern),
        })
    }

    async fn hands(&self, view: &View) -> Result<Answered, String> {
        let session = match self.gateway.sessions.find(&view.principal, &view.session).await {
            Ok(info) => Some(info),
            Err(SessionError::NoSession) => None,
            Err(error) => return Err(said(error)),
        };
        let alive = session.as_ref().map(|info| self.gateway.leases.alive(info.id)).unwrap_or_default();
        let hands: Vec<_> = self
            .gateway
            .registry
            .list()
            .iter()
            .map(|hand| {
                let mut shown = hand.describe();
                shown["alive"] = alive.contains(&hand.name).into();
                shown
            })
            .collect();
        Ok((json!({ "hands": hands }), session.map(|info| info.id)))
    }

    async fn release(&self, view: &View, wanted: Release) -> Result<Answered, String> {
        let info = self.session_of(view, wanted.session).await?;
        let hand = self.gateway.registry.get(&wanted.hand).map_err(said)?;
        let released = self.gateway.leases.release(info.id, &hand.name).await.map_err(said)?;
        Ok((json!({"hand": hand.name, "released": released}), Some(info.id)))
    }

    fn named(&self, view: &View, session: Option<String>) -> Result<SessionRef, String> {
        session.map_or(Ok(view.session.clone()), |text| text.parse().map_err(said))
    }

    /// The session meant, which must exist.
    async fn session_of(&self, view: &View, session: Option<String>) -> Result<SessionInfo, String> {
        let wanted = self.named(view, session)?;
        match self.gateway.sessions.find(&view.principal, &wanted).await {
            Err(SessionError::NoSession) => Err(format!(
                "there is no session {wanted}: it begins with its first call or event, and session_list shows yours"
            )),
            found => found.map_err(said),
        }
    }

    /// A session as every face of MCP shows it.
    pub(super) fn state(&self, info: &SessionInfo) -> Value {
        let mut state = info.to_json();
        state["hands"] = json!(self.gateway.leases.alive(info.id));
        state
    }
}

fn said<E: Faced>(error: E) -> String {
    error::say(&error)
}

fn decode<T: DeserializeOwned>(tool: &str, arguments: Map<String, Value>) -> Result<T, ErrorData> {
    serde_json::from_value(Value::Object(arguments)).map_err(|error| {
        ErrorData::invalid_params(format!("{tool}: {error}; its inputSchema says what it takes"), None)
    })
}

/// The page as JSON in at most [`ANSWER_CHARS_MAX`] characters: events that do not fit are left for the next.
pub(super) fn within(page: &Page, slice: &Slice) -> Value {
    let backward = slice.after.is_none();
    let mut room = ANSWER_CHARS_MAX - FRAME_CHARS;
    let mut fits = Vec::new();
    let shown: Vec<Value> = page.events.iter().map(crate::session::Event::to_json).collect();
    let mut candidates: Box<dyn Iterator<Item = &Value>> =
        if backward { Box::new(shown.iter().rev()) } else { Box::new(shown.iter()) };
    for event in candidates.by_ref() {
        let size = event.to_string().chars().count() + 1;
        if size > room {
            if fits.is_empty() {
                fits.push(shortened(event));
            }
            break;
        }
        room -= size;
        fits.push(event.clone());
    }
    if backward {
        fits.reverse();
    }
    let cut = fits.len() < page.events.len();
    let seq = |event: Option<&Value>| event.map_or(Value::Null, |event| event["seq"].clone());
    let (first, last) = (seq(fits.first()), seq(fits.last()));
    let has_more = cut || page.has_more;
    let next = match (has_more, backward) {
        (false, _) => Value::Null,
        (true, true) => first.clone(),
        (true, false) => last.clone(),
    };
    json!({"events": fits, "first": first, "last": last, "has_more": has_more, "next": next})
}

/// An event too large for an answer, without what makes it large.
fn shortened(event: &Value) -> Value {
    let hint = format!(
        "this event is too large to show here: read session://{}/events/{}",
        event["session"].as_str().unwrap_or_default(),
        event["seq"]
    );
    json!({"id": event["id"], "seq": event["seq"], "session": event["session"], "at": event["at"], "by": event["by"], "type": event["type"], "too_large": hint})
}
