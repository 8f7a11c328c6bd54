//! The shapes that answers have in common.

use rmcp::ErrorData;
use rmcp::model::{
    CacheScope, CallToolResult, ContentBlock, ErrorCode, MetaObject, PaginatedRequestParams, Resource,
};
use serde_json::{Value, json};

use super::about;
use super::wire::Era;
use crate::session::SessionId;

/// How long a client may keep a list, in milliseconds: it is told of changes, so not at all. Says so in the stateless
/// era, which alone knows of caching.
pub(super) fn ttl_ms(era: Era) -> Option<u64> {
    (era == Era::Modern).then_some(0)
}

/// Who may share a list: nobody, since what is in it depends on the principal.
pub(super) fn scope(era: Era) -> Option<CacheScope> {
    (era == Era::Modern).then_some(CacheScope::Private)
}

/// The `_meta` of every result of the stateless era (2026-07-28, basic: serverInfo). rmcp does not stamp it.
pub(super) fn meta(era: Era) -> Option<MetaObject> {
    let mut meta = MetaObject::default();
    if era == Era::Modern {
        meta.0.insert(
            "io.modelcontextprotocol/serverInfo".to_owned(),
            serde_json::to_value(about()).unwrap_or_default(),
        );
    }
    (!meta.0.is_empty()).then_some(meta)
}

/// A list that comes in one page has no cursors, so every cursor is a bad one.
pub(super) fn no_cursor(request: Option<&PaginatedRequestParams>) -> Result<(), ErrorData> {
    match request.and_then(|request| request.cursor.as_ref()) {
        Some(_) => Err(bad_cursor()),
        None => Ok(()),
    }
}

pub(super) fn bad_cursor() -> ErrorData {
    ErrorData::invalid_params("this cursor is not one of this list: start again without a cursor", None)
}

/// A JSON answer, whole in text and in `structuredContent` both: clients show the model one or the other.
pub(super) fn answer(value: Value, session: Option<SessionId>, era: Era) -> CallToolResult {
    let mut content = vec![ContentBlock::text(value.to_string())];
    content.extend(session.map(|id| ContentBlock::resource_link(link(id))));
    let mut result = CallToolResult::success(content);
    result.structured_content = Some(value);
    result.meta = meta(era);
    result
}

/// A tool failure that the model can act on.
pub(super) fn refusal(sentence: impl Into<String>, era: Era) -> CallToolResult {
    let mut result = CallToolResult::error(vec![ContentBlock::text(sentence.into())]);
    result.meta = meta(era);
    result
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
