//! The one tool of the loop's own: a model rereads what it no longer has in view.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::WakeError;
use super::model::ToolDefinition;
use super::waker::Waker;
use crate::session::{AskedCall, CallOutcome, Event, Seq, Slice};

/// What it is called, as among the session tools of MCP clients.
pub(super) const NAME: &str = "session_events";
/// Most characters that one look shows.
const SHOWN_CHARS_MAX: usize = 40_000;
/// Most characters of one event that a look at several shows.
const EVENT_CHARS_MAX: usize = 8_000;
/// Events that one look reads when nobody says.
const LIMIT: u32 = 50;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    after: Option<i64>,
    before: Option<i64>,
    limit: Option<u32>,
    #[serde(default)]
    types: Vec<String>,
}

pub(super) fn definition() -> ToolDefinition {
    let place = |what: &str| json!({"type": "integer", "minimum": 0, "description": what});
    let schema = json!({
        "type": "object",
        "properties": {
            "after": place("only events behind this one; the first ones come"),
            "before": place("only events ahead of this one; without `after`, the last ones come"),
            "limit": {"type": "integer", "minimum": 1, "maximum": 1000},
            "types": {"type": "array", "items": {"type": "string"}, "description": "such as agent.tool_result"},
        },
        "additionalProperties": false,
    });
    ToolDefinition {
        name: NAME.to_owned(),
        description: "Reads this session's log by position: what was said and done, also what you no longer see. Changes \
                      nothing."
            .to_owned(),
        input_schema: schema.as_object().cloned().unwrap_or_default(),
    }
}

impl Waker<'_> {
    /// Reads, and writes what was read as the call's outcome. It touches no hand: it needs no start.
    pub(super) async fn recall(&self, call: &AskedCall) -> Result<(), WakeError> {
        let which: Which = match serde_json::from_value(Value::Object(call.input.clone())) {
            Ok(which) => which,
            Err(error) => {
                let text = format!("The arguments can't be read: {error}.");
                return self.outcome(call.id, CallOutcome::Error, &text).await;
            }
        };
        let slice = Slice {
            after: which.after.map(Seq),
            before: which.before.map(Seq),
            limit: Some(which.limit.unwrap_or(LIMIT)),
            types: which.types,
        };
        match self.harness.log.read(self.session.id, slice).await {
            Ok(events) => self.outcome(call.id, CallOutcome::Ok, &shown(&events)).await,
            Err(crate::session::LogError::Malformed(why)) => {
                self.outcome(call.id, CallOutcome::Error, &format!("The log can't be asked so: {why}.")).await
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Events, one on each line, as many as there is room for.
fn shown(events: &[Event]) -> String {
    let mut text = String::new();
    let alone = events.len() == 1;
    for event in events {
        let line = line(event);
        let most = if alone { SHOWN_CHARS_MAX } else { EVENT_CHARS_MAX };
        let total = line.chars().count();
        let cut: String = line.chars().take(most).collect();
        if text.chars().count() + cut.chars().count() > SHOWN_CHARS_MAX {
            text.push_str(&format!("[more: go on with after = {}]\n", event.seq.0 - 1));
            break;
        }
        text.push_str(&cut);
        if total > most {
            text.push_str(&format!(" [… {total} characters in all …]"));
        }
        text.push('\n');
    }
    if text.is_empty() { "[there are no such events]".to_owned() } else { text }
}

fn line(event: &Event) -> String {
    let mut fields: Map<String, Value> = event.fields.clone();
    let kind = fields.remove("type");
    let kind = kind.as_ref().and_then(Value::as_str).unwrap_or_default();
    format!("{} {} {} {}", event.seq, event.at, kind, Value::Object(fields))
}
