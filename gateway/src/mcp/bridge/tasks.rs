//! Tasks of hands' servers (the extension `io.modelcontextprotocol/tasks`, SEP-2663).
//!
//! A task's id is sealed: it says which server has the task, and opens only for the principal that it was given to.

use std::sync::Arc;

use hands::mcp::{Object, Request};
use jiff::SignedDuration;
use rmcp::ErrorData;
use rmcp::model::ErrorCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::results::{Cached, finish};
use super::super::service::Asked;
use super::super::wire::Era;
use super::super::{Face, HandsInView, uris};
use super::news::Heard;
use super::{Subject, capabilities, digest, replies};
use crate::calls::Relay;
use crate::clock;
use crate::error;
use crate::registry::Registered;
use crate::seal::Purpose;
use crate::session::SessionId;

/// The extension.
const TASKS: &str = "io.modelcontextprotocol/tasks";
/// How long an id can be used. Servers forget tasks earlier, and say so.
const ID_HOLDS: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Where a task is.
#[derive(Serialize, Deserialize)]
struct Task {
    hand: String,
    session: String,
    id: String,
}

impl Face {
    /// A call that became a task gets an id of ours.
    pub(in crate::mcp) fn own_task(
        &self,
        result: &mut Object,
        session: SessionId,
        hand: &Registered,
        asked: &Asked<'_>,
    ) -> Result<(), ErrorData> {
        if result.get("resultType").is_none_or(|kind| kind != "task") {
            return Ok(());
        }
        if !declares_tasks(&capabilities(asked)) {
            return Err(missing_capability());
        }
        if let Some(Value::String(id)) = result.get_mut("taskId") {
            let (hand, session) = (hand.name.to_string(), session.to_string());
            let body = serde_json::to_vec(&Task { hand, session, id: id.clone() }).unwrap_or_default();
            let until = clock::now() + ID_HOLDS;
            *id = self.gateway.sealer.seal(Purpose::Task, &asked.view.principal, until, &body);
        }
        Ok(())
    }

    /// `tasks/get`, `tasks/update` and `tasks/cancel`.
    pub(in crate::mcp) async fn task(
        &self,
        asked: Asked<'_>,
        method: &'static str,
    ) -> Result<Object, ErrorData> {
        let offered = self
            .in_view(&asked.view)?
            .iter()
            .any(|hand| hand.catalogue().is_some_and(|catalogue| declares_tasks(&catalogue.capabilities)));
        if asked.era == Era::Legacy || !offered {
            return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, method, None));
        }
        if !declares_tasks(&capabilities(&asked)) {
            return Err(missing_capability());
        }
        let (hand, session, own) = self.find_task(&asked).ok_or_else(|| {
            let hint = "there is no such task: it is unknown, or its server has forgotten it";
            ErrorData::invalid_params(hint, None)
        })?;
        let mut params = asked.params.clone();
        params.insert("taskId".to_owned(), own.clone().into());
        let arguments = digest(&params);
        let subject = Subject { method, session, hand: hand.name.clone(), name: own, arguments };
        let relay = Relay {
            principal: asked.view.principal.clone(),
            session,
            hand: hand.clone(),
            caller: Arc::new(self.caller(&asked)),
            request: Request { method: method.to_owned(), params },
        };
        let ticket = self.gateway.calls.relay(relay).map_err(|error| error::rpc(&error))?;
        match self.hear(ticket, &asked, &subject).await.map_err(|error| error::rpc(&error))? {
            Heard::Input(result) => Ok(finish(result, asked.era, Cached::No)),
            Heard::Answer(answer) => {
                let nothing = || ErrorData::internal_error("the hand gave no answer", None);
                let mut result = replies::result(answer.reply.as_ref().ok_or_else(nothing)?, &hand, &asked)?;
                if result.contains_key("taskId") {
                    result.insert("taskId".to_owned(), asked.text("taskId").into());
                }
                if let (HandsInView::All, Some(Value::Object(inner))) =
                    (&asked.view.hands, result.get_mut("result"))
                {
                    uris::rewrite_result(&hand.name, inner);
                }
                Ok(finish(result, asked.era, Cached::No))
            }
        }
    }

    fn find_task(&self, asked: &Asked<'_>) -> Option<(Arc<Registered>, SessionId, String)> {
        let sealer = &self.gateway.sealer;
        let body = sealer.open(Purpose::Task, &asked.view.principal, asked.text("taskId")).ok()?;
        let task: Task = serde_json::from_slice(&body).ok()?;
        let in_view = match &asked.view.hands {
            HandsInView::All => true,
            HandsInView::One(name) => name.as_str() == task.hand,
        };
        let hand = self.gateway.registry.get(&task.hand).ok().filter(|_| in_view)?;
        Some((hand, task.session.parse().ok()?, task.id))
    }
}

fn declares_tasks(capabilities: &Object) -> bool {
    capabilities.get("extensions").is_some_and(|extensions| extensions.get(TASKS).is_some())
}

/// 2026-07-28, basic: the client did not declare what the answer needs.
fn missing_capability() -> ErrorData {
    let needed = json!({"requiredCapabilities": {"extensions": {TASKS: {}}}});
    let hint = format!("the client must declare the extension {TASKS}");
    ErrorData::new(ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY, hint, Some(needed))
}
