//! `kill -9` of a gateway that has every kind of hand alive, some of them in a call.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures_util::future::try_join_all;
use gateway::session::Event;
use hands::InstanceId;
use serde_json::{Value, json};
use tests::gateway::Gateway;
use tokio::task::JoinSet;

use super::rig::{Machines, call, found, instances, nothing, running, seen, text};
use crate::crash::client::Client;
use crate::crash::truth::{self, Reader, cgroups, field, of, outcomes};

/// Hands with the six tools. `tub` has its work in a volume.
const POSIX: [&str; 6] = ["sandbox", "box", "tub", "host", "phone", "machine"];
/// Those that are in a call when the gateway is killed, with a call that does not end.
const BUSY: [&str; 4] = ["sandbox", "box", "host", "machine"];
/// Sessions, in each of which the gateway is killed once.
const SESSIONS: [&str; 5] = ["first", "second", "third", "fourth", "fifth"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_leaves_nothing_of_any_kind_but_the_work() -> Result<()> {
    let machines = Machines::start().await?;
    let mut gateway = machines.gateway().await?;
    let (client, reader) = seen(&gateway).await?;
    first_calls(&client, "all").await?;
    let before = reader.events("all").await?;
    let instances = instances(&before);
    ensure!(instances.len() == POSIX.len() + 1, "{instances:?}");
    for (hand, instance) in &instances {
        let there = !running(instance).is_empty();
        // What is in a container is not named after it; the engine says that it is there.
        ensure!(there || hand == "box" || hand == "tub", "nothing runs of {hand}");
    }
    ensure!(machines.containers().len() == 2, "{:?}", machines.containers());
    let calls = endless(&client);
    // Each is at work, not only on its way.
    reader.until("all", |events| started(events) == instances.len() + BUSY.len() + 1).await?;
    gateway.kill()?;
    let broken = calls.join_all().await;
    ensure!(broken.iter().all(Result::is_err), "answered by a killed gateway: {broken:?}");

    let mut gateway = machines.gateway().await?;
    is_clean(&machines, &instances).await?;
    // The one with the work of the one hand that has it in a volume.
    ensure!(machines.volumes().len() == 1, "{:?}", machines.volumes());
    let kept = work(&machines)?;
    is_settled(&reader, &instances).await?;
    the_work_is_there(&gateway, &reader).await?;
    gateway.stop()?;
    let clean = work(&machines)?;
    ensure!(clean == kept, "a clean end leaves other files than kill -9: {clean:#?} {kept:#?}");
    truth::check_ended(&reader.events("all").await?)?;
    ensure!(machines.containers().is_empty(), "{:?}", machines.containers());
    Ok(())
}

/// Wherever it was on its way to an instance: what it had made by then is found, and what was to be kept can be used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_killed_while_it_makes_instances_leaves_none_half_made() -> Result<()> {
    let machines = Machines::start().await?;
    let mut instances = Vec::new();
    for (kill, session) in SESSIONS.into_iter().enumerate() {
        let mut gateway = machines.gateway().await?;
        let (client, reader) = seen(&gateway).await?;
        let calls = async { first_calls(&client, session).await };
        // From the first moment to the last, whatever the load of the machine.
        let moment = async {
            reader.until(session, |events| !of(events, "agent.tool_use").is_empty()).await?;
            tokio::time::sleep(Duration::from_millis(400 * kill as u64)).await;
            let made = "select id from instance";
            let made: Vec<String> = sqlx::query_scalar(made).fetch_all(reader.database.reader()).await?;
            gateway.kill()?;
            anyhow::Ok(made)
        };
        let (_, made) = tokio::join!(calls, moment);
        instances.extend(made?.into_iter().map(|id| (session.to_owned(), InstanceId(id))));
    }
    ensure!(instances.len() >= SESSIONS.len(), "no kill hit an instance: {instances:?}");
    let mut gateway = machines.gateway().await?;
    is_clean(&machines, &instances).await?;
    let (client, reader) = seen(&gateway).await?;
    ensure!(reader.rows("instance").await? == 0, "rows are left");
    for session in SESSIONS {
        let kept = json!({"command": "echo kept > file; cat file", "timeout_s": 300});
        let kept = text(&client, session, "tub__bash", kept).await.context(session)?;
        ensure!(kept.ends_with("kept\n"), "{session}: {kept}");
        truth::check(&reader.events(session).await?)?;
    }
    println!("{} instances were made or being made", instances.len());
    gateway.stop()
}

/// One of every kind, all at once, each with work.
async fn first_calls(client: &Client, session: &str) -> Result<()> {
    let keep = POSIX.map(|hand| {
        let command = json!({"command": "echo kept > file", "timeout_s": 300});
        async move { text(client, session, &format!("{hand}__bash"), command).await }
    });
    let press = async { text(client, session, "game__press", json!({"buttons": ["a"]})).await };
    tokio::try_join!(try_join_all(keep), press)?;
    Ok(())
}

/// Calls that go on until they are ended, each on a task of its own.
fn endless(client: &Client) -> JoinSet<Result<(String, String)>> {
    let mut calls = JoinSet::new();
    let bash = json!({"command": "sleep 1000 & sleep 1000", "timeout_s": 2000});
    let bash = BUSY.map(|hand| (format!("{hand}__bash"), bash.clone()));
    let wait = ("game__wait".to_owned(), json!({"frames": 3600}));
    for (tool, input) in bash.into_iter().chain([wait]) {
        let client = client.clone();
        calls.spawn(async move { call(&client, "all", &tool, input).await });
    }
    calls
}

fn started(events: &[Event]) -> usize {
    of(events, "hand.call_started").len()
}

/// No container, volume, process, group, connection or socket is left of what the dead gateway had.
async fn is_clean(machines: &Machines, instances: &[(String, InstanceId)]) -> Result<()> {
    nothing("containers", || machines.containers()).await?;
    let ids: Vec<String> = instances.iter().map(|(_, instance)| instance.0.clone()).collect();
    nothing("processes", || instances.iter().flat_map(|(_, instance)| running(instance)).collect()).await?;
    nothing("control groups", || cgroups(&ids)).await?;
    let marks = [machines.data().join("work").display().to_string()];
    nothing("processes at work", || truth::processes(&marks).unwrap_or_default()).await?;
    let sockets = found(&machines.data(), &["-type", "s"])?;
    ensure!(sockets == ["./manyhands.sock"], "{sockets:?}");
    Ok(())
}

/// Every call that ran has one outcome, which says that nobody knows; every instance is lost, with its work kept.
async fn is_settled(reader: &Reader, instances: &[(String, InstanceId)]) -> Result<()> {
    let events = reader.events("all").await?;
    truth::check_ended(&events)?;
    let expected =
        BTreeMap::from([("ok".to_owned(), instances.len()), ("unknown".to_owned(), BUSY.len() + 1)]);
    ensure!(outcomes(&events) == expected, "{:?}", outcomes(&events));
    let lost = of(&events, "hand.lost");
    ensure!(lost.len() == instances.len(), "{lost:?}");
    ensure!(lost.iter().all(|event| field(event, "work") == "kept"), "{lost:?}");
    ensure!(reader.rows("open_call").await? == 0 && reader.rows("instance").await? == 0, "rows are left");
    Ok(())
}

/// The next calls find what was done before, are told what happened, and get instances of their own.
async fn the_work_is_there(gateway: &Gateway, reader: &Reader) -> Result<()> {
    let client = Client::of(gateway)?;
    let read = POSIX.map(|hand| {
        let (client, tool) = (&client, format!("{hand}__bash"));
        async move { text(client, "all", &tool, json!({"command": "cat file", "timeout_s": 300})).await }
    });
    let memory = async { text(&client, "all", "game__read_memory", json!({"address": "0x9800"})).await };
    let (texts, memory) = tokio::try_join!(try_join_all(read), memory)?;
    for (hand, text) in POSIX.iter().zip(texts) {
        ensure!(text.contains("since your last call") && text.ends_with("kept\n"), "{hand}: {text}");
    }
    ensure!(memory.contains("9800: 01"), "the game forgot the button: {memory}");
    let events = reader.events("all").await?;
    let (again, all) = (of(&events, "hand.provisioned").len(), POSIX.len() + 1);
    ensure!(again == 2 * all, "{again} of {all} were made twice");
    let calls: Vec<&Value> =
        of(&events, "agent.tool_result").iter().map(|event| &event.fields["outcome"]).collect();
    let next = calls.get(calls.len() - all..).context("results")?;
    ensure!(next.iter().all(|outcome| **outcome == "ok"), "{calls:?}");
    Ok(())
}

/// Files that instances have on this machine.
fn work(machines: &Machines) -> Result<Vec<String>> {
    found(&machines.data().join("work"), &["-mindepth", "2", "!", "-type", "d"])
}
