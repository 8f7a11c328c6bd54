//! The persisted form of each kind of event. A released form never changes: a difference here is a broken promise,
//! not a snapshot to update; a new optional field or a new kind adds to it.

use anyhow::Result;
use gateway::session::{
    Body, By, CallOutcome, Event, EventId, HandRef, OutputRef, Seq, SessionId, Via, Work,
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
    }
}
const KINDS: usize = 14;

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
        Body::SessionUpdated { status: "archived".into() },
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
    Ok(Event { id: call(), seq: Seq(seq), session, at: "2026-11-29T16:02:11.12Z".parse()?, by, fields })
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
fn what_this_version_does_not_know_is_kept() -> Result<()> {
    let newer = json!({"type": "session.updated", "status": "archived", "why": {"asked": true}});
    let fields = newer.as_object().cloned().unwrap_or_default();
    let kept = event(fields.clone(), 1, Via::Mcp, None)?;
    assert_eq!(kept.known(), Some(Body::SessionUpdated { status: "archived".into() }));
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
