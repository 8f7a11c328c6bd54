//! Requests and answers that are handed on as JSON, untouched by typed models.
//!
//! rmcp's types forget what they do not know. A request for one of a handler's raw methods reaches it as a
//! `CustomRequest`, and its `CustomResult` is the whole answer; a client's answer to a request of ours comes back as a
//! `CustomResult` in the same way.

use std::mem;

use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, ClientResult, CustomRequest, CustomResult, GetExtensions,
    MetaObject, RequestId, RequestMetaObject,
};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::envelope::{Envelope, Kind};

/// The methods that a handler answers in `on_custom_request`.
pub type RawMethods = &'static [&'static str];

#[derive(Deserialize)]
struct Asked {
    id: RequestId,
    #[serde(default)]
    params: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
struct Answered {
    id: RequestId,
    result: Value,
}

/// The message that `envelope` was read of.
pub(super) fn read(
    raw: RawMethods,
    envelope: &Envelope,
    body: &[u8],
) -> Result<ClientJsonRpcMessage, serde_json::Error> {
    match &envelope.kind {
        Kind::Request(_) if raw.contains(&envelope.method.as_str()) => {
            let Asked { id, params } = serde_json::from_slice(body)?;
            let mut params = params.unwrap_or_default();
            let mut request = CustomRequest::new(envelope.method.clone(), None);
            if let Some(Value::Object(meta)) = params.remove("_meta") {
                request.extensions.insert(RequestMetaObject(MetaObject(meta)));
            }
            request.params = Some(Value::Object(params));
            Ok(ClientJsonRpcMessage::request(ClientRequest::CustomRequest(request), id))
        }
        Kind::Response => match serde_json::from_slice(body) {
            Ok(Answered { id, result }) => {
                Ok(ClientJsonRpcMessage::response(ClientResult::CustomResult(CustomResult(result)), id))
            }
            // It answers with an error.
            Err(_) => serde_json::from_slice(body),
        },
        Kind::Request(_) | Kind::Notification => serde_json::from_slice(body),
    }
}

/// A request that rmcp has read already, as [`read`] gives it.
pub(super) fn unread(raw: RawMethods, mut request: ClientRequest) -> ClientRequest {
    if matches!(request, ClientRequest::CustomRequest(_)) || !raw.contains(&request.method()) {
        return request;
    }
    let extensions = mem::take(request.extensions_mut());
    let method = request.method().to_owned();
    let params = match serde_json::to_value(&request) {
        Ok(Value::Object(mut whole)) => whole.remove("params"),
        _ => None,
    };
    let params = params.unwrap_or_else(|| Value::Object(Map::new()));
    ClientRequest::CustomRequest(CustomRequest { method, params: Some(params), extensions })
}

#[cfg(test)]
mod tests {
    use rmcp::model::GetMeta as _;
    use serde_json::json;

    use super::*;

    fn request(body: &Value) -> ClientRequest {
        let body = body.to_string();
        let envelope = Envelope::read(body.as_bytes()).unwrap();
        match read(&["tools/call"], &envelope, body.as_bytes()).unwrap() {
            ClientJsonRpcMessage::Request(request) => request.request,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_raw_request_keeps_what_nobody_knows_however_it_is_read() {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": "x", "arguments": {"a": [1, 2.5]}, "_meta": {"progressToken": 7, "other": {}},
        }});
        let typed: ClientRequest = serde_json::from_value(body.clone()).unwrap();
        assert!(matches!(typed, ClientRequest::CallToolRequest(_)));
        for mut request in [request(&body), unread(&["tools/call"], typed)] {
            assert_eq!(request.get_meta_mut().0.0["other"], json!({}));
            let ClientRequest::CustomRequest(raw) = request else { panic!("{request:?}") };
            assert_eq!(raw.params, Some(json!({"name": "x", "arguments": {"a": [1, 2.5]}})));
        }
        let other = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
        assert!(matches!(request(&other), ClientRequest::ListToolsRequest(_)));
    }
}
