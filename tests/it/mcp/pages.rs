//! An answer has at most 48 000 characters, and says how to go on: nothing is left out silently.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use gateway::access::Principal;
use gateway::database::{Database, DatabaseConfig};
use gateway::session::{At, By, NewEvent, SessionLimits, Sessions, Via, check_emitted};
use serde_json::{Value, json};
use tests::gateway::{Gateway, Options};

use super::client::{Client, ERAS, Era, gateway, text};

const ANSWER_CHARS_MAX: usize = 48_000;
const EVENTS: i64 = 3_000;

/// A log with small events, some of 30 000 characters, and some that no answer can hold, as a gateway left it.
async fn filled(data: &Path) -> Result<()> {
    let database = Database::open(DatabaseConfig::Directory(data.to_owned())).await?;
    let limits = SessionLimits { sessions: 10, stored_bytes: 1 << 40 };
    let sessions = Sessions::new(database.clone(), "none".to_owned(), limits);
    let by = By { principal: "local:owner".to_owned(), client: None, via: Via::Cli };
    let info = sessions.open(&Principal::owner(), &"walk".parse()?, &by).await?;
    let event = |n: i64| {
        let size = match n {
            _ if n % 500 == 7 => 200_000,
            _ if n % 100 == 3 => 30_000,
            _ => 10,
        };
        let data = json!({ "n": n, "text": "é".repeat(size) });
        Ok(NewEvent::emitted(by.clone(), check_emitted("note.x", None, data.as_object().cloned())?))
    };
    let events: Vec<NewEvent> = (2..=EVENTS).map(event).collect::<Result<_>>()?;
    for batch in events.chunks(500) {
        sessions.append(&info, At::End, batch).await?;
    }
    database.close().await;
    Ok(())
}

/// Every event of a page by its seq, ascending.
fn collect(page: &Value, all: &mut BTreeMap<i64, Value>) -> Result<()> {
    let events = page["events"].as_array().context("events")?;
    let mut last = 0;
    for event in events {
        let seq = event["seq"].as_i64().context("a seq")?;
        ensure!(seq > last, "not ascending: {last} {seq}");
        ensure!(all.insert(seq, event.clone()).is_none(), "{seq} came twice");
        last = seq;
    }
    ensure!(page["first"] == events.first().map_or(Value::Null, |event| event["seq"].clone()));
    ensure!(page["last"] == events.last().map_or(Value::Null, |event| event["seq"].clone()));
    Ok(())
}

async fn by_tool(client: &Client, slice: Value) -> Result<Value> {
    let result = client.call("session_events", slice).await?;
    let chars: usize = text(&result).chars().count();
    ensure!(chars <= ANSWER_CHARS_MAX, "{chars} characters");
    Ok(result["structuredContent"].clone())
}

async fn by_resource(client: &Client, slice: Value) -> Result<Value> {
    let slice = slice.as_object().context("a slice")?;
    let query: Vec<String> = slice.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
    let contents = client.read(&format!("session://walk/events{query}")).await?;
    let text = contents["text"].as_str().context("text")?;
    ensure!(text.chars().count() <= ANSWER_CHARS_MAX, "{} characters", text.chars().count());
    Ok(serde_json::from_str(text)?)
}

#[tokio::test]
async fn a_walk_through_a_long_log_meets_every_event_once_whichever_way_it_goes() -> Result<()> {
    let scratch = tempfile::tempdir()?;
    filled(scratch.path()).await?;
    let gateway = Gateway::start(Options::default().data(scratch.path())).await?;
    let client = Client::owner(&gateway, Era::Modern, "walk").await?;
    let mut forward = BTreeMap::new();
    let (mut after, mut pages) = (json!(0), 0);
    loop {
        let page = by_tool(&client, json!({ "after": after, "limit": 1000 })).await?;
        collect(&page, &mut forward)?;
        pages += 1;
        if page["has_more"] == false {
            break;
        }
        after = page["next"].clone();
    }
    let mut backward = BTreeMap::new();
    let mut slice = json!({ "limit": 1000 });
    loop {
        let page = by_resource(&client, slice).await?;
        collect(&page, &mut backward)?;
        if page["has_more"] == false {
            break;
        }
        slice = json!({ "before": page["next"], "limit": 1000 });
    }
    let places: Vec<i64> = forward.keys().copied().collect();
    ensure!(places == (1..=EVENTS).collect::<Vec<_>>(), "{} events", places.len());
    ensure!(forward == backward, "the two ways differ");
    eprintln!("{EVENTS} events in {pages} answers");

    let large: Vec<&Value> = forward.values().filter(|event| event.get("too_large").is_some()).collect();
    ensure!(large.len() == 6, "{}", large.len());
    for event in large {
        ensure!(
            event["n"].is_i64() && event["text"].as_str().is_some_and(|text| text.contains("left out here")),
            "{event}"
        );
        let hint = event["too_large"].as_str().context("a hint")?;
        let uri = hint.split(' ').next_back().context("a uri")?;
        let whole: Value = serde_json::from_str(&joined(&client, uri).await?)?;
        ensure!(whole["n"] == event["n"] && whole["seq"] == event["seq"], "{uri}");
        ensure!(whole["text"] == "é".repeat(200_000), "{uri}");
        let seq = &event["seq"];
        ensure!(client.read_json(&format!("session://walk/events/{seq}")).await? == *event);
    }
    Ok(())
}

/// All pieces from `uri` on, laid end to end, as their own hints lead.
async fn joined(client: &Client, uri: &str) -> Result<String> {
    let (mut whole, mut next) = (String::new(), Some(uri.to_owned()));
    while let Some(uri) = next.take() {
        let result = client.result("resources/read", json!({ "uri": uri })).await?;
        let contents = result["contents"].as_array().context("contents")?;
        let text = contents[0]["text"].as_str().context("text")?;
        let said: usize = contents.iter().filter_map(|one| Some(one["text"].as_str()?.chars().count())).sum();
        ensure!(said <= ANSWER_CHARS_MAX, "{uri}: {said} characters");
        whole.push_str(text);
        next = contents.get(1).and_then(|more| more["uri"].as_str().map(str::to_owned));
        if let Some(next) = &next {
            let hint = contents[1]["text"].as_str().context("a hint")?;
            ensure!(
                hint.contains(next.as_str()) && hint.contains(&format!("to {} of", whole.len())),
                "{hint}"
            );
        }
    }
    Ok(whole)
}

#[tokio::test]
async fn an_output_of_10_megabytes_is_put_together_byte_for_byte() -> Result<()> {
    let gateway = gateway().await?;
    let line = "aé€😀 and so on until the line is longer than a cache line or two, which it is by now";
    let command = format!("yes '{line}' | head -c 10485763; echo end");
    for era in ERAS {
        let client = Client::owner(&gateway, era, "output").await?;
        let result = client.call("sandbox__bash", json!({ "command": command })).await?;
        let blocks = result["content"].as_array().context("content")?;
        let shown: usize =
            blocks.iter().filter_map(|block| Some(block["text"].as_str()?.chars().count())).sum();
        ensure!(shown <= ANSWER_CHARS_MAX, "{shown} characters");
        ensure!(text(&result).starts_with(line) && text(&result).contains("end\n"), "head and tail");
        let uri = blocks.last().context("a link")?["uri"].as_str().context("a uri")?.to_owned();
        let whole = joined(&client, &uri).await?;
        let kept = format!("{line}\n").repeat(10_485_763 / (line.len() + 1) + 1);
        let cut = (0..4).map(|n| 10_485_763 - n).find(|at| kept.is_char_boundary(*at)).unwrap_or_default();
        ensure!(whole.len() >= 10_485_763 && whole.starts_with(&kept[..cut]), "{} bytes", whole.len());
        ensure!(whole.ends_with("end\n") || whole.contains("end\n"), "{}", &whole[whole.len() - 100..]);
        // From inside a character on: the bytes, none of them lost.
        let inside = client.read(&format!("{uri}?offset=2")).await?;
        let bytes = base64::prelude::BASE64_STANDARD.decode(inside["blob"].as_str().context("a blob")?)?;
        ensure!(bytes == whole.as_bytes()[2..2 + bytes.len()]);
        let past = client.read(&format!("{uri}?offset=99999999")).await?;
        ensure!(past["text"] == "", "{past}");
    }
    Ok(())
}

#[tokio::test]
async fn long_lists_of_sessions_lead_through_all_of_them() -> Result<()> {
    let gateway = gateway().await?;
    let client = Client::owner(&gateway, Era::Modern, "many").await?;
    let names: Vec<String> = (0..250).map(|n| format!("{n:03}{}", "x".repeat(61))).collect();
    for name in &names {
        client.ask("session_create", json!({ "name": name })).await?;
    }
    let newest_first: Vec<&String> = names.iter().rev().collect();
    let (mut by_tool, mut after) = (Vec::new(), json!({}));
    loop {
        let result = client.call("session_list", after).await?;
        ensure!(text(&result).chars().count() <= ANSWER_CHARS_MAX);
        let page = &result["structuredContent"];
        let sessions = page["sessions"].as_array().context("sessions")?;
        by_tool.extend(sessions.iter().filter_map(|one| one["name"].as_str().map(str::to_owned)));
        if page["next"].is_null() {
            break;
        }
        after = json!({ "after": page["next"] });
    }
    ensure!(by_tool.iter().collect::<Vec<_>>() == newest_first);
    let (mut by_resource, mut cursor) = (Vec::new(), json!({}));
    loop {
        let page = client.result("resources/list", cursor).await?;
        let resources = page["resources"].as_array().context("resources")?;
        ensure!(resources.iter().all(|one| one["mimeType"] == "application/json"));
        by_resource.extend(resources.iter().filter_map(|one| one["name"].as_str().map(str::to_owned)));
        match page.get("nextCursor") {
            None => break,
            Some(next) => cursor = json!({ "cursor": next }),
        }
    }
    let both: Vec<String> =
        newest_first.iter().flat_map(|name| [(*name).clone(), format!("{name} events")]).collect();
    ensure!(by_resource == both, "{} resources", by_resource.len());
    Ok(())
}
