//! What goes over the wire, in all three APIs: the same script gives the same thought, however its stream is cut.

use gateway::harness::model::{Block, Message, Stop, ToolDefinition, ToolInput};
use serde_json::json;
use tests::models::{Canned, End, Models};

use super::{ALL, Client, Spoken, everything, object, prompt, result, tool};

/// A script with thinking, text and two calls at once, and what comes of them.
const SCRIPT: &str = "Look around.
@think Where am I?
@say I will
@say look.
@call sandbox__bash {\"command\": \"ls 日本\"}
@call sandbox__read {\"path\": \"a\", \"n\": 18446744073709551615}
@then
@say It says: {{result 1}} and {{result 2}}";

#[tokio::test]
async fn a_script_is_played_over_the_wire() {
    let server = Models::start().await.unwrap();
    for spoken in ALL {
        let mut client = Client::new(&server, spoken);
        client.tools = vec![tool("sandbox__bash"), tool("sandbox__read")];
        let mut transcript = prompt(SCRIPT);
        let (thought, told) = client.think(&transcript).await;
        let thought = thought.unwrap();
        assert_eq!(thought.stop, Stop::ToolUse, "{spoken:?}");
        assert!(thought.usage.input > 0 && thought.usage.output > 0, "{thought:?}");
        assert_eq!(
            (told.text.as_str(), told.thinking.as_str()),
            ("I will\nlook.", "Where am I?"),
            "{spoken:?}"
        );
        assert_eq!(told.calls, ["sandbox__bash", "sandbox__read"], "{spoken:?}");
        let calls: Vec<_> = thought.tool_uses().collect();
        let inputs: Vec<_> =
            calls.iter().map(|call| serde_json::Value::from(call.input.to_object()).to_string()).collect();
        assert_eq!(inputs[0], r#"{"command":"ls 日本"}"#, "{spoken:?}");
        assert!(inputs[1].contains("18446744073709551615"), "{spoken:?}: {inputs:?}");
        let answers = calls.iter().zip(["one", "two"]).map(|(call, text)| result(&call.id, text)).collect();
        transcript.messages.push(Message::assistant(thought.blocks.clone()));
        transcript.messages.push(Message::user(answers));
        let thought = client.thought(&transcript).await;
        assert_eq!(thought.blocks, [Block::text("It says: one and two")], "{spoken:?}");
        assert_eq!(thought.stop, Stop::EndTurn, "{spoken:?}");
        transcript.messages.push(Message::assistant(thought.blocks));
        transcript.messages.push(Message::user(vec![Block::text("Bye.")]));
        assert_eq!(client.thought(&transcript).await.blocks, [Block::text("You said: Bye.")], "{spoken:?}");
    }
}

/// The servers refuse what the real ones refuse: calls without results, results in the wrong place, empty texts.
#[tokio::test]
async fn any_transcript_is_one_that_the_apis_take() {
    let server = Models::start().await.unwrap();
    for (name, spoken) in
        [("messages", Spoken::Messages), ("chat", Spoken::Chat), ("responses", Spoken::Responses)]
    {
        let mut client = Client::new(&server, spoken);
        client.tools = vec![tool("sandbox__bash"), tool("sandbox__read")];
        assert_eq!(client.thought(&everything()).await.blocks, [Block::text("Thank you.")], "{spoken:?}");
        insta::assert_json_snapshot!(format!("request_{name}"), server.last());
    }
}

/// One tool with an odd schema would have every request refused.
#[tokio::test]
async fn a_schema_that_no_provider_takes_harms_nobody() {
    let server = Models::start().await.unwrap();
    for spoken in ALL {
        let mut client = Client::new(&server, spoken);
        for schema in
            [json!({}), json!({"type": "object"}), json!({"anyOf": [{"type": "object"}], "$defs": {"x": {}}})]
        {
            client.tools = vec![ToolDefinition { input_schema: object(schema), ..tool("a__b") }];
            assert_eq!(
                client.thought(&prompt("@say Hello")).await.blocks,
                [Block::text("Hello")],
                "{spoken:?}"
            );
        }
    }
}

/// Streams as the three APIs document them.
fn documented() -> [(Spoken, &'static str); 3] {
    [
        (Spoken::Messages, super::messages::STREAM),
        (Spoken::Chat, super::chat::STREAM),
        (Spoken::Responses, super::responses::STREAM),
    ]
}

#[tokio::test]
async fn a_stream_means_the_same_wherever_it_is_cut() {
    let server = Models::start().await.unwrap();
    for (spoken, stream) in documented() {
        let client = Client::new(&server, spoken);
        server.answer_next(Canned::events(stream));
        let (whole, told) = client.think(&prompt("Hello")).await;
        let whole = whole.unwrap();
        assert!(whole.tool_uses().next().is_some(), "{whole:?}");
        // At every byte at once, and in two at some: `hands` has the rest of the cuts.
        let cuts = (1..stream.len()).step_by(7).map(|at| Canned::events(stream).cut_at(at));
        for canned in cuts.chain([Canned::events(stream).in_chunks_of(1)]) {
            server.answer_next(canned);
            let (thought, heard) = client.think(&prompt("Hello")).await;
            let thought = thought.unwrap();
            assert_eq!(
                (&thought.blocks, thought.stop, thought.usage),
                (&whole.blocks, whole.stop, whole.usage)
            );
            assert_eq!(heard, told);
        }
    }
}

/// It ends early, cleanly or not, at any byte: never half a thought that passes for a whole one.
#[tokio::test]
async fn a_stream_that_ends_early_is_no_thought() {
    let server = Models::start().await.unwrap();
    for (spoken, stream) in documented() {
        let client = Client::new(&server, spoken);
        server.answer_next(Canned::events(stream));
        let whole = client.thought(&prompt("Hello")).await;
        // What says why it ends is the last that counts.
        let decisive =
            ["\"stop_reason\":\"tool_use\"", "\"finish_reason\":\"tool_calls\"", "response.completed"];
        let decisive = decisive.iter().filter_map(|sign| stream.find(sign)).max().unwrap();
        for at in (0..stream.len()).step_by(11) {
            for end in [End::Clean, End::Cut] {
                let text = String::from_utf8_lossy(&stream.as_bytes()[..at]);
                server.answer_next(Canned::events(&text).ending(end));
                match client.think(&prompt("Hello")).await.0 {
                    Ok(thought) => {
                        assert!(at > decisive, "{spoken:?} at {at}: {thought:?}");
                        assert_eq!((&thought.blocks, thought.stop), (&whole.blocks, whole.stop));
                    }
                    Err(error) => {
                        let said = error.to_string();
                        assert!(said.starts_with("the answer broke off"), "{spoken:?} at {at}: {said}");
                    }
                }
            }
        }
    }
}

/// The call is told as broken, and the next request can say so.
#[tokio::test]
async fn broken_arguments_are_kept_as_text() {
    let server = Models::start().await.unwrap();
    for spoken in ALL {
        let client = Client::new(&server, spoken);
        let mut transcript = prompt("@call a__b {\"command\": \"l\n@then\n@say {{result}}");
        let thought = client.thought(&transcript).await;
        let call = thought.tool_uses().next().unwrap().clone();
        assert_eq!(call.input, ToolInput::Broken("{\"command\": \"l".to_owned()), "{spoken:?}");
        transcript.messages.push(Message::assistant(thought.blocks));
        transcript.messages.push(Message::user(vec![result(&call.id, "no JSON")]));
        assert_eq!(client.thought(&transcript).await.blocks, [Block::text("no JSON")], "{spoken:?}");
    }
}

#[tokio::test]
async fn reasons_for_the_end_are_told_apart() {
    let server = Models::start().await.unwrap();
    for (word, all) in [
        ("end_turn", [Stop::EndTurn; 3]),
        ("max_tokens", [Stop::MaxTokens; 3]),
        ("refusal", [Stop::Refusal; 3]),
        ("pause", [Stop::Pause, Stop::EndTurn, Stop::EndTurn]),
        ("context_full", [Stop::ContextFull, Stop::MaxTokens, Stop::MaxTokens]),
    ] {
        for (spoken, expected) in ALL.into_iter().zip(all) {
            let client = Client::new(&server, spoken);
            let thought = client.thought(&prompt(&format!("@say So far\n@stop {word}"))).await;
            assert_eq!(
                (thought.stop, thought.blocks),
                (expected, vec![Block::text("So far")]),
                "{spoken:?} {word}"
            );
        }
    }
}

#[tokio::test]
async fn nothing_is_a_thought_and_so_are_a_hundred_calls() {
    let server = Models::start().await.unwrap();
    for spoken in ALL {
        let client = Client::new(&server, spoken);
        let thought = client.thought(&prompt("@nothing")).await;
        assert_eq!((thought.stop, thought.blocks), (Stop::EndTurn, Vec::new()), "{spoken:?}");
        let thought = client.thought(&prompt("@call*100 a__b {\"n\": 1}")).await;
        let ids: std::collections::BTreeSet<_> = thought.tool_uses().map(|call| call.id.clone()).collect();
        assert_eq!((thought.stop, ids.len()), (Stop::ToolUse, 100), "{spoken:?}");
    }
}
