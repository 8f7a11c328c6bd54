//! Calls of hands: what a client hears while one runs, and what becomes of it when the client goes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::client::{Client, ERAS, Era, Stream, gateway, soon, text};

/// Trap 19: after so long the headers of an answer must have come, however long the call is silent.
const HEADERS_MAX: Duration = Duration::from_secs(2);

/// How the calls of a session ended, in order.
async fn outcomes(client: &Client) -> Result<Vec<String>> {
    let page = client.ask("session_events", json!({ "type": ["agent.tool_result"] })).await?;
    let events = page["events"].as_array().context("events")?;
    Ok(events.iter().filter_map(|event| event["outcome"].as_str().map(str::to_owned)).collect())
}

/// Whether a process of this machine has such a command line.
fn runs(command: &str) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok())
        .any(|line| String::from_utf8_lossy(&line).replace('\0', " ").trim_end() == command)
}

/// A number that no other test sleeps for.
fn a_sleep() -> String {
    format!("sleep 1{}", Instant::now().elapsed().as_nanos() + u128::from(std::process::id()) + 100_000)
}

#[tokio::test]
async fn progress_streams_output_in_order_and_ends_with_the_result() -> Result<()> {
    let gateway = gateway().await?;
    for era in ERAS {
        let client = Client::owner(&gateway, era, &format!("progress-{era:?}").to_lowercase()).await?;
        let script = "for n in 1 2 3 4; do echo line-$n; sleep 0.3; done";
        let (before, answer) =
            client.bash(script, json!({ "progressToken": "token-7" })).await?.all().await?;
        ensure!(before.iter().all(|message| message["method"] == "notifications/progress"), "{before:?}");
        ensure!(before.iter().all(|message| message["params"]["progressToken"] == "token-7"), "{before:?}");
        let steps: Vec<f64> = before.iter().filter_map(|step| step["params"]["progress"].as_f64()).collect();
        ensure!(steps.len() >= 3 && steps.is_sorted_by(|one, next| one < next), "{era:?}: {steps:?}");
        let told: String = before.iter().filter_map(|step| step["params"]["message"].as_str()).collect();
        let whole = text(&answer["result"]);
        ensure!(whole == "line-1\nline-2\nline-3\nline-4\n", "{whole}");
        ensure!(whole.starts_with(&told) && told.contains("line-3"), "{era:?}: told {told:?} of {whole:?}");

        let (before, _) = client.bash("echo loud; sleep 0.5; echo louder", json!({})).await?.all().await?;
        ensure!(before.is_empty(), "{era:?}: progress that nobody asked for: {before:?}");
    }
    Ok(())
}

/// Trap 19, and what design 2.2 promises of silent calls: headers within 2 s, and with a token progress every 15 s.
#[tokio::test]
async fn a_silent_call_of_90_seconds_is_answered_in_both_eras() -> Result<()> {
    let gateway = gateway().await?;
    let silent = async |era: Era, meta: Value| -> Result<(Duration, Vec<Duration>, Value)> {
        let client = Client::owner(&gateway, era, "silent").await?;
        let begun = Instant::now();
        let mut stream = client.bash("sleep 90; echo awake", meta).await?;
        let headers = begun.elapsed();
        let (mut gaps, mut last) = (Vec::new(), Instant::now());
        loop {
            let message = tokio::time::timeout(Duration::from_mins(2), stream.patient()).await??;
            let message = message.context("the stream ended")?;
            gaps.push(last.elapsed());
            last = Instant::now();
            if message.get("method").is_none() {
                return Ok((headers, gaps, message));
            }
        }
    };
    let token = json!({ "progressToken": 1 });
    let (modern, legacy, told_modern, told_legacy) = tokio::try_join!(
        silent(Era::Modern, json!({})),
        silent(Era::Legacy, json!({})),
        silent(Era::Modern, token.clone()),
        silent(Era::Legacy, token),
    )?;
    for (what, (headers, gaps, answer)) in
        [("modern", modern), ("legacy", legacy), ("modern, told", told_modern), ("legacy, told", told_legacy)]
    {
        eprintln!("{what}: headers after {headers:?}, {} messages before the answer", gaps.len() - 1);
        ensure!(headers < HEADERS_MAX, "{what}: headers after {headers:?}");
        ensure!(text(&answer["result"]) == "awake\n", "{what}: {answer}");
        if what.ends_with("told") {
            ensure!(gaps.iter().all(|gap| *gap < Duration::from_secs(15)), "{what}: {gaps:?}");
            ensure!(gaps.len() > 6, "{what}: {gaps:?}");
        } else {
            ensure!(gaps.len() == 1, "{what}: {gaps:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_closed_stream_cancels_in_the_stateless_era() -> Result<()> {
    let gateway = gateway().await?;
    let client = Client::owner(&gateway, Era::Modern, "closed").await?;
    let sleep = a_sleep();
    let stream = client.bash(&format!("exec {sleep}"), json!({})).await?;
    soon(async || Ok(runs(&sleep))).await?;
    drop(stream);
    let closed = Instant::now();
    soon(async || Ok(!runs(&sleep))).await?;
    eprintln!("gone {:?} after its stream was closed", closed.elapsed());
    soon(async || Ok(outcomes(&client).await? == ["cancelled"])).await?;
    // Before its headers came, too.
    let sleep = a_sleep();
    let command = format!("exec {sleep}");
    let opening = client.bash(&command, json!({}));
    ensure!(
        tokio::time::timeout(Duration::from_millis(200), opening).await.is_err(),
        "too quick for this test"
    );
    soon(async || Ok(outcomes(&client).await? == ["cancelled", "cancelled"])).await?;
    ensure!(!runs(&sleep));
    Ok(())
}

#[tokio::test]
async fn a_notification_cancels_in_the_legacy_era_and_a_dropped_connection_does_not() -> Result<()> {
    let gateway = gateway().await?;
    let client = Client::owner(&gateway, Era::Legacy, "dropped").await?;
    let sleep = a_sleep();
    let stream = client.bash(&format!("exec {sleep}"), json!({})).await?;
    soon(async || Ok(runs(&sleep))).await?;
    let cancelled = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled",
        "params": { "requestId": stream.id(), "reason": "enough" } });
    // One for a request that never was is ignored.
    let stray =
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 9999 } });
    for notification in [stray, cancelled] {
        ensure!(client.post(&notification, &[]).await?.status() == 202);
    }
    soon(async || Ok(!runs(&sleep))).await?;
    soon(async || Ok(outcomes(&client).await? == ["cancelled"])).await?;
    drop(stream);

    let mut stream = client.bash("sleep 2; echo survived", json!({ "progressToken": 1 })).await?;
    while stream.event_id.is_none() {
        stream.within(Duration::from_millis(50)).await?;
    }
    let last = stream.event_id.clone().context("an event id")?;
    drop(stream);
    soon(async || Ok(outcomes(&client).await? == ["cancelled", "ok"])).await?;
    let mut again = client.get(&[("Last-Event-ID", &last)]).await?;
    let answer = loop {
        let message = again.next().await?.context("the answer")?;
        if message.get("method").is_none() {
            break message;
        }
    };
    ensure!(text(&answer["result"]) == "survived\n", "{answer}");
    Ok(())
}

/// A restart of the gateway is no reason to lose what is nearly done.
#[tokio::test]
async fn a_shutdown_lets_running_calls_be_answered() -> Result<()> {
    let mut gateway = gateway().await?;
    let (modern, legacy) = (
        Client::owner(&gateway, Era::Modern, "down-modern").await?,
        Client::owner(&gateway, Era::Legacy, "down-legacy").await?,
    );
    let listening = modern.listen(&[]).await?;
    let news = legacy.get(&[]).await?;
    let calls = [&modern, &legacy].map(|client| client.bash("sleep 2; echo done", json!({})));
    let streams = futures_util::future::try_join_all(calls).await?;
    let begun = Instant::now();
    let stopping = tokio::task::spawn_blocking(move || gateway.stop().map(|()| gateway));
    for stream in streams {
        let result = Stream::result(stream).await?;
        ensure!(text(&result) == "done\n", "{result}");
    }
    stopping.await??;
    eprintln!("stopped in {:?}, with two calls answered and two streams open", begun.elapsed());
    drop((listening, news));
    Ok(())
}

#[tokio::test]
async fn a_wrong_argument_and_an_unknown_tool_are_told_apart() -> Result<()> {
    let gateway = gateway().await?;
    for era in ERAS {
        let client = Client::owner(&gateway, era, "wrong").await?;
        let unknown =
            client.error("tools/call", json!({ "name": "sandbox__nonesuch", "arguments": {} })).await?;
        ensure!(unknown["code"] == -32602, "{unknown}");
        ensure!(unknown["message"].as_str().is_some_and(|text| text.contains("tools/list")), "{unknown}");
        let wrong = client.call("sandbox__bash", json!({ "comand": "true" })).await?;
        ensure!(wrong["isError"] == true && text(&wrong).contains("unknown field `comand`"), "{wrong}");
        let outside = client.call("sandbox__write", json!({ "path": "/etc/passwd", "content": "x" })).await?;
        ensure!(outside["isError"] == true, "{outside}");
    }
    Ok(())
}
