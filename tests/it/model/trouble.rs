//! Providers that refuse, fail, fall silent, break off and talk nonsense.

use std::time::Duration;

use gateway::brain::BrainSetting;
use gateway::harness::model::{Again, Block, ModelError};
use proptest::prelude::*;
use serde_json::json;
use tests::models::{Canned, End, Frame, Models};
use tokio::net::TcpListener;

use super::{ALL, Client, Spoken, prompt, setting};

/// What the script of a failure gives over HTTP, before anything was said, and in the middle.
#[tokio::test]
async fn every_failure_has_its_name_and_says_whether_trying_again_helps() {
    let server = Models::start().await.unwrap();
    let after = |ms| Again::Helps(Some(Duration::from_millis(ms)));
    for (kind, says, again) in [
        ("rate_limited", "rate limit is reached", Again::Helps(None)),
        ("rate_limited 1500ms", "asks to wait 1.5 s", after(1500)),
        ("overloaded", "is overloaded", Again::Helps(None)),
        ("failed", "the provider failed", Again::Helps(None)),
        ("unreachable", "broke off", Again::Helps(None)),
        ("broken_off", "broke off", Again::Helps(None)),
        ("nonsense", "makes no sense", Again::Helps(None)),
        ("refused", "refuses the request", Again::Pointless),
        ("not_found", "no such model", Again::Pointless),
        ("bad_key", "does not take the key", Again::Pointless),
        ("context_too_long", "too long for the model", Again::Shorter),
    ] {
        for spoken in ALL {
            let client = Client::new(&server, spoken);
            let error = client.error(&prompt(&format!("@fail {kind}"))).await;
            assert!(error.to_string().contains(says), "{spoken:?} {kind}: {error}");
            assert_eq!(error.again(), again, "{spoken:?} {kind}: {error}");
        }
    }
}

#[tokio::test]
async fn failures_in_the_middle_come_after_what_was_said() {
    let server = Models::start().await.unwrap();
    for (kind, says) in [
        ("rate_limited", "rate limit is reached"),
        ("overloaded", "is overloaded"),
        ("failed", "the provider failed"),
        ("broken_off", "broke off"),
        ("nonsense", "makes no sense"),
        ("context_too_long", "too long for the model"),
    ] {
        for spoken in ALL {
            let client = Client::new(&server, spoken);
            let (error, told) = client.think(&prompt(&format!("@say Half of\n@fail {kind}"))).await;
            assert_eq!(told.text, "Half of", "{spoken:?} {kind}");
            let error = error.unwrap_err();
            assert!(error.to_string().contains(says), "{spoken:?} {kind}: {error}");
        }
    }
}

/// Errors as local servers write them.
#[tokio::test]
async fn errors_of_other_servers_are_understood() {
    let server = Models::start().await.unwrap();
    let client = Client::new(&server, Spoken::Chat);
    for (canned, says) in [
        (
            Canned::json(404, &json!({"error": "model 'x' not found"})),
            "status 404 Not Found, model 'x' not found",
        ),
        (Canned::json(400, &json!({"object": "error", "message": "no tools", "code": 400})), "no tools"),
        (Canned::json(422, &json!({"detail": "no images"})), "no images"),
        (Canned::of(502, "text/html", "<h1>Bad\ngateway</h1>"), "<h1>Bad gateway</h1>"),
        (
            Canned::json(
                400,
                &json!({"error": {"code": 400, "message": "the request exceeds the available context size", "type": "exceed_context_size_error"}}),
            ),
            "too long for the model",
        ),
        (
            Canned::of(308, "text/plain", "").header("location", "https://elsewhere.example/"),
            "redirects are not followed",
        ),
        (Canned::events("data: {\"error\": \"out of memory\"}\n\n"), "the provider failed: out of memory"),
        (
            Canned::events(
                "data: {\"object\": \"error\", \"message\": \"out of memory\", \"code\": 500}\n\n",
            ),
            "out of memory",
        ),
        (Canned::of(200, "text/html", "<h1>Sign in</h1>"), "not as a stream of events"),
        (Canned::of(503, "text/plain", "").header("retry-after", "7"), "asks to wait 7 s"),
    ] {
        server.answer_next(canned);
        let error = client.error(&prompt("Hello")).await;
        assert!(error.to_string().contains(says), "{says}: {error}");
        assert_eq!(error.to_string().lines().count(), 1);
    }
}

#[tokio::test]
async fn nobody_there_is_said() {
    let server = Models::start().await.unwrap();
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let base_url = Some(format!("http://{free}"));
    let client = Client::of(&BrainSetting { base_url, ..setting(&server, Spoken::Messages) });
    let error = client.error(&prompt("Hello")).await;
    assert!(matches!(error, ModelError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn silence_has_a_limit_and_any_byte_ends_it() {
    let server = Models::start().await.unwrap();
    for spoken in ALL {
        let client = Client::of(&BrainSetting { silence_s: 1, ..setting(&server, spoken) });
        for text in ["@fail silent", "@say Half of\n@fail silent"] {
            let error = client.error(&prompt(text)).await;
            assert_eq!(error, ModelError::Silent { silence: Duration::from_secs(1) }, "{spoken:?}");
        }
    }
    // Comments are no events, and show that somebody is there, for longer than any silence may be.
    let client = Client::of(&BrainSetting { silence_s: 1, ..setting(&server, Spoken::Chat) });
    let mut canned = Canned::events("");
    for _ in 0..30 {
        canned.frames.push(Frame::Wait(Duration::from_millis(50)));
        canned.frames.push(Frame::Bytes(": thinking\n\n".into()));
    }
    canned.frames.push(Frame::Bytes(super::chat::STREAM.into()));
    server.answer_next(canned);
    let thought = client.thought(&prompt("Hello")).await;
    assert!(thought.ttft > Duration::from_secs(1), "{:?}", thought.ttft);
}

/// One event, or all of them, are larger than anything a model says.
#[tokio::test]
async fn what_is_too_large_is_refused() {
    let server = Models::start().await.unwrap();
    let client = Client::new(&server, Spoken::Messages);
    server.answer_next(Canned::events(&format!("data: {}", "x".repeat(17 << 20))));
    assert_eq!(client.error(&prompt("Hello")).await, ModelError::TooLarge { max: 16 << 20 });
    let mut canned = Canned::events("");
    let ping = format!("data: {{\"type\": \"ping\", \"x\": \"{}\"}}\n\n", "x".repeat(1 << 20));
    canned.frames = vec![Frame::Bytes(ping.into()); 70];
    server.answer_next(canned);
    assert_eq!(client.error(&prompt("Hello")).await, ModelError::TooLarge { max: 64 << 20 });
}

/// A caller that does not wait any longer: the connection ends, and the next request is answered.
#[tokio::test]
async fn a_dropped_request_disturbs_nobody() {
    let server = Models::start().await.unwrap();
    for spoken in ALL {
        let client = Client::new(&server, spoken);
        let silent = prompt("@say Half of\n@fail silent");
        let dropped = tokio::time::timeout(Duration::from_millis(200), client.think(&silent)).await;
        assert!(dropped.is_err());
        assert_eq!(client.thought(&prompt("@say Hello")).await.blocks, [Block::text("Hello")]);
    }
}

fn junk() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        Just("null".to_owned()),
        Just("-1".to_owned()),
        Just("18446744073709551615".to_owned()),
        Just("\"tool_use\"".to_owned()),
        Just("\"text\"".to_owned()),
        Just("[{}]".to_owned()),
        Just("{\"type\":\"tool_use\",\"input\":3}".to_owned()),
        Just("{\"type\":\"function_call\",\"arguments\":3}".to_owned()),
        Just(
            "[{\"delta\":{\"tool_calls\":[{\"index\":18446744073709551615,\"function\":{\"name\":\"x\"}}]}}]"
                .to_owned()
        ),
        Just("[{\"delta\":{\"tool_calls\":[{\"id\":\"y\",\"function\":{\"name\":\"x\"}}]}}]".to_owned()),
        Just("{\"type\":\"signature_delta\",\"signature\":\"s\"}".to_owned()),
    ];
    let key = prop_oneof![
        Just("type"),
        Just("index"),
        Just("delta"),
        Just("content_block"),
        Just("message"),
        Just("usage"),
        Just("choices"),
        Just("item"),
        Just("output_index"),
        Just("response"),
        Just("error"),
    ];
    let kind = prop_oneof![
        Just("message_start"),
        Just("content_block_start"),
        Just("content_block_delta"),
        Just("content_block_stop"),
        Just("message_delta"),
        Just("message_stop"),
        Just("response.output_item.added"),
        Just("response.output_item.done"),
        Just("response.completed"),
        Just("response.function_call_arguments.delta"),
    ];
    let fields = proptest::collection::vec((key, value), 0..5);
    let event = (kind, fields).prop_map(|(kind, fields)| {
        let fields: String = fields.iter().map(|(key, value)| format!(",\"{key}\":{value}")).collect();
        format!("data: {{\"type\":\"{kind}\"{fields}}}\n\n")
    });
    proptest::collection::vec(event, 0..8).prop_map(|events| events.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever comes: a thought or an error, never a panic, never for ever.
    #[test]
    fn nonsense_harms_nobody(stream in junk()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = Models::start().await.unwrap();
            for spoken in ALL {
                server.answer_next(Canned::events(&stream).ending(End::Clean));
                let client = Client::new(&server, spoken);
                let ended = tokio::time::timeout(Duration::from_mins(1), client.think(&prompt("Hello"))).await;
                assert!(ended.is_ok(), "{spoken:?}");
            }
        });
    }
}
