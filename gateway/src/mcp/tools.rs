//! `tools/call`: every hand is tools.

use std::sync::Arc;

use hands::mcp::Object;
use rmcp::ErrorData;
use rmcp::model::{CallToolResult, ContentBlock, Resource};
use serde_json::{Map, Value, json};

use super::bridge::{Heard, Subject};
use super::results::{Cached, finish, object, refusal, told};
use super::service::Asked;
use super::session_tools::missing;
use super::wire::Asker;
use super::{Face, HandsInView, View, bridge, session_tools};
use crate::calls::{Answer, Ask, CallError, Replayed};
use crate::error;
use crate::hand::Logged;
use crate::registry::Registered;
use crate::serve::Gateway;
use crate::session::{CallKey, SessionError, SessionId};

/// `_meta` of a call: its key for as long as the log (design 2.2).
const CALL_KEY: &str = "manyhands/callKey";
/// `_meta` of a call from Claude Code: the same on a re-send.
const TOOL_USE_ID: &str = "claudecode/toolUseId";
/// Longest key, in bytes.
const KEY_MAX: usize = 256;

impl Face {
    pub(super) async fn call(&self, mut asked: Asked<'_>) -> Result<Object, ErrorData> {
        let name = asked.text("name").to_owned();
        let arguments = match asked.params.remove("arguments") {
            Some(Value::Object(arguments)) => arguments,
            _ => Map::new(),
        };
        let (view, era) = (&asked.view, asked.era);
        if view.hands == HandsInView::All && session_tools::get(&name).is_some() {
            let result = self.session_tool_whole(view, name, arguments, Self::by(view, asked.asker)).await?;
            return Ok(told(&result, era));
        }
        let Some((hand, tool)) = find(&self.gateway, view, &name) else {
            let hint = format!("unknown tool {name:?}: tools/list shows what there is");
            return Err(ErrorData::invalid_params(hint, None));
        };
        let session = match hand.config.logged() {
            Logged::Yes => self.session_for(&asked).await,
            Logged::No => self.active_session_for(&asked).await,
        };
        let session = match session {
            Ok(session) => session,
            Err(error @ SessionError::NoSession) => {
                return Ok(told(&refusal(missing(error, &view.session)), era));
            }
            Err(error) => return Ok(told(&refusal(error::say(&CallError::from(error))), era)),
        };
        let subject = Subject {
            method: "tools/call",
            session,
            hand: hand.name.clone(),
            name: tool.name.clone(),
            arguments: bridge::digest(&arguments),
        };
        let heard = match self.gateway.mcp.parked.retried(&self.gateway, &asked, &subject).await? {
            Some(retried) => self.go_on(retried, &asked, &subject).await,
            None => match self.ask(&asked, session, &hand, tool, arguments)? {
                Ok(ticket) => self.hear(ticket, &asked, &subject).await,
                Err(error) => Err(error),
            },
        };
        match heard {
            Ok(Heard::Answer(answer)) => self.shape(&answer, &hand, &asked),
            Ok(Heard::Input(result)) => Ok(finish(result, era, Cached::No)),
            Err(CallError::KeyMismatch) => {
                Err(ErrorData::invalid_params(CallError::KeyMismatch.to_string(), None))
            }
            Err(error) => Ok(told(&refusal(error::say(&error)), era)),
        }
    }

    /// Begins the call.
    fn ask(
        &self,
        asked: &Asked<'_>,
        session: SessionId,
        hand: &Arc<Registered>,
        tool: Arc<hands::Tool>,
        arguments: Object,
    ) -> Result<Result<crate::calls::Ticket, CallError>, ErrorData> {
        let key = match hand.config.logged() {
            Logged::Yes => key_of(&asked.view, asked.text("name"), &arguments, asked.asker)?,
            Logged::No => None,
        };
        let ask = Ask {
            by: Self::by(&asked.view, asked.asker),
            principal: asked.view.principal.clone(),
            session,
            hand: hand.clone(),
            tool,
            arguments,
            key,
            caller: Arc::new(self.caller(asked)),
            turn: None,
        };
        Ok(self.gateway.calls.begin(ask))
    }

    /// An answer as the result of `tools/call`.
    fn shape(&self, answer: &Answer, hand: &Registered, asked: &Asked<'_>) -> Result<Object, ErrorData> {
        let mut result = match &answer.reply {
            Some(reply) => {
                let mut result = bridge::replies::result(reply, hand, asked)?;
                self.own_task(&mut result, answer.session, hand, asked)?;
                result
            }
            None => ours(answer)?,
        };
        let mut about = Map::new();
        about.insert("manyhands/session".into(), json!(format!("session://{}", answer.session)));
        if answer.seq.0 > 0 {
            about.insert("manyhands/seq".into(), json!(answer.seq.0));
        }
        about.insert("manyhands/outcome".into(), json!(answer.outcome));
        if answer.replayed == Replayed::Yes {
            about.insert("manyhands/replayed".into(), Value::Bool(true));
        }
        match result.get_mut("_meta") {
            Some(Value::Object(meta)) => meta.extend(about),
            _ => drop(result.insert("_meta".to_owned(), Value::Object(about))),
        }
        Ok(finish(result, asked.era, Cached::No))
    }
}

/// The tool that `view` calls `name`, and its hand.
fn find(gateway: &Gateway, view: &View, name: &str) -> Option<(Arc<Registered>, Arc<hands::Tool>)> {
    match &view.hands {
        HandsInView::All => gateway.registry.resolve(name),
        HandsInView::One(hand) => {
            let hand = gateway.registry.get(hand.as_str()).ok()?;
            let tool = hand.tool(name)?;
            Some((hand, tool))
        }
    }
}

/// The input schema of the tool that `view` calls `name`.
pub(super) fn input_schema(gateway: &Gateway, view: &View, name: &str) -> Option<Arc<Map<String, Value>>> {
    if view.hands == HandsInView::All
        && let Some(tool) = session_tools::get(name)
    {
        return Some(tool.input_schema.clone());
    }
    find(gateway, view, name).map(|(_, tool)| tool.input_schema.clone())
}

/// The key by which a repeat of this call is recognised, with its principal in it. In the guard against re-sends
/// are tool and arguments too: with others it is another call.
fn key_of(
    view: &View,
    tool: &str,
    arguments: &Map<String, Value>,
    asker: &Asker,
) -> Result<Option<CallKey>, ErrorData> {
    let read = |name: &str| match asker.meta.0.0.get(name) {
        None => Ok(None),
        Some(Value::String(key)) if !key.is_empty() && key.len() <= KEY_MAX => {
            Ok(Some(format!("{}/{key}", view.principal)))
        }
        Some(_) => {
            let hint = format!("_meta[{name:?}] must be a string of 1 to {KEY_MAX} bytes");
            Err(ErrorData::invalid_params(hint, None))
        }
    };
    Ok(match read(CALL_KEY)? {
        Some(key) => Some(CallKey::Forever(key)),
        None => read(TOOL_USE_ID)?.map(|key| {
            // A map of ours is sorted by its keys, so equal arguments are equal texts.
            CallKey::Resend(format!("{key}/{tool}/{}", Value::Object(arguments.clone())))
        }),
    })
}

/// The answer of a hand of ours, as a result.
fn ours(answer: &Answer) -> Result<Object, ErrorData> {
    let mut content = answer
        .content
        .iter()
        .map(|block| serde_json::from_value(block.clone()))
        .collect::<Result<Vec<ContentBlock>, _>>()
        .map_err(|_| ErrorData::internal_error("a stored result can't be read", None))?;
    if let (Some(uri), Some(output)) = (answer.output_uri(), &answer.output) {
        content
            .push(ContentBlock::text(format!("[All {} bytes of it: read the resource {uri}]", output.bytes)));
        content.push(ContentBlock::resource_link(
            Resource::new(uri, "output").with_description("The complete output").with_size(output.bytes),
        ));
    }
    let result =
        if answer.is_error() { CallToolResult::error(content) } else { CallToolResult::success(content) };
    Ok(object(&result))
}
