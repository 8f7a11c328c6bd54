//! Three endpoints of one server, and who may come in.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tests::gateway::Gateway;

use super::client::{Client, ERAS, Era, gateway, text, token};

async fn names(client: &Client) -> Result<Vec<String>> {
    let list = client.ask("session_list", json!({})).await?;
    let sessions = list["sessions"].as_array().context("sessions")?;
    Ok(sessions.iter().map(|session| session["name"].as_str().unwrap_or("-").to_owned()).collect())
}

async fn echo(client: &Client, tool: &str) -> Result<Value> {
    let result = client.call(tool, json!({ "command": "echo hello" })).await?;
    ensure!(text(&result) == "hello\n", "{result}");
    Ok(result)
}

#[tokio::test]
async fn a_session_begins_with_its_first_call_or_event_and_never_with_a_list() -> Result<()> {
    let gateway = gateway().await?;
    for era in ERAS {
        let who = token(&gateway, &format!("{era:?}").to_lowercase())?;
        let whole = Client::at(&format!("{}/mcp", gateway.url()), &who, era).await?;
        for method in ["tools/list", "resources/list", "resources/templates/list", "prompts/list"] {
            for client in [&whole, &Client::at(&gateway.session_url("listed"), &who, era).await?] {
                client.result(method, json!({})).await?;
            }
        }
        let at = async |name: &str| Client::at(&gateway.session_url(name), &who, era).await;
        for tool in ["session_list", "hand_list"] {
            at("asked").await?.ask(tool, json!({})).await?;
        }
        for tool in ["session_get", "session_events"] {
            let none = at("asked").await?.call(tool, json!({})).await?;
            ensure!(none["isError"] == true && text(&none).contains("no session asked"), "{none}");
        }
        at("read").await?.error("resources/read", json!({ "uri": "session://read" })).await?;
        at("unknown").await?.error("tools/call", json!({ "name": "nonesuch" })).await?;
        at("refused")
            .await?
            .error("tools/call", json!({ "name": "session_emit", "arguments": { "type": "hand.lost" } }))
            .await?;
        let large = json!({ "type": "note.large", "data": { "text": "x".repeat(2 << 20) } });
        let refused = at("refused").await?.call("session_emit", large).await?;
        ensure!(refused["isError"] == true && text(&refused).contains("over the limit"), "{refused}");
        ensure!(names(&whole).await?.is_empty(), "{:?}", names(&whole).await?);

        echo(&whole, "sandbox__bash").await?;
        let named = whole.clone().with_header("manyhands-session", "by-header")?;
        echo(&named, "sandbox__bash").await?;
        at("by-event").await?.ask("session_emit", json!({ "type": "note.x" })).await?;
        let hand = Client::at(&format!("{}/mcp/hands/sandbox", gateway.url()), &who, era).await?;
        echo(&hand.clone().with_header("manyhands-session", "by-hand")?, "bash").await?;
        ensure!(
            names(&whole).await? == ["by-hand", "by-event", "by-header", "default"],
            "{:?}",
            names(&whole).await?
        );
        // Without the header it is `default` here, too.
        echo(&hand, "bash").await?;
        let found = whole.ask("session_events", json!({ "type": ["agent.tool_use"] })).await?;
        ensure!(found["events"].as_array().is_some_and(|calls| calls.len() == 2), "{found}");
    }
    Ok(())
}

#[tokio::test]
async fn a_header_may_name_the_session_of_the_url_and_no_other() -> Result<()> {
    let gateway = gateway().await?;
    let client = Client::owner(&gateway, Era::Modern, "one").await?;
    let made = client.ask("session_create", json!({ "name": "one" })).await?;
    client.ask("session_create", json!({ "name": "two" })).await?;
    let id = made["id"].as_str().context("an id")?;
    ensure!(client.ask("session_create", json!({ "name": "one" })).await?["id"] == made["id"]);
    for good in ["one", id] {
        client.clone().with_header("manyhands-session", good)?.result("tools/list", json!({})).await?;
    }
    let by_id = Client::owner(&gateway, Era::Modern, id).await?;
    ensure!(by_id.ask("session_get", json!({})).await?["name"] == "one");
    for bad in ["two", "three", "sesn_00000000000000000000000000000000", "ONE", "", "../one", "sesn_x"] {
        let refused = client.clone().with_header("manyhands-session", bad)?;
        let stream = refused.open("tools/list", json!({})).await?;
        ensure!(stream.status() == 400, "{bad:?}: {}", stream.status());
    }
    let twice = client.clone().with_header("manyhands-session", "one")?;
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    ensure!(twice.post(&body, &[("Manyhands-Session", "one")]).await?.status() == 400);
    for bad in ["ONE", "a%20b", "sesn_x", ".hidden", "%2e%2e%2fx", &"x".repeat(65)] {
        let stream = Client::owner(&gateway, Era::Modern, bad).await?.open("tools/list", json!({})).await?;
        ensure!(stream.status() == 400, "{bad}: {}", stream.status());
    }
    let unknown = Client::owner(&gateway, Era::Modern, "sesn_0190000000007000800000000000000a").await?;
    let refused = unknown.call("sandbox__bash", json!({ "command": "true" })).await?;
    ensure!(refused["isError"] == true && text(&refused).contains("session_list shows yours"), "{refused}");
    Ok(())
}

#[tokio::test]
async fn one_hand_is_seen_under_its_own_names() -> Result<()> {
    let gateway = gateway().await?;
    for era in ERAS {
        let client =
            Client::at(&format!("{}/mcp/hands/sandbox", gateway.url()), &gateway.owner_token()?, era).await?;
        let list = client.result("tools/list", json!({})).await?;
        let names: Vec<_> =
            list["tools"].as_array().context("tools")?.iter().map(|tool| &tool["name"]).collect();
        ensure!(names == ["bash", "edit", "glob", "grep", "read", "write"], "{names:?}");
        ensure!(client.error("tools/call", json!({ "name": "sandbox__bash" })).await?["code"] == -32602);
        ensure!(client.error("tools/call", json!({ "name": "session_list" })).await?["code"] == -32602);
        // What a result points to can be read where it was given.
        let long = client.call("bash", json!({ "command": "seq 20000" })).await?;
        let link = long["content"]
            .as_array()
            .and_then(|all| all.iter().find(|block| block["type"] == "resource_link"));
        let uri = link.context("a link")?["uri"].as_str().context("a uri")?;
        ensure!(client.read(uri).await?["text"].as_str().is_some_and(|text| text.starts_with("1\n2\n")));
        ensure!(client.result("resources/list", json!({})).await?["resources"] == json!([]));
    }
    let unknown = Client::unconnected(
        &format!("{}/mcp/hands/nonesuch", gateway.url()),
        &gateway.owner_token()?,
        Era::Modern,
    );
    ensure!(unknown.open("tools/list", json!({})).await?.status() == 404);
    Ok(())
}

/// Host and Origin come before everything, on every path; the token comes before what there is.
#[tokio::test]
async fn strangers_learn_nothing_at_any_door() -> Result<()> {
    let gateway = gateway().await?;
    let http = reqwest::Client::new();
    let doors = [
        "/healthz",
        "/readyz",
        "/mcp",
        "/mcp/sessions/x",
        "/mcp/hands/sandbox",
        "/mcp/hands/nonesuch",
        "/nowhere",
    ];
    for path in doors {
        let url = format!("{}{path}", gateway.url());
        for (name, value) in [("Host", "evil.example"), ("Origin", "http://evil.example"), ("Origin", "null")]
        {
            let refused =
                http.get(&url).bearer_auth(gateway.owner_token()?).header(name, value).send().await?;
            ensure!(refused.status() == 403, "{path} with {name} {value}: {}", refused.status());
        }
        if path.starts_with("/mcp") {
            ensure!(http.post(&url).send().await?.status() == 401, "{path}");
        }
    }
    for path in ["/healthz", "/readyz"] {
        ensure!(http.get(format!("{}{path}", gateway.url())).send().await?.status() == 200, "{path}");
    }
    Ok(())
}

#[tokio::test]
async fn who_sends_no_good_token_is_told_so_in_the_words_of_the_rfc() -> Result<()> {
    let gateway = gateway().await?;
    let (alice, passing) = (token(&gateway, "alice")?, expiring(&gateway, "passing")?);
    ensure!(status(&gateway, Some(&format!("Bearer {passing}")), "").await?.0 == 200, "not expired yet");
    ensure!(status(&gateway, Some(&format!("bearer {alice}")), "").await?.0 == 200);
    ensure!(gateway.cli(&["token", "revoke", "alice"])?.status.success());
    let (none, invalid) =
        ("Bearer realm=\"manyhands\"", "Bearer realm=\"manyhands\", error=\"invalid_token\"");
    let owner = gateway.owner_token()?;
    tokio::time::sleep(std::time::Duration::from_millis(2_100)).await;
    for (what, authorization, query, challenge) in [
        ("nothing", None, "", none),
        ("in the query", None, format!("?token={owner}&access_token={owner}").as_str(), none),
        ("another scheme", Some(format!("Basic {owner}")), "", none),
        ("an unknown one", Some("Bearer mh_nonesuch".to_owned()), "", invalid),
        ("an empty one", Some("Bearer ".to_owned()), "", invalid),
        ("only the scheme", Some("Bearer".to_owned()), "", invalid),
        ("one too long", Some(format!("Bearer {owner}x")), "", invalid),
        ("one in other case", Some(format!("Bearer {}", owner.to_uppercase())), "", invalid),
        ("two in one", Some(format!("Bearer {owner}, Bearer {owner}")), "", invalid),
        ("a revoked one", Some(format!("Bearer {alice}")), "", invalid),
        ("an expired one", Some(format!("Bearer {passing}")), "", invalid),
    ] {
        let (status, said) = status(&gateway, authorization.as_deref(), query).await?;
        ensure!((status, said.as_str()) == (401, challenge), "{what}: {status} {said}");
    }
    let refused = gateway.cli(&["serve", "--no-auth", "--listen", "0.0.0.0:0"])?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && said.contains("0.0.0.0:0 is not loopback"), "{refused:?}");
    Ok(())
}

fn expiring(gateway: &Gateway, name: &str) -> Result<String> {
    let made = gateway.cli(&["token", "new", name, "--expires", "2s"])?;
    ensure!(made.status.success(), "{made:?}");
    Ok(String::from_utf8(made.stdout)?.trim().to_owned())
}

async fn status(gateway: &Gateway, authorization: Option<&str>, query: &str) -> Result<(u16, String)> {
    let body = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "admin", "version": "1" },
    }});
    let mut request = reqwest::Client::new()
        .post(format!("{}/mcp{query}", gateway.url()))
        .header("Accept", "application/json, text/event-stream")
        .json(&body);
    if let Some(authorization) = authorization {
        request = request.header("Authorization", authorization);
    }
    let answer = request.send().await?;
    let challenge = answer.headers().get("www-authenticate").and_then(|value| value.to_str().ok());
    Ok((answer.status().as_u16(), challenge.unwrap_or_default().to_owned()))
}
