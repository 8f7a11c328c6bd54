//! What a legacy server asks in the middle of a call, put to whoever called.

use serde_json::{Value, json};

use crate::mcp::{Ask, Object, RpcError, Unasked};
use crate::upstream::wire::{INTERNAL, METHOD_NOT_FOUND};

/// The one key of a question that has no name of its own.
const KEY: &str = "question";
/// JSON-RPC: the params can't be used.
const INVALID_PARAMS: i64 = -32602;

/// What to answer a server's request with.
///
/// What a client can't do is an error, as for a client that never declared it (2025-11-25, client/sampling,
/// client/roots, client/elicitation): `decline` would say that a person had refused.
pub(super) async fn answer_question(
    ask: &dyn Ask,
    method: &str,
    mut params: Object,
) -> Result<Value, RpcError> {
    // The server's own token and keys mean nothing to whoever is asked.
    if let Some(Value::Object(meta)) = params.get_mut("_meta") {
        meta.remove("progressToken");
    }
    let question = json!({"method": method, "params": params});
    let questions = Object::from_iter([(KEY.to_owned(), question)]);
    let error = |code, message: String| Err(RpcError { code, message, data: None });
    match ask.ask(questions).await {
        Ok(mut answers) => match answers.remove(KEY) {
            Some(answer) => Ok(answer),
            None => error(INTERNAL, "the client did not answer".to_owned()),
        },
        Err(Unasked::Refused(refusal)) => Err(refusal),
        Err(unasked @ Unasked::Incapable(_)) => {
            let url = params_ask_for_url(&unasked);
            error(if url { INVALID_PARAMS } else { METHOD_NOT_FOUND }, unasked.to_string())
        }
        // Nobody has said yes or no.
        Err(Unasked::GivenUp) if method == "elicitation/create" => Ok(json!({"action": "cancel"})),
        Err(Unasked::GivenUp) => error(INTERNAL, "nobody answered".to_owned()),
    }
}

/// Whether only one mode of asking is missing (2025-11-25, client/elicitation: -32602).
fn params_ask_for_url(unasked: &Unasked) -> bool {
    matches!(unasked, Unasked::Incapable(what) if what.contains("url"))
}
