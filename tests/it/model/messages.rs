//! The Messages API: its stream as documented, its cache, its thinking.

use gateway::brain::{BrainSetting, Effort, ThinkingSetting};
use gateway::harness::model::{
    Block, Breakpoint, Message, Opaque, Stop, Thinking, ToolInput, ToolUse, Usage,
};
use serde_json::json;
use tests::models::{Canned, Models};

use super::{Client, Spoken, object, prompt, result, setting, tool};

/// With signed and redacted thinking, events and blocks that are not known, and arguments in pieces.
pub(super) const STREAM: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"m","stop_reason":null,"usage":{"input_tokens":25,"cache_read_input_tokens":1000,"cache_creation_input_tokens":200,"output_tokens":1,"service_tier":"standard"}}}

event: ping
data: {"type": "ping"}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Où"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":" am I?"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"c2ln"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"redacted_thinking","data":"cmVk"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: surprise
data: {"type":"surprise","of":["a","later","version"]}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"hologram","shape":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"hologram_delta","light":1}}

event: content_block_stop
data: {"type":"content_block_stop","index":2}

event: content_block_start
data: {"type":"content_block_start","index":3,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":3,"delta":{"type":"text_delta","text":"I 👀 \"look\"."}}

event: content_block_stop
data: {"type":"content_block_stop","index":3}

event: content_block_start
data: {"type":"content_block_start","index":4,"content_block":{"type":"tool_use","id":"toolu_1","name":"sandbox__bash","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":4,"delta":{"type":"input_json_delta","partial_json":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":4,"delta":{"type":"input_json_delta","partial_json":"{\"comm"}}

event: content_block_delta
data: {"type":"content_block_delta","index":4,"delta":{"type":"input_json_delta","partial_json":"and\": \"ls\"}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":4}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":89}}

event: message_stop
data: {"type":"message_stop"}

"#;

#[tokio::test]
async fn the_documented_stream_is_read_whole() {
    let server = Models::start().await.unwrap();
    let client = Client::new(&server, Spoken::Messages);
    server.answer_next(Canned::events(STREAM));
    let (thought, told) = client.think(&prompt("Hello")).await;
    let thought = thought.unwrap();
    let proof = |value| Some(Opaque { provider: "anthropic".to_owned(), value });
    let thinking = |text: &str, opaque| Block::Thinking(Thinking { text: text.to_owned(), opaque });
    assert_eq!(
        thought.blocks,
        [
            thinking("Où am I?", proof(json!({"type": "thinking", "signature": "c2ln"}))),
            thinking("", proof(json!({"type": "redacted_thinking", "data": "cmVk"}))),
            Block::text("I 👀 \"look\"."),
            Block::ToolUse(ToolUse {
                id: "toolu_1".to_owned(),
                name: "sandbox__bash".to_owned(),
                input: ToolInput::Object(object(json!({"command": "ls"}))),
            }),
        ]
    );
    assert_eq!(thought.stop, Stop::ToolUse);
    assert_eq!(thought.usage, Usage { input: 25, output: 89, cache_read: 1000, cache_written: 200 });
    assert_eq!(
        (told.thinking.as_str(), told.text.as_str(), told.calls.len()),
        ("Où am I?", "I 👀 \"look\".", 1)
    );
    // A proof shows itself to nobody who only looks.
    assert!(!format!("{thought:?}").contains("c2ln"), "{thought:?}");
}

/// Thinking comes back as it was signed, in its place, or not at all.
#[tokio::test]
async fn signed_thinking_goes_back_as_it_came() {
    let server = Models::start().await.unwrap();
    let client = Client::new(&server, Spoken::Messages);
    server.answer_next(Canned::events(STREAM));
    let mut transcript = prompt("Hello");
    let thought = client.thought(&transcript).await;
    transcript.messages.push(Message::assistant(thought.blocks));
    transcript.messages.push(Message::user(vec![result("toolu_1", "a b")]));
    client.thought(&transcript).await;
    let sent = server.last()["messages"][1]["content"].clone();
    assert_eq!(sent[0], json!({"type": "thinking", "thinking": "Où am I?", "signature": "c2ln"}));
    assert_eq!(sent[1], json!({"type": "redacted_thinking", "data": "cmVk"}));
    assert_eq!(sent[2], json!({"type": "text", "text": "I 👀 \"look\"."}));
}

/// Each request reads from the cache all that the one before has read and written, for as long as the conversation is.
#[tokio::test]
async fn prefixes_are_cached_from_turn_to_turn() {
    let server = Models::start().await.unwrap();
    let mut client = Client::new(&server, Spoken::Messages);
    client.tools = vec![tool("sandbox__bash"), tool("sandbox__read")];
    let mut transcript = prompt("@loop\n@say Again.\n@call sandbox__bash {\"command\": \"ls\"}");
    transcript.system = "You are careful. ".repeat(50);
    let mut known = 0;
    for turn in 0..12 {
        transcript.messages.last_mut().unwrap().breakpoint = Some(Breakpoint);
        let thought = client.thought(&transcript).await;
        assert_eq!(thought.usage.input, 0, "all of turn {turn} is stable");
        assert!(thought.usage.cache_read >= known, "turn {turn}: {:?}, known {known}", thought.usage);
        assert!(turn == 0 || thought.usage.cache_read > 0, "turn {turn}");
        known = thought.usage.cache_read + thought.usage.cache_written - 1;
        let id = thought.tool_uses().next().unwrap().id.clone();
        transcript.messages.push(Message::assistant(thought.blocks));
        transcript.messages.push(Message::user(vec![result(&id, &"output ".repeat(20))]));
    }
    let marks = server.last().to_string().matches("\"cache_control\"").count();
    assert_eq!(marks, 4);
}

/// Without a system text, the tools end the first stable prefix.
#[tokio::test]
async fn tools_alone_are_cached_too() {
    let server = Models::start().await.unwrap();
    let mut client = Client::new(&server, Spoken::Messages);
    client.tools = vec![tool("a__b"), tool("c__d")];
    client.thought(&prompt("Hello")).await;
    let tools = &server.last()["tools"];
    assert_eq!(
        (&tools[0]["cache_control"], &tools[1]["cache_control"]),
        (&json!(null), &json!({"type": "ephemeral"}))
    );
    assert!(client.thought(&prompt("Something else")).await.usage.cache_read > 0);
}

#[tokio::test]
async fn how_it_thinks_is_told() {
    let server = Models::start().await.unwrap();
    for (thinking, sent, output) in [
        (ThinkingSetting::Off, json!(null), json!(null)),
        (ThinkingSetting::Budget(2048), json!({"type": "enabled", "budget_tokens": 2048}), json!(null)),
        (ThinkingSetting::Effort(Effort::High), json!({"type": "adaptive"}), json!({"effort": "high"})),
    ] {
        let setting = BrainSetting { thinking, ..setting(&server, Spoken::Messages) };
        Client::of(&setting).thought(&prompt("Hello")).await;
        assert_eq!((&server.last()["thinking"], &server.last()["output_config"]), (&sent, &output));
    }
}

/// A session that changes its model in the middle of its calls: thinking begins with the next prompt.
#[tokio::test]
async fn calls_of_another_model_are_gone_on_with() {
    let server = Models::start().await.unwrap();
    let thinking = ThinkingSetting::Budget(2048);
    let client = Client::of(&BrainSetting { thinking, ..setting(&server, Spoken::Messages) });
    let call = ToolUse {
        id: "call_1".to_owned(),
        name: "a__b".to_owned(),
        input: ToolInput::Object(object(json!({}))),
    };
    let mut transcript = prompt("@call a__b\n@then\n@say So.");
    transcript.messages.push(Message::assistant(vec![Block::ToolUse(call)]));
    transcript.messages.push(Message::user(vec![result("call_1", "x")]));
    assert_eq!(client.thought(&transcript).await.blocks, [Block::text("So.")]);
    assert!(server.last()["thinking"].is_null());
    transcript.messages.push(Message::assistant(vec![Block::text("So.")]));
    transcript.messages.push(Message::user(vec![Block::text("And?")]));
    client.thought(&transcript).await;
    assert_eq!(server.last()["thinking"]["budget_tokens"], 2048);
}

/// Servers that ignore that they are asked to stream.
#[tokio::test]
async fn an_answer_in_one_piece_is_read_too() {
    let server = Models::start().await.unwrap();
    let client = Client::new(&server, Spoken::Messages);
    server.answer_next(Canned::json(
        200,
        &json!({
            "type": "message",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                {"type": "text", "text": "Hello"},
                {"type": "tool_use", "id": "t", "name": "a__b", "input": {"c": 1}},
            ],
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 3, "output_tokens": 4},
        }),
    ));
    let thought = client.thought(&prompt("Hello")).await;
    assert_eq!((thought.blocks.len(), thought.stop, thought.usage.output), (3, Stop::ToolUse, 4));
    assert_eq!(thought.tool_uses().next().unwrap().input, ToolInput::Object(object(json!({"c": 1}))));
}
