//! Session tools, for brains that are poor at resources: whatever can be done to sessions and hands in words.
//!
//! **Invariant:** what only a person may say (a confirmation, an approval) no tool can say.

mod hands;

use std::sync::{Arc, LazyLock};

use rmcp::ErrorData;
use rmcp::model::{CallToolResult, MetaObject, Tool, ToolAnnotations};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::resources::check_slice;
use super::{Face, View, pieces, results};
use crate::error::{self, Faced};
use crate::leases::Keeping;
use crate::registry::Registered;
use crate::session::{
    At, By, EmitError, Listing, NewEvent, Seq, SessionError, SessionId, SessionInfo, SessionName, SessionRef,
    Slice, check_emitted,
};

/// Sessions that one listing shows.
const LISTED_MAX: u32 = 100;

/// The session tools, as `tools/list` has them.
pub(super) static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(list);

/// The session tool called `name`.
pub(super) fn get(name: &str) -> Option<&'static Tool> {
    TOOLS.iter().find(|tool| tool.name == name)
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
struct Hands {
    after: Option<String>,
}

fn list() -> Vec<Tool> {
    let session = json!({"type": "string", "description": "A session's name or id. Default: the one of this endpoint."});
    let mut tools = vec![
        tool(
            "session_create",
            "Creates a session, or finds the one of that name. Answers its id and URI.",
            Reads::No,
            &json!({"name": {"type": "string", "description": "[a-z0-9][a-z0-9._-]{0,63}. Without one the session has only its id."}}),
            &[],
        ),
        tool(
            "session_list",
            "Lists your sessions, newest first, up to 100 at a time.",
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
            &json!({"after": {"type": "string", "description": "`next` of the page before."}}),
            &[],
        ),
    ];
    tools.extend(hands::tools(&session));
    tools
}

/// Whether a tool leaves everything as it was.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    Only,
    No,
    Destroys,
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
    let annotations = ToolAnnotations::new()
        .read_only(reads == Reads::Only)
        .destructive(reads == Reads::Destroys)
        .open_world(false);
    let mut tool = Tool::new(name, description, Arc::new(schema)).with_annotations(annotations);
    let mut meta = MetaObject::default();
    meta.0.insert("anthropic/alwaysLoad".to_owned(), Value::Bool(true));
    tool.meta = Some(meta);
    tool
}

/// An answer, and the session that it is about.
type Answered = (Value, Option<SessionId>);

impl Face {
    /// Calls a session tool, on a task of its own: what it does is done whole, also when nobody waits for it any more.
    pub(super) async fn session_tool_whole(
        &self,
        view: &View,
        name: String,
        arguments: Map<String, Value>,
        by: By,
    ) -> Result<CallToolResult, ErrorData> {
        let (face, view) = (self.clone(), view.clone());
        let doing = async move { face.session_tool(&view, &name, arguments, by).await };
        let failed = |_| Err(ErrorData::internal_error("the tool failed inside the gateway", None));
        self.gateway.tasks.spawn(doing).await.unwrap_or_else(failed)
    }

    async fn session_tool(
        &self,
        view: &View,
        name: &str,
        arguments: Map<String, Value>,
        by: By,
    ) -> Result<CallToolResult, ErrorData> {
        let answered = match name {
            "session_create" => self.create(view, arguments, by).await,
            "session_list" => self.list(view, arguments).await,
            "session_get" => self.get(view, arguments).await,
            "session_events" => self.events(view, arguments).await,
            "session_emit" => self.emit(view, arguments, by).await?,
            "hand_list" => self.hands(view, arguments).await,
            "hand_move" => self.move_hand(view, arguments, by).await,
            "hand_checkpoint" => self.keep(view, arguments, by, Keeping::Checkpoint).await,
            "hand_restore" => self.keep(view, arguments, by, Keeping::Restore).await,
            _ => self.release(view, arguments).await,
        };
        // What a tool was told wrongly is its result: the model reads it and does better.
        Ok(match answered {
            Ok((value, session)) => results::answer(value, session),
            Err(sentence) => results::refusal(format!("{name}: {sentence}")),
        })
    }

    async fn create(&self, view: &View, arguments: Map<String, Value>, by: By) -> Result<Answered, String> {
        let wanted: Create = decode(arguments)?;
        let name = wanted.name.map(|name| name.parse::<SessionName>()).transpose().map_err(said)?;
        let sessions = &self.gateway.sessions;
        let info = match name {
            Some(name) => sessions.open(&view.principal, &SessionRef::Name(name), &by).await,
            None => sessions.create(&view.principal, None, &by).await,
        }
        .map_err(said)?;
        Ok((self.state(&info), Some(info.id)))
    }

    async fn list(&self, view: &View, arguments: Map<String, Value>) -> Result<Answered, String> {
        let wanted: List = decode(arguments)?;
        let after = wanted
            .after
            .map(|id| id.parse())
            .transpose()
            .map_err(|_| "`after` must be `next` of an earlier answer")?;
        let listing = Listing { before: after, limit: Some(LISTED_MAX), status: None };
        let (page, more) = self.gateway.sessions.list(&view.principal, &listing).await.map_err(said)?;
        let mut sessions: Vec<_> = page.iter().map(|info| self.state(info)).collect();
        let fitting = pieces::fitting(&sessions);
        let more = more || fitting < sessions.len();
        sessions.truncate(fitting);
        let next = sessions.last().filter(|_| more).map(|last| last["id"].clone());
        Ok((json!({"sessions": sessions, "next": next}), None))
    }

    async fn get(&self, view: &View, arguments: Map<String, Value>) -> Result<Answered, String> {
        let wanted: Get = decode(arguments)?;
        let info = self.session_of(view, wanted.session).await?;
        Ok((self.state(&info), Some(info.id)))
    }

    async fn events(&self, view: &View, arguments: Map<String, Value>) -> Result<Answered, String> {
        let wanted: Events = decode(arguments)?;
        let info = self.session_of(view, wanted.session).await?;
        let slice = Slice {
            after: wanted.after.map(Seq),
            before: wanted.before.map(Seq),
            limit: wanted.limit,
            types: wanted.r#type,
        };
        check_slice(&slice)?;
        let page = self.gateway.sessions.slice(&info, slice.clone()).await.map_err(said)?;
        Ok((pieces::page(&page, &slice), Some(info.id)))
    }

    /// What only the gateway or a person may say is refused as the request, and not as its result.
    async fn emit(
        &self,
        view: &View,
        arguments: Map<String, Value>,
        by: By,
    ) -> Result<Result<Answered, String>, ErrorData> {
        let wanted: Emit = match decode(arguments) {
            Ok(wanted) => wanted,
            Err(sentence) => return Ok(Err(sentence)),
        };
        let fields = match check_emitted(&wanted.r#type, wanted.content, wanted.data) {
            Ok(fields) => fields,
            Err(error @ (EmitError::Reserved(_) | EmitError::BadType(_))) => {
                return Err(ErrorData::invalid_params(format!("session_emit: {error}"), None));
            }
            Err(error) => return Ok(Err(error.to_string())),
        };
        Ok(self.write(view, wanted.session, fields, by).await)
    }

    async fn write(
        &self,
        view: &View,
        session: Option<String>,
        fields: Map<String, Value>,
        by: By,
    ) -> Result<Answered, String> {
        let session = Self::named(view, session)?;
        let event = NewEvent::emitted(by.clone(), fields);
        // Before the session is made: what can't be written makes none.
        event.check().map_err(said)?;
        let info = self.gateway.sessions.open(&view.principal, &session, &by).await;
        let info = info.map_err(|error| missing(error, &session))?;
        let id = event.id;
        // What is said to the built-in brain through this process, it answers here.
        if matches!(event.kind(), "user.message" | "user.interrupt") {
            self.gateway.take_on(info.id);
        }
        let seq = self.gateway.sessions.append(&info, At::End, &[event]).await.map_err(said)?;
        let written = json!({"id": id.to_string(), "seq": seq.0, "session": info.id.to_string()});
        Ok((written, Some(info.id)))
    }

    async fn hands(&self, view: &View, arguments: Map<String, Value>) -> Result<Answered, String> {
        let wanted: Hands = decode(arguments)?;
        let session = match self.gateway.sessions.find(&view.principal, &view.session).await {
            Ok(info) => Some(info),
            Err(SessionError::NoSession) => None,
            Err(error) => return Err(said(error)),
        };
        let alive = session.as_ref().map(|info| self.gateway.leases.alive(info.id)).unwrap_or_default();
        let listed = self.gateway.registry.list();
        let behind =
            |hand: &Arc<Registered>| wanted.after.as_deref().is_none_or(|after| hand.name.as_str() > after);
        let mut hands: Vec<_> = listed
            .iter()
            .filter(|hand| behind(hand))
            .map(|hand| {
                let mut shown = hand.describe();
                shown["alive"] = alive.contains(&hand.name).into();
                shown
            })
            .collect();
        let fitting = pieces::fitting(&hands);
        let more = fitting < hands.len();
        hands.truncate(fitting);
        let next = hands.last().filter(|_| more).map(|last| last["name"].clone());
        Ok((json!({"hands": hands, "next": next}), session.map(|info| info.id)))
    }

    fn named(view: &View, session: Option<String>) -> Result<SessionRef, String> {
        session.map_or(Ok(view.session.clone()), |text| text.parse().map_err(said))
    }

    /// The session meant, which must exist.
    async fn session_of(&self, view: &View, session: Option<String>) -> Result<SessionInfo, String> {
        let wanted = Self::named(view, session)?;
        let found = self.gateway.sessions.find(&view.principal, &wanted).await;
        found.map_err(|error| missing(error, &wanted))
    }

    /// A session as every face of MCP shows it.
    pub(super) fn state(&self, info: &SessionInfo) -> Value {
        let mut state = info.to_json();
        state["hands"] = json!(self.gateway.leases.alive(info.id));
        state
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err hands over")]
fn said<E: Faced>(error: E) -> String {
    error::say(&error)
}

/// Why a session could not be had.
pub(super) fn missing(error: SessionError, wanted: &SessionRef) -> String {
    match error {
        SessionError::NoSession => format!(
            "there is no session {wanted}: a named one begins with its first call or event, and session_list shows yours"
        ),
        error => said(error),
    }
}

fn decode<T: DeserializeOwned>(arguments: Map<String, Value>) -> Result<T, String> {
    serde_json::from_value(Value::Object(arguments))
        .map_err(|error| format!("{error}; the tool's inputSchema says what it takes"))
}
