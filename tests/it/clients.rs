//! Real MCP clients, as people use them, each calling the sandbox once in the session `demo`.
//!
//! The scripts of `tests/clients` judge by what went over the wire; over stdio the session's log does.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tests::gateway::{Gateway, Options, binary, run};

/// One call of the sandbox, and what its result must contain.
const CALL: [&str; 4] = ["sandbox__bash", r#"{"command":"echo $((6*7))"}"#, "--expect", "42"];

/// How a person reads the log.
const EVENTS: [&str; 4] = ["session", "events", "demo", "--json"];

#[tokio::test]
async fn claude_code() -> Result<()> {
    passes("claude_code.py", &[]).await
}

#[tokio::test]
async fn python_auto() -> Result<()> {
    passes("py_mcp.py", &["--era", "auto"]).await
}

#[tokio::test]
async fn python_legacy() -> Result<()> {
    passes("py_mcp.py", &["--era", "legacy"]).await
}

#[tokio::test]
async fn python_2026_07_28() -> Result<()> {
    passes("py_mcp.py", &["--era", "2026-07-28"]).await
}

#[tokio::test]
async fn typescript_auto() -> Result<()> {
    passes("ts_client.py", &["--era", "auto"]).await
}

#[tokio::test]
async fn typescript_legacy() -> Result<()> {
    passes("ts_client.py", &["--era", "legacy"]).await
}

#[tokio::test]
async fn typescript_2026_07_28() -> Result<()> {
    passes("ts_client.py", &["--era", "2026-07-28"]).await
}

#[tokio::test]
async fn inspector_legacy() -> Result<()> {
    passes("inspector_cli.py", &["--era", "legacy"]).await
}

#[tokio::test]
async fn inspector_modern() -> Result<()> {
    passes("inspector_cli.py", &["--era", "modern"]).await
}

/// Without a gateway running: `stdio` owns the data, and the log is read when it has ended.
#[tokio::test]
async fn claude_code_over_stdio() -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let data = scratch.path().join("data");
    let data_argument = format!("MANYHANDS_DATA={}", data.display());
    let server = json!(["env", data_argument, binary(), "stdio", "--session", "demo"]).to_string();
    let said = check("claude_code.py", &["--stdio", &server, "-"]).await?;
    assert_call(&run(&data, &EVENTS)?, &said)
}

/// The check passes over HTTP, and the log of `demo` tells the same story.
async fn passes(script: &str, options: &[&str]) -> Result<()> {
    let gateway = Gateway::start(Options::default()).await?;
    let (url, token) = (gateway.session_url("demo"), gateway.owner_token()?);
    let arguments = [options, &["--token", &token, &url]].concat();
    let said = check(script, &arguments).await?;
    assert_call(&gateway.cli(&EVENTS)?, &said)
}

/// Runs a script of `tests/clients` and returns what it said.
async fn check(script: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(script));
    command.args(arguments).args(CALL);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    assert!(output.status.success(), "{script}: {}", shown(&output));
    Ok(shown(&output))
}

/// Created, asked, provisioned, started, answered: in this order, and the answer is 42.
fn assert_call(events: &Output, said: &str) -> Result<()> {
    assert!(events.status.success(), "{}", shown(events));
    let slice: Value = serde_json::from_slice(&events.stdout)?;
    let events = slice["events"].as_array().context("a slice of events")?;
    let types: Vec<_> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    let story =
        ["session.created", "agent.tool_use", "hand.provisioned", "hand.call_started", "agent.tool_result"];
    assert_eq!(types, story, "{said}");
    let result = events.last().context("a result")?;
    assert_eq!(result["outcome"], "ok", "{result}");
    assert!(result["content"].to_string().contains("42"), "{result}");
    Ok(())
}

fn shown(output: &Output) -> String {
    let part = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}{}", output.status, part(&output.stdout), part(&output.stderr))
}
