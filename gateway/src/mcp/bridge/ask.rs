//! Questions of servers to clients: which may be put to whom, and how they are put before 2026-07-28.

use hands::mcp::{Object, RpcError, Unasked};
use rmcp::RoleServer;
use rmcp::model::{ClientResult, CustomRequest, ServerRequest};
use rmcp::service::{Peer, ServiceError};
use serde_json::Value;

/// The capability without which one of these questions can't be put; `None`: all can.
/// (2026-07-28, basic/patterns/mrtr: only what the client declared with this request.)
pub(super) fn incapable(questions: &Object, declared: &Object) -> Option<String> {
    questions.values().find_map(|question| {
        let method = question.get("method").and_then(Value::as_str).unwrap_or_default();
        let param = |key: &str| question.get("params").and_then(|params| params.get(key));
        let has = |capability: &str| declared.get(capability).is_some_and(Value::is_object);
        let within = |capability: &str, part: &str| {
            declared.get(capability).and_then(|declared| declared.get(part)).is_some()
        };
        match method {
            "elicitation/create" if param("mode").and_then(Value::as_str) == Some("url") => {
                (!within("elicitation", "url")).then(|| "elicitation.url".to_owned())
            }
            // Declared empty it means forms, as it did before there were others.
            "elicitation/create" => {
                let forms =
                    has("elicitation") && (within("elicitation", "form") || !within("elicitation", "url"));
                (!forms).then(|| "elicitation".to_owned())
            }
            "sampling/createMessage" if param("tools").is_some() || param("toolChoice").is_some() => {
                (!within("sampling", "tools")).then(|| "sampling.tools".to_owned())
            }
            "sampling/createMessage" => (!has("sampling")).then(|| "sampling".to_owned()),
            "roots/list" => (!has("roots")).then(|| "roots".to_owned()),
            other => Some(format!("to be asked {other:?}")),
        }
    })
}

/// Puts the questions one by one, on the stream of the request that this task answers.
pub(super) async fn put(peer: &Peer<RoleServer>, questions: &Object) -> Result<Object, Unasked> {
    let mut answers = Object::new();
    for (key, question) in questions {
        let method = question.get("method").and_then(Value::as_str).unwrap_or_default();
        let request = CustomRequest::new(method, question.get("params").cloned());
        let answer = match peer.send_request(ServerRequest::CustomRequest(request)).await {
            // Answers are read raw, so that nothing of them is lost.
            Ok(ClientResult::CustomResult(answer)) => answer.0,
            Ok(other) => serde_json::to_value(other).unwrap_or_default(),
            Err(ServiceError::McpError(error)) => {
                return Err(Unasked::Refused(RpcError {
                    code: error.code.0.into(),
                    message: error.message.into_owned(),
                    data: error.data,
                }));
            }
            Err(_) => return Err(Unasked::GivenUp),
        };
        answers.insert(key.clone(), answer);
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_was_declared_is_asked() {
        let object = |value: Value| value.as_object().cloned().unwrap();
        let form = json!({"method": "elicitation/create", "params": {"message": "?"}});
        let url = json!({"method": "elicitation/create", "params": {"mode": "url"}});
        let sample = json!({"method": "sampling/createMessage", "params": {}});
        let tools = json!({"method": "sampling/createMessage", "params": {"tools": []}});
        let roots = json!({"method": "roots/list"});
        for (question, declared, missing) in [
            (&form, json!({}), Some("elicitation")),
            (&form, json!({"elicitation": {}}), None),
            (&form, json!({"elicitation": {"form": {}}}), None),
            (&form, json!({"elicitation": {"url": {}}}), Some("elicitation")),
            (&url, json!({"elicitation": {"form": {}}}), Some("elicitation.url")),
            (&url, json!({"elicitation": {"url": {}}}), None),
            (&sample, json!({"elicitation": {}}), Some("sampling")),
            (&sample, json!({"sampling": {}}), None),
            (&tools, json!({"sampling": {}}), Some("sampling.tools")),
            (&tools, json!({"sampling": {"tools": {}}}), None),
            (&roots, json!({}), Some("roots")),
            (&roots, json!({"roots": {}}), None),
        ] {
            let found = incapable(&object(json!({"q": question})), &object(declared.clone()));
            assert_eq!(found.as_deref(), missing, "{question} to {declared}");
        }
        let odd = object(json!({"a": {"method": "shutdown"}}));
        assert!(incapable(&odd, &object(json!({"roots": {}}))).is_some());
        assert_eq!(incapable(&Object::new(), &Object::new()), None);
    }
}
