//! The persisted form of each kind of event. A released form never changes: a difference here is a broken promise,
//! not a snapshot to update; a new optional field or a new kind adds to it.

use anyhow::Result;
use gateway::session::{
    Body, By, CallOutcome, Confirmation, ErrorSaid, Event, EventId, HandRef, ModelStop, ModelUsage,
    OutputRef, Permission, Private, Purpose, RetryStatus, Seq, SessionId, StopReason, Via, Work,
};
use serde_json::{Map, Value, json};

/// Which kind it is; a new one does not compile until it is here.
fn number(body: &Body) -> usize {
    match body {
        Body::SessionCreated { .. } => 0,
        Body::SessionUpdated { .. } => 1,
        Body::UserMessage { .. } => 2,
        Body::UserInterrupt { .. } => 3,
        Body::AgentMessage { .. } => 4,
        Body::ToolUse { .. } => 5,
        Body::CallStarted { .. } => 6,
        Body::ToolResult { .. } => 7,
        Body::HandProvisioned { .. } => 8,
        Body::HandLost { .. } => 9,
        Body::HandReleased { .. } => 10,
        Body::HandMoved { .. } => 11,
        Body::HandCheckpointed { .. } => 12,
        Body::HandRestored { .. } => 13,
        Body::ToolConfirmation { .. } => 14,
        Body::AgentThinking { .. } => 15,
        Body::ContextCompacted { .. } => 16,
        Body::StatusRunning {} => 17,
        Body::StatusRescheduled {} => 18,
        Body::StatusIdle { .. } => 19,
        Body::StatusTerminated {} => 20,
        Body::SessionError { .. } => 21,
        Body::ModelRequestStart { .. } => 22,
        Body::ModelRequestEnd { .. } => 23,
    }
}
const KINDS: usize = 24;

fn call() -> EventId {
    "sevt_0197c0de000070008000000000000001".parse().expect("an id")
}

/// Each kind, with its optional fields and without them.
fn bodies() -> Vec<Body> {
    let input: Map<String, Value> = json!({"command": "ls"}).as_object().cloned().unwrap_or_default();
    let used = |call_key| Body::ToolUse {
        name: "sandbox__bash".into(),
        input: input.clone(),
        hand: HandRef { name: "sandbox".into(), kind: "sandbox".into() },
        tool: "bash".into(),
        call_key,
        evaluated_permission: None,
    };
    let ended = |output, outcome| Body::ToolResult {
        tool_use_id: call(),
        content: vec![json!({"type": "text", "text": "a\nb"})],
        output,
        rest: Box::default(),
        is_error: outcome != CallOutcome::Ok,
        outcome,
    };
    let lost = |work| Body::HandLost { hand: "sandbox".into(), instance: "inst_1".into(), work };
    let output = OutputRef { id: "out_1".into(), bytes: 1_000_000, holds: None };
    let mut bodies = vec![
        Body::SessionCreated { name: None },
        Body::SessionCreated { name: Some("demo".into()) },
        Body::SessionUpdated { status: "archived".into(), model: None },
        Body::UserMessage { content: json!([{"type": "text", "text": "hello"}]) },
        Body::UserInterrupt {},
        Body::AgentMessage { content: "hello".into() },
        used(None),
        used(Some("key".into())),
        Body::CallStarted {
            tool_use_id: call(),
            hand: "sandbox".into(),
            instance: "inst_1".into(),
            node: "node_1".into(),
            epoch: 3,
            waker: None,
        },
        ended(Some(output), CallOutcome::Ok),
        Body::HandProvisioned { hand: "sandbox".into(), instance: "inst_1".into(), node: "node_1".into() },
        lost(Work::Kept),
        lost(Work::Gone),
        Body::HandReleased { hand: "sandbox".into(), instance: "inst_1".into() },
    ];
    bodies.extend(
        [
            CallOutcome::Ok,
            CallOutcome::Error,
            CallOutcome::Denied,
            CallOutcome::Cancelled,
            CallOutcome::Timeout,
            CallOutcome::Lost,
            CallOutcome::Unknown,
        ]
        .map(|outcome| ended(None, outcome)),
    );
    bodies.extend(moves());
    bodies.extend(loop_calls());
    bodies.extend(loop_status());
    bodies.extend(loop_models());
    bodies
}

/// What the built-in loop's calls have beyond those of others.
fn loop_calls() -> Vec<Body> {
    let permitted = |permission| Body::ToolUse {
        name: "sandbox__bash".into(),
        input: Map::new(),
        hand: HandRef { name: "sandbox".into(), kind: "sandbox".into() },
        tool: "bash".into(),
        call_key: None,
        evaluated_permission: Some(permission),
    };
    let confirmed = |result, deny_message: Option<&str>| Body::ToolConfirmation {
        tool_use_id: call(),
        result,
        deny_message: deny_message.map(Into::into),
    };
    vec![
        permitted(Permission::Allow),
        permitted(Permission::Ask),
        permitted(Permission::Deny),
        Body::CallStarted {
            tool_use_id: call(),
            hand: "sandbox".into(),
            instance: "inst_1".into(),
            node: "node_1".into(),
            epoch: 3,
            waker: Some(7),
        },
        confirmed(Confirmation::Allow, None),
        confirmed(Confirmation::Deny, Some("not on a Friday")),
        Body::SessionUpdated { status: "active".into(), model: Some("scripted/demo".into()) },
    ]
}

fn loop_status() -> Vec<Body> {
    let error = |retry_status| Body::SessionError {
        error: ErrorSaid { kind: "overloaded".into(), message: "the provider is overloaded".into() },
        retry_status,
    };
    let mut bodies = vec![Body::StatusRunning {}, Body::StatusRescheduled {}, Body::StatusTerminated {}];
    let reasons = [
        StopReason::EndTurn,
        StopReason::RequiresAction { event_ids: vec![call()] },
        StopReason::RetriesExhausted,
        StopReason::Interrupted,
        StopReason::MaxTokens,
        StopReason::Refusal,
        StopReason::BudgetExhausted { budget: "brain.steps".into() },
    ];
    bodies.extend(reasons.map(|stop_reason| Body::StatusIdle { stop_reason }));
    bodies.extend(
        [RetryStatus::Retrying { after_ms: 1500 }, RetryStatus::Exhausted, RetryStatus::Terminal].map(error),
    );
    bodies
}

fn loop_models() -> Vec<Body> {
    let start = |model: Option<&str>, purpose| Body::ModelRequestStart {
        through: Seq(7),
        model: model.map(Into::into),
        purpose,
    };
    let usage = ModelUsage {
        input_tokens: 10,
        output_tokens: 20,
        cache_read_input_tokens: 30,
        cache_creation_input_tokens: 40,
    };
    let end = |is_error, ttft_ms, stop| Body::ModelRequestEnd {
        model_request_start_id: call(),
        model_usage: usage,
        ttft_ms,
        is_error,
        stop,
    };
    let mut bodies = vec![
        Body::AgentThinking { content: None },
        Body::AgentThinking { content: Some(json!([{"type": "text", "text": "hm"}])) },
        Body::ContextCompacted { through: Seq(7), summary: "What came before.".into() },
        start(None, None),
        start(Some("scripted/demo"), Some(Purpose::Compaction)),
        end(true, None, None),
    ];
    let stops = [
        ModelStop::EndTurn,
        ModelStop::ToolUse,
        ModelStop::MaxTokens,
        ModelStop::Refusal,
        ModelStop::Pause,
        ModelStop::ContextFull,
    ];
    bodies.extend(stops.map(|stop| end(false, Some(120), Some(stop))));
    bodies
}

/// What is done to instances that are alive.
fn moves() -> [Body; 3] {
    let (hand, instance) = (|| "sandbox".to_owned(), || "inst_1".to_owned());
    [
        Body::HandMoved {
            hand: hand(),
            instance: instance(),
            node: "node_1".into(),
            from: "sesn_0197c0de000070008000000000000000".into(),
            to: "sesn_0197c0de000070008000000000000001".into(),
        },
        Body::HandCheckpointed { hand: hand(), instance: instance(), name: "before".into() },
        Body::HandRestored { hand: hand(), instance: instance(), name: "before".into() },
    ]
}

fn event(fields: Map<String, Value>, seq: i64, via: Via, client: Option<&str>) -> Result<Event> {
    let session: SessionId = "sesn_0197c0de000070008000000000000000".parse()?;
    let by = By { principal: "local:owner".into(), client: client.map(Into::into), via };
    Ok(Event {
        id: call(),
        seq: Seq(seq),
        session,
        at: "2026-11-29T16:02:11.12Z".parse()?,
        by,
        fields,
        private: None,
    })
}

#[test]
fn every_kind_has_its_form() -> Result<()> {
    let mut shown = Vec::new();
    let mut seen = [false; KINDS];
    let faces = [Via::Mcp, Via::Cli, Via::Loop, Via::Gateway];
    for (body, seq) in bodies().iter().zip(1_i64..) {
        seen[number(body)] = true;
        let Value::Object(fields) = serde_json::to_value(body)? else { anyhow::bail!("not an object") };
        let via = faces[shown.len() % faces.len()];
        let client = (shown.len() % 2 == 0).then_some("claude-code/2.1.332");
        let event = event(fields, seq, via, client)?;
        assert_eq!(event.known().as_ref(), Some(body), "it reads back as what it was");
        shown.push(event.to_json().to_string());
    }
    assert!(seen.iter().all(|seen| *seen), "each kind has a sample: {seen:?}");
    insta::assert_snapshot!(shown.join("\n"));
    Ok(())
}

#[test]
fn what_is_private_is_shown_by_no_face() -> Result<()> {
    let secret = "EqQBCgIYAhIkc2lnbmF0dXJl";
    let fields = json!({"type": "agent.thinking"}).as_object().cloned().unwrap_or_default();
    let private = Some(Private(json!({"signature": secret})));
    let thought = Event { private, ..event(fields, 1, Via::Loop, None)? };
    assert!(!thought.to_json().to_string().contains(secret) && !format!("{thought:?}").contains(secret));
    Ok(())
}

#[test]
fn what_this_version_does_not_know_is_kept() -> Result<()> {
    let newer = json!({"type": "session.updated", "status": "archived", "why": {"asked": true}});
    let fields = newer.as_object().cloned().unwrap_or_default();
    let kept = event(fields.clone(), 1, Via::Mcp, None)?;
    assert_eq!(kept.known(), Some(Body::SessionUpdated { status: "archived".into(), model: None }));
    assert_eq!(kept.to_json()["why"], json!({"asked": true}));
    let foreign = event(
        json!({"type": "my.thing", "seq": 99}).as_object().cloned().unwrap_or_default(),
        1,
        Via::Mcp,
        None,
    )?;
    assert_eq!(foreign.known(), None);
    assert_eq!(
        foreign.to_json()["seq"],
        json!(1),
        "what the log says of an event can't be told otherwise by it"
    );
    Ok(())
}
