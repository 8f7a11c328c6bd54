//! `resources/read`, `prompts/get` and `completion/complete` of hands. Not in the log.

use std::sync::Arc;

use hands::mcp::{Object, Reply, Request};
use rmcp::ErrorData;
use serde_json::{Value, json};

use super::super::results::{self, Cached, finish, object};
use super::super::service::Asked;
use super::super::{Face, HandsInView, View, resources, resume, uris};
use super::news::Heard;
use super::replies;
use super::{Subject, digest};
use crate::calls::Relay;
use crate::error;
use crate::registry::Registered;

impl Face {
    /// `resources/read`: a session's resource, or a hand's.
    pub(in crate::mcp) async fn read(&self, asked: Asked<'_>) -> Result<Object, ErrorData> {
        let uri = asked.text("uri").to_owned();
        let Some((hand, own)) = self.resource(&asked.view, &uri)? else {
            let result = Box::pin(self.read_session(&asked.view, &uri)).await?;
            return Ok(finish(object(&result), asked.era, Cached::Yes));
        };
        let params = json!({ "uri": own });
        let mut result = self.relayed(&asked, &hand, "resources/read", own, params).await?;
        if asked.params.contains_key("requestState") {
            // What was answered for once is nobody else's.
            result.remove("ttlMs");
        }
        let input = result.get("resultType").is_some_and(|kind| kind == "input_required");
        Ok(finish(result, asked.era, if input { Cached::No } else { Cached::Yes }))
    }

    /// The hand whose resource it is, with its own URI of it. `None`: a session's.
    pub(in crate::mcp) fn resource(
        &self,
        view: &View,
        uri: &str,
    ) -> Result<Option<(Arc<Registered>, String)>, ErrorData> {
        match &view.hands {
            HandsInView::One(name) => {
                let hand = self.gateway.registry.get(name.as_str()).map_err(|error| error::rpc(&error))?;
                Ok(hand.hand.mcp().is_some().then(|| (hand.clone(), uri.to_owned())))
            }
            HandsInView::All => {
                let Some((hand, own)) = uris::own(uri) else { return Ok(None) };
                let hand = self.gateway.registry.get(hand.as_str()).ok();
                match hand.filter(|hand| hand.hand.mcp().is_some()) {
                    Some(hand) => Ok(Some((hand, own))),
                    None => Err(results::no_resource(uri)),
                }
            }
        }
    }

    /// `prompts/get`: prompts are the hands', but for one.
    pub(in crate::mcp) async fn prompt(&self, asked: Asked<'_>) -> Result<Object, ErrorData> {
        let name = asked.text("name");
        if asked.view.hands == HandsInView::All && name == resume::NAME {
            return self.resume(&asked).await;
        }
        let (hand, own) = self.find_prompt(&asked, name)?;
        let mut params = json!({ "name": own });
        if let Some(arguments) = asked.params.get("arguments").filter(|it| it.is_object()) {
            params["arguments"] = arguments.clone();
        }
        let result = self.relayed(&asked, &hand, "prompts/get", own, params).await?;
        Ok(finish(result, asked.era, Cached::No))
    }

    /// The hand whose prompt the view calls `name`, and what the hand calls it.
    fn find_prompt(&self, asked: &Asked<'_>, name: &str) -> Result<(Arc<Registered>, String), ErrorData> {
        let unknown = || {
            let hint = format!("unknown prompt {name:?}: prompts/list shows what there is");
            ErrorData::invalid_params(hint, None)
        };
        match &asked.view.hands {
            HandsInView::All => self.gateway.registry.resolve_prompt(name).ok_or_else(unknown),
            HandsInView::One(hand) => {
                let hand = self.gateway.registry.get(hand.as_str()).map_err(|error| error::rpc(&error))?;
                let named = |prompt: &Arc<Object>| prompt.get("name").is_some_and(|own| own == name);
                if hand.prompts().iter().any(named) { Ok((hand, name.to_owned())) } else { Err(unknown()) }
            }
        }
    }

    /// `completion/complete`: of a hand's prompt or template. Nothing of the gateway's own can be completed.
    pub(in crate::mcp) async fn complete_for(&self, asked: Asked<'_>) -> Result<Object, ErrorData> {
        let reference = asked.params.get("ref").and_then(Value::as_object).cloned().unwrap_or_default();
        let text = |key: &str| reference.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (hand, key, own) = match text("type").as_str() {
            "ref/prompt" => {
                let (hand, own) = self.find_prompt(&asked, &text("name"))?;
                (hand, "name", own)
            }
            "ref/resource" => match self.resource(&asked.view, &text("uri"))? {
                Some((hand, own)) => (hand, "uri", own),
                None if resources::templates().iter().any(|it| it.uri_template == text("uri")) => {
                    let nothing = json!({"completion": {"values": [], "total": 0, "hasMore": false}});
                    return Ok(finish(object(&nothing), asked.era, Cached::No));
                }
                None => return Err(results::no_resource(&text("uri"))),
            },
            _ => return Err(ErrorData::invalid_params("`ref` must be a ref/prompt or a ref/resource", None)),
        };
        let mut params = asked.params.clone();
        params["ref"][key] = own.clone().into();
        let params = Value::Object(params);
        let result = self.relayed(&asked, &hand, "completion/complete", own, params).await?;
        Ok(finish(result, asked.era, Cached::No))
    }

    /// Passes a request on and waits for its result, or for what asks the client for input.
    pub(super) async fn relayed(
        &self,
        asked: &Asked<'_>,
        hand: &Arc<Registered>,
        method: &'static str,
        name: String,
        params: Value,
    ) -> Result<Object, ErrorData> {
        let session = self.active_session_for(asked).await.map_err(|error| error::rpc(&error))?;
        let arguments = digest(&params);
        let subject = Subject { method, session, hand: hand.name.clone(), name, arguments };
        let heard = match self.gateway.mcp.parked.retried(&self.gateway, asked, &subject).await? {
            Some(retried) => self.go_on(retried, asked, &subject).await,
            None => {
                let Value::Object(params) = params else { return Err(results::no_resource("")) };
                let relay = Relay {
                    principal: asked.view.principal.clone(),
                    session,
                    hand: hand.clone(),
                    caller: Arc::new(self.caller(asked)),
                    request: Request { method: method.to_owned(), params },
                };
                match self.gateway.calls.relay(relay) {
                    Ok(ticket) => self.hear(ticket, asked, &subject).await,
                    Err(error) => Err(error),
                }
            }
        };
        match heard.map_err(|error| error::rpc(&error))? {
            Heard::Input(result) => Ok(result),
            Heard::Answer(answer) => match &answer.reply {
                Some(reply @ (Reply::Result(_) | Reply::Error(_))) => replies::result(reply, hand, asked),
                None => Err(ErrorData::internal_error("the hand gave no answer", None)),
            },
        }
    }
}
