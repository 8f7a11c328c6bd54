//! One log, three brains: a session that Claude Code begins, the built-in loop continues and the Python SDK's client ends.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use gateway::session::{Event, Via};
use serde_json::json;
use tests::gateway::{Gateway, Options};

use crate::crash::truth::{self, Reader, field, of};

/// Whose session it is, one after the other.
const SESSION: &str = "sheep";
/// What Claude Code does: the later ones find it in the hand and in the log.
const COUNT: &str = "echo 17 sheep | tee /workspace/count";
/// What the loop is told to do: to read the log, to go on in the same place, and to say what it saw.
const GO_ON: &str = concat!(
    "@call session_events {\"types\": [\"agent.tool_result\"]}\n",
    "@call sandbox__bash {\"command\": \"sed s/17/18/ /workspace/count | tee /workspace/more\"}\n",
    "@then\n",
    "@say After {{result 1}} I have {{result 2}}",
);
/// What the Python client does.
const END: &str = "cat /workspace/count /workspace/more";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_log_three_brains() -> Result<()> {
    let gateway = Gateway::start(Options::default().env("MANYHANDS_BRAIN_MODEL", "scripted/demo")).await?;
    client(&gateway, "claude_code.py", &[], COUNT, "17 sheep").await?;
    let ran = gateway.cli(&["run", "--session", SESSION, GO_ON])?;
    ensure!(ran.status.success(), "{ran:?}");
    // What the client is told: all that the two others did, in order.
    let told = json!(["CALL sandbox__bash", COUNT, "RESULT: 17 sheep", "PERSON: @call", "RESULT: 18 sheep"]);
    let resume = told.to_string();
    client(&gateway, "py_mcp.py", &["--resume", &resume], END, "17 sheep\\n18 sheep").await?;

    let events = Reader::directory(gateway.data()).await?.events(SESSION).await?;
    tells_the_story(&events).with_context(|| format!("{:#?}", lines(&events)))
}

/// A script of `tests/clients` makes one call of the sandbox.
async fn client(
    gateway: &Gateway,
    script: &str,
    options: &[&str],
    command: &str,
    expected: &str,
) -> Result<()> {
    let mut program = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(script));
    program.args(options).args(["--token", &gateway.owner_token()?, "--timeout", "280"]);
    program.args([&gateway.session_url(SESSION), "sandbox__bash", &json!({"command": command}).to_string()]);
    program.args(["--expect", expected]);
    let output = tokio::task::spawn_blocking(move || program.output()).await??;
    ensure!(output.status.success(), "{script}: {output:?}\n{}", gateway.stderr());
    Ok(())
}

/// Who did what, in order. The parts of one answer of the loop's model stand together, and so do its calls.
const STORY: [&str; 21] = [
    "session.created",
    "claude-code: agent.tool_use",
    "hand.provisioned",
    "hand.call_started",
    "agent.tool_result",
    "cli: user.message",
    "loop: session.status_running",
    "loop: span.model_request_start",
    "loop: agent.tool_use",
    "loop: agent.tool_use",
    "loop: span.model_request_end",
    "agent.tool_result",
    "hand.call_started",
    "agent.tool_result",
    "loop: span.model_request_start",
    "loop: agent.message",
    "loop: span.model_request_end",
    "loop: session.status_idle",
    "mcp: agent.tool_use",
    "hand.call_started",
    "agent.tool_result",
];

fn tells_the_story(events: &[Event]) -> Result<()> {
    truth::check(events)?;
    ensure!(lines(events) == STORY);
    // All three had the same instance.
    ensure!(of(events, "hand.provisioned").len() == 1);
    let outcomes: Vec<&str> =
        of(events, "agent.tool_result").iter().map(|result| field(result, "outcome")).collect();
    ensure!(outcomes == ["ok"; 4], "{outcomes:?}");
    // The loop read in the log what Claude Code had found, and found more.
    let said = of(events, "agent.message")[0].fields["content"][0]["text"].as_str().unwrap_or_default();
    ensure!(said.contains("17 sheep") && said.ends_with("I have 18 sheep\n"), "{said}");
    Ok(())
}

/// What came of a call is told by its kind alone.
fn lines(events: &[Event]) -> Vec<String> {
    let line = |event: &Event| match event.kind() {
        kind @ ("session.created" | "agent.tool_result") => kind.to_owned(),
        kind if kind.starts_with("hand.") => kind.to_owned(),
        kind => format!("{}: {kind}", who(event)),
    };
    events.iter().map(line).collect()
}

/// As MCP clients call themselves (the Python SDK says `mcp`), else the way it came.
fn who(event: &Event) -> String {
    let client = event.by.client.as_deref().and_then(|client| client.split('/').next());
    match (event.by.via, client) {
        (Via::Mcp, client) => client.unwrap_or_default().to_owned(),
        (Via::Cli, _) => "cli".to_owned(),
        (Via::Loop, _) => "loop".to_owned(),
        (Via::Gateway, _) => "gateway".to_owned(),
    }
}
