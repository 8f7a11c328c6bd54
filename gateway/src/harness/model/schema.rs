//! The schema of a tool as every provider takes it.

use serde_json::{Map, Value};

use super::ToolDefinition;

/// What providers refuse at the top of a schema. One such tool would have the whole request refused; without it the model
/// is told less, and whoever has the tool still checks what it sends.
const REFUSED: [&str; 5] = ["anyOf", "oneOf", "allOf", "not", "enum"];

/// An object with properties, be there none.
pub(super) fn schema(tool: &ToolDefinition) -> Map<String, Value> {
    let mut schema = tool.input_schema.clone();
    for word in REFUSED {
        schema.remove(word);
    }
    schema.insert("type".to_owned(), "object".into());
    schema.entry("properties").or_insert_with(|| Value::Object(Map::new()));
    schema
}
