//! The same for tasks (SEP-2663), which both sides have to know: of 2026-07-28, and declared.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use super::client::{Era, answer};
use super::{Allowed, Comparison, arguments, declared};

/// Ten times what any task here takes.
const HANGS: Duration = Duration::from_mins(1);
/// How often is looked.
const POLL: Duration = Duration::from_millis(100);

const TOOLS: [&str; 6] = [
    "slow_compute",
    "failing_job",
    "protocol_error_job",
    "confirm_delete",
    "multi_input",
    "test_tool_with_task",
];

#[tokio::test]
async fn tasks_of_a_server_of_2026() -> Result<()> {
    let mut declared = declared();
    declared["extensions"] = json!({"io.modelcontextprotocol/tasks": {}});
    let of_tasks = Allowed::is_of_tasks;
    let mut comparison = Comparison::start(Era::Modern, Era::Modern, declared, of_tasks).await?;
    for tool in TOOLS {
        let what = format!("task {tool}");
        let call = json!({"name": tool, "arguments": arguments(tool)});
        let made = comparison.see(&what, "tools/call", call.clone(), call).await?.context("no task")?;
        let ids = made.map(|made| json!({"taskId": made["result"]["taskId"]}));
        see_through(&mut comparison, &what, &ids).await.with_context(|| what.clone())?;
        let [direct, through] = ids;
        comparison.see(&what, "tasks/cancel", direct.clone(), through.clone()).await?;
        comparison.see(&what, "tasks/get", direct, through).await?;
    }
    let unknown = json!({"taskId": "nonesuch"});
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let params = json!({"taskId": "nonesuch", "inputResponses": {}});
        let params = if method == "tasks/update" { params } else { unknown.clone() };
        comparison.see("task unknown", method, params.clone(), params).await?;
    }
    comparison.end();
    Ok(())
}

/// Looks at a task until it has ended, and answers what it asks.
async fn see_through(comparison: &mut Comparison, what: &str, ids: &[Value; 2]) -> Result<()> {
    loop {
        still(comparison, ids).await?;
        let [direct, through] = ids.clone();
        let found = comparison.see(what, "tasks/get", direct, through).await?.context("no task")?;
        if found[0]["result"]["status"] != "input_required" {
            return Ok(());
        }
        let questions = found[0]["result"]["inputRequests"].as_object().context("no questions")?;
        let answers: Map<_, _> =
            questions.iter().map(|(key, question)| (key.clone(), answer(question))).collect();
        let [direct, through] = ids.clone().map(|mut params| {
            params["inputResponses"] = answers.clone().into();
            params
        });
        comparison.see(what, "tasks/update", direct, through).await?;
    }
}

/// Waits until neither of the two works.
async fn still(comparison: &mut Comparison, ids: &[Value; 2]) -> Result<()> {
    let begun = Instant::now();
    for (client, id) in [(&mut comparison.direct, &ids[0]), (&mut comparison.through, &ids[1])] {
        loop {
            let told = client.request("tasks/get", id.clone()).await?;
            let found: Value = serde_json::from_str(&told.end)?;
            if found["result"]["status"] != "working" {
                break;
            }
            ensure!(begun.elapsed() < HANGS, "it goes on: {found}");
            tokio::time::sleep(POLL).await;
        }
    }
    Ok(())
}
