//! The params that every method must have. rmcp takes a known method with params of another shape for an unknown
//! method; the client deserves to hear what is wrong with them.

use serde_json::Value;

use super::envelope::Envelope;
use super::refusal::Refusal;

/// What a param has to be.
#[derive(Clone, Copy)]
enum Is {
    Text,
    Object,
    ObjectIfAny,
    TextIfAny,
}
use Is::{Object, ObjectIfAny, Text, TextIfAny};

/// Refuses a request for a known method whose params do not have its shape.
pub(super) fn check(envelope: &Envelope) -> Result<(), Refusal> {
    if envelope.id().is_none() {
        return Ok(());
    }
    for (key, is) in expected(&envelope.method).iter().chain(&[("_meta", ObjectIfAny)]) {
        let found = envelope.params.get(*key);
        let (right, what) = match is {
            Text => (found.is_some_and(Value::is_string), "a string"),
            Object => (found.is_some_and(Value::is_object), "an object"),
            ObjectIfAny => {
                (found.is_none_or(|value| value.is_object() || value.is_null()), "an object, if given")
            }
            TextIfAny => {
                (found.is_none_or(|value| value.is_string() || value.is_null()), "a string, if given")
            }
        };
        if !right {
            return Err(Refusal::InvalidParams(format!("{} needs {key:?} to be {what}", envelope.method)));
        }
    }
    Ok(())
}

fn expected(method: &str) -> &'static [(&'static str, Is)] {
    match method {
        "initialize" => &[("protocolVersion", Text), ("capabilities", Object), ("clientInfo", Object)],
        "tools/call" | "prompts/get" => &[("name", Text), ("arguments", ObjectIfAny)],
        "resources/read" | "resources/subscribe" | "resources/unsubscribe" => &[("uri", Text)],
        "completion/complete" => &[("ref", Object), ("argument", Object)],
        "logging/setLevel" => &[("level", Text)],
        "subscriptions/listen" => &[("notifications", Object)],
        "tasks/get" | "tasks/update" | "tasks/cancel" => &[("taskId", Text)],
        "tools/list" | "prompts/list" | "resources/list" | "resources/templates/list" => {
            &[("cursor", TextIfAny)]
        }
        _ => &[],
    }
}
