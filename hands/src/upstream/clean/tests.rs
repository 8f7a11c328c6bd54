//! Definitions as hostile, careless and good servers give them.

use serde_json::json;

use super::*;

fn names(cleaned: &Cleaned) -> Vec<&str> {
    cleaned.items.iter().map(|item| item["name"].as_str().unwrap()).collect()
}

fn tool_of(name: &str, schema: &Value) -> Value {
    json!({"name": name, "description": "d", "inputSchema": schema})
}

#[test]
fn a_good_definition_passes_unchanged() {
    let tool = json!({
        "name": "search.all", "title": "Suche 日本", "description": "a\nb\tc",
        "inputSchema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
            "$defs": {"a": {"type": "string"}}, "properties": {
                "q": {"$ref": "#/$defs/a"}, "$ref": {"type": "string"},
                "region": {"type": "string", "x-mcp-header": "Region"},
                "d": {"const": {"$ref": "https://data.example"}},
            },
        },
        "outputSchema": {"type": "array"}, "annotations": {"readOnlyHint": true}, "_meta": {"x": 1}, "unheard": [1.5],
    });
    let cleaned = tools(vec![tool.clone()]);
    assert_eq!(Value::Object((*cleaned.items[0]).clone()), tool);
    assert_eq!(cleaned.problems, Vec::<String>::new());
}

#[test]
fn names_that_mislead_are_left_out() {
    let object = json!({"type": "object"});
    let bad = ["", "a\nb", "a\u{1b}[31m", "a\u{202e}b", "a\u{e0041}", &"x".repeat(129)];
    let mut items: Vec<_> = bad.iter().map(|name| tool_of(name, &object)).collect();
    items.extend([tool_of("good", &object), tool_of("good", &object), json!(7), json!({"inputSchema": {}})]);
    let cleaned = tools(items);
    assert_eq!(names(&cleaned), ["good"]);
    assert_eq!(cleaned.problems.len(), bad.len() + 3, "{:#?}", cleaned.problems);
    assert!(
        cleaned.problems.iter().all(|line| !line.chars().any(char::is_control)),
        "{:#?}",
        cleaned.problems
    );
}

#[test]
fn schemas_are_bounded_and_lead_nowhere() {
    let mut deep = json!({"type": "object"});
    for _ in 0..100 {
        deep = json!({"type": "object", "properties": {"a": deep}});
    }
    let wide: Map = (0..11_000).map(|n| (n.to_string(), json!({}))).collect();
    let network = json!({"type": "object", "properties": {"a": {"$ref": "https://evil.example/s.json"}, "b": {"$ref": "other.json"}}});
    let cleaned = tools(vec![
        tool_of("deep", &deep),
        tool_of("wide", &json!({"type": "object", "properties": wide})),
        tool_of("network", &network),
        tool_of("list", &json!({"type": "array"})),
        tool_of("untyped", &json!({})),
        tool_of("huge", &json!({"type": "object", "description": "x".repeat(300_000)})),
    ]);
    assert_eq!(names(&cleaned), ["network", "untyped"], "{:#?}", cleaned.problems);
    assert_eq!(cleaned.items[0]["inputSchema"], json!({"type": "object", "properties": {"a": {}, "b": {}}}));
    assert_eq!(cleaned.items[1]["inputSchema"], json!({"type": "object"}));
}

type Map = serde_json::Map<String, Value>;

#[test]
fn illegal_headers_leave_a_tool_out() {
    let with = |property: Value| json!({"type": "object", "properties": {"a": property}});
    let bad = [
        with(json!({"type": "string", "x-mcp-header": ""})),
        with(json!({"type": "string", "x-mcp-header": "a b"})),
        with(json!({"type": "string", "x-mcp-header": 7})),
        with(json!({"type": "number", "x-mcp-header": "A"})),
        with(json!({"type": "object", "x-mcp-header": "A"})),
        with(json!({"type": "array", "items": {"type": "string", "x-mcp-header": "A"}})),
        json!({"type": "object", "properties": {
            "a": {"type": "string", "x-mcp-header": "A"}, "b": {"type": "string", "x-mcp-header": "a"}}}),
        json!({"type": "object", "anyOf": [{"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}]}),
    ];
    let items: Vec<_> = bad.iter().enumerate().map(|(n, schema)| tool_of(&format!("t{n}"), schema)).collect();
    let cleaned = tools(items);
    assert_eq!(names(&cleaned), Vec::<&str>::new(), "{:#?}", cleaned.problems);
    let nested = json!({"type": "object", "properties": {"o": {"type": "object", "properties": {
        "a": {"type": "integer", "x-mcp-header": "A"}}}}});
    assert_eq!(tools(vec![tool_of("nested", &nested)]).problems, Vec::<String>::new());
}

#[test]
fn texts_lose_what_cannot_be_seen_and_what_is_too_long() {
    let cleaned = prompts(vec![json!({
        "name": "p", "description": format!("safe\u{e0049}\u{202e}\u{7}{}", "x".repeat(20_000)),
        "arguments": [{"name": "a", "description": "b\u{200f}c"}],
    })]);
    let prompt = &cleaned.items[0];
    assert!(prompt["description"].as_str().unwrap().starts_with("safex"));
    assert_eq!(prompt["description"].as_str().unwrap().len(), TEXT_MAX);
    assert_eq!(prompt["arguments"][0]["description"], "bc");
    assert_eq!(cleaned.problems.len(), 2, "{:#?}", cleaned.problems);
}

#[test]
fn members_of_the_wrong_type_go_and_the_rest_stays() {
    let cleaned = resources(vec![
        json!({"uri": "a://b", "size": "large", "mimeType": 7, "other": {"kept": true}}),
        json!({"uri": "a b"}),
        json!({"name": "no uri"}),
    ]);
    assert_eq!(cleaned.items.len(), 1);
    assert_eq!(
        *cleaned.items[0],
        *json!({"uri": "a://b", "name": "a://b", "other": {"kept": true}}).as_object().unwrap()
    );
    let cleaned = templates(vec![json!({"uriTemplate": "a://{b}", "name": "t"})]);
    assert_eq!((cleaned.items.len(), cleaned.problems.len()), (1, 0));
    let cleaned =
        prompts(vec![json!({"name": "p", "arguments": "none"}), json!({"name": "q", "arguments": []})]);
    assert_eq!(names(&cleaned), ["q"]);
}

#[test]
fn five_thousand_bad_tools_make_a_short_report() {
    let cleaned = tools((0..5_000).map(|n| json!({"name": format!("t{n}")})).collect());
    assert_eq!(cleaned.problems.len(), PROBLEMS_MAX + 1);
    assert_eq!(cleaned.problems.last().unwrap(), "and 4950 more of the kind");
}
