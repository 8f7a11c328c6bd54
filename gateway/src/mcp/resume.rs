//! The prompt `resume`: what a client needs to go on with a session that another brain began.

use hands::mcp::Object;
use rmcp::ErrorData;
use serde_json::{Value, json};

use super::Face;
use super::results::{Cached, finish};
use super::service::Asked;
use super::session_tools::missing;
use crate::error;
use crate::harness::context;
use crate::session::{SessionError, SessionRef};

/// What it is called.
pub(super) const NAME: &str = "resume";
/// What a client is asked to do with it.
const ASK: &str =
    "Go on with this work from where it stands. Look before you repeat what may have been done.";

/// As `prompts/list` has it.
pub(super) fn definition() -> Value {
    json!({
        "name": NAME,
        "title": "Go on with a session",
        "description": "What was said and done in a session, by whatever brain, and what is still open.",
        "arguments": [{
            "name": "session",
            "description": "Its name or id. Default: the session that this endpoint is bound to",
            "required": false,
        }],
    })
}

impl Face {
    /// `prompts/get` of it.
    pub(super) async fn resume(&self, asked: &Asked<'_>) -> Result<Object, ErrorData> {
        let named = asked.params.get("arguments").and_then(|arguments| arguments.get("session"));
        let wanted: SessionRef = match named.and_then(Value::as_str).filter(|name| !name.is_empty()) {
            Some(name) => name.parse().map_err(|error| error::rpc::<crate::session::BadName>(&error))?,
            None => asked.view.session.clone(),
        };
        let sessions = &self.gateway.sessions;
        let info = match sessions.find(&asked.view.principal, &wanted).await {
            Err(error @ SessionError::NoSession) => {
                return Err(ErrorData::invalid_params(missing(error, &wanted), None));
            }
            found => found.map_err(|error| error::rpc(&error))?,
        };
        let state = sessions.state(info.id).await.map_err(|error| error::rpc(&error))?;
        let text = format!("{}\n{ASK}", context::handover(&state, &info.id.to_string()));
        let mut result = Object::new();
        result.insert("description".to_owned(), format!("The session {wanted}").into());
        let message = json!({"role": "user", "content": {"type": "text", "text": text}});
        result.insert("messages".to_owned(), json!([message]));
        Ok(finish(result, asked.era, Cached::No))
    }
}
