//! Whatever is in a transcript, every provider takes it: what it refuses once it would refuse for good.

use gateway::brain::{BrainSetting, Effort, ThinkingSetting};
use gateway::harness::model::{
    Block, Breakpoint, Image, Message, Opaque, Role, Seen, Thinking, ToolInput, ToolResult, ToolUse,
    Transcript,
};
use proptest::prelude::*;
use serde_json::json;
use tests::models::Models;

use super::{ALL, Client, Spoken, object, result, setting};

/// Texts, some of them blank.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), Just(" \n\t".to_owned()), "[a-z]{1,8} ?"]
}

/// Names of tools, and ids of calls: of few, so that some are the same.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just("read file".to_owned()),
        Just("foo bar!/../x".to_owned()),
        Just("sandbox__bash".to_owned()),
        Just("sandbox__basé".to_owned()),
        Just("x".repeat(200)),
        Just("x".repeat(201)),
        ".{1,4}",
    ]
}

fn image() -> Image {
    Image { media_type: "image/png".to_owned(), data: "iVBORw0KGgo=".to_owned() }
}

fn thinking() -> impl Strategy<Value = Block> {
    let proof = prop_oneof![
        Just(Some(("anthropic", json!({"type": "thinking", "signature": "c2ln"})))),
        Just(Some(("anthropic", json!({"type": "redacted_thinking", "data": "cmVk"})))),
        Just(Some(("anthropic", json!({"type": "surprise"})))),
        Just(Some(("openai", json!({"type": "reasoning", "summary": [], "encrypted_content": "ZW5j"})))),
        Just(Some(("openai", json!("surprise")))),
        Just(None),
    ];
    (text(), proof).prop_map(|(text, proof)| {
        let opaque = proof.map(|(provider, value)| Opaque { provider: provider.to_owned(), value });
        Block::Thinking(Thinking { text, opaque })
    })
}

fn block() -> impl Strategy<Value = Block> {
    let seen = prop_oneof![text().prop_map(Seen::Text), Just(Seen::Image(image()))];
    let input = prop_oneof![
        Just(ToolInput::Object(object(json!({"command": "ls"})))),
        text().prop_map(ToolInput::Broken),
    ];
    prop_oneof![
        text().prop_map(Block::Text),
        Just(Block::Image(image())),
        thinking(),
        (name(), name(), input).prop_map(|(id, name, input)| Block::ToolUse(ToolUse { id, name, input })),
        (name(), proptest::collection::vec(seen, 0..3), any::<bool>()).prop_map(
            |(tool_use_id, content, is_error)| {
                Block::ToolResult(ToolResult { tool_use_id, content, is_error })
            }
        ),
    ]
}

fn transcript() -> impl Strategy<Value = Transcript> {
    let role = prop_oneof![Just(Role::User), Just(Role::Assistant)];
    let breakpoint = prop_oneof![Just(None), Just(Some(Breakpoint))];
    let message = (role, proptest::collection::vec(block(), 0..5), breakpoint)
        .prop_map(|(role, blocks, breakpoint)| Message { role, blocks, breakpoint });
    let messages = proptest::collection::vec(message, 0..6);
    (text(), messages).prop_map(|(system, messages)| Transcript { system, messages })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_transcript_is_taken(transcript in transcript()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = Models::start().await.unwrap();
            for spoken in ALL {
                for thinking in [ThinkingSetting::Off, ThinkingSetting::Effort(Effort::Low), ThinkingSetting::Budget(1_024)] {
                    if (thinking == ThinkingSetting::Budget(1_024)) && spoken != Spoken::Messages {
                        continue;
                    }
                    let client = Client::of(&BrainSetting { thinking, ..setting(&server, spoken) });
                    let (thought, _) = client.think(&transcript).await;
                    assert!(thought.is_ok(), "{spoken:?}: {thought:?} to {:#}", server.last());
                }
            }
        });
    }
}

/// What a model called by a name that is none goes back as one, with its result.
#[tokio::test]
async fn a_malformed_name_goes_back_as_one_that_is_taken() {
    let server = Models::start().await.unwrap();
    let names = ["", "read file", "foo bar!/../x"];
    let calls = names.iter().enumerate().map(|(number, name)| {
        let (id, input) = (format!("call_{number}"), ToolInput::Broken("[]".to_owned()));
        Block::ToolUse(ToolUse { id, name: (*name).to_owned(), input })
    });
    let results = (0..names.len()).map(|number| result(&format!("call_{number}"), "There is no such tool."));
    let transcript = Transcript {
        system: String::new(),
        messages: vec![
            Message::user(vec![Block::text("go")]),
            Message::assistant(calls.collect()),
            Message::user(results.collect()),
        ],
    };
    Client::new(&server, Spoken::Messages).thought(&transcript).await;
    let sent = server.last();
    for (number, name) in ["unknown_tool", "read_file", "foo_bar_____x"].iter().enumerate() {
        let call = &sent["messages"][1]["content"][number];
        assert_eq!((&call["name"], call["input"].is_object()), (&json!(name), true), "{sent:#}");
        assert_eq!(sent["messages"][2]["content"][number]["tool_use_id"], call["id"], "{sent:#}");
    }
}

/// Of what failed, the Messages API takes text alone.
#[tokio::test]
async fn a_failure_with_a_picture_or_with_nothing_is_told_in_words() {
    let server = Models::start().await.unwrap();
    for (content, is_error) in [(vec![Seen::Image(image())], false), (Vec::new(), true)] {
        let call =
            ToolUse { id: "a".to_owned(), name: "b".to_owned(), input: ToolInput::Broken(String::new()) };
        let failed = ToolResult { tool_use_id: "a".to_owned(), content, is_error: true };
        let messages = vec![
            Message::user(vec![Block::text("go")]),
            Message::assistant(vec![Block::ToolUse(call)]),
            Message::user(vec![Block::ToolResult(failed)]),
        ];
        let transcript = Transcript { system: String::new(), messages };
        Client::new(&server, Spoken::Messages).thought(&transcript).await;
        let result = server.last()["messages"][2]["content"][0].clone();
        assert_eq!(result["content"][0]["text"], "The tool failed.", "{result}");
        assert_eq!(result["is_error"] == true, is_error, "{result}");
    }
}
