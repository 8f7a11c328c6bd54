//! What a model is told.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use gateway::harness::context::{Policy, Results, text, transcript, wants_compaction};
use gateway::harness::model::{Block, Message, Role, Seen, Transcript};
use gateway::session::{Body, ErrorSaid, ModelStop, Private, RetryStatus, TOO_LONG, Via};
use serde_json::json;

use super::step::Story;

const FULL: Policy = Policy { results: Results::Full, compact_at: None };

/// Turns alternate, calls come from the model, each has one result and that follows at once.
pub(super) fn check(transcript: &Transcript) -> Result<(), String> {
    let mut open: Vec<String> = Vec::new();
    for (place, message) in transcript.messages.iter().enumerate() {
        if message.blocks.is_empty() {
            return Err(format!("message {place} is empty"));
        }
        match message.role {
            Role::Assistant => {
                if !open.is_empty() {
                    return Err(format!("message {place} comes before the results of {open:?}"));
                }
                open.extend(message.blocks.iter().filter_map(|block| match block {
                    Block::ToolUse(tool_use) => Some(tool_use.id.clone()),
                    _ => None,
                }));
            }
            Role::User => {
                for block in &message.blocks {
                    let Block::ToolResult(result) = block else { continue };
                    let Some(at) = open.iter().position(|id| *id == result.tool_use_id) else {
                        return Err(format!("a result of nothing in message {place}"));
                    };
                    open.remove(at);
                }
            }
        }
    }
    if open.is_empty() { Ok(()) } else { Err(format!("no result of {open:?}")) }
}

/// A transcript in words, a line for each message.
fn shape(transcript: &Transcript) -> Vec<String> {
    let block = |block: &Block| match block {
        Block::Text(text) => text.clone(),
        Block::Image(_) => "[image]".to_owned(),
        Block::Thinking(thinking) => format!("({})", thinking.text),
        Block::ToolUse(tool_use) => format!("call {}", tool_use.name),
        Block::ToolResult(result) => {
            let text = |seen: &Seen| match seen {
                Seen::Text(text) => text.clone(),
                Seen::Image(_) => "[image]".to_owned(),
            };
            format!("= {}", result.content.iter().map(text).collect::<Vec<_>>().join(" "))
        }
    };
    let line = |message: &Message| {
        let who = if message.role == Role::User { "user" } else { "assistant" };
        let blocks: Vec<String> = message.blocks.iter().map(block).collect();
        format!("{who}: {}", blocks.join(" | "))
    };
    transcript.messages.iter().map(line).collect()
}

fn told(story: &Story) -> Vec<String> {
    let transcript = transcript(&story.state(), FULL, String::new());
    check(&transcript).unwrap();
    shape(&transcript)
}

#[test]
fn what_was_said_while_the_model_was_busy_comes_behind_what_it_did() {
    let mut story = Story::default();
    story.say("one");
    let start = story.begin();
    story.say("two");
    let calls: Vec<_> = ["a__b", "c__d"].iter().map(|name| story.ask(Via::Loop, name, None)).collect();
    story.finish(start, Some(ModelStop::ToolUse));
    story.say("three");
    story.settle(calls[1], "second");
    assert_eq!(
        told(&story),
        [
            "user: one",
            "assistant: call a__b | call c__d",
            "user: = second | = [no result yet: the call is still open]"
        ]
    );
    story.settle(calls[0], "first");
    assert_eq!(
        told(&story),
        [
            "user: one",
            "assistant: call a__b | call c__d",
            "user: = second | = first",
            "user: two",
            "user: three"
        ]
    );
}

#[test]
fn what_another_brain_did_is_told_with_its_results() {
    let mut story = Story::default();
    story.put(Via::Mcp, &Body::UserMessage { content: "from Claude Code".into() });
    let open = story.ask(Via::Mcp, "sandbox__bash", None);
    let call = story.ask(Via::Mcp, "sandbox__read", None);
    story.settle(call, "text");
    story.put(Via::Mcp, &Body::AgentMessage { content: "I read it".into() });
    story.say("go on");
    assert_eq!(
        told(&story),
        [
            "user: from Claude Code",
            "assistant: call sandbox__read",
            "user: = text",
            "assistant: I read it",
            "user: go on"
        ]
    );
    story.settle(open, "late");
    assert_eq!(told(&story)[5..], ["assistant: call sandbox__bash", "user: = late"]);
}

/// What stays in the log would be refused with every request to come.
#[test]
fn a_picture_that_no_provider_takes_is_told_of_and_of_many_the_latest_are_shown() {
    const PNG: &str =
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";
    let picture =
        |media_type: &str, data: &str| json!({"type": "image", "mimeType": media_type, "data": data});
    let line = "[a picture of type image/bmp, 4 bytes, which the model cannot be shown]";
    let mut story = Story::default();
    let call = story.calling(1)[0];
    story.settle_with(call, vec![picture("image/bmp", "Qk0AAA=="), picture("image/png", PNG)]);
    let content = json!([picture("image/bmp", "Qk0AAA=="), picture("image/png", PNG)]);
    story.put(Via::Cli, &Body::UserMessage { content });
    let lines = told(&story);
    assert_eq!(
        lines[2..],
        [format!("user: = {line} [image]"), format!("user: {line} | [image]")],
        "a result and a message"
    );
    let content = json!(vec![picture("image/png", PNG); 19]);
    story.put(Via::Cli, &Body::UserMessage { content });
    let shown = |lines: &[String]| lines.iter().map(|line| line.matches("[image]").count()).sum::<usize>();
    let lines = told(&story);
    assert!(shown(&lines) == 11 && !lines[2].contains("[image]"), "{lines:?}");
}

#[test]
fn an_empty_message_is_told_as_one() {
    for content in [json!([]), json!(""), json!([{"type": "text", "text": " \n"}])] {
        let mut story = Story::default();
        story.put(Via::Mcp, &Body::UserMessage { content });
        assert_eq!(told(&story), ["user: [an empty message]"]);
    }
}

#[test]
fn a_request_that_never_ended_hides_nothing() {
    let mut story = Story::default();
    story.say("one");
    story.begin();
    story.say("two");
    assert_eq!(told(&story), ["user: one", "user: two"]);
    let start = story.begin();
    story.answer(start, "both", ModelStop::EndTurn);
    assert_eq!(told(&story), ["user: one", "user: two", "assistant: both"]);
}

#[test]
fn what_proves_a_thought_goes_back_to_its_provider() {
    let mut story = Story::default();
    story.say("one");
    let start = story.begin();
    story.put(Via::Loop, &Body::AgentThinking { content: Some(json!([{"type": "text", "text": "hm"}])) });
    story.events.last_mut().unwrap().private =
        Some(Private(json!({"provider": "scripted", "value": {"signature": "s"}})));
    story.answer(start, "so", ModelStop::EndTurn);
    let transcript = transcript(&story.state(), FULL, String::new());
    let Block::Thinking(thinking) = &transcript.messages[1].blocks[0] else { panic!("{transcript:?}") };
    let opaque = thinking.opaque.clone().unwrap();
    assert_eq!((opaque.provider.as_str(), opaque.value), ("scripted", json!({"signature": "s"})));
    assert_eq!(thinking.text, "hm");
}

#[test]
fn a_summary_takes_the_place_of_what_it_stands_for_and_of_no_open_call() {
    let mut story = Story::default();
    let calls = story.calling(2);
    story.settle(calls[0], "one");
    let through = story.end();
    story.say("also");
    story.put(Via::Loop, &Body::ContextCompacted { through, summary: "they counted".into() });
    let state = story.state();
    assert_eq!(state.calls.iter().map(|call| call.id).collect::<Vec<_>>(), [calls[1]]);
    let lines = told(&story);
    assert!(lines[0].contains("they counted") && lines[0].contains(&format!("event {through}")), "{lines:?}");
    assert_eq!(
        lines[1..],
        ["assistant: call sandbox__bash", "user: = [no result yet: the call is still open]"]
    );
    story.settle(calls[1], "two");
    assert_eq!(told(&story)[1..], ["assistant: call sandbox__bash", "user: = two", "user: also"]);
}

#[test]
fn when_to_compact() {
    let mut story = Story::default();
    story.say("one");
    let start = story.begin();
    story.answer(start, "two", ModelStop::EndTurn);
    story.say("three");
    let at = |compact_at| Policy { results: Results::Full, compact_at };
    // The model was told 10 tokens and answered one.
    assert!(
        wants_compaction(&story.state(), at(Some(11))) && !wants_compaction(&story.state(), at(Some(12)))
    );
    assert!(!wants_compaction(&story.state(), at(None)));
    let error = ErrorSaid { kind: TOO_LONG.into(), message: "too long".into() };
    story.put(Via::Loop, &Body::SessionError { error, retry_status: RetryStatus::Retrying { after_ms: 0 } });
    assert!(wants_compaction(&story.state(), at(None)));
    assert!(text(&story.state(), story.end(), 1_000).unwrap().contains("PERSON: three"));
    story.put(Via::Loop, &Body::ContextCompacted { through: story.end(), summary: "s".into() });
    assert!(!wants_compaction(&story.state(), at(None)));
    assert_eq!(text(&story.state(), story.end(), 1_000), None);
}

/// What one request is told is the beginning of what the next one is told, but for the strides in which results are cut.
#[test]
fn what_was_told_stays_and_older_results_are_cut_in_strides() {
    let policy = Policy { results: Results::Trimmed { whole: 4, chars: 10 }, compact_at: None };
    let (mut story, mut before, mut changes) = (Story::default(), Vec::new(), 0);
    for turn in 0..20 {
        let calls = story.calling(1);
        story.settle(calls[0], &format!("{turn} {}", "x".repeat(100)));
        let now = transcript(&story.state(), policy, String::new());
        check(&now).unwrap();
        let lines = shape(&now);
        let same = lines.iter().zip(&before).take_while(|(a, b)| a == b).count();
        changes += usize::from(same < before.len());
        let whole = lines.iter().filter(|line| line.contains(&"x".repeat(100))).count();
        assert!(whole <= 7 && (whole >= 4 || turn < 4), "{whole} of {turn}");
        before = lines;
    }
    assert!(before.iter().any(|line| line.contains("is in event")), "{before:?}");
    assert_eq!(changes, 4, "a stride every fourth result");
    let marked = |transcript: &Transcript| {
        transcript.messages.iter().map(|message| message.breakpoint.is_some()).collect::<Vec<_>>()
    };
    let now = transcript(&story.state(), policy, String::new());
    assert_eq!(marked(&now).iter().filter(|marked| **marked).count(), 2);
    assert_eq!(marked(&now).last(), Some(&true));
}
