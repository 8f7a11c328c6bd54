//! Sessions as resources, and that all faces tell the same story.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tests::gateway::Gateway;

use super::client::{Client, ERAS, Era, gateway, token};

#[tokio::test]
async fn three_faces_tell_the_same_events_in_the_same_order() -> Result<()> {
    let gateway = gateway().await?;
    for era in ERAS {
        let name = format!("faces-{era:?}").to_lowercase();
        let client = Client::owner(&gateway, era, &name).await?;
        let result = client.call("sandbox__bash", json!({ "command": "echo hello" })).await?;
        let uri = result["_meta"]["manyhands/session"].as_str().context("a session")?;
        let by_resource = client.read_json(&format!("{uri}/events")).await?;
        let by_name = client.read_json(&format!("session://{name}/events?after=0&limit=1000")).await?;
        let by_tool = client.ask("session_events", json!({})).await?;
        let printed = gateway.cli(&["session", "events", &name, "--json"])?;
        let by_cli: Value = serde_json::from_slice(&printed.stdout)?;
        let kinds: Vec<&str> = by_tool["events"]
            .as_array()
            .context("events")?
            .iter()
            .filter_map(|one| one["type"].as_str())
            .collect();
        eprintln!("{era:?}: {kinds:?}");
        ensure!(
            kinds
                == [
                    "session.created",
                    "agent.tool_use",
                    "hand.provisioned",
                    "hand.call_started",
                    "agent.tool_result"
                ]
        );
        for (face, events) in [("resource", &by_resource), ("name", &by_name), ("cli", &by_cli)] {
            ensure!(events["events"] == by_tool["events"], "{face}: {events}");
        }
        ensure!(by_cli == by_tool && by_resource == by_tool, "{by_cli}");
        for event in by_tool["events"].as_array().context("events")? {
            let one = client.read_json(&format!("{uri}/events/{}", event["seq"])).await?;
            ensure!(one == *event);
        }
    }
    Ok(())
}

#[tokio::test]
async fn each_form_of_a_uri_is_listed_templated_and_read() -> Result<()> {
    let gateway = gateway().await?;
    for era in ERAS {
        let client = Client::owner(&gateway, era, "forms").await?;
        let made = client.ask("session_create", json!({ "name": "forms" })).await?;
        for n in 0..5 {
            client.ask("session_emit", json!({ "type": "note.x", "data": { "n": n } })).await?;
        }
        client.ask("session_emit", json!({ "type": "note.y" })).await?;
        let uri = made["uri"].as_str().context("a uri")?;
        let list = client.result("resources/list", json!({})).await?;
        ensure!(
            list["resources"][0]["uri"] == uri && list["resources"][1]["uri"] == format!("{uri}/events"),
            "{list}"
        );
        let templates = client.result("resources/templates/list", json!({})).await?;
        let forms: Vec<_> = templates["resourceTemplates"]
            .as_array()
            .context("templates")?
            .iter()
            .map(|one| one["uriTemplate"].clone())
            .collect();
        ensure!(
            forms
                == [
                    "session://{id}",
                    "session://{id}/context",
                    "session://{id}/events{?after,before,limit,type}",
                    "session://{id}/events/{seq}{?offset}",
                    "session://{id}/outputs/{seq}{?offset}"
                ],
            "{forms:?}"
        );
        let seqs = async |query: &str| -> Result<Vec<i64>> {
            let page = client.read_json(&format!("{uri}/events{query}")).await?;
            Ok(page["events"]
                .as_array()
                .context("events")?
                .iter()
                .filter_map(|one| one["seq"].as_i64())
                .collect())
        };
        let end = client.read_json(uri).await?["last_seq"].as_i64().context("a seq")?;
        ensure!(seqs("?limit=2").await? == [end - 1, end]);
        ensure!(seqs("?after=1&limit=2").await? == [2, 3]);
        ensure!(seqs("?before=4&limit=2").await? == [2, 3]);
        ensure!(seqs("?before=4").await? == [1, 2, 3]);
        ensure!(seqs("?type=note.y").await?.last() == Some(&end));
        ensure!(seqs("?type=note.y&type=session.created&limit=1").await? == [end]);
        ensure!(seqs(&format!("?after={end}")).await?.is_empty());
    }
    Ok(())
}

/// Forms of URIs below a session.
const FORMS: [&str; 7] = [
    "",
    "/events",
    "/events?after=1",
    "/events/1",
    "/events/2?offset=0",
    "/outputs/5",
    "/outputs/5?offset=9",
];
/// What names nothing.
const NOTHING: [&str; 19] = [
    "file:///etc/passwd",
    "session://",
    "session:///events",
    "session://../private",
    "session://%2e%2e/events",
    "session://private/../../etc/passwd",
    "session://private/events/0",
    "session://private/events/99999999999999999999",
    "session://private?x=1",
    "session://private/events?limit=0",
    "session://private#x",
    "session://private@host/events",
    "SESSION://private",
    "session://private/events/1/2",
    "http://localhost/",
    "",
    "session://x\u{202e}y",
    "{id}",
    "session://private/events?after=1%00",
];
const NO_SESSION: &str = "sesn_01900000000070008000000000000000";

/// The code of a resource that is not there.
fn missing(era: Era) -> i64 {
    if era == Era::Modern { -32602 } else { -32002 }
}

/// The owner's session `private` with a large output, and the URI of that.
async fn private(gateway: &Gateway) -> Result<(Client, String)> {
    let owner = Client::owner(gateway, Era::Modern, "private").await?;
    let long = owner.call("sandbox__bash", json!({ "command": "seq 20000" })).await?;
    let link = long["content"].as_array().and_then(|all| all.last()).context("a link")?;
    let uri = link["uri"].as_str().context("a uri")?.to_owned();
    Ok((owner, uri))
}

/// What is somebody else's is as what does not exist, to the byte.
#[tokio::test]
async fn what_is_somebody_elses_is_not_there() -> Result<()> {
    let gateway = gateway().await?;
    let (_owner, output) = private(&gateway).await?;
    let id = output.split('/').nth(2).context("an id")?.to_owned();
    let bob = token(&gateway, "bob")?;
    for era in ERAS {
        let bob = Client::at(&format!("{}/mcp", gateway.url()), &bob, era).await?;
        let read = async |name: &str, form: &str| -> Result<(Value, String)> {
            let error =
                bob.error("resources/read", json!({ "uri": format!("session://{name}{form}") })).await?;
            let plain = error.to_string().replace(name, "NAME");
            Ok((error, plain))
        };
        for form in FORMS {
            for (theirs, nobodys) in [(id.as_str(), NO_SESSION), ("private", "nonesuch")] {
                let ((error, foreign), (_, unknown)) =
                    tokio::try_join!(read(theirs, form), read(nobodys, form))?;
                ensure!(foreign == unknown, "{foreign} {unknown}");
                ensure!(error["code"] == missing(era), "{error}");
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn what_names_nothing_is_told_so() -> Result<()> {
    let gateway = gateway().await?;
    let (_owner, output) = private(&gateway).await?;
    let id = output.split('/').nth(2).context("an id")?;
    let beyond = ["/outputs/1", "/outputs/999", "/events/999"].map(|form| format!("session://{id}{form}"));
    for era in ERAS {
        let owner = Client::owner(&gateway, era, "private").await?;
        for uri in NOTHING.into_iter().chain(beyond.iter().map(String::as_str)) {
            let error = owner.error("resources/read", json!({ "uri": uri })).await?;
            ensure!(error["code"] == missing(era), "{uri:?}: {error}");
            ensure!(error["data"] == json!({ "uri": uri }), "{uri:?}: {error}");
            ensure!(error["message"].as_str().is_some_and(|said| said.contains("session_list")), "{error}");
        }
        ensure!(owner.read(&output).await?["text"].is_string());
    }
    Ok(())
}
