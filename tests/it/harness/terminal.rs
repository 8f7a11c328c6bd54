//! `manyhands run`, `manyhands wake`, and what `session show` says of the loop.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tests::gateway::{Gateway, Options, command, run};

fn scripted() -> Options {
    Options::default().env("MANYHANDS_BRAIN_MODEL", "scripted/demo").env("MANYHANDS_LOOP_BACKOFF_MS", "1")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const SCRIPT: &str = "@say I will look.\n@call sandbox__bash {\"command\": \"echo 6 times 7 is $((6*7))\"}\n@then\n@say The \
                      sandbox says: {{result}}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_is_shown_as_it_happens() -> Result<()> {
    let gateway = Gateway::start(scripted()).await?;
    let answer = gateway.cli(&["run", "--session", "demo", SCRIPT])?;
    let shown = text(&answer.stdout);
    ensure!(answer.status.success(), "{shown}{}", text(&answer.stderr));
    let expected = "I will look.\n→ sandbox__bash {\"command\":\"echo 6 times 7 is $((6*7))\"}\n6 times 7 is 42\n← ok: 6 times 7 is 42\nThe sandbox \
                    says: 6 times 7 is 42\n";
    ensure!(shown.trim_end() == expected.trim_end(), "{shown}");

    // The same for programs: whole events, and nothing else.
    let answer = gateway.cli(&["run", "--json", "--session", "demo", "@say Again."])?;
    let events: Vec<Value> =
        text(&answer.stdout).lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    ensure!(
        kinds.first() == Some(&"user.message") && kinds.last() == Some(&"session.status_idle"),
        "{kinds:?}"
    );

    let shown: Value = serde_json::from_slice(&gateway.cli(&["session", "show", "demo", "--json"])?.stdout)?;
    let standing = &shown["loop"];
    ensure!(
        standing["status"]["type"] == "idle" && standing["status"]["stop_reason"]["type"] == "end_turn",
        "{shown}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_failed_is_said_and_tried_again_on_demand() -> Result<()> {
    let gateway = Gateway::start(scripted().env("MANYHANDS_LOOP_TRIES", "2")).await?;
    let answer = gateway.cli(&["run", "--session", "bad", "@fail overloaded"])?;
    ensure!(answer.status.code() == Some(1), "{answer:?}");
    ensure!(text(&answer.stdout).contains("overloaded: trying again"), "{}", text(&answer.stdout));
    ensure!(text(&answer.stderr).contains("the model could not be had"), "{}", text(&answer.stderr));
    let shown = text(&gateway.cli(&["session", "show", "bad"])?.stdout);
    ensure!(shown.contains("retries_exhausted") && shown.contains("overloaded"), "{shown}");
    let answer = gateway.cli(&["wake", "bad"])?;
    ensure!(answer.status.code() == Some(1) && text(&answer.stdout).contains("overloaded"), "{answer:?}");
    let answer = gateway.cli(&["run", "--session", "bad", "--model", "scripted/other", "@say Well."])?;
    ensure!(answer.status.success() && text(&answer.stdout) == "Well.\n", "{answer:?}");
    let shown: Value = serde_json::from_slice(&gateway.cli(&["session", "show", "bad", "--json"])?.stdout)?;
    ensure!(shown["loop"]["model"] == "scripted/other", "{shown}");
    // There is nothing to go on with in what rests.
    ensure!(gateway.cli(&["wake", "bad"])?.status.success());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_gateway_the_command_is_the_gateway() -> Result<()> {
    let data = tempfile::tempdir()?;
    let answer = run(data.path(), &["run", "hello"])?;
    ensure!(text(&answer.stderr).contains("no model is chosen"), "{answer:?}");
    let list = run(data.path(), &["session", "list", "--json"])?;
    ensure!(text(&list.stdout).trim() == "[]", "nothing was made: {list:?}");
    let mut told = command(data.path());
    told.env("MANYHANDS_BRAIN_MODEL", "scripted/demo").args(["run", "--session", "alone", SCRIPT]);
    let answer = told.output().context("it does not start")?;
    ensure!(text(&answer.stdout).contains("6 times 7 is 42"), "{answer:?}");
    Ok(())
}

/// What other brains write into their sessions is none of the loop's business, until it is asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_of_another_brain_is_left_alone() -> Result<()> {
    let gateway = Gateway::start(scripted()).await?;
    let client = crate::crash::client::Client::of(&gateway)?;
    let emit = serde_json::json!({"type": "user.message", "content": "@say Not asked."});
    client.tool("theirs", "session_emit", emit.clone(), None).await?;
    client.bash("theirs", "echo over there").await?;
    let reader = crate::crash::truth::Reader::directory(gateway.data()).await?;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    ensure!(super::rig::said(&reader.events("theirs").await?).is_empty());
    // It goes on where they stopped.
    let answer = gateway.cli(&["run", "--session", "theirs", "@say They had {{tools}}"])?;
    ensure!(text(&answer.stdout).contains("sandbox__bash"), "{answer:?}");
    // From here on it is the loop's, too.
    client.tool("theirs", "session_emit", emit, None).await?;
    reader.until("theirs", |events| super::rig::said(events).iter().any(|said| said == "Not asked.")).await?;
    Ok(())
}

/// What any MCP client needs to go on with a session that the loop began.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_resumes_what_the_loop_began() -> Result<()> {
    let gateway = Gateway::start(scripted()).await?;
    let answer = gateway.cli(&["run", "--session", "begun", SCRIPT])?;
    ensure!(answer.status.success(), "{answer:?}");
    let client = crate::crash::client::Client::of(&gateway)?;
    let resume = serde_json::json!({"name": "resume", "arguments": {}});
    let prompt = client.ask("begun", "prompts/get", "resume", resume).await?;
    let told = prompt["messages"][0]["content"]["text"].as_str().unwrap_or_default().to_owned();
    for part in ["AGENT: I will look.", "CALL sandbox__bash", "RESULT: 6 times 7 is 42", "session_events"] {
        ensure!(told.contains(part), "{part} is missing in {told}");
    }
    let uri = "session://begun/context";
    let read = client.ask("begun", "resources/read", uri, serde_json::json!({"uri": uri})).await?;
    let text = read["contents"][0]["text"].as_str().unwrap_or_default();
    ensure!(told.starts_with(text), "the prompt is the resource, and what is asked for: {text}");
    let other = serde_json::json!({"name": "resume", "arguments": {"session": "nobodys"}});
    ensure!(client.ask("begun", "prompts/get", "resume", other).await.is_err());
    let prompts = client.ask("begun", "prompts/list", "", serde_json::json!({})).await?;
    ensure!(prompts["prompts"][0]["name"] == "resume", "{prompts}");
    Ok(())
}
