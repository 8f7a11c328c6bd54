//! Chat Completions: the stream as documented, and what local servers make of it.

use gateway::harness::model::{Block, Stop, Thought, ToolInput, Usage};
use serde_json::{Value, json};
use tests::models::{Canned, Models};

use super::{Client, Spoken, object, prompt};

/// With reasoning, as local servers have it, and two calls whose pieces are mixed.
pub(super) const STREAM: &str = r#"data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":null},"logprobs":null,"finish_reason":null}],"usage":null}

data: {"choices":[{"index":0,"delta":{"reasoning_content":"Où am I?"},"finish_reason":null}]}

: keep-alive

data: {"choices":[{"index":0,"delta":{"content":"I 👀"},"finish_reason":null}]}

data: {"choices":[{"index":0,"delta":{"content":" look."},"finish_reason":null}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_a","type":"function","function":{"name":"sandbox__bash","arguments":""}}]},"finish_reason":null}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"call_b","type":"function","function":{"name":"sandbox__read","arguments":"{\"pa"}}]},"finish_reason":null}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"command\":\"ls\"}"}}]},"finish_reason":null}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"th\":\"a\"}"}}]},"finish_reason":null}]}

data: {"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"tool_calls"}],"usage":null}

data: {"choices":[],"usage":{"prompt_tokens":120,"completion_tokens":30,"total_tokens":150,"prompt_tokens_details":{"cached_tokens":100}}}

data: [DONE]

"#;

fn calls(thought: &Thought) -> Vec<(&str, Value)> {
    thought.tool_uses().map(|call| (call.name.as_str(), Value::Object(call.input.to_object()))).collect()
}

#[tokio::test]
async fn the_documented_stream_is_read_whole() {
    let server = Models::start().await.unwrap();
    let client = Client::new(&server, Spoken::Chat);
    server.answer_next(Canned::events(STREAM));
    let (thought, told) = client.think(&prompt("Hello")).await;
    let thought = thought.unwrap();
    assert_eq!((told.thinking.as_str(), told.text.as_str()), ("Où am I?", "I 👀 look."));
    let expected = [("sandbox__bash", json!({"command": "ls"})), ("sandbox__read", json!({"path": "a"}))];
    assert_eq!(calls(&thought), expected);
    assert_eq!(thought.tool_uses().map(|call| call.id.as_str()).collect::<Vec<_>>(), ["call_a", "call_b"]);
    assert_eq!(thought.usage, Usage { input: 20, output: 30, cache_read: 100, cache_written: 0 });
    assert_eq!(thought.stop, Stop::ToolUse);
}

/// Nobody agrees on calls. Each of these is what some server sends for the same two.
fn forms() -> Vec<(&'static str, Vec<Value>)> {
    let calls = |calls: Value| json!({"choices": [{"index": 0, "delta": {"tool_calls": calls}}]});
    let call = |fields: Value| calls(json!([fields]));
    let function = |name: &str, arguments: &str| json!({"name": name, "arguments": arguments});
    let whole = |name: &str, n: u8| json!({"name": name, "arguments": {"n": n}});
    let (one, two) = (function("a__b", "{\"n\": 1}"), function("c__d", "{\"n\": 2}"));
    let second = call(json!({"index": 1, "id": "y", "function": two}));
    let end = |reason: &str| json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]});
    let all = |mut chunks: Vec<Value>, reason: &str| {
        chunks.push(end(reason));
        chunks
    };
    vec![
        (
            "in one piece, without ids and numbers",
            all(vec![calls(json!([{"function": one}, {"function": two}]))], "tool_calls"),
        ),
        (
            "arguments as objects",
            all(
                vec![
                    call(json!({"index": 0, "id": "x", "function": whole("a__b", 1)})),
                    call(json!({"index": 1, "id": "y", "function": whole("c__d", 2)})),
                ],
                "stop",
            ),
        ),
        (
            "all of them number 0",
            all(
                vec![
                    call(json!({"index": 0, "id": "x", "function": one})),
                    call(json!({"index": 0, "id": "y", "function": two})),
                ],
                "stop",
            ),
        ),
        ("pieces with everything", all(pieces(&call, "x", "a__b", Some(0), second.clone()), "tool_calls")),
        ("pieces without numbers", all(pieces(&call, "", "", None, second.clone()), "tool_calls")),
        ("pieces with empty ids and names", all(pieces(&call, "", "", Some(0), second), "tool_calls")),
    ]
}

/// The first call in three pieces, the later ones with this id, name and number; then the second.
fn pieces(
    call: &dyn Fn(Value) -> Value,
    id: &str,
    name: &str,
    number: Option<u64>,
    second: Value,
) -> Vec<Value> {
    let piece = |id: &str, name: &str, arguments: &str| {
        let mut piece = json!({"id": id, "function": {"name": name, "arguments": arguments}});
        if let Some(number) = number {
            piece["index"] = number.into();
        }
        call(piece)
    };
    vec![piece("x", "a__b", "{\"n"), piece(id, name, "\": 1"), piece(id, name, "}"), second]
}

#[tokio::test]
async fn calls_come_in_many_forms() {
    let server = Models::start().await.unwrap();
    let client = Client::new(&server, Spoken::Chat);
    for (name, chunks) in forms() {
        let stream: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
        // Some end without saying so.
        for done in ["data: [DONE]\n\n", ""] {
            server.answer_next(Canned::events(&format!("{stream}{done}")));
            let thought = client.thought(&prompt("Hello")).await;
            assert_eq!(calls(&thought), [("a__b", json!({"n": 1})), ("c__d", json!({"n": 2}))], "{name}");
            assert_eq!((thought.stop, thought.usage), (Stop::ToolUse, Usage::default()), "{name}");
            let mut ids: Vec<_> = thought.tool_uses().map(|call| call.id.as_str()).collect();
            ids.dedup();
            assert!(ids.len() == 2 && ids.iter().all(|id| !id.is_empty()), "{name}: {ids:?}");
        }
    }
}

#[tokio::test]
async fn what_local_servers_leave_out_is_not_missed() {
    let server = Models::start().await.unwrap();
    let client = Client::new(&server, Spoken::Chat);
    let said = [Block::text("Hello")];
    // Neither a reason nor usage.
    server.answer_next(Canned::events(
        "data: {\"choices\":[{\"delta\":{\"content\":\"Hello\"}}]}\n\ndata: [DONE]\n\n",
    ));
    let thought = client.thought(&prompt("Hello")).await;
    assert_eq!((&thought.blocks[..], thought.stop), (&said[..], Stop::EndTurn));
    // Not even a stream.
    let choice = json!({"message": {"role": "assistant", "content": "Hello"}, "finish_reason": "length"});
    server.answer_next(Canned::json(200, &json!({"choices": [choice], "usage": {"prompt_tokens": 3}})));
    let thought = client.thought(&prompt("Hello")).await;
    assert_eq!((&thought.blocks[..], thought.stop, thought.usage.input), (&said[..], Stop::MaxTokens, 3));
    // Content in parts, and thinking under its other name.
    let parts = json!({"choices": [{"delta": {"reasoning": "Hm.", "content": [{"type": "text", "text": "Hello"}]}, "finish_reason": "stop"}]});
    server.answer_next(Canned::events(&format!("data: {parts}\n\n")));
    let (thought, told) = client.think(&prompt("Hello")).await;
    assert_eq!((told.thinking.as_str(), thought.unwrap().blocks.len()), ("Hm.", 2));
    // The call of years ago.
    let old = json!({"choices": [{"delta": {"function_call": {"name": "a__b", "arguments": "{}"}}, "finish_reason": "function_call"}]});
    server.answer_next(Canned::events(&format!("data: {old}\n\n")));
    let thought = client.thought(&prompt("Hello")).await;
    assert_eq!((thought.stop, calls(&thought)), (Stop::ToolUse, vec![("a__b", json!({}))]));
    // A refusal has a field of its own.
    let refusal = json!({"choices": [{"delta": {"refusal": "No."}, "finish_reason": "stop"}]});
    server.answer_next(Canned::events(&format!("data: {refusal}\n\n")));
    let thought = client.thought(&prompt("Hello")).await;
    assert_eq!((thought.stop, thought.blocks), (Stop::Refusal, vec![Block::text("No.")]));
}

/// Arguments that are JSON, and no object.
#[tokio::test]
async fn arguments_that_are_no_object_are_broken() {
    let server = Models::start().await.unwrap();
    let client = Client::new(&server, Spoken::Chat);
    for (sent, read) in [
        ("[1]", ToolInput::Broken("[1]".to_owned())),
        ("\"ls\"", ToolInput::Broken("\"ls\"".to_owned())),
        ("{} {}", ToolInput::Broken("{} {}".to_owned())),
        ("null", ToolInput::Object(object(json!({})))),
        ("  ", ToolInput::Object(object(json!({})))),
    ] {
        let call = json!({"index": 0, "id": "x", "function": {"name": "a__b", "arguments": sent}});
        let chunk = json!({"choices": [{"delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]});
        server.answer_next(Canned::events(&format!("data: {chunk}\n\ndata: [DONE]\n\n")));
        assert_eq!(client.thought(&prompt("Hello")).await.tool_uses().next().unwrap().input, read);
    }
}
