//! What servers answer, as a client of either era takes it.

use hands::mcp::{Object, Reply, RpcError};
use rmcp::ErrorData;
use rmcp::model::ErrorCode;
use serde_json::{Value, json};

use super::super::service::Asked;
use super::super::wire::Era;
use super::super::{HandsInView, uris};
use crate::registry::Registered;

/// Resource not found, before 2026-07-28.
const NOT_FOUND: i64 = -32002;
/// A capability of the client's is missing: the one reserved code that is about the client, whoever says it.
const MISSING_CAPABILITY: i64 = -32021;
/// What JSON-RPC leaves to implementations: MCP forbids or reserves all of it since 2026-07-28.
const RESERVED: std::ops::RangeInclusive<i64> = -32099..=-32000;

/// The result in a reply, its resources named as the view names them; an error as the client's era has it.
pub(in crate::mcp) fn result(
    reply: &Reply,
    hand: &Registered,
    asked: &Asked<'_>,
) -> Result<Object, ErrorData> {
    match reply {
        Reply::Result(result) => {
            let mut result = (**result).clone();
            if asked.view.hands == HandsInView::All {
                uris::rewrite_result(&hand.name, &mut result);
            }
            if asked.era == Era::Legacy && result.get("structuredContent").is_some_and(|it| !it.is_object()) {
                result.remove("structuredContent");
            }
            Ok(result)
        }
        Reply::Error(error) => Err(rpc(error, hand, asked)),
    }
}

fn rpc(error: &RpcError, hand: &Registered, asked: &Asked<'_>) -> ErrorData {
    let code = match (asked.era, error.code) {
        (Era::Modern, NOT_FOUND) => ErrorCode::INVALID_PARAMS.0.into(),
        // 2025-11-25, server/resources: the code of the era, where the other one says the URI.
        (Era::Legacy, -32602) if asked.params.contains_key("uri") && names_uri(error) => NOT_FOUND,
        (Era::Modern, code) if RESERVED.contains(&code) && code != MISSING_CAPABILITY => {
            ErrorCode::INTERNAL_ERROR.0.into()
        }
        (_, code) => code,
    };
    let mut data = error.data.clone();
    if let (HandsInView::All, Some(Value::String(uri))) =
        (&asked.view.hands, data.as_mut().and_then(|data| data.get_mut("uri")))
    {
        *uri = uris::shown(&hand.name, uri);
    }
    if asked.era == Era::Modern && error.code == NOT_FOUND && data.is_none() {
        data = asked.params.get("uri").map(|uri| json!({ "uri": uri }));
    }
    let code = i32::try_from(code).map_or(ErrorCode::INTERNAL_ERROR, ErrorCode);
    ErrorData::new(code, error.message.clone(), data)
}

fn names_uri(error: &RpcError) -> bool {
    error.data.as_ref().is_some_and(|data| data.get("uri").is_some())
}
