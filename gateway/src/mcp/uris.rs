//! URIs of hands' resources, as clients of the whole gateway see them.
//!
//! `{hand}+{uri}`, so that a URI keeps its form and a template stays one (RFC 3986, section 3.1, allows `+` and `-` in a
//! scheme). `ui://` is for hosts to recognise (MCP Apps), so there the hand's name becomes the authority:
//! `ui://{hand}/…`. Both ways lose nothing: [`own`] gives back what [`shown`] was given.

use hands::mcp::Object;
use serde_json::Value;

use crate::hand::HandName;

/// The scheme of user interfaces (MCP Apps, SEP-1865).
const UI: &str = "ui://";

/// What clients call the resource (or template) that `hand` calls `uri`.
pub fn shown(hand: &HandName, uri: &str) -> String {
    match uri.strip_prefix(UI) {
        Some(rest) => format!("{UI}{hand}/{rest}"),
        None => format!("{hand}+{uri}"),
    }
}

/// The hand's name in a URI that [`shown`] made, and the hand's own URI. Whether there is such a hand is not known here.
pub fn own(uri: &str) -> Option<(HandName, String)> {
    if let Some(rest) = uri.strip_prefix(UI) {
        let (hand, rest) = rest.split_once('/')?;
        return Some((hand.parse().ok()?, format!("{UI}{rest}")));
    }
    let (hand, uri) = uri.split_once('+')?;
    Some((hand.parse().ok()?, uri.to_owned()))
}

/// Rewrites every URI of a definition (of a tool, a resource, a template, a prompt) to what clients call it.
pub fn rewrite_definition(hand: &HandName, definition: &mut Object) {
    for key in ["uri", "uriTemplate"] {
        rewrite(hand, definition.get_mut(key));
    }
    rewrite_ui(hand, definition);
}

/// Rewrites every resource that a result of `tools/call`, `resources/read` or `prompts/get` names.
pub fn rewrite_result(hand: &HandName, result: &mut Object) {
    for block in items(result.get_mut("content")) {
        rewrite_block(hand, block);
    }
    for contents in items(result.get_mut("contents")) {
        rewrite(hand, contents.get_mut("uri"));
        if let Value::Object(contents) = contents {
            rewrite_ui(hand, contents);
        }
    }
    for message in items(result.get_mut("messages")) {
        match message.get_mut("content") {
            Some(Value::Array(blocks)) => blocks.iter_mut().for_each(|block| rewrite_block(hand, block)),
            Some(block) => rewrite_block(hand, block),
            None => {}
        }
    }
    rewrite_ui(hand, result);
}

fn rewrite_block(hand: &HandName, block: &mut Value) {
    match block.get("type").and_then(Value::as_str) {
        Some("resource_link") => rewrite(hand, block.get_mut("uri")),
        Some("resource") => {
            rewrite(hand, block.get_mut("resource").and_then(|resource| resource.get_mut("uri")));
        }
        _ => {}
    }
}

/// `_meta.ui.resourceUri`, and the flat key that it was before.
fn rewrite_ui(hand: &HandName, object: &mut Object) {
    let Some(meta) = object.get_mut("_meta") else { return };
    rewrite(hand, meta.get_mut("ui").and_then(|ui| ui.get_mut("resourceUri")));
    rewrite(hand, meta.get_mut("ui/resourceUri"));
}

fn rewrite(hand: &HandName, uri: Option<&mut Value>) {
    let Some(uri) = uri else { return };
    if let Value::String(text) = uri {
        *text = shown(hand, text);
    }
}

fn items(list: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    list.and_then(Value::as_array_mut).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hand(name: &str) -> HandName {
        name.parse().unwrap()
    }

    #[test]
    fn every_uri_comes_back() {
        for uri in [
            "test://static-text",
            "file:///a+b",
            "ui://panel/x?y#z",
            "ui://",
            "ui://a",
            "UI://x",
            "",
            "+",
            "no scheme",
        ] {
            let shown = shown(&hand("my-hand"), uri);
            assert_eq!(own(&shown), Some((hand("my-hand"), uri.to_owned())), "{shown}");
        }
        assert_eq!(shown(&hand("fx"), "test://template/{id}/data"), "fx+test://template/{id}/data");
        assert_eq!(shown(&hand("fx"), "ui://panel/x"), "ui://fx/panel/x");
    }

    #[test]
    fn what_is_no_hands_is_nobodys() {
        for uri in
            ["session://sesn_1", "session://a/events?type=a+b", "test://x", "ui://panel", "Fx+a://b", ""]
        {
            assert_eq!(own(uri), None, "{uri}");
        }
    }

    #[test]
    fn a_result_is_rewritten_where_it_names_resources_and_nowhere_else() {
        let mut result = json!({
            "content": [
                {"type": "text", "text": "test://a", "uri": "test://a"},
                {"type": "resource_link", "uri": "test://a", "name": "a"},
                {"type": "resource", "resource": {"uri": "test://b", "text": "test://b"}},
                {"type": "unheard-of", "uri": "test://a"},
            ],
            "structuredContent": {"uri": "test://a"},
            "_meta": {"ui": {"resourceUri": "ui://p"}, "other": "test://a"},
        });
        rewrite_result(&hand("fx"), result.as_object_mut().unwrap());
        let expected = json!({
            "content": [
                {"type": "text", "text": "test://a", "uri": "test://a"},
                {"type": "resource_link", "uri": "fx+test://a", "name": "a"},
                {"type": "resource", "resource": {"uri": "fx+test://b", "text": "test://b"}},
                {"type": "unheard-of", "uri": "test://a"},
            ],
            "structuredContent": {"uri": "test://a"},
            "_meta": {"ui": {"resourceUri": "ui://fx/p"}, "other": "test://a"},
        });
        assert_eq!(result, expected);
    }
}
