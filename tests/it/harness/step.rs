//! What to do next, a row for each case.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::collections::BTreeSet;

use gateway::harness::{Runners, Step, next};
use gateway::session::{
    Body, By, CallOutcome, Confirmation, ErrorSaid, Event, EventId, HandRef, ModelStop, ModelUsage,
    Permission, RetryStatus, Seq, SessionId, State, StopReason, Via,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// A log that grows by one event after the other.
#[derive(Default)]
pub(super) struct Story {
    pub(super) events: Vec<Event>,
    session: SessionId,
}

impl Story {
    pub(super) fn put(&mut self, via: Via, body: &Body) -> EventId {
        let id = EventId::new();
        let Ok(Value::Object(fields)) = serde_json::to_value(body) else {
            unreachable!("a body is an object")
        };
        let seq = Seq(i64::try_from(self.events.len()).unwrap() + 1);
        let by = By { principal: "local:owner".into(), client: None, via };
        let at = "2026-11-29T16:02:11Z".parse().unwrap();
        self.events.push(Event { id, seq, session: self.session, at, by, fields, private: None });
        id
    }

    pub(super) fn say(&mut self, text: &str) {
        self.put(Via::Cli, &Body::UserMessage { content: text.into() });
    }

    pub(super) fn begin(&mut self) -> EventId {
        let through = self.end();
        self.put(Via::Loop, &Body::StatusRunning {});
        self.put(Via::Loop, &Body::ModelRequestStart { through, model: None, purpose: None })
    }

    pub(super) fn answer(&mut self, start: EventId, text: &str, stop: ModelStop) {
        self.put(Via::Loop, &Body::AgentMessage { content: text.into() });
        self.finish(start, Some(stop));
    }

    /// The end of a request; none: it failed.
    pub(super) fn finish(&mut self, model_request_start_id: EventId, stop: Option<ModelStop>) {
        let model_usage = ModelUsage { input_tokens: 10, output_tokens: 1, ..ModelUsage::default() };
        let is_error = stop.is_none();
        let end =
            Body::ModelRequestEnd { model_request_start_id, model_usage, ttft_ms: None, is_error, stop };
        self.put(Via::Loop, &end);
    }

    pub(super) fn ask(&mut self, via: Via, name: &str, permission: Option<Permission>) -> EventId {
        let hand = HandRef { name: "sandbox".into(), kind: "sandbox".into() };
        let (name, tool) = (name.to_owned(), "bash".to_owned());
        let input = Map::new();
        self.put(
            via,
            &Body::ToolUse { name, input, hand, tool, call_key: None, evaluated_permission: permission },
        )
    }

    /// A message, and an answer that asks for so many calls.
    pub(super) fn calling(&mut self, calls: usize) -> Vec<EventId> {
        self.say("go");
        let start = self.begin();
        let asked = (0..calls).map(|_| self.ask(Via::Loop, "sandbox__bash", None)).collect();
        self.finish(start, Some(ModelStop::ToolUse));
        asked
    }

    pub(super) fn start(&mut self, call: EventId, node: &str, waker: i64) {
        let (hand, instance, node) = ("sandbox".into(), "inst_1".into(), node.into());
        let waker = Some(waker);
        self.put(Via::Loop, &Body::CallStarted { tool_use_id: call, hand, instance, node, epoch: 1, waker });
    }

    pub(super) fn settle(&mut self, call: EventId, text: &str) {
        self.settle_with(call, vec![json!({"type": "text", "text": text})]);
    }

    pub(super) fn settle_with(&mut self, call: EventId, content: Vec<Value>) {
        let result = Body::ToolResult {
            tool_use_id: call,
            content,
            output: None,
            rest: Box::default(),
            is_error: false,
            outcome: CallOutcome::Ok,
        };
        self.put(Via::Loop, &result);
    }

    pub(super) fn rest(&mut self, stop_reason: StopReason) {
        self.put(Via::Loop, &Body::StatusIdle { stop_reason });
    }

    pub(super) fn end(&self) -> Seq {
        self.events.last().map_or(Seq(0), |event| event.seq)
    }

    pub(super) fn state(&self) -> State {
        let mut state = State::default();
        state.replay(self.events.iter().cloned());
        state
    }

    /// What is next, in words.
    fn next(&self, runners: &Runners) -> String {
        match next(&self.state(), runners) {
            Step::Wait => "wait".to_owned(),
            Step::Think => "think".to_owned(),
            Step::Call(calls) => format!("call {}", calls.len()),
            Step::Settle(calls) => format!("settle {}", calls.len()),
            Step::Refuse(calls) => format!("refuse {}", calls.len()),
            Step::Rest(reason) => {
                format!("rest {}", serde_json::to_value(reason).unwrap()["type"].as_str().unwrap())
            }
        }
    }
}

/// This is the third waker of the session, on `node_a`; `node_b` lives, too.
fn runners(running: &[EventId]) -> Runners {
    Runners {
        here: "node_a".into(),
        running: running.iter().copied().collect(),
        alive: ["node_a", "node_b"].map(str::to_owned).into(),
        waker: 3,
    }
}

fn case(expected: &str, tell: impl FnOnce(&mut Story)) {
    let mut story = Story::default();
    tell(&mut story);
    assert_eq!(
        story.next(&runners(&[])),
        expected,
        "after {:#?}",
        story.events.iter().map(Event::kind).collect::<Vec<_>>()
    );
}

#[test]
fn what_was_said_is_answered_once() {
    case("wait", |_| {});
    case("think", |story| story.say("hello"));
    // A request that never ended is made again.
    case("think", |story| {
        story.say("hello");
        story.begin();
    });
    case("rest end_turn", |story| {
        story.say("hello");
        let start = story.begin();
        story.answer(start, "hello yourself", ModelStop::EndTurn);
    });
    case("wait", |story| {
        story.say("hello");
        let start = story.begin();
        story.answer(start, "hello yourself", ModelStop::EndTurn);
        story.rest(StopReason::EndTurn);
    });
    // Said while the model answered: it was not told of it.
    case("think", |story| {
        story.say("hello");
        let start = story.begin();
        story.say("and another thing");
        story.answer(start, "hello yourself", ModelStop::EndTurn);
    });
    case("rest max_tokens", |story| {
        story.say("hello");
        let start = story.begin();
        story.answer(start, "hell", ModelStop::MaxTokens);
    });
    case("rest refusal", |story| {
        story.say("hello");
        let start = story.begin();
        story.answer(start, "no", ModelStop::Refusal);
    });
    case("think", |story| {
        story.say("hello");
        let start = story.begin();
        story.answer(start, "one moment", ModelStop::Pause);
    });
}

#[test]
fn calls_are_made_once_each() {
    case("call 3", |story| drop(story.calling(3)));
    case("call 2", |story| {
        let calls = story.calling(3);
        story.start(calls[0], "node_a", 3);
        story.settle(calls[0], "done");
    });
    case("think", |story| {
        let calls = story.calling(1);
        story.start(calls[0], "node_a", 3);
        story.settle(calls[0], "done");
    });
    // Another brain's call is its own.
    case("wait", |story| {
        story.ask(Via::Mcp, "sandbox__bash", None);
    });
}

#[test]
fn what_somebody_else_began_is_settled_or_waited_for() {
    let begun = |node: &str, waker: i64| {
        let mut story = Story::default();
        let calls = story.calling(1);
        story.start(calls[0], node, waker);
        (story, calls[0])
    };
    // A dead process; an earlier waker of this one, whose call is gone, or is running still; a living process whose
    // waker was taken over, or was not.
    for (node, waker, running, expected) in [
        ("node_c", 3, false, "settle 1"),
        ("node_a", 2, false, "settle 1"),
        ("node_a", 3, false, "settle 1"),
        ("node_a", 2, true, "wait"),
        ("node_b", 2, false, "settle 1"),
        ("node_b", 3, false, "wait"),
    ] {
        let (story, call) = begun(node, waker);
        let runners = if running { runners(&[call]) } else { runners(&[]) };
        assert_eq!(story.next(&runners), expected, "{node} {waker} {running}");
    }
}

#[test]
fn a_person_stops_it_and_lets_it_go_on() {
    let interrupt = |story: &mut Story| {
        story.put(Via::Cli, &Body::UserInterrupt {});
    };
    case("rest interrupted", |story| {
        story.say("hello");
        story.begin();
        interrupt(story);
    });
    case("refuse 2", |story| {
        story.calling(2);
        interrupt(story);
    });
    // Results of what ran bring no model back.
    case("rest interrupted", |story| {
        let calls = story.calling(1);
        interrupt(story);
        story.settle(calls[0], "cancelled");
    });
    case("think", |story| {
        story.say("hello");
        interrupt(story);
        story.rest(StopReason::Interrupted);
        story.say("go on");
    });
    case("wait", |story| {
        story.say("hello");
        interrupt(story);
        story.rest(StopReason::Interrupted);
    });
    // What is said at once allows nothing that was stopped, and is what it goes on with.
    case("refuse 2", |story| {
        story.calling(2);
        interrupt(story);
        story.say("rather this");
    });
    case("rest interrupted", |story| {
        story.say("hello");
        story.put(Via::Loop, &Body::StatusRunning {});
        interrupt(story);
        story.say("rather this");
    });
    case("think", |story| {
        story.say("hello");
        story.put(Via::Loop, &Body::StatusRunning {});
        interrupt(story);
        story.say("rather this");
        story.rest(StopReason::Interrupted);
    });
    // It was asked, and had not begun.
    case("rest interrupted", |story| {
        story.say("hello");
        interrupt(story);
    });
}

#[test]
fn a_person_is_asked_and_waited_for() {
    let asking = |story: &mut Story| {
        story.say("go");
        let start = story.begin();
        let call = story.ask(Via::Loop, "sandbox__bash", Some(Permission::Ask));
        story.finish(start, Some(ModelStop::ToolUse));
        call
    };
    let rests = |story: &mut Story, call| story.rest(StopReason::RequiresAction { event_ids: vec![call] });
    case("rest requires_action", |story| {
        asking(story);
    });
    case("wait", |story| {
        let call = asking(story);
        rests(story, call);
    });
    for (result, expected) in [(Confirmation::Allow, "call 1"), (Confirmation::Deny, "refuse 1")] {
        case(expected, |story| {
            let call = asking(story);
            rests(story, call);
            story.put(Via::Cli, &Body::ToolConfirmation { tool_use_id: call, result, deny_message: None });
        });
    }
    // The first word counts.
    case("refuse 1", |story| {
        let call = asking(story);
        for result in [Confirmation::Deny, Confirmation::Allow] {
            story.put(Via::Cli, &Body::ToolConfirmation { tool_use_id: call, result, deny_message: None });
        }
    });
    case("refuse 1", |story| {
        story.say("go");
        let start = story.begin();
        story.ask(Via::Loop, "sandbox__bash", Some(Permission::Deny));
        story.finish(start, Some(ModelStop::ToolUse));
    });
}

#[test]
fn a_model_that_fails_is_given_up_and_a_person_tries_again() {
    let error = |story: &mut Story, retry_status| {
        story.say("hello");
        let start = story.begin();
        story.finish(start, None);
        let error = ErrorSaid { kind: "overloaded".into(), message: "too much".into() };
        story.put(Via::Loop, &Body::SessionError { error, retry_status });
    };
    case("think", |story| error(story, RetryStatus::Retrying { after_ms: 5 }));
    case("rest retries_exhausted", |story| error(story, RetryStatus::Exhausted));
    case("rest retries_exhausted", |story| error(story, RetryStatus::Terminal));
    case("wait", |story| {
        error(story, RetryStatus::Terminal);
        story.rest(StopReason::RetriesExhausted);
    });
    case("think", |story| {
        error(story, RetryStatus::Terminal);
        story.rest(StopReason::RetriesExhausted);
        story.put(Via::Cli, &Body::StatusRescheduled {});
    });
    case("wait", |story| {
        story.say("hello");
        story.put(Via::Loop, &Body::StatusTerminated {});
    });
}

/// What may happen to a session.
#[derive(Clone, Debug)]
enum Act {
    Say,
    Interrupt,
    Begin,
    Answer(usize),
    Fail,
    Start(usize, bool),
    Settle(usize),
    Rest,
    Compact,
    OthersCall,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => Just(Act::Say),
        1 => Just(Act::Interrupt),
        3 => Just(Act::Begin),
        3 => (0..4_usize).prop_map(Act::Answer),
        1 => Just(Act::Fail),
        4 => (0..6_usize, any::<bool>()).prop_map(|(call, here)| Act::Start(call, here)),
        4 => (0..6_usize).prop_map(Act::Settle),
        1 => Just(Act::Rest),
        1 => Just(Act::Compact),
        1 => Just(Act::OthersCall),
    ]
}

/// What is known of the calls, by the simplest means.
#[derive(Default)]
struct Known {
    asked: Vec<EventId>,
    started: BTreeSet<EventId>,
    ended: BTreeSet<EventId>,
}

fn tell(acts: Vec<Act>) -> (Story, Known) {
    let (mut story, mut known, mut request) = (Story::default(), Known::default(), None);
    for act in acts {
        match act {
            Act::Say => story.say("x"),
            Act::Interrupt => {
                story.put(Via::Cli, &Body::UserInterrupt {});
            }
            Act::Begin => request = Some(story.begin()),
            Act::Answer(calls) => {
                let Some(start) = request.take() else { continue };
                known.asked.extend((0..calls).map(|_| story.ask(Via::Loop, "sandbox__bash", None)));
                story.finish(start, Some(if calls > 0 { ModelStop::ToolUse } else { ModelStop::EndTurn }));
            }
            Act::Fail => {
                if let Some(start) = request.take() {
                    story.finish(start, None);
                }
            }
            Act::Start(call, here) => {
                let open = known.asked.iter().filter(|call| !known.ended.contains(call)).nth(call).copied();
                if let Some(call) = open.filter(|call| !known.started.contains(call)) {
                    story.start(call, if here { "node_a" } else { "node_c" }, 3);
                    known.started.insert(call);
                }
            }
            Act::Settle(call) => {
                let open = known.asked.iter().filter(|call| !known.ended.contains(call)).nth(call).copied();
                if let Some(call) = open {
                    story.settle(call, "done");
                    known.ended.insert(call);
                }
            }
            Act::Rest => story.rest(StopReason::EndTurn),
            Act::Compact => {
                let (through, summary) = (story.end(), "before".to_owned());
                story.put(Via::Loop, &Body::ContextCompacted { through, summary });
            }
            Act::OthersCall => {
                story.ask(Via::Mcp, "other__tool", None);
            }
        }
    }
    (story, known)
}

proptest! {
    #[test]
    fn what_was_started_is_never_called_and_no_call_is_lost(acts in prop::collection::vec(act(), 0..60)) {
        let (story, known) = tell(acts);
        let state = story.state();
        let open: Vec<EventId> =
            known.asked.iter().filter(|call| !known.ended.contains(call)).copied().collect();
        let kept: Vec<EventId> = state.calls.iter().map(|call| call.id).collect();
        prop_assert_eq!(&kept, &open, "every open call, and no other");
        match next(&state, &runners(&[])) {
            Step::Call(calls) | Step::Refuse(calls) => {
                for call in calls {
                    prop_assert!(!known.started.contains(&call.id) && open.contains(&call.id));
                }
            }
            Step::Settle(calls) => {
                for call in calls {
                    prop_assert!(known.started.contains(&call.id) && open.contains(&call.id));
                }
            }
            Step::Think | Step::Rest(StopReason::EndTurn) => prop_assert!(open.is_empty()),
            Step::Wait | Step::Rest(_) => {}
        }
    }

    #[test]
    fn a_log_in_pieces_tells_the_same(acts in prop::collection::vec(act(), 0..40), cuts in prop::collection::vec(0..40_usize, 0..4)) {
        let (story, _) = tell(acts);
        let whole = story.state();
        let mut pieces = State::default();
        for cut in cuts {
            // From wherever it is, or again.
            pieces.replay(story.events.iter().take(cut).cloned());
            let kept = serde_json::to_string(&pieces).unwrap();
            pieces = serde_json::from_str(&kept).unwrap();
        }
        pieces.replay(story.events.iter().cloned());
        prop_assert_eq!(whole, pieces);
    }

    #[test]
    fn every_call_that_is_told_has_one_result(acts in prop::collection::vec(act(), 0..60)) {
        let (story, _) = tell(acts);
        let policy = gateway::harness::context::Policy::default();
        let transcript = gateway::harness::context::transcript(&story.state(), policy, String::new());
        super::context::check(&transcript).map_err(TestCaseError::fail)?;
    }
}
