//! What the loop does with what a model says, and with what goes wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use async_trait::async_trait;
use gateway::harness::context::{Policy, Results};
use gateway::harness::model::{
    Block, Delta, Emit, Model, ModelError, Request, Settings, Stop, Thought, Usage,
};
use gateway::harness::{Brain, Budget, Chooser, Said, WakeError};
use gateway::session::{Body, ModelUsage, Status, StopReason};
use serde_json::json;

use super::rig::{Alone, field, lines, outcome, rests, said};

/// A script, with the files that its calls write to.
fn script(alone: &Alone, script: &str) -> String {
    script.replace("FILE", &alone.file("file").display().to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_is_written_from_the_question_to_the_rest() -> Result<()> {
    let alone = Alone::new().await?;
    let prompt = script(
        &alone,
        "@think Hm.\n@say First.\n@call one__note {\"file\": \"FILE\", \"text\": \"a\"}\n@then\n@say It said {{result}}.",
    );
    let id = alone.process.asked(&prompt).await?;
    alone.process.wake(id).await?;
    let events = alone.process.events(id).await?;
    let kinds: Vec<&str> = events.iter().map(gateway::session::Event::kind).collect();
    ensure!(
        kinds
            == [
                "session.created",
                "user.message",
                "session.status_running",
                "span.model_request_start",
                "agent.thinking",
                "agent.message",
                "agent.tool_use",
                "span.model_request_end",
                "hand.provisioned",
                "hand.call_started",
                "agent.tool_result",
                "span.model_request_start",
                "agent.message",
                "span.model_request_end",
                "session.status_idle"
            ],
        "{kinds:?}"
    );
    ensure!(said(&events) == ["First.", "It said noted a."] && rests(&events) == ["end_turn"]);
    ensure!(field(&events[3], "through") == 2 && field(&events[3], "model") == "scripted/demo");
    ensure!(field(&events[9], "waker") == 1, "{:?}", events[9]);
    let private = format!("{:?}", events.iter().map(|event| event.to_json().to_string()).collect::<Vec<_>>());
    ensure!(!private.contains("signature") && events[4].private.is_some(), "{private}");
    let state = alone.process.state(id).await?;
    ensure!(state.status == Status::Idle { stop_reason: StopReason::EndTurn } && state.spent.requests == 2);
    // Awake no more; and waking it again changes nothing.
    ensure!(alone.process.sessions.awake("home", None).await?.is_empty());
    alone.process.wake(id).await?;
    ensure!(alone.process.events(id).await?.len() == events.len());
    alone.process.say(id, "thanks").await?;
    ensure!(alone.process.sessions.awake("home", None).await? == [id]);
    alone.process.wake(id).await?;
    ensure!(rests(&alone.process.events(id).await?).len() == 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_cant_be_made_are_told_and_the_model_goes_on() -> Result<()> {
    let alone = Alone::new().await?;
    let prompt = script(
        &alone,
        "@call nowhere__tool {}\n@call one__note {broken\n@call one__note {\"file\": \"FILE\", \"text\": \"good\"}\n@call \
         session_events {\"limit\": 2}\n@call session_events {\"limits\": 2}\n@then\n@say Done with {{results}}.",
    );
    let id = alone.process.asked(&prompt).await?;
    alone.process.wake(id).await?;
    let events = alone.process.events(id).await?;
    ensure!(rests(&events) == ["end_turn"] && said(&events) == ["Done with 5."], "{:?}", said(&events));
    for (n, kind, text) in [
        (0, "error", "no tool called \"nowhere__tool\""),
        (1, "error", "no JSON object"),
        (2, "ok", "noted good"),
        (3, "ok", "agent.tool_result"),
        (4, "error", "unknown field"),
    ] {
        let (outcome, said) = outcome(&events, n)?;
        ensure!(outcome == kind && said.contains(text), "{n}: {outcome} {said}");
    }
    ensure!(lines(&alone.file("file")) == ["good"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_calls_at_once_are_bounded() -> Result<()> {
    let alone = Alone::new().await?;
    let prompt =
        script(&alone, "@call*100 one__look {\"file\": \"FILE\", \"text\": \"x\"}\n@then\n@say Done.");
    let id = alone.process.asked(&prompt).await?;
    alone.process.wake(id).await?;
    let events = alone.process.events(id).await?;
    ensure!(rests(&events) == ["end_turn"] && lines(&alone.file("file")).len() == 32);
    ensure!(outcome(&events, 31)?.0 == "ok" && outcome(&events, 32)?.1.contains("more than 32 calls"));
    ensure!(outcome(&events, 99)?.1.contains("did not run"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_says_nothing_or_too_much_or_will_not_is_told_apart() -> Result<()> {
    let alone = Alone::new().await?;
    for (script, reason) in [
        ("@nothing", "end_turn"),
        ("@say Cut\n@stop max_tokens", "max_tokens"),
        ("@say No.\n@stop refusal", "refusal"),
        ("@say Wait.\n@stop pause\n@then\n@say Here.", "end_turn"),
    ] {
        let id = alone.process.asked(script).await?;
        alone.process.wake(id).await?;
        let events = alone.process.events(id).await?;
        ensure!(rests(&events) == [reason], "{script}: {:?}", rests(&events));
        // It can be talked to all the same.
        alone.process.say(id, "@say Again.").await?;
        alone.process.wake(id).await?;
        ensure!(said(&alone.process.events(id).await?).last().map(String::as_str) == Some("Again."));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_loops_ends_with_its_budget() -> Result<()> {
    let steps = Budget { steps: 5, ..Budget::default() };
    let alone = Alone::with(|setup| setup.manner.budget = steps).await?;
    let prompt = script(&alone, "@loop\n@call one__note {\"file\": \"FILE\", \"text\": \"x\"}");
    let id = alone.process.asked(&prompt).await?;
    alone.process.wake(id).await?;
    let events = alone.process.events(id).await?;
    ensure!(rests(&events) == ["budget_exhausted"] && lines(&alone.file("file")).len() == 5);
    let idle = events.last().map(|event| field(event, "stop_reason.budget").clone());
    ensure!(idle == Some(json!("steps")), "{idle:?}");
    // It stays so, until a person says something.
    alone.process.wake(id).await?;
    ensure!(rests(&alone.process.events(id).await?).len() == 1);
    alone.process.say(id, "@say Enough.").await?;
    alone.process.wake(id).await?;
    ensure!(rests(&alone.process.events(id).await?) == ["budget_exhausted", "end_turn"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_fails_is_asked_again_and_then_given_up() -> Result<()> {
    let alone = Alone::new().await?;
    for (failure, kind, errors, last) in [
        ("overloaded", "overloaded", 4, "exhausted"),
        ("rate_limited 2ms", "rate_limited", 4, "exhausted"),
        ("broken_off", "broken_off", 4, "exhausted"),
        ("bad_key", "bad_key", 1, "terminal"),
        ("refused", "refused", 1, "terminal"),
    ] {
        let id = alone.process.asked(&format!("@say Begun\n@fail {failure}")).await?;
        alone.process.wake(id).await?;
        let events = alone.process.events(id).await?;
        let told: Vec<_> = events.iter().filter(|event| event.kind() == "session.error").collect();
        ensure!(told.len() == errors && field(told[0], "error.type") == kind, "{failure}: {told:?}");
        ensure!(
            field(told[errors - 1], "retry_status.type") == last && rests(&events) == ["retries_exhausted"]
        );
        ensure!(said(&events).is_empty(), "what broke off counts for nothing");
        // A person has it tried again.
        alone.process.write(id, &Body::StatusRescheduled {}).await?;
        alone.process.wake(id).await?;
        ensure!(rests(&alone.process.events(id).await?).len() == 2);
        alone.process.say(id, "@say Well again.").await?;
        alone.process.wake(id).await?;
        ensure!(said(&alone.process.events(id).await?) == ["Well again."]);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_stops_the_model_and_a_call() -> Result<()> {
    let slow = |setup: &mut super::rig::Setup<'_>| setup.pause = Duration::from_mins(10);
    let alone = Alone::with(slow).await?;
    // While it speaks.
    let id = alone.process.asked("@say Half of\n@wait 300s\n@say it").await?;
    let mut voice = alone.process.harness.voices().listen(id);
    let interrupt = async {
        while voice.recv().await?.said != Said::Text("of".into()) {}
        alone.process.write(id, &Body::UserInterrupt {}).await
    };
    let (woken, interrupted) = tokio::join!(alone.process.wake(id), interrupt);
    woken?;
    interrupted?;
    let events = alone.process.events(id).await?;
    ensure!(rests(&events) == ["interrupted"] && said(&events) == ["Half of"], "{:?}", said(&events));

    // While a call runs, and another waits for it.
    let prompt = script(
        &alone,
        "@call one__note {\"file\": \"FILE\", \"text\": \"a\"}\n@call one__note {\"file\": \"FILE\", \"text\": \"b\"}",
    );
    let id = alone.process.asked(&prompt).await?;
    let begun = Instant::now();
    let interrupt = async {
        while lines(&alone.file("file")).is_empty() {
            ensure!(begun.elapsed() < Duration::from_mins(1), "the call never began");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        alone.process.write(id, &Body::UserInterrupt {}).await
    };
    let (woken, interrupted) = tokio::join!(alone.process.wake(id), interrupt);
    woken?;
    interrupted?;
    let events = alone.process.events(id).await?;
    ensure!(rests(&events) == ["interrupted"] && lines(&alone.file("file")) == ["a"]);
    ensure!(outcome(&events, 0)?.0 == "cancelled" && outcome(&events, 1)?.1.contains("did not run"));
    alone.process.say(id, "@say Go on.").await?;
    alone.process.wake(id).await?;
    ensure!(rests(&alone.process.events(id).await?) == ["interrupted", "end_turn"]);
    Ok(())
}

/// A model that answers long conversations with a summary and short ones with a number; it takes no more than so many
/// blocks at once.
struct Summing {
    asked: AtomicUsize,
    most: usize,
}

#[async_trait]
impl Model for Summing {
    async fn think(&self, request: &Request<'_>, out: &mut dyn Emit) -> Result<Thought, ModelError> {
        let n = self.asked.fetch_add(1, Ordering::SeqCst);
        let told: usize = request.transcript.messages.iter().map(|message| message.blocks.len()).sum();
        if told > self.most {
            return Err(ModelError::ContextTooLong { why: format!("{told} blocks") });
        }
        let summary = request.transcript.system.contains("summarize");
        let text = if summary { format!("summary {n}") } else { format!("answer {n}") };
        out.emit(Delta::Text(&text));
        let usage = Usage { input: 10 * told as u64, output: 1, ..Usage::default() };
        Ok(Thought {
            blocks: vec![Block::text(text)],
            stop: Stop::EndTurn,
            usage,
            ttft: Duration::from_millis(1),
        })
    }
}

fn summing(most: usize) -> Chooser {
    let model = Arc::new(Summing { asked: AtomicUsize::new(0), most });
    Box::new(move |_| {
        let settings = Settings {
            model: "summing".into(),
            max_output_tokens: 100,
            thinking: gateway::brain::ThinkingSetting::Off,
        };
        Ok(Brain { name: "test/summing".into(), model: model.clone(), settings })
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_conversation_is_compacted_and_stays_readable() -> Result<()> {
    for (most, compact_at) in [(usize::MAX, Some(70)), (6, None)] {
        let alone = Alone::with(|setup| {
            setup.chooser = summing(most);
            setup.manner.policy = Policy { results: Results::Full, compact_at };
        })
        .await?;
        let id = alone.process.asked("message 0").await?;
        for n in 1..12 {
            alone.process.wake(id).await?;
            alone.process.say(id, &format!("message {n}")).await?;
        }
        alone.process.wake(id).await?;
        let events = alone.process.events(id).await?;
        let compacted =
            events.iter().filter(|event| event.kind() == "agent.thread_context_compacted").count();
        ensure!(compacted >= 2 && said(&events).len() == 12, "{compacted} {:?}", said(&events));
        ensure!(rests(&events).len() == 12 && rests(&events).iter().all(|rest| rest == "end_turn"));
        let state = alone.process.state(id).await?;
        ensure!(state.told.len() < 10 && state.summarized().is_some(), "{}", state.told.len());
        ensure!(events.iter().filter(|event| event.kind() == "user.message").count() == 12);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_never_be_told_is_given_up() -> Result<()> {
    let alone = Alone::with(|setup| setup.chooser = summing(0)).await?;
    let id = alone.process.asked("too much").await?;
    alone.process.wake(id).await?;
    ensure!(rests(&alone.process.events(id).await?) == ["retries_exhausted"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_in_one_hand_at_a_time() -> Result<()> {
    let alone = Alone::new().await?;
    let id = alone.process.asked("@wait 300s").await?;
    let first = tokio::time::timeout(Duration::from_millis(300), alone.process.wake(id));
    let second = async {
        while !alone.process.harness.is_waking(id) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        alone.process.wake(id).await
    };
    let (first, second) = tokio::join!(first, second);
    ensure!(first.is_err() && matches!(second, Err(WakeError::Busy)), "{second:?}");
    // The first one was dropped in the middle: another takes its place.
    alone.process.say(id, "@say Here.").await?;
    alone.process.wake(id).await?;
    let events = alone.process.events(id).await?;
    ensure!(rests(&events) == ["end_turn"] && said(&events) == ["Here."], "{:?}", said(&events));
    let usage = alone.process.state(id).await?.spent.usage;
    ensure!(usage != ModelUsage::default());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_brain_a_session_says_so() -> Result<()> {
    let alone = Alone::with(|setup| {
        setup.chooser = gateway::harness::chooser(gateway::brain::BrainSetting::default(), |_| None);
    })
    .await?;
    let id = alone.process.asked("hello").await?;
    alone.process.wake(id).await?;
    let events = alone.process.events(id).await?;
    let error = events.iter().find(|event| event.kind() == "session.error");
    ensure!(error.is_some_and(|error| field(error, "error.type") == "no_brain"), "{events:?}");
    ensure!(rests(&events) == ["retries_exhausted"]);
    Ok(())
}

/// Calls that change nothing run beside each other; others wait for each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_calls_that_change_nothing_run_at_the_same_time() -> Result<()> {
    let alone = Alone::with(|setup| setup.pause = Duration::from_millis(300)).await?;
    for (tool, at_once) in [("look", 3), ("note", 1)] {
        let call = format!("@call one__{tool} {{\"file\": \"FILE\", \"text\": \"x\"}}\n");
        // The first one makes the hand ready, so that the others begin at once.
        let prompt = script(&alone, &format!("{call}@then\n{}@then\n@say Done.", call.repeat(3)));
        let id = alone.process.asked(&prompt).await?;
        alone.process.wake(id).await?;
        let (mut running, mut most) = (0, 0);
        for event in alone.process.events(id).await? {
            match event.kind() {
                "hand.call_started" => running += 1,
                "agent.tool_result" => running -= 1,
                _ => {}
            }
            most = most.max(running);
        }
        ensure!(most == at_once, "{most} of {tool} ran at the same time");
    }
    Ok(())
}
