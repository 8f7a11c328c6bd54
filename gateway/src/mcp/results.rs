//! The shapes that answers have in common.

use std::sync::LazyLock;

use hands::mcp::Object;
use rmcp::ErrorData;
use rmcp::model::{CallToolResult, ContentBlock, ErrorCode, Resource};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::about;
use super::wire::Era;
use crate::session::SessionId;

/// How this server names itself, as JSON.
static ABOUT: LazyLock<Value> = LazyLock::new(|| serde_json::to_value(about()).unwrap_or_default());
/// Who answers (2026-07-28, basic). rmcp does not stamp it.
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// Whether clients may keep an answer for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cached {
    /// Lists and contents of resources.
    Yes,
    /// All else.
    No,
}

/// A result as a client of `era` takes it: what the other era has beside it comes or goes.
pub(super) fn finish(mut result: Object, era: Era, cached: Cached) -> Object {
    match era {
        Era::Modern => {
            result.entry("resultType").or_insert_with(|| "complete".into());
            match result.entry("_meta").or_insert_with(|| Value::Object(Map::new())) {
                Value::Object(meta) => drop(meta.insert(SERVER_INFO.to_owned(), ABOUT.clone())),
                other => *other = json!({ SERVER_INFO: *ABOUT }),
            }
            if cached == Cached::Yes {
                // Told of changes, a client keeps nothing of ours; what is in it depends on the principal.
                let ttl = result.get("ttlMs").and_then(Value::as_u64).unwrap_or_default();
                result.insert("ttlMs".to_owned(), ttl.into());
                result.insert("cacheScope".to_owned(), "private".into());
            }
        }
        Era::Legacy => {
            result.remove("resultType");
            if let Some(Value::Object(meta)) = result.get_mut("_meta")
                && meta.remove(SERVER_INFO).is_some()
                && meta.is_empty()
            {
                result.remove("_meta");
            }
            if cached == Cached::Yes {
                result.remove("ttlMs");
                result.remove("cacheScope");
            }
        }
    }
    result
}

/// A typed result of ours, as JSON.
pub(super) fn object(result: &impl Serialize) -> Object {
    match serde_json::to_value(result) {
        Ok(Value::Object(result)) => result,
        _ => Object::new(),
    }
}

/// The result of a tool of ours.
pub(super) fn told(result: &CallToolResult, era: Era) -> Object {
    finish(object(result), era, Cached::No)
}

pub(super) fn bad_cursor() -> ErrorData {
    ErrorData::invalid_params("this cursor is not one of this list: start again without a cursor", None)
}

/// A JSON answer, whole in text and in `structuredContent` both: clients show the model one or the other.
pub(super) fn answer(value: Value, session: Option<SessionId>) -> CallToolResult {
    let mut content = vec![ContentBlock::text(value.to_string())];
    content.extend(session.map(|id| ContentBlock::resource_link(link(id))));
    let mut result = CallToolResult::success(content);
    result.structured_content = Some(value);
    result
}

/// A tool failure that the model can act on.
pub(super) fn refusal(sentence: impl Into<String>) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(sentence.into())])
}

/// The link to a session.
pub(super) fn link(id: SessionId) -> Resource {
    Resource::new(format!("session://{id}"), id.to_string())
        .with_description("The session; its log is at /events below it")
        .with_mime_type("application/json")
}

/// The answer to a URI that is unknown, or somebody else's: nobody can tell which.
pub(super) fn no_resource(uri: &str) -> ErrorData {
    let hint = format!(
        "there is no resource {uri}: session_list shows your sessions, session://ID/events their logs"
    );
    ErrorData::new(ErrorCode::RESOURCE_NOT_FOUND, hint, Some(json!({"uri": uri})))
}
