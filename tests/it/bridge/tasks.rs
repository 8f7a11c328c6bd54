//! Tasks of servers: their ids are the gateway's own.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::kit::start;
use crate::mcp::client::Era;

fn tasks() -> Value {
    json!({"extensions": {"io.modelcontextprotocol/tasks": {}}})
}

#[tokio::test]
async fn a_task_is_found_by_its_owner_under_an_id_of_ours() -> Result<()> {
    let running = start().await?;
    for (path, tool, uri) in
        [("/mcp/sessions/s", "fx__task", "fx+test://one"), ("/mcp/hands/quiet", "task", "test://one")]
    {
        let client = running.client_at(path, Era::Modern, tasks()).await?;
        let stranger = running.client_at(path, Era::Modern, tasks()).await?;
        let made = client.call(tool, json!({})).await?;
        assert_eq!(
            (&made["resultType"], &made["status"], &made["ttlMs"]),
            (&json!("task"), &json!("working"), &Value::Null)
        );
        let id = made["taskId"].as_str().context("no id")?;
        assert_ne!(id, "t-1");
        let found = client.result("tasks/get", json!({ "taskId": id })).await?;
        assert_eq!((&found["taskId"], &found["status"]), (&json!(id), &json!("completed")));
        assert_eq!(found["result"]["content"][0]["uri"], uri);
        assert_eq!(running.seen().last()["given"]["taskId"], "t-1");
        let update = json!({"taskId": id, "inputResponses": {"a": {"action": "accept"}}});
        client.result("tasks/update", update).await?;
        assert_eq!(running.seen().last()["given"]["inputResponses"], json!({"a": {"action": "accept"}}));
        let cancelled = client.result("tasks/cancel", json!({ "taskId": id })).await?;
        assert_eq!(cancelled["resultType"], "complete");
        let seen = running.seen().asked.lock().unwrap().len();
        let unknown = client.error("tasks/get", json!({"taskId": "t-1"})).await?;
        assert_eq!(unknown["code"], -32602);
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let params = json!({"taskId": id, "inputResponses": {}});
            assert_eq!(stranger.error(method, params).await?, unknown);
        }
        let elsewhere = running.client_at("/mcp/hands/fx", Era::Modern, tasks()).await?;
        assert_eq!(elsewhere.error("tasks/get", json!({ "taskId": id })).await?, unknown);
        assert_eq!(running.seen().asked.lock().unwrap().len(), seen);
    }
    Ok(())
}

#[tokio::test]
async fn who_does_not_know_tasks_has_none() -> Result<()> {
    let running = start().await?;
    let client = running.client(Era::Modern).await?;
    let stream = client.open("tasks/get", json!({"taskId": "t-1"})).await?;
    assert_eq!(stream.status(), 400);
    let error = stream.answer().await?["error"].take();
    assert_eq!(error["code"], -32021);
    let needed = &error["data"]["requiredCapabilities"]["extensions"];
    assert_eq!(*needed, json!({"io.modelcontextprotocol/tasks": {}}));
    assert_eq!(
        client.error("tools/call", json!({"name": "fx__task", "arguments": {}})).await?["code"],
        -32021
    );
    let legacy = running.client_at("/mcp", Era::Legacy, tasks()).await?;
    assert_eq!(legacy.error("tasks/get", json!({"taskId": "t-1"})).await?["code"], -32601);
    Ok(())
}
