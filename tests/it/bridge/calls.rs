//! Calls: what a server answers comes whole, is written whole, and is replayed whole.

use anyhow::{Context as _, Result, ensure};
use futures_util::future::try_join_all;
use serde_json::{Value, json};

use super::kit::{bare, count, events, start, start_with};
use super::scripted::{odd, until};
use crate::mcp::client::{ERAS, Era, text};

/// What the odd result is to a client of the whole gateway.
fn odd_shown() -> Value {
    let mut odd = odd();
    odd["content"][3]["uri"] = "fx+test://one".into();
    odd["content"][4]["resource"]["uri"] = "fx+test://two".into();
    odd["_meta"]["ui"]["resourceUri"] = "ui://fx/panel".into();
    odd
}

#[tokio::test]
async fn a_result_comes_whole_and_the_log_has_it_whole() -> Result<()> {
    let running = start().await?;
    for era in ERAS {
        let client = running.client(era).await?;
        let key = json!({"manyhands/callKey": "k"});
        let call = json!({"name": "fx__odd", "arguments": {}, "_meta": key});
        let first = client.result("tools/call", call.clone()).await?;
        assert_eq!(bare(first.clone())?, odd_shown(), "{era:?}");
        assert_eq!(first["_meta"]["manyhands/outcome"], "ok");
        assert_eq!(first.get("resultType").is_some(), era == Era::Modern, "{first}");
        let info = &first["_meta"]["io.modelcontextprotocol/serverInfo"]["name"];
        assert_eq!(*info, if era == Era::Modern { json!("manyhands") } else { Value::Null });
        let again = client.result("tools/call", call).await?;
        assert_eq!(again["_meta"]["manyhands/replayed"], true);
        assert_eq!(bare(again)?, odd_shown(), "{era:?}");
        let events = events(&client, "s").await?;
        assert_eq!(count(&events, "agent.tool_use"), 1);
        let result = events.iter().find(|event| event["type"] == "agent.tool_result").context("no result")?;
        assert_eq!(result["content"], odd()["content"]);
        assert_eq!(result["structured"], odd()["structuredContent"]);
        assert_eq!(result["more"]["notInAnySpec"], json!({"kept": true}));
        // Where a hand stands alone, its URIs are its own.
        let alone = running.client_at("/mcp/hands/fx", era, json!({})).await?;
        assert_eq!(bare(alone.call("odd", json!({})).await?)?, odd());
    }
    Ok(())
}

#[tokio::test]
async fn structured_content_is_any_json_where_the_era_has_it() -> Result<()> {
    let running = start().await?;
    for value in [json!(null), json!(7), json!([1, {"a": 2}]), json!("text"), json!({"a": 1})] {
        for era in ERAS {
            for hand in ["fx", "quiet"] {
                let client = running.client(era).await?;
                let meta = json!({"manyhands/callKey": "k"});
                let arguments = json!({"value": value});
                let call =
                    json!({"name": format!("{hand}__structured"), "arguments": arguments, "_meta": meta});
                for _ in 0..2 {
                    let result = client.result("tools/call", call.clone()).await?;
                    let shown = era == Era::Modern || value.is_object();
                    let expected = shown.then(|| value.clone());
                    assert_eq!(result.get("structuredContent").cloned(), expected, "{era:?} {result}");
                }
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_large_result_is_not_cut_and_comes_back_from_beside_the_log() -> Result<()> {
    let running = start().await?;
    for (era, bytes) in [(Era::Modern, 1_000_000), (Era::Legacy, 300_000), (Era::Modern, 100_000)] {
        let client = running.client(era).await?;
        let meta = json!({"manyhands/callKey": "k"});
        let call = json!({"name": "fx__big", "arguments": {"bytes": bytes}, "_meta": meta});
        let first = client.result("tools/call", call.clone()).await?;
        assert_eq!(text(&first).len(), bytes);
        let again = client.result("tools/call", call).await?;
        assert_eq!(bare(first)?, bare(again)?);
        let events = events(&client, "s").await?;
        let result = events.iter().find(|event| event["type"] == "agent.tool_result").context("no result")?;
        let stored = result["output"]["holds"] == "result";
        assert_eq!(stored, bytes > 256 << 10, "{bytes}");
    }
    Ok(())
}

#[tokio::test]
async fn an_error_of_the_server_is_the_error_that_it_was() -> Result<()> {
    let running = start().await?;
    for (code, modern) in [
        (-32602, -32602),
        (-32601, -32601),
        (1234, 1234),
        (-32002, -32602),
        (-32042, -32603),
        (-32021, -32021),
        (-32000, -32603),
    ] {
        for era in ERAS {
            let client = running.client(era).await?;
            let given = json!({"code": code, "message": "it says", "data": {"odd": [1]}});
            let meta = json!({"manyhands/callKey": "k"});
            let call = json!({"name": "fx__fail", "arguments": {"error": given}, "_meta": meta});
            for _ in 0..2 {
                let error = client.error("tools/call", call.clone()).await?;
                let code = if era == Era::Modern { modern } else { code };
                assert_eq!(
                    error,
                    json!({"code": code, "message": "it says", "data": {"odd": [1]}}),
                    "{era:?}"
                );
            }
            let events = events(&client, "s").await?;
            let result = events.iter().find(|it| it["type"] == "agent.tool_result").context("no result")?;
            assert_eq!((&result["outcome"], &result["error"]), (&json!("error"), &given));
            assert_eq!(count(&events, "agent.tool_use"), 1);
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_hand_without_a_log_leaves_no_trace_of_a_call() -> Result<()> {
    let running = start().await?;
    for era in ERAS {
        let client = running.client(era).await?;
        for _ in 0..2 {
            let meta = json!({"claudecode/toolUseId": "same"});
            let call = json!({"name": "quiet__echo", "arguments": {"text": "hi"}, "_meta": meta});
            let result = client.result("tools/call", call).await?;
            assert_eq!(text(&result), "hi");
            assert_eq!(result["_meta"]["manyhands/seq"], Value::Null);
        }
        let lost = client.call("quiet__lost", json!({})).await?;
        assert_eq!((&lost["isError"], &lost["_meta"]["manyhands/outcome"]), (&json!(true), &json!("lost")));
        let events = events(&client, "s").await?;
        for kind in ["agent.tool_use", "hand.call_started", "agent.tool_result"] {
            assert_eq!(count(&events, kind), 0, "{events:?}");
        }
    }
    assert_eq!(running.seen().runs(), 6);
    Ok(())
}

#[tokio::test]
async fn news_come_before_the_result_in_the_servers_numbers() -> Result<()> {
    let running = start().await?;
    for era in ERAS {
        let client = running.client(era).await?;
        let meta = json!({"progressToken": "p", "io.modelcontextprotocol/logLevel": "debug"});
        let call = json!({"name": "fx__news", "arguments": {}, "_meta": meta});
        let (news, answer) = client.open("tools/call", call).await?.all().await?;
        ensure!(answer["result"].is_object(), "{answer}");
        let progress: Vec<_> = news
            .iter()
            .filter(|it| it["method"] == "notifications/progress")
            .map(|it| &it["params"])
            .collect();
        let numbers: Vec<_> = progress.iter().filter_map(|it| it["progress"].as_f64()).collect();
        assert_eq!(numbers, [0.0, 50.0, 100.0], "{era:?} {news:?}");
        assert!(progress.iter().all(|it| it["progressToken"] == "p" && it["total"] == 100.0), "{news:?}");
        let said = json!({"level": "info", "logger": "l", "data": {"a": 1}, "odd": 1});
        let is_log = |it: &&Value| it["method"] == "notifications/message";
        let log = news.iter().find(is_log).context("no log message")?;
        assert_eq!(log["params"], said, "{era:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_hand_learns_of_the_client_what_it_may_and_nothing_else() -> Result<()> {
    let running = start().await?;
    for era in ERAS {
        let client = running.client_at("/mcp", era, json!({"elicitation": {}})).await?;
        let meta = json!({
            "traceparent": "00-1", "vendor/x": {"a": 1}, "manyhands/callKey": "k", "progressToken": 1,
            "io.modelcontextprotocol/logLevel": "warning", "io.modelcontextprotocol/else": 1,
        });
        if era == Era::Legacy {
            client.result("logging/setLevel", json!({"level": "error"})).await?;
        }
        client.result("tools/call", json!({"name": "fx__who", "arguments": {}, "_meta": meta})).await?;
        let seen = running.seen().last();
        assert_eq!(seen["meta"], json!({"traceparent": "00-1", "vendor/x": {"a": 1}}), "{era:?}");
        assert_eq!(seen["capabilities"], json!({"elicitation": {}}));
        assert_eq!(seen["log_level"], if era == Era::Modern { "warning" } else { "error" });
    }
    Ok(())
}

#[tokio::test]
async fn a_client_that_gives_up_ends_the_call() -> Result<()> {
    let running = start().await?;
    for (n, hand) in ["fx", "quiet"].iter().enumerate() {
        let client = running.client(Era::Modern).await?;
        let call = json!({"name": format!("{hand}__slow"), "arguments": {}});
        let going = client.open("tools/call", call);
        tokio::select! {
            answered = going => { answered?; }
            () = until(|| running.seen().runs() == 2 * n + 1) => {}
        }
        until(|| running.seen().cancelled() == 2 * n + 1).await;
        let client = running.client(Era::Legacy).await?;
        let call = json!({"name": format!("{hand}__slow"), "arguments": {}});
        let stream = client.open("tools/call", call).await?;
        until(|| running.seen().runs() == 2 * n + 2).await;
        let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": stream.id()}});
        ensure!(client.post(&cancel, &[]).await?.status() == 202);
        until(|| running.seen().cancelled() == 2 * n + 2).await;
    }
    Ok(())
}

/// Two principals, the same ids, as numbers and as texts.
#[tokio::test]
async fn every_answer_finds_its_asker() -> Result<()> {
    let running = start_with("limits.running_calls = 64").await?;
    for era in ERAS {
        let mut calls = Vec::new();
        for principal in ["alice", "bob"] {
            let token = running.token(&format!("{principal}-{era:?}").to_lowercase()).await?;
            for n in 0..50 {
                let id = if n % 2 == 0 { json!(1) } else { json!("1") };
                let client = running.client_of(&token, "/mcp", era, json!({})).await?;
                calls.push(async move {
                    let text = format!("{principal} {n}");
                    let hand = if n % 4 < 2 { "fx" } else { "quiet" };
                    let call = json!({"name": format!("{hand}__echo"), "arguments": {"text": text}});
                    let answer = client.open_as(id.clone(), "tools/call", call).await?.answer().await?;
                    ensure!(answer["id"] == id && answer["result"]["content"][0]["text"] == text, "{answer}");
                    Ok(())
                });
            }
        }
        try_join_all(calls).await?;
    }
    Ok(())
}

#[tokio::test]
async fn headers_that_repeat_arguments_are_held_against_them() -> Result<()> {
    let running = start().await?;
    let call = |path: &'static str, name: &'static str, header: Option<&'static str>| {
        let running = &running;
        async move {
            let mut client = running.client_at(path, Era::Modern, json!({})).await?;
            if let Some(header) = header {
                client = client.with_header("mcp-param-region", header)?;
            }
            let call = json!({"name": name, "arguments": {"region": "eu"}});
            client.request("tools/call", call).await
        }
    };
    for (path, name) in [("/mcp", "fx__region"), ("/mcp/hands/fx", "region")] {
        let right = call(path, name, Some("eu")).await?;
        assert!(right["result"].is_object(), "{right}");
        for wrong in [None, Some("us")] {
            assert_eq!(call(path, name, wrong).await?["error"]["code"], -32020);
        }
    }
    assert_eq!(running.seen().runs(), 2);
    Ok(())
}
