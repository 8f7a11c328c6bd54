//! A second opinion: the official Python SDK of Anthropic reads what our server of the Messages API writes.

use std::path::Path;
use std::process::Command;

use tests::models::{KEY, Models};

#[tokio::test]
async fn the_official_sdk_understands_our_server() {
    let server = Models::start().await.unwrap();
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/anthropic_sdk.py"));
    command.args([&server.url, KEY]);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("anthropic sdk: PASS"), "{said}");
    // It speaks as our own client does.
    let seen = server.seen();
    assert!(seen.len() >= 6, "{} requests", seen.len());
    assert!(seen.iter().all(|request| request.path == "/v1/messages"));
}
