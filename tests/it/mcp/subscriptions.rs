//! Who hears of what, how soon and how often.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tests::gateway::{Gateway, Options};

use super::client::{Client, ERAS, Era, Stream, gateway, soon, token};

const UPDATED: &str = "notifications/resources/updated";
const RESOURCES: &str = "notifications/resources/list_changed";
const TOOLS: &str = "notifications/tools/list_changed";

/// The next notification of this kind, and after how long it came.
async fn heard(stream: &mut Stream, method: &str) -> Result<(Duration, Value)> {
    let begun = Instant::now();
    loop {
        let message = stream.next().await?.context("the stream ended")?;
        if message["method"] == method {
            return Ok((begun.elapsed(), message["params"].clone()));
        }
    }
}

/// Reads what is on its way already.
async fn quiet(stream: &mut Stream) -> Result<()> {
    while stream.within(Duration::from_millis(400)).await?.is_some() {}
    Ok(())
}

#[tokio::test]
async fn one_client_hears_at_once_what_another_writes() -> Result<()> {
    let gateway = gateway().await?;
    for (reader, writer) in ERAS.into_iter().flat_map(|reader| ERAS.map(|writer| (reader, writer))) {
        let name = format!("{reader:?}-{writer:?}").to_lowercase();
        let (writing, reading) = tokio::try_join!(
            Client::owner(&gateway, writer, &name),
            Client::owner(&gateway, reader, "elsewhere"),
        )?;
        let made = writing.ask("session_create", json!({ "name": name })).await?;
        let uri = format!("{}/events", made["uri"].as_str().context("a uri")?);
        let mut stream = reading.listen(&[&uri]).await?;
        quiet(&mut stream).await?;
        let mut times = Vec::new();
        for n in 0..5 {
            let begun = Instant::now();
            let (_, (_, params)) = tokio::try_join!(
                writing.ask("session_emit", json!({ "type": "note.x", "data": { "n": n } })),
                heard(&mut stream, UPDATED),
            )?;
            times.push(begun.elapsed());
            ensure!(params["uri"] == uri.as_str(), "{params}");
            ensure!(
                params["_meta"]["io.modelcontextprotocol/subscriptionId"].is_null()
                    == (reader == Era::Legacy),
                "{params}"
            );
            let events = reading.read_json(&uri).await?;
            let last = events["events"].as_array().and_then(|all| all.last()).context("an event")?;
            ensure!(last["n"] == n, "{last}");
            tokio::time::sleep(Duration::from_millis(120)).await;
        }
        times.sort();
        eprintln!("{writer:?} writes, {reader:?} hears, from the request on: {times:?}");
        ensure!(times[0] < Duration::from_secs(1), "{times:?}");
        if reader == Era::Legacy {
            reading.result("resources/unsubscribe", json!({ "uri": uri })).await?;
            writing.ask("session_emit", json!({ "type": "note.x" })).await?;
            ensure!(stream.within(Duration::from_millis(500)).await?.is_none());
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_slow_subscriber_hears_less_often_and_always_of_the_last() -> Result<()> {
    let gateway = gateway().await?;
    for era in ERAS {
        let name = format!("slow-{era:?}").to_lowercase();
        let writing = Client::owner(&gateway, Era::Modern, &name).await?;
        writing.ask("session_create", json!({ "name": name })).await?;
        let reading = Client::owner(&gateway, era, "elsewhere").await?;
        let uris = [format!("session://{name}"), format!("session://{name}/events")];
        let mut stream = reading.listen(&[&uris[0], &uris[1]]).await?;
        quiet(&mut stream).await?;
        let begun = Instant::now();
        let writes = async {
            for _ in 0..10 {
                let emits = (0..100).map(|_| writing.ask("session_emit", json!({ "type": "note.x" })));
                futures_util::future::try_join_all(emits).await?;
            }
            anyhow::Ok(begun.elapsed())
        };
        // Nobody reads meanwhile.
        let wrote = writes.await?;
        let mut told = Vec::new();
        while let Some(message) = stream.within(Duration::from_millis(700)).await? {
            ensure!(message["method"] == UPDATED, "{message}");
            told.push(message["params"]["uri"].as_str().unwrap_or_default().to_owned());
        }
        eprintln!("{era:?}: 1000 events in {wrote:?}, told {} times", told.len());
        let at_most = wrote.as_millis() / 100 + 4;
        ensure!((told.len() as u128) <= at_most && told.len() < 1000, "{} in {wrote:?}", told.len());
        ensure!(uris.iter().all(|uri| told.contains(uri)), "{told:?}");
        // The last of them was told after the last append: what is read now is all there is.
        let mut places = Vec::new();
        let mut after = json!(1);
        loop {
            let page = reading
                .ask("session_events", json!({ "session": name, "after": after, "limit": 1000 }))
                .await?;
            places.extend(
                page["events"].as_array().context("events")?.iter().filter_map(|one| one["seq"].as_i64()),
            );
            if page["has_more"] == false {
                break;
            }
            after = page["next"].clone();
        }
        ensure!(places == (2..=1001).collect::<Vec<_>>(), "{} places", places.len());
        // And one more is heard of at once.
        let (_, (took, _)) = tokio::try_join!(
            writing.ask("session_emit", json!({ "type": "note.x" })),
            heard(&mut stream, UPDATED)
        )?;
        ensure!(took < Duration::from_secs(1), "{took:?}");
    }
    Ok(())
}

#[tokio::test]
async fn changed_lists_are_told_within_a_second_and_only_to_those_they_concern() -> Result<()> {
    let gateway = gateway().await?;
    let bob = token(&gateway, "bob")?;
    for era in ERAS {
        let reading = Client::owner(&gateway, era, "lists").await?;
        let mut stream = reading.listen(&[]).await?;
        let bob = Client::at(&format!("{}/mcp", gateway.url()), &bob, era).await?;
        let mut strange = bob.listen(&[]).await?;
        quiet(&mut stream).await?;
        let name = format!("new-{era:?}").to_lowercase();
        let hand = format!("extra-{era:?}").to_lowercase();
        for (what, command, method) in [
            ("session new", vec!["session", "new", &name], RESOURCES),
            ("session archive", vec!["session", "archive", &name], RESOURCES),
            ("session delete", vec!["session", "delete", &name], RESOURCES),
            ("hand add", vec!["hand", "add", &hand, "--kind", "sandbox"], TOOLS),
            ("hand remove", vec!["hand", "remove", &hand], TOOLS),
        ] {
            let done = gateway.cli(&command)?;
            ensure!(done.status.success(), "{what}: {done:?}");
            let (took, _) = heard(&mut stream, method).await?;
            eprintln!("{era:?}: {what} was told {took:?} after it");
            ensure!(took < Duration::from_secs(1), "{what}: {took:?}");
            if what == "hand add" {
                let list = reading.result("tools/list", json!({})).await?;
                let bash = format!("{hand}__bash");
                ensure!(
                    list["tools"]
                        .as_array()
                        .is_some_and(|all| all.iter().any(|tool| tool["name"] == bash.as_str()))
                );
            }
        }
        while let Some(message) = strange.within(Duration::from_millis(300)).await? {
            ensure!(message["method"] == TOOLS, "sessions of others: {message}");
        }
    }
    Ok(())
}

/// A URI may be followed before its session is made, and nobody can tell what of others' there is.
#[tokio::test]
async fn uris_of_others_are_as_unknown_ones() -> Result<()> {
    let gateway = gateway().await?;
    let owner = Client::owner(&gateway, Era::Modern, "theirs").await?;
    let made = owner.ask("session_create", json!({ "name": "theirs" })).await?;
    let foreign = made["uri"].as_str().context("a uri")?.to_owned();
    let unknown = "session://sesn_01900000000070008000000000000000";
    let bob = token(&gateway, "bob")?;
    let modern = Client::at(&format!("{}/mcp", gateway.url()), &bob, Era::Modern).await?;
    let mut acks = Vec::new();
    let mut streams = Vec::new();
    for uri in [&foreign, unknown, "session://theirs"] {
        let mut stream = modern
            .open(
                "subscriptions/listen",
                json!({ "notifications": {
            "resourceSubscriptions": [uri, "file:///etc/passwd"], "promptsListChanged": true } }),
            )
            .await?;
        let ack = stream.next().await?.context("an ack")?;
        ensure!(ack["params"]["notifications"] == json!({ "resourceSubscriptions": [uri] }), "{ack}");
        acks.push(ack["params"]["notifications"].to_string().replace(uri, "URI"));
        streams.push(stream);
    }
    ensure!(acks.iter().all(|ack| *ack == acks[0]), "{acks:?}");
    let legacy = Client::at(&format!("{}/mcp", gateway.url()), &bob, Era::Legacy).await?;
    let refused = legacy.error("resources/subscribe", json!({ "uri": foreign })).await?;
    let nothing = legacy.error("resources/subscribe", json!({ "uri": unknown })).await?;
    let plain = |error: &Value| error.to_string().replace(&foreign, "URI").replace(unknown, "URI");
    ensure!(plain(&refused) == plain(&nothing), "{refused} {nothing}");
    ensure!(refused["code"] == -32002, "{refused}");
    owner.ask("session_emit", json!({ "type": "note.secret" })).await?;
    for stream in &mut streams {
        let leaked = stream.within(Duration::from_millis(300)).await?;
        ensure!(leaked.is_none(), "{leaked:?}");
    }
    // The name becomes Bob's own.
    let hers = Client::at(&gateway.session_url("theirs"), &bob, Era::Modern).await?;
    hers.ask("session_emit", json!({ "type": "note.x" })).await?;
    heard(&mut streams[2], UPDATED).await?;
    ensure!(streams[0].within(Duration::from_millis(300)).await?.is_none());
    Ok(())
}

#[tokio::test]
async fn streams_are_limited_per_principal_and_given_back() -> Result<()> {
    let gateway = Gateway::start(Options::default().env("MANYHANDS_LIMITS_STREAMS", "2")).await?;
    let bob = token(&gateway, "bob")?;
    for era in ERAS {
        let clients =
            futures_util::future::try_join_all((0..3).map(|_| Client::owner(&gateway, era, "streams")))
                .await?;
        let first = clients[0].listen(&[]).await?;
        let second = clients[1].listen(&[]).await?;
        let refused = if era == Era::Legacy {
            clients[2].get(&[]).await?
        } else {
            clients[2].open("subscriptions/listen", json!({ "notifications": {} })).await?
        };
        ensure!(refused.status() == 429, "{}", refused.status());
        let said = refused.answer().await?;
        ensure!(
            said["error"]["message"]
                .as_str()
                .is_some_and(|text| text.contains("limits.streams") && text.contains("close one")),
            "{said}"
        );
        Client::at(&format!("{}/mcp", gateway.url()), &bob, era).await?.listen(&[]).await?;
        clients[2].result("tools/list", json!({})).await?;
        drop(first);
        soon(async || Ok(clients[2].listen(&[]).await.is_ok())).await?;
        drop(second);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}
