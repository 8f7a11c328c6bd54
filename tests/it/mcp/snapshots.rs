//! How it looks on the wire: what changes here, changes for every client.

use anyhow::Result;
use serde_json::{Value, json};

use super::client::{Client, Era, gateway};

/// Without what is different in every run.
fn redacted(mut value: Value) -> Value {
    match &mut value {
        Value::String(text) => {
            for (prefix, kept) in [("sesn_", 32), ("sevt_", 32), ("out_", 32)] {
                while let Some(at) = text
                    .find(prefix)
                    .filter(|at| text[at + prefix.len()..].starts_with(|c: char| c.is_ascii_hexdigit()))
                {
                    let end = (at + prefix.len() + kept).min(text.len());
                    text.replace_range(at..end, &format!("<{}>", prefix.trim_end_matches('_')));
                }
            }
            if text == env!("CARGO_PKG_VERSION") {
                "<version>".clone_into(text);
            }
            value
        }
        Value::Array(items) => items.drain(..).map(redacted).collect(),
        Value::Object(fields) => {
            let fields = std::mem::take(fields);
            Value::Object(fields.into_iter().map(|(key, item)| (key, redacted(item))).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}

#[tokio::test]
async fn the_wire_of_the_stateless_era() -> Result<()> {
    let gateway = gateway().await?;
    let client = Client::owner(&gateway, Era::Modern, "wire").await?;
    insta::assert_json_snapshot!("discover", redacted(client.request("server/discover", json!({})).await?));
    insta::assert_json_snapshot!("tools_list", redacted(client.request("tools/list", json!({})).await?));
    let call = client.bash("echo hello; exit 3", json!({})).await?.answer().await?;
    insta::assert_json_snapshot!("modern_call", redacted(call));
    let emit = client
        .request("tools/call", json!({ "name": "session_emit", "arguments": { "type": "note.x" } }))
        .await?;
    insta::assert_json_snapshot!("modern_session_tool", redacted(emit));
    Ok(())
}

#[tokio::test]
async fn the_wire_of_the_legacy_era() -> Result<()> {
    let gateway = gateway().await?;
    let mut client = Client::unconnected(&gateway.session_url("wire"), &gateway.owner_token()?, Era::Legacy);
    insta::assert_json_snapshot!("initialize", redacted(client.initialize().await?));
    let call = client.bash("echo hello; exit 3", json!({})).await?.answer().await?;
    insta::assert_json_snapshot!("legacy_call", redacted(call));
    let emit = client
        .request("tools/call", json!({ "name": "session_emit", "arguments": { "type": "note.x" } }))
        .await?;
    insta::assert_json_snapshot!("legacy_session_tool", redacted(emit));
    Ok(())
}
