//! Who hears of what changes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::kit::{Running, start};
use super::scripted::{object, until};
use crate::mcp::client::{ERAS, Era, Stream};

const URI: &str = "test://watched";

async fn updated(stream: &mut Stream, uri: &str) -> Result<()> {
    loop {
        let message = stream.next().await?.context("the stream ended")?;
        if message["method"] == "notifications/resources/updated" {
            ensure!(message["params"]["uri"] == uri, "{message}");
            return Ok(());
        }
    }
}

async fn followed(running: &Running, count: usize) {
    until(|| running.hand.followers() == count).await;
}

#[tokio::test]
async fn an_update_reaches_who_follows_by_the_name_that_it_knows() -> Result<()> {
    let running = start().await?;
    for era in ERAS {
        for (path, uri) in [("/mcp/sessions/s", "fx+test://watched"), ("/mcp/hands/fx", URI)] {
            let client = running.client_at(path, era, json!({})).await?;
            let other = running.client_at(path, era, json!({})).await?;
            let mut stream = client.listen(&[uri]).await?;
            let mut elsewhere = other.listen(&[]).await?;
            followed(&running, 1).await;
            assert_eq!(running.hand.update(URI).await, 1);
            updated(&mut stream, uri).await?;
            assert_eq!(running.hand.update("test://other").await, 0);
            // A server that is lost is followed anew, and what may have been missed is told.
            running.hand.forget_followers();
            followed(&running, 1).await;
            updated(&mut stream, uri).await?;
            if era == Era::Legacy {
                client.result("resources/unsubscribe", json!({ "uri": uri })).await?;
            } else {
                drop(stream);
            }
            followed(&running, 0).await;
            while let Some(message) = elsewhere.within(Duration::from_millis(50)).await? {
                ensure!(message["method"] != "notifications/resources/updated", "{message}");
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn only_what_a_hand_can_tell_is_promised() -> Result<()> {
    let running = start().await?;
    let client = running.client(Era::Modern).await?;
    let uris = json!(["fx+test://watched", "nobody+test://x", "test://watched", "file:///etc/passwd"]);
    let listen = json!({"notifications": {"resourceSubscriptions": uris, "promptsListChanged": true}});
    let mut stream = client.open("subscriptions/listen", listen).await?;
    let first = stream.next().await?.context("no acknowledgement")?;
    let promised = json!({"resourceSubscriptions": ["fx+test://watched"], "promptsListChanged": true});
    assert_eq!(first["params"]["notifications"], promised);
    running.hand.change(|catalogue| {
        catalogue.capabilities.insert("resources".to_owned(), json!({}));
    });
    let legacy = running.client(Era::Legacy).await?;
    for uri in ["fx+test://watched", "nobody+test://x"] {
        legacy.error("resources/subscribe", json!({ "uri": uri })).await?;
    }
    Ok(())
}

#[tokio::test]
async fn who_listens_hears_which_list_has_changed() -> Result<()> {
    let running = start().await?;
    let added = |name: &str| Arc::new(object(json!({"name": name, "uri": format!("test://{name}")})));
    for era in ERAS {
        for path in ["/mcp/sessions/s", "/mcp/hands/fx"] {
            let client = running.client_at(path, era, json!({})).await?;
            let mut stream = client.listen(&[]).await?;
            // What listens is known to listen when it has heard of something.
            let mut n = 0;
            loop {
                n += 1;
                running.hand.change(|it| it.tools.push(added(&format!("warm-{era:?}-{}-{n}", path.len()))));
                if stream.within(Duration::from_millis(500)).await?.is_some() {
                    break;
                }
            }
            while stream.within(Duration::from_millis(300)).await?.is_some() {}
            for kind in ["tools", "prompts", "resources"] {
                running.hand.change(|catalogue| {
                    let list = match kind {
                        "tools" => &mut catalogue.tools,
                        "prompts" => &mut catalogue.prompts,
                        _ => &mut catalogue.resources,
                    };
                    list.push(added(&format!("{kind}-{era:?}-{}", path.len())));
                });
                let heard = stream.next().await?.context("the stream ended")?;
                assert_eq!(heard["method"], format!("notifications/{kind}/list_changed"), "{era:?} {path}");
            }
            let nothing = stream.within(Duration::from_millis(300)).await?;
            ensure!(nothing.is_none(), "{nothing:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn what_was_not_asked_for_is_not_told() -> Result<()> {
    let running = start().await?;
    let client = running.client(Era::Modern).await?;
    let listen = json!({"notifications": {"toolsListChanged": true}});
    let mut stream = client.open("subscriptions/listen", listen).await?;
    stream.next().await?.context("no acknowledgement")?;
    let prompt = Arc::new(object(json!({"name": "new"})));
    let tool = prompt.clone();
    running.hand.change(|catalogue| catalogue.prompts.push(prompt));
    running.hand.change(|catalogue| catalogue.tools.push(tool));
    let heard: Value = stream.next().await?.context("the stream ended")?;
    assert_eq!(heard["method"], "notifications/tools/list_changed");
    Ok(())
}
