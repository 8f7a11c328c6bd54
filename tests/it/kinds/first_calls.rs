//! Nothing is made for a session that calls nothing, and one instance for ten first calls at once: of every kind, seen
//! from outside of the gateway.

use anyhow::{Context as _, Result, ensure};
use futures_util::future::try_join_all;
use hands::InstanceId;
use serde_json::{Value, json};

use super::rig::{Machines, found, instances, running, seen, text};
use crate::crash::client::Client;
use crate::crash::truth;
use crate::hand::marked::keepers_of;
use crate::mcp::client as plain;
use crate::sandbox_kit::processes_of;

/// Hands with the six tools.
const POSIX: [&str; 6] = ["sandbox", "box", "tub", "host", "phone", "machine"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_calls_nothing_gets_nothing_and_ten_first_calls_get_one() -> Result<()> {
    let machines = Machines::start().await?;
    let mut gateway = machines.gateway().await?;
    let (client, reader) = seen(&gateway).await?;
    for era in plain::ERAS {
        looks_around(&plain::Client::owner(&gateway, era, "looks").await?).await?;
    }
    has_nothing(&machines)?;
    let events = reader.events("looks").await?;
    ensure!(instances(&events).is_empty(), "{:?}", truth::types(&events));

    for hand in POSIX {
        let calls = (0..10).map(|n| {
            let input = json!({"command": format!("echo {n} >> log; echo {n}"), "timeout_s": 300});
            ten(&client, hand, "bash", input, format!("{n}\n"))
        });
        try_join_all(calls).await.with_context(|| hand)?;
        let log = text(&client, "ten", &format!("{hand}__bash"), json!({"command": "wc -l < log"})).await?;
        ensure!(log.trim() == "10", "{hand}: {log}");
    }
    let looks = (0..10)
        .map(|_| ten(&client, "game", "read_memory", json!({"address": "0x9800"}), "9800: 00".to_owned()));
    try_join_all(looks).await.context("game")?;

    let made = instances(&reader.events("ten").await?);
    ensure!(made.len() == POSIX.len() + 1, "more than one of a hand: {made:?}");
    for (hand, instance) in &made {
        ensure!(count(&machines, hand, instance) == 1, "{hand}: {:?}", running(instance));
    }
    ensure!(machines.containers().len() == 2, "{:?}", machines.containers());
    // None that came and went, either.
    ensure!(machines.containers_made().len() == 2, "{:?}", machines.containers_made());
    gateway.stop()?;
    truth::check_ended(&reader.events("ten").await?)
}

/// Everything that a client can do without calling a hand.
async fn looks_around(client: &plain::Client) -> Result<()> {
    let tools = client.result("tools/list", json!({})).await?;
    for tool in ["box__bash", "tub__bash", "host__bash", "phone__tap", "game__press", "machine__bash"] {
        let listed = tools["tools"].as_array().into_iter().flatten().any(|listed| listed["name"] == tool);
        ensure!(listed, "no {tool} in {tools}");
    }
    client.ask("session_create", json!({"name": "looks"})).await?;
    let event = json!({"type": "test.noted", "data": {"text": "still nothing"}});
    client.ask("session_emit", event).await?;
    let hands = client.ask("hand_list", json!({})).await?;
    ensure!(hands.to_string().contains("machine"), "{hands}");
    let resources = client.result("resources/list", json!({})).await?;
    let uris = resources["resources"].as_array().into_iter().flatten().filter_map(|one| one["uri"].as_str());
    for uri in uris {
        client.read(uri).await?;
    }
    Ok(())
}

/// No container, no image, no connection, no machine, no process, no folder.
fn has_nothing(machines: &Machines) -> Result<()> {
    ensure!(machines.containers_made().is_empty() && machines.containers().is_empty(), "containers");
    ensure!(machines.volumes().is_empty(), "{:?}", machines.volumes());
    ensure!(machines.daemon.docker(&["images", "--quiet"]).is_empty(), "an image was imported");
    let connections = std::fs::read_to_string(machines.sshd.path("log"))?;
    ensure!(!connections.contains("Accepted"), "{connections}");
    let phone = found(&machines.phone.home(), &["-path", "*/manyhands*"])?;
    ensure!(phone.is_empty(), "{phone:?}");
    // Machines, consoles and sandboxes run in folders of their instances.
    let work = machines.data().join("work");
    let running = truth::processes(&[work.display().to_string()])?;
    ensure!(running.is_empty() && !work.exists(), "{running:?}");
    Ok(())
}

/// One of ten.
async fn ten(client: &Client, hand: &str, tool: &str, input: Value, says: String) -> Result<()> {
    let said = text(client, "ten", &format!("{hand}__{tool}"), input).await?;
    ensure!(said.contains(&says), "{hand}: {said}");
    Ok(())
}

/// How many there are of an instance, seen from outside of its hand.
fn count(machines: &Machines, hand: &str, instance: &InstanceId) -> usize {
    match hand {
        "box" | "tub" => machines.containers().iter().filter(|name| name.contains(&instance.0)).count(),
        "host" | "phone" => keepers_of(instance).len(),
        "machine" => processes_of(&InstanceId(format!("manyhands-{instance}"))).len(),
        // bubblewrap and PID 1 in it.
        "sandbox" => processes_of(instance).len().div_ceil(2),
        _ => processes_of(instance).len(),
    }
}
