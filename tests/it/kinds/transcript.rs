//! One brain, five kinds of hand, one log: the real Claude Code uses them in one session.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use gateway::session::Event;
use serde_json::{Value, json};
use tests::gateway::Gateway;

use super::rig::{Machines, seen};
use crate::crash::truth::{self, field, of};

/// A script that is written in the container and runs in the sandbox.
const SCRIPT: &str = "for name in container sandbox; do\n  echo \"through the $name\"\ndone\n";

/// What the model asks for, one after the other: the tool, its input, and a piece of its answer. `{{2}}` is what the
/// second one answered.
fn plan() -> [(&'static str, Value, &'static str); 7] {
    [
        ("box__write", json!({"path": "/workspace/say.sh", "content": SCRIPT}), "say.sh"),
        ("box__read", json!({"path": "/workspace/say.sh"}), "through the"),
        ("sandbox__bash", json!({"command": "bash -s", "stdin": "{{2}}"}), "through the container"),
        ("host__bash", json!({"command": "uname -s"}), "Linux"),
        ("game__screenshot", json!({}), "image/png"),
        ("game__press", json!({"buttons": ["a"]}), "image/png"),
        ("machine__read", json!({"path": "/proc/version"}), "Linux version"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claude_code_uses_five_kinds_in_one_session() -> Result<()> {
    let machines = Machines::start().await?;
    let mut gateway = machines.gateway().await?;
    let transcript = machines.folder.path().join("transcript.json");
    let said = claude(&gateway, &transcript).await?;
    let transcript: Vec<Value> = serde_json::from_slice(&std::fs::read(&transcript)?)?;
    let (_, reader) = seen(&gateway).await?;
    let events = reader.events("five").await?;
    let log = gateway.cli(&["session", "events", "five"])?;
    println!("{}\n{}", transcript_as_text(&transcript), String::from_utf8_lossy(&log.stdout));
    tells_the_story(&gateway, &events).with_context(|| said.clone())?;
    as_the_model_saw_it(&transcript)?;
    gateway.stop()?;
    truth::check_ended(&reader.events("five").await?)?;
    ensure!(machines.containers().is_empty(), "{:?}", machines.containers());
    Ok(())
}

/// Runs it as a person would, with a model that follows the plan.
async fn claude(gateway: &Gateway, transcript: &Path) -> Result<String> {
    let plan = plan();
    let (first, then) = plan.split_first().context("a plan")?;
    let then: Value = then.iter().map(|(tool, input, says)| json!([tool, input, says])).collect();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/claude_code.py");
    let mut command = Command::new(script);
    command.args(["--token", &gateway.owner_token()?, "--timeout", "280", "--transcript"]).arg(transcript);
    command.arg(gateway.session_url("five")).args([first.0, &first.1.to_string(), "--expect", first.2]);
    command.args(["--then", &then.to_string()]);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let said =
        [output.stdout, output.stderr].map(|part| String::from_utf8_lossy(&part).into_owned()).concat();
    ensure!(output.status.success(), "{said}\n{}", gateway.stderr());
    Ok(said)
}

/// The log: each call asked for, started in its hand and answered before the next, and each hand made by its first.
fn tells_the_story(gateway: &Gateway, events: &[Event]) -> Result<()> {
    truth::check(events)?;
    let mut story = vec!["session.created".to_owned()];
    let mut met = Vec::new();
    for (tool, ..) in plan() {
        let hand = tool.split("__").next().context("a hand's name")?;
        story.push(format!("agent.tool_use {tool}"));
        if !met.contains(&hand) {
            story.push(format!("hand.provisioned {hand}"));
            met.push(hand);
        }
        story.extend([format!("hand.call_started {hand}"), "agent.tool_result ok".to_owned()]);
    }
    let told: Vec<String> = events.iter().map(in_short).collect();
    ensure!(told == story, "{told:#?}");
    // A person reads the same.
    let read = gateway.cli(&["session", "events", "five", "--json"])?;
    let read: Value = serde_json::from_slice(&read.stdout)?;
    let kinds: Vec<&str> =
        read["events"].as_array().into_iter().flatten().filter_map(|event| event["type"].as_str()).collect();
    ensure!(kinds == truth::types(events), "{read}");
    for event in events.iter().filter(|event| event.kind() == "agent.tool_use") {
        ensure!(event.by.client.as_deref().is_some_and(|client| client.contains("claude")), "{event:?}");
    }
    let uses = of(events, "agent.tool_use");
    // What was run in the sandbox is what was written in the container.
    ensure!(uses[2].fields["input"]["stdin"] == SCRIPT, "{:?}", uses[2]);
    let kinds: Vec<&Value> = uses.iter().map(|event| &event.fields["hand"]["kind"]).collect();
    ensure!(kinds == ["container", "container", "sandbox", "ssh", "emulator", "emulator", "vm"], "{kinds:?}");
    Ok(())
}

fn in_short(event: &Event) -> String {
    let about = match event.kind() {
        "agent.tool_use" => field(event, "name"),
        "agent.tool_result" => field(event, "outcome"),
        _ => field(event, "hand"),
    };
    format!("{} {about}", event.kind()).trim_end().to_owned()
}

/// Text went from one hand to another, and the button changed the screen.
fn as_the_model_saw_it(transcript: &[Value]) -> Result<()> {
    ensure!(transcript.len() == plan().len(), "{transcript:?}");
    let saw = |call: usize| transcript[call]["saw"].as_array().into_iter().flatten();
    let text = |call: usize| saw(call).filter_map(|block| block["text"].as_str()).collect::<String>();
    ensure!(text(2) == "through the container\nthrough the sandbox\n", "{}", transcript[2]);
    let picture = |call: usize| {
        let mut images = saw(call).filter(|block| block["type"] == "image").map(|block| &block["source"]);
        images.next().with_context(|| format!("no picture: {}", transcript[call]))
    };
    let (before, after) = (picture(4)?, picture(5)?);
    ensure!(before["media_type"] == "image/png" && after["media_type"] == "image/png", "{before} {after}");
    ensure!(
        before["data"].is_string() && before["data"] != after["data"],
        "the screen is as it was: {after}"
    );
    // Another kernel than this machine's.
    ensure!(text(6).contains("Linux version") && text(6).contains("cloud-amd64"), "{}", transcript[6]);
    Ok(())
}

/// As it stands in the README.
fn transcript_as_text(transcript: &[Value]) -> String {
    let mut text = String::new();
    for call in transcript {
        text.push_str(&format!("● {} {}\n", call["tool"].as_str().unwrap_or_default(), call["input"]));
        for block in call["saw"].as_array().into_iter().flatten() {
            match block["text"].as_str() {
                Some(saw) => text.push_str(&format!("  ⎿ {}\n", saw.trim_end().replace('\n', "\n    "))),
                None => text.push_str(&format!("  ⎿ [{}]\n", block["source"]["media_type"])),
            }
        }
    }
    text
}
