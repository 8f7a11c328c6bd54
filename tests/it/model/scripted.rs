//! The scripted model: what its directives do, and that it is a function of what it is asked.

use std::time::Duration;

use gateway::brain::{BrainSetting, Provider};
use gateway::harness::model::scripted::{Act, Failure, Play, play};
use gateway::harness::model::{
    Block, Message, Request, Settings, Stop, ThinkingSetting, Thought, ToolInput, Transcript,
};
use proptest::prelude::*;
use serde_json::json;

use super::{Client, object, prompt, result, tool};

fn scripted(first_token_ms: u64, token_ms: u64) -> Client {
    let provider = Some(Provider::Scripted);
    let mut client =
        Client::of(&BrainSetting { provider, first_token_ms, token_ms, ..BrainSetting::default() });
    client.tools = vec![tool("sandbox__bash"), tool("sandbox__read")];
    client
}

/// Goes on as the loop would: each call is answered with this.
fn answered(transcript: &mut Transcript, thought: &Thought, answer: &str) {
    let results: Vec<_> = thought.tool_uses().map(|call| result(&call.id, answer)).collect();
    transcript.messages.push(Message::assistant(thought.blocks.clone()));
    if !results.is_empty() {
        transcript.messages.push(Message::user(results));
    }
}

fn played(transcript: &Transcript) -> Play {
    let settings = Settings { model: "x".to_owned(), max_output_tokens: 1, thinking: ThinkingSetting::Off };
    play(&Request { transcript, tools: &[], settings: &settings })
}

#[tokio::test]
async fn steps_follow_one_another() {
    let client = scripted(0, 0);
    let mut transcript = prompt(
        "Hello.
        @say One
        @say and a half: {{tools}}
        @call sandbox__bash {\"command\": \"echo {{results}}\", \"list\": [\"{{result}}\"]}
        @call nobody__knows
        @then
        @think Aha
        @say {{result 1}}, {{result 2}}, {{result 9}}, {{result}}, {{other}} {{",
    );
    let (thought, told) = client.think(&transcript).await;
    let thought = thought.unwrap();
    assert_eq!(told.text, "One\nand a half: sandbox__bash, sandbox__read");
    assert_eq!(thought.stop, Stop::ToolUse);
    let calls: Vec<_> = thought.tool_uses().cloned().collect();
    assert_eq!(
        calls[0].input,
        ToolInput::Object(object(json!({"command": "echo 0", "list": ["(no result)"]})))
    );
    assert_eq!(
        (calls[1].name.as_str(), &calls[1].input),
        ("nobody__knows", &ToolInput::Object(object(json!({}))))
    );
    answered(&mut transcript, &thought, "{{result 1}}");
    // A note beside results is no new prompt.
    transcript.messages.last_mut().unwrap().blocks.push(Block::text("The sandbox is a new one."));
    let thought = client.thought(&transcript).await;
    let Block::Thinking(thinking) = &thought.blocks[0] else { panic!("{thought:?}") };
    assert_eq!((thinking.text.as_str(), thinking.opaque.is_some()), ("Aha", true));
    // What was put in is not looked at again.
    let said = "{{result 1}}, {{result 1}}, (no result), {{result 1}}, {{other}} {{";
    assert_eq!(thought.blocks[1], Block::text(said));
    answered(&mut transcript, &thought, "");
    assert_eq!(client.thought(&transcript).await.blocks, [Block::text("Done.")]);
    transcript.messages.push(Message::user(vec![Block::text("And now?")]));
    assert_eq!(client.thought(&transcript).await.blocks, [Block::text("You said: And now?")]);
    transcript.messages.push(Message::user(vec![Block::text("@say Another script")]));
    assert_eq!(client.thought(&transcript).await.blocks, [Block::text("Another script")]);
}

#[tokio::test]
async fn a_loop_goes_on_for_ever_and_no_id_comes_twice() {
    let client = scripted(0, 0);
    let mut transcript = prompt("@say Begin\n@call a__b\n@then\n@loop\n@call*3 c__d\n@then\n@call e__f");
    let mut ids = std::collections::BTreeSet::new();
    let mut names = Vec::new();
    for _ in 0..6 {
        let thought = client.thought(&transcript).await;
        names.push(thought.tool_uses().next().unwrap().name.clone());
        assert!(thought.tool_uses().all(|call| ids.insert(call.id.clone())), "{thought:?}");
        answered(&mut transcript, &thought, "");
    }
    assert_eq!(names, ["a__b", "c__d", "e__f", "c__d", "e__f", "c__d"]);
    assert_eq!(ids.len(), 1 + 3 + 1 + 3 + 1 + 3);
}

#[tokio::test]
async fn the_system_text_may_be_the_script() {
    let client = scripted(0, 0);
    let mut transcript = prompt("Hello");
    transcript.system = "You are a machine.\n@say I am.".to_owned();
    assert_eq!(client.thought(&transcript).await.blocks, [Block::text("I am.")]);
    // A prompt that merely mentions somebody is no script.
    let mail = prompt("@alice: write to bob@example.org");
    assert_eq!(
        client.thought(&mail).await.blocks,
        [Block::text("You said: @alice: write to bob@example.org")]
    );
    assert_eq!(client.thought(&Transcript::default()).await.blocks, [Block::text("Nothing was said.")]);
}

#[test]
fn directives_that_make_no_sense_are_said() {
    for (script, says) in [
        ("@say a\n@cal b", "@cal, which is none of @say, @think"),
        ("@say a\n@call", "@call without a tool"),
        ("@say a\n@call*0 a__b", "N from 1 to 1000"),
        ("@wait long", "no time up to an hour"),
        ("@wait 2h", "write 200ms or 2s"),
        ("@stop now", "which is no reason"),
        ("@fail often", "which is no failure"),
        ("@fail rate_limited soon", "no time up to an hour"),
    ] {
        let acts = played(&prompt(script)).acts;
        let Some(Act::Fail(Failure::Refused(why))) = acts.last() else { panic!("{script}: {acts:?}") };
        assert!(why.contains(says), "{script}: {why}");
    }
}

/// As long as it was told to: the first token, then each.
#[tokio::test(start_paused = true)]
async fn it_takes_as_much_time_as_it_is_told_to() {
    let client = scripted(500, 20);
    let began = tokio::time::Instant::now();
    let (thought, told) = client.think(&prompt("@say one two three\n@wait 2s\n@call a__b")).await;
    assert_eq!(began.elapsed(), Duration::from_millis(500 + 3 * 20 + 2_000 + 20));
    assert_eq!(thought.unwrap().ttft, Duration::from_millis(520));
    assert_eq!(told.pieces, 4);
}

proptest! {
    /// Whatever the script: the same twice, and never a panic.
    #[test]
    fn it_is_a_function_of_what_it_is_asked(
        lines in proptest::collection::vec(
            ("(@(say|think|call|call\\*[0-9]{1,3}|wait|nothing|stop|fail|then|loop|[a-z]{1,4}) )?", "[a-z_{}0-9 \"]{0,12}"),
            0..12,
        ),
        turns in 0_usize..8,
    ) {
        let script: String = lines.iter().map(|(word, rest)| format!("{word}{rest}\n")).collect();
        let mut transcript = prompt(&script);
        for turn in 0..turns {
            transcript.messages.push(Message::assistant(vec![Block::text(format!("{turn}"))]));
            transcript.messages.push(Message::user(vec![result("x", "{{result}}")]));
        }
        prop_assert_eq!(played(&transcript), played(&transcript));
    }
}
