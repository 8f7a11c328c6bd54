//! Lists, resources, prompts and completions.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::kit::{bare, start};
use crate::mcp::client::{ERAS, Era};

fn named<'a>(items: &'a Value, name: &str) -> Option<&'a Value> {
    items.as_array()?.iter().find(|item| item["name"] == name)
}

#[tokio::test]
async fn definitions_are_shown_whole_under_the_views_names() -> Result<()> {
    let running = start().await?;
    for era in ERAS {
        let client = running.client(era).await?;
        let alone = running.client_at("/mcp/hands/fx", era, json!({})).await?;
        let all = client.result("tools/list", json!({})).await?;
        let one = alone.result("tools/list", json!({})).await?;
        let mut shown = named(&all["tools"], "fx__region").context("no tool")?.clone();
        let own = named(&one["tools"], "region").context("no tool")?.clone();
        assert_eq!((&shown["execution"], &shown["icons"][0]["src"]), (&json!({"later": 1}), &json!("x")));
        assert_eq!(shown["_meta"]["ui"]["resourceUri"], "ui://fx/panel");
        shown["name"] = "region".into();
        shown["_meta"]["ui"]["resourceUri"] = "ui://panel".into();
        assert_eq!(shown, own);
        let schema = |name: &str| Some(named(&one["tools"], name)?.get("outputSchema").is_some());
        assert_eq!(
            (schema("structured"), schema("news"), schema("odd")),
            (Some(era == Era::Modern), Some(true), Some(false))
        );
        assert!(named(&one["tools"], "session_list").is_none() && all["nextCursor"].is_null());
        assert_eq!(all.get("ttlMs").is_some(), era == Era::Modern);

        let prompts = client.result("prompts/list", json!({})).await?;
        let greet = json!({"name": "fx__greet", "arguments": [{"name": "who"}], "odd": 1});
        assert_eq!(named(&prompts["prompts"], "fx__greet"), Some(&greet));
        let own = alone.result("prompts/list", json!({})).await?;
        assert!(named(&own["prompts"], "a b").is_some() && named(&own["prompts"], "greet").is_some());

        let templates = client.result("resources/templates/list", json!({})).await?;
        assert_eq!(
            named(&templates["resourceTemplates"], "t").context("no t")?["uriTemplate"],
            "fx+test://t/{id}"
        );
        let own = alone.result("resources/templates/list", json!({})).await?;
        assert_eq!(own["resourceTemplates"], json!([{"uriTemplate": "test://t/{id}", "name": "t"}]));
    }
    Ok(())
}

#[tokio::test]
async fn resources_come_in_pages_behind_the_sessions() -> Result<()> {
    let running = start().await?;
    let many = (0..450).map(|n| json!({"uri": format!("test://{n}"), "name": format!("{n}")}));
    let many: Vec<_> = many.map(|it| std::sync::Arc::new(super::scripted::object(it))).collect();
    running.hand.change(|catalogue| catalogue.resources = many);
    for era in ERAS {
        let client = running.client(era).await?;
        client.ask("session_create", json!({"name": "s"})).await?;
        let (mut uris, mut cursor) = (Vec::new(), Value::Null);
        loop {
            let params = if cursor.is_null() { json!({}) } else { json!({ "cursor": cursor }) };
            let page = client.result("resources/list", params).await?;
            let items = page["resources"].as_array().context("no resources")?;
            uris.extend(items.iter().filter_map(|it| it["uri"].as_str().map(str::to_owned)));
            cursor = page["nextCursor"].clone();
            if cursor.is_null() {
                break;
            }
            let other = running.client(era).await?;
            assert_eq!(other.error("resources/list", json!({ "cursor": cursor })).await?["code"], -32602);
        }
        // Two hands of the same server, and a session with its events.
        assert_eq!(uris.len(), 902);
        assert!(uris[0].starts_with("session://"));
        assert_eq!((uris[2].as_str(), uris[901].as_str()), ("fx+test://0", "quiet+test://449"));
        assert_eq!(client.error("resources/list", json!({"cursor": "x"})).await?["code"], -32602);
    }
    Ok(())
}

#[tokio::test]
async fn resources_are_read_by_the_names_that_the_view_gives_them() -> Result<()> {
    let running = start().await?;
    for era in ERAS {
        let client = running.client(era).await?;
        let alone = running.client_at("/mcp/hands/fx", era, json!({})).await?;
        let read = client.result("resources/read", json!({"uri": "fx+test://one"})).await?;
        assert_eq!(read["contents"], json!([{"uri": "fx+test://one", "text": "1", "odd": 1}]));
        let caching = (read.get("ttlMs"), read.get("cacheScope"));
        let expected = (json!(7), json!("private"));
        assert_eq!(
            caching,
            if era == Era::Modern { (Some(&expected.0), Some(&expected.1)) } else { (None, None) }
        );
        let own = alone.result("resources/read", json!({"uri": "test://one"})).await?;
        assert_eq!(own["contents"][0]["uri"], "test://one");
        let missing = if era == Era::Modern { -32602 } else { -32002 };
        for (uri, gone) in
            [("fx+test://gone", true), ("fx+test://old", era == Era::Modern), ("nobody+test://one", true)]
        {
            let error = client.error("resources/read", json!({ "uri": uri })).await?;
            assert_eq!(error["code"], missing, "{era:?} {uri} {error}");
            assert_eq!(error["data"]["uri"] == uri, gone, "{error}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn prompts_and_completions_reach_their_hand() -> Result<()> {
    let running = start().await?;
    for era in ERAS {
        let client = running.client(era).await?;
        let alone = running.client_at("/mcp/hands/fx", era, json!({})).await?;
        for (client, name) in [(&client, "fx__greet"), (&alone, "greet")] {
            let prompt = json!({"name": name, "arguments": {"who": "you"}});
            let prompt = bare(client.result("prompts/get", prompt).await?)?;
            let message = json!({"role": "user", "content": {"type": "text", "text": "you", "odd": 1}});
            assert_eq!(prompt, json!({"messages": [message], "odd": 1}));
            let ask = json!({"ref": {"type": "ref/prompt", "name": name}, "argument": {"name": "who", "value": "x"}});
            let completed = client.result("completion/complete", ask).await?;
            assert_eq!(completed["completion"], json!({"values": ["x"], "odd": 1}));
            assert_eq!(completed["asked"]["name"], "greet");
        }
        for (client, uri) in [(&client, "fx+test://t/{id}"), (&alone, "test://t/{id}")] {
            let ask =
                json!({"ref": {"type": "ref/resource", "uri": uri}, "argument": {"name": "id", "value": ""}});
            assert_eq!(client.result("completion/complete", ask).await?["asked"]["uri"], "test://t/{id}");
        }
        for name in ["greet", "fx__none", "nobody__greet"] {
            assert_eq!(client.error("prompts/get", json!({ "name": name })).await?["code"], -32602);
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_server_alone_says_what_it_can_and_the_gateway_what_all_need() -> Result<()> {
    let running = start().await?;
    let alone = running.client_at("/mcp/hands/fx", Era::Modern, json!({})).await?;
    let one = alone.result("server/discover", json!({})).await?;
    assert_eq!(one["instructions"], "Do as it says.");
    assert_eq!(one["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "manyhands");
    let extensions = json!({"io.modelcontextprotocol/tasks": {}, "io.modelcontextprotocol/ui": {}});
    assert_eq!(one["capabilities"]["extensions"], extensions);
    assert_eq!(one["capabilities"]["completions"], json!({}));
    let all = running.client(Era::Modern).await?.result("server/discover", json!({})).await?;
    assert_eq!(all["capabilities"]["extensions"], extensions);
    assert_eq!(all["capabilities"]["logging"], json!({}));
    assert_eq!(all["capabilities"]["prompts"], json!({"listChanged": true}));
    let url = format!("{}/mcp/hands/fx", running.url);
    let mut legacy = crate::mcp::client::Client::unconnected(&url, &running.token("l").await?, Era::Legacy);
    let one = legacy.initialize().await?;
    assert_eq!(one["result"]["instructions"], "Do as it says.");
    assert_eq!(one["result"]["serverInfo"]["name"], "manyhands");
    Ok(())
}
