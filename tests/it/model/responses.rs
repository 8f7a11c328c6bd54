//! The Responses API: its stream as documented, and reasoning that is kept from one call to the next.

use gateway::brain::{BrainSetting, Effort, ThinkingSetting};
use gateway::harness::model::{Block, Message, Stop, Usage};
use serde_json::{Value, json};
use tests::models::{Canned, Models};

use super::{Client, Spoken, prompt, result, setting};

/// With encrypted reasoning, events and items that are not known, and arguments in pieces.
pub(super) const STREAM: &str = r#"event: response.created
data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1","object":"response","status":"in_progress","output":[],"usage":null}}

event: response.output_item.added
data: {"type":"response.output_item.added","output_index":0,"item":{"id":"rs_1","type":"reasoning","summary":[]}}

event: response.reasoning_summary_part.added
data: {"type":"response.reasoning_summary_part.added","output_index":0,"summary_index":0,"part":{"type":"summary_text","text":""}}

event: response.reasoning_summary_text.delta
data: {"type":"response.reasoning_summary_text.delta","output_index":0,"summary_index":0,"delta":"Où am I?"}

event: response.output_item.done
data: {"type":"response.output_item.done","output_index":0,"item":{"id":"rs_1","type":"reasoning","status":"completed","encrypted_content":"ZW5j","summary":[{"type":"summary_text","text":"Où am I?"}]}}

event: response.surprise
data: {"type":"response.surprise","of":["a","later","version"]}

event: response.output_item.added
data: {"type":"response.output_item.added","output_index":1,"item":{"id":"msg_1","type":"message","status":"in_progress","role":"assistant","content":[]}}

event: response.content_part.added
data: {"type":"response.content_part.added","output_index":1,"content_index":0,"part":{"type":"output_text","text":"","annotations":[]}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","output_index":1,"content_index":0,"delta":"I 👀"}

event: response.output_text.delta
data: {"type":"response.output_text.delta","output_index":1,"content_index":0,"delta":" look."}

event: response.output_text.done
data: {"type":"response.output_text.done","output_index":1,"content_index":0,"text":"I 👀 look."}

event: response.output_item.done
data: {"type":"response.output_item.done","output_index":1,"item":{"id":"msg_1","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"I 👀 look.","annotations":[]}]}}

event: response.output_item.added
data: {"type":"response.output_item.added","output_index":2,"item":{"id":"h_1","type":"hologram_call","status":"in_progress"}}

event: response.output_item.added
data: {"type":"response.output_item.added","output_index":3,"item":{"id":"fc_1","type":"function_call","status":"in_progress","call_id":"call_a","name":"sandbox__bash","arguments":""}}

event: response.function_call_arguments.delta
data: {"type":"response.function_call_arguments.delta","output_index":3,"item_id":"fc_1","delta":"{\"comm"}

event: response.function_call_arguments.delta
data: {"type":"response.function_call_arguments.delta","output_index":3,"item_id":"fc_1","delta":"and\":\"ls\"}"}

event: response.function_call_arguments.done
data: {"type":"response.function_call_arguments.done","output_index":3,"item_id":"fc_1","arguments":"{\"command\":\"ls\"}"}

event: response.output_item.done
data: {"type":"response.output_item.done","output_index":3,"item":{"id":"fc_1","type":"function_call","status":"completed","call_id":"call_a","name":"sandbox__bash","arguments":"{\"command\":\"ls\"}"}}

event: response.completed
data: {"type":"response.completed","response":{"id":"resp_1","object":"response","status":"completed","output":[],"usage":{"input_tokens":120,"input_tokens_details":{"cached_tokens":100},"output_tokens":30,"output_tokens_details":{"reasoning_tokens":10},"total_tokens":150}}}

"#;

fn thinking(server: &Models) -> Client {
    let setting =
        BrainSetting { thinking: ThinkingSetting::Effort(Effort::Low), ..setting(server, Spoken::Responses) };
    Client::of(&setting)
}

#[tokio::test]
async fn the_documented_stream_is_read_whole_and_its_reasoning_goes_back() {
    let server = Models::start().await.unwrap();
    let client = thinking(&server);
    server.answer_next(Canned::events(STREAM));
    let mut transcript = prompt("Hello");
    let (thought, told) = client.think(&transcript).await;
    let thought = thought.unwrap();
    assert_eq!((told.thinking.as_str(), told.text.as_str()), ("Où am I?", "I 👀 look."));
    assert_eq!(thought.usage, Usage { input: 20, output: 30, cache_read: 100, cache_written: 0 });
    assert_eq!(thought.stop, Stop::ToolUse);
    assert_eq!(thought.blocks.len(), 3);
    assert!(!format!("{thought:?}").contains("ZW5j"), "{thought:?}");
    transcript.messages.push(Message::assistant(thought.blocks));
    transcript.messages.push(Message::user(vec![result("call_a", "a b")]));
    client.thought(&transcript).await;
    let sent = server.last();
    let reasoning = json!({
        "id": "rs_1", "type": "reasoning", "encrypted_content": "ZW5j",
        "summary": [{"type": "summary_text", "text": "Où am I?"}],
    });
    assert_eq!(sent["input"][1], reasoning);
    assert_eq!(sent["reasoning"], json!({"effort": "low", "summary": "auto"}));
    assert_eq!((&sent["store"], &sent["include"]), (&json!(false), &json!(["reasoning.encrypted_content"])));
}

/// Items that come whole, without a piece before, or with the last event alone.
#[tokio::test]
async fn items_without_pieces_are_read_too() {
    let server = Models::start().await.unwrap();
    let client = Client::new(&server, Spoken::Responses);
    let items = json!([
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]},
        {"type": "function_call", "call_id": "x", "name": "a__b", "arguments": {"n": 1}},
    ]);
    let response = json!({"object": "response", "status": "completed", "output": items});
    let bare = json!({"object": "response", "status": "completed", "output": []});
    let done =
        |part: usize| json!({"type": "response.output_item.done", "output_index": part, "item": items[part]});
    let stream = |events: &[Value]| {
        Canned::events(&events.iter().map(|event| format!("data: {event}\n\n")).collect::<String>())
    };
    for canned in [
        stream(&[done(0), done(1), json!({"type": "response.completed", "response": bare})]),
        stream(&[json!({"type": "response.completed", "response": response})]),
        Canned::json(200, &response),
    ] {
        server.answer_next(canned);
        let (thought, told) = client.think(&prompt("Hello")).await;
        let thought = thought.unwrap();
        assert_eq!((thought.blocks[0].clone(), thought.stop), (Block::text("Hello"), Stop::ToolUse));
        assert_eq!(Value::Object(thought.tool_uses().next().unwrap().input.to_object()), json!({"n": 1}));
        assert_eq!((told.text.as_str(), told.calls.len()), ("Hello", 1));
    }
}

#[tokio::test]
async fn a_refusal_is_one() {
    let server = Models::start().await.unwrap();
    let client = Client::new(&server, Spoken::Responses);
    let events = [
        json!({"type": "response.refusal.delta", "output_index": 0, "delta": "No."}),
        json!({"type": "response.completed", "response": {"status": "completed", "output": []}}),
    ];
    server.answer_next(Canned::events(&events.map(|event| format!("data: {event}\n\n")).concat()));
    let thought = client.thought(&prompt("Hello")).await;
    assert_eq!((thought.stop, thought.blocks), (Stop::Refusal, vec![Block::text("No.")]));
}
