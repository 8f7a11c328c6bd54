//! What a client hears while its first call waits for its hand to be made.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tests::dockerd::{Dockerd, busybox};
use tests::gateway::{Gateway, Options};

use super::registry::Registry;
use crate::mcp::client::{Client, Era, text};

#[tokio::test]
async fn a_client_hears_how_far_an_image_is_that_its_first_call_needs() -> Result<()> {
    let daemon = Dockerd::start().await?;
    let registry = Registry::serve(&busybox()?).await;
    let image = format!("127.0.0.1:{}/some/busybox", registry.port);
    let config = format!(
        "[hands.box]\nkind = \"container\"\nimage = \"{image}\"\nshell = \"sh\"\nhost = \"{}\"\n",
        daemon.host()
    );
    let gateway = Gateway::start(Options::default().config(&config)).await?;
    let client = Client::owner(&gateway, Era::Modern, "steps").await?;
    let call = |token: &str| {
        json!({
            "name": "box__bash", "arguments": {"command": "echo here"}, "_meta": {"progressToken": token},
        })
    };
    let (before, answer) = client.open("tools/call", call("first")).await?.all().await?;
    ensure!(text(&answer["result"]) == "here\n", "{answer}");
    let told = messages(&before);
    let pulling = format!("Pulling image {image}:latest");
    ensure!(told.iter().any(|message| message.starts_with(&pulling)), "{told:?}");
    let numbers: Vec<_> = before.iter().filter_map(|news| news["params"]["progress"].as_f64()).collect();
    ensure!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    // A call with a warm hand has nothing to wait for.
    let (before, answer) = client.open("tools/call", call("second")).await?.all().await?;
    ensure!(text(&answer["result"]) == "here\n", "{answer}");
    ensure!(!messages(&before).iter().any(|message| message.starts_with("Pulling")), "{before:?}");
    // On a command line, that is no terminal here, nothing but the result is printed.
    let said = gateway.cli(&["hand", "call", "box", "bash", r#"{"command": "echo there"}"#])?;
    ensure!(said.status.success() && said.stdout == b"there\n" && said.stderr.is_empty(), "{said:?}");
    Ok(())
}

fn messages(news: &[Value]) -> Vec<&str> {
    news.iter().filter_map(|news| news["params"]["message"].as_str().context("a message").ok()).collect()
}
