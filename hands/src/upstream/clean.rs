//! What of a server's definitions may reach clients.

use std::sync::Arc;

use serde_json::Value;

use crate::mcp::Object;

/// Definitions that harm nobody, and what was wrong with the others.
pub(super) struct Cleaned {
    pub(super) items: Vec<Arc<Object>>,
    /// One sentence each.
    pub(super) problems: Vec<String>,
}

/// Of `tools/list`.
pub(super) fn tools(items: Vec<Value>) -> Cleaned {
    objects(items)
}

/// Of `prompts/list`.
pub(super) fn prompts(items: Vec<Value>) -> Cleaned {
    objects(items)
}

/// Of `resources/list`.
pub(super) fn resources(items: Vec<Value>) -> Cleaned {
    objects(items)
}

/// Of `resources/templates/list`.
pub(super) fn templates(items: Vec<Value>) -> Cleaned {
    objects(items)
}

fn objects(items: Vec<Value>) -> Cleaned {
    let object = |item| match item {
        Value::Object(object) => Some(Arc::new(object)),
        _ => None,
    };
    Cleaned { items: items.into_iter().filter_map(object).collect(), problems: Vec::new() }
}
