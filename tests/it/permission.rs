//! Which calls run by themselves, and which only after a person's yes.

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use tests::gateway::{Gateway, Options};
use tokio::task::JoinSet;

use crate::bridge::asked;
use crate::mcp::client::{Client, ERAS, Era, soon, text};

const HANDS: &str = r#"
[hands.sandbox]
kind = "sandbox"
permission = { bash = "ask", write = "deny" }
"#;

async fn gateway() -> Result<Gateway> {
    Gateway::start(Options::default().config(HANDS)).await
}

/// A client whose person can be asked, or not.
async fn client(gateway: &Gateway, era: Era, session: &str, capabilities: Value) -> Result<Client> {
    let url = gateway.session_url(session);
    let mut client = Client::unconnected(&url, &gateway.owner_token()?, era).declaring(capabilities);
    if era == Era::Legacy {
        client.initialize().await?;
    }
    Ok(client)
}

async fn bash(client: &Client, command: &str) -> Result<Value> {
    client.call("sandbox__bash", json!({"command": command})).await
}

/// A session's events as `TYPE` or, where that says more, `TYPE: RESULT`.
fn story(gateway: &Gateway, session: &str) -> Result<Vec<String>> {
    let said = gateway.cli(&["session", "events", session, "--json"])?;
    let page: Value = serde_json::from_slice(&said.stdout)?;
    let events = page["events"].as_array().context("no events")?;
    let one = |event: &Value| {
        let kind = event["type"].as_str().unwrap_or_default();
        let more = ["outcome", "result", "evaluated_permission"].iter().find_map(|key| event[key].as_str());
        more.map_or_else(|| kind.to_owned(), |more| format!("{kind}: {more}"))
    };
    Ok(events.iter().map(one).collect())
}

/// The words that a refused call asks the user to type, but for the program's name; without a terminal, with an answer.
fn command_in(result: &Value) -> Result<Vec<String>> {
    let said = text(result);
    let command = said.split('`').find(|part| part.starts_with("manyhands confirm"));
    let command = command.with_context(|| format!("no command in {said:?}"))?;
    Ok(command.split(' ').chain(["allow"]).skip(1).map(str::to_owned).collect())
}

fn typed(gateway: &Gateway, words: &[String]) -> Result<(Option<i32>, String)> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let said = gateway.cli(&words)?;
    Ok((said.status.code(), String::from_utf8([said.stdout, said.stderr].concat())?))
}

#[tokio::test]
async fn a_person_who_can_be_asked_decides() -> Result<()> {
    let gateway = gateway().await?;
    for era in ERAS {
        let session = format!("asked-{}", era.version());
        let client = client(&gateway, era, &session, json!({"elicitation": {}})).await?;
        let arguments = json!({"command": "echo ran >> file; cat file"});
        for (action, outcome, said) in [
            ("accept", "ok", "ran\n"),
            ("decline", "denied", "A person said no. The call did not run."),
            ("cancel", "denied", "manyhands confirm"),
        ] {
            let answer = json!({"result": {"action": action, "content": {}}});
            let (asked, response) = asked::call(&client, "sandbox__bash", &arguments, &answer).await?;
            let [question] = &asked[..] else { bail!("asked {asked:?}") };
            ensure!(question[0] == "elicitation/create", "{question}");
            let message = question[1]["message"].as_str().context("no message")?;
            ensure!(message.contains("sandbox__bash") && message.contains("echo ran >> file"), "{message}");
            let result = &response["result"];
            ensure!(result["_meta"]["manyhands/outcome"] == outcome, "{era:?} {action}: {response}");
            ensure!(text(result).contains(said), "{era:?} {action}: {response}");
            ensure!(result["isError"] == (outcome != "ok"), "{response}");
        }
        let denied = client.call("sandbox__write", json!({"path": "x", "content": "y"})).await?;
        ensure!(text(&denied).contains("denies write"), "{denied}");
        let read = client.call("sandbox__read", json!({"path": "file"})).await?;
        ensure!(text(&read).contains("ran") && read["isError"] != true, "{read}");
        let expected = [
            "session.created",
            "agent.tool_use: ask",
            "user.tool_confirmation: allow",
            "hand.provisioned",
            "hand.call_started",
            "agent.tool_result: ok",
            "agent.tool_use: ask",
            "user.tool_confirmation: deny",
            "agent.tool_result: denied",
            "agent.tool_use: ask",
            "agent.tool_result: denied",
            "agent.tool_use: deny",
            "agent.tool_result: denied",
            "agent.tool_use",
            "hand.call_started",
            "agent.tool_result: ok",
        ];
        ensure!(story(&gateway, &session)? == expected, "{:#?}", story(&gateway, &session)?);
    }
    Ok(())
}

#[tokio::test]
async fn a_yes_on_the_command_line_is_good_for_one_call_of_the_same_and_survives_a_crash() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let options = || Options::default().config(HANDS).data(folder.path());
    let mut gateway = Gateway::start(options()).await?;
    let refused = {
        let client = client(&gateway, Era::Modern, "one", json!({})).await?;
        bash(&client, "echo ran >> file; cat file").await?
    };
    ensure!(refused["_meta"]["manyhands/outcome"] == "denied", "{refused}");
    let words = command_in(&refused)?;
    let (code, said) = typed(&gateway, &words)?;
    ensure!(code == Some(0) && said.contains("\nallowed: the next call"), "{said}");
    let (code, said) = typed(&gateway, &words)?;
    ensure!(code == Some(1) && said.contains("answered already"), "{said}");
    gateway.kill()?;

    let gateway = Gateway::start(options()).await?;
    let client = client(&gateway, Era::Modern, "one", json!({})).await?;
    let other = bash(&client, "echo other").await?;
    ensure!(other["_meta"]["manyhands/outcome"] == "denied", "{other}");
    let mut calls = JoinSet::new();
    for _ in 0..8 {
        let client = client.clone();
        calls.spawn(async move { bash(&client, "echo ran >> file; cat file").await });
    }
    let mut ran = 0;
    for result in calls.join_all().await {
        let result = result?;
        match result["_meta"]["manyhands/outcome"].as_str() {
            Some("ok") => ran += 1,
            outcome => ensure!(outcome == Some("denied"), "{result}"),
        }
    }
    ensure!(ran == 1, "{ran} of 8 ran");
    let read = client.call("sandbox__read", json!({"path": "file"})).await?;
    ensure!(text(&read).matches("ran").count() == 1, "{read}");
    Ok(())
}

#[tokio::test]
async fn a_call_that_waits_for_its_client_hears_the_command_line_too() -> Result<()> {
    let gateway = gateway().await?;
    let client = client(&gateway, Era::Legacy, "two", json!({"elicitation": {}})).await?;
    for (word, outcome) in [("allow", "ok"), ("deny", "denied")] {
        let mut stream = client.bash(&format!("echo {word}"), json!({})).await?;
        let asked = stream.next().await?.context("no question")?;
        ensure!(asked["method"] == "elicitation/create", "{asked}");
        let uses = gateway.cli(&["session", "events", "two", "--type", "agent.tool_use", "--json"])?;
        let uses: Value = serde_json::from_slice(&uses.stdout)?;
        let call = uses["events"].as_array().and_then(|uses| uses.last()).context("no call")?["id"].clone();
        let call = call.as_str().context("no id")?.to_owned();
        let mut words = ["confirm", "two", &call, word].map(str::to_owned).to_vec();
        if word == "deny" {
            words.extend(["--message", "not on a Monday"].map(str::to_owned));
        }
        let (code, said) = typed(&gateway, &words)?;
        ensure!(code == Some(0), "{said}");
        let result = stream.result().await?;
        ensure!(result["_meta"]["manyhands/outcome"] == outcome, "{result}");
        ensure!(word == "allow" || text(&result).contains("not on a Monday"), "{result}");
    }
    // Used by the very call: there is none left for the next.
    let next =
        client.open("tools/call", json!({"name": "sandbox__bash", "arguments": {"command": "echo allow"}}));
    let mut next = next.await?;
    ensure!(next.next().await?.context("no question")?["method"] == "elicitation/create");
    Ok(())
}

#[tokio::test]
async fn who_waits_for_a_person_and_gives_up_is_cancelled_and_nothing_ran() -> Result<()> {
    let gateway = gateway().await?;
    let client = client(&gateway, Era::Legacy, "three", json!({"elicitation": {}})).await?;
    let mut stream = client.bash("echo ran > file", json!({})).await?;
    ensure!(stream.next().await?.context("no question")?["method"] == "elicitation/create");
    let cancel =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": stream.id()}});
    ensure!(client.post(&cancel, &[]).await?.status() == 202);
    soon(async || {
        Ok(story(&gateway, "three")?.last().is_some_and(|last| last == "agent.tool_result: cancelled"))
    })
    .await?;
    ensure!(!story(&gateway, "three")?.contains(&"hand.call_started".to_owned()));
    Ok(())
}

/// The built-in brain waits in the log, so that it may be asked by one process and answered to another.
#[tokio::test]
async fn the_loop_waits_for_the_answer_and_goes_on_in_another_process() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let options = || {
        let options = Options::default().config(HANDS).data(folder.path());
        options.env("MANYHANDS_BRAIN_MODEL", "scripted/demo")
    };
    let script =
        "@call sandbox__bash {\"command\": \"echo ran >> file; cat file\"}\n@then\n@say It said: {{result}}";
    let mut gateway = Gateway::start(options()).await?;
    for session in ["yes", "no"] {
        let said = gateway.cli(&["run", "--session", session, script])?;
        ensure!(said.status.success(), "{said:?}");
        ensure!(String::from_utf8(said.stderr)?.contains("manyhands confirm"));
        ensure!(story(&gateway, session)?.last().is_some_and(|last| last == "session.status_idle"));
        // A call of another brain is not what the yes is for, and does not use it up.
        let client = client(&gateway, Era::Modern, session, json!({})).await?;
        let other = bash(&client, "echo ran >> file; cat file").await?;
        ensure!(other["_meta"]["manyhands/outcome"] == "denied", "{other}");
    }
    gateway.kill()?;
    let gateway = Gateway::start(options()).await?;
    for (session, word, told) in [("yes", "allow", "ran\\n"), ("no", "deny", "not today")] {
        let shown =
            gateway.cli(&["session", "events", session, "--type", "session.status_idle", "--json"])?;
        let shown: Value = serde_json::from_slice(&shown.stdout)?;
        let call = shown["events"][0]["stop_reason"]["event_ids"][0].as_str().context("no call")?.to_owned();
        let mut words = ["confirm", session, &call, word].map(str::to_owned).to_vec();
        if word == "deny" {
            words.extend(["--message", told].map(str::to_owned));
        }
        let (code, said) = typed(&gateway, &words)?;
        ensure!(code == Some(0), "{said}");
        let done = || -> Result<bool> {
            let story = story(&gateway, session)?;
            Ok(story.iter().filter(|event| *event == "session.status_idle").count() == 2)
        };
        soon(async || done()).await?;
        let said = gateway.cli(&["session", "events", session, "--type", "agent.tool_result", "--json"])?;
        let said: Value = serde_json::from_slice(&said.stdout)?;
        let ours =
            said["events"].as_array().and_then(|events| events.iter().find(|it| it["tool_use_id"] == *call));
        ensure!(ours.context("no result")?.to_string().contains(told), "{said}");
        let story = story(&gateway, session)?;
        let ran = story.iter().filter(|event| *event == "hand.call_started").count();
        ensure!(ran == usize::from(word == "allow"), "{story:#?}");
    }
    Ok(())
}

/// Without a gateway, the word is in the log and nothing goes on: that is what is said.
#[tokio::test]
async fn a_word_that_nobody_hears_yet_says_so() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let options = || {
        let options = Options::default().config(HANDS).data(folder.path());
        options.env("MANYHANDS_BRAIN_MODEL", "scripted/demo")
    };
    let mut gateway = Gateway::start(options()).await?;
    let script = "@call sandbox__bash {\"command\": \"echo ran\"}\n@then\n@say It said: {{result}}";
    for (session, word) in [("yes", "allow"), ("no", "deny"), ("soon", "allow")] {
        if session == "soon" {
            gateway = Gateway::start(options()).await?;
        }
        ensure!(gateway.cli(&["run", "--session", session, script])?.status.success());
        if session != "soon" {
            gateway.stop()?;
        }
        let shown = gateway.cli(&["session", "events", session, "--type", "agent.tool_use", "--json"])?;
        let shown: Value = serde_json::from_slice(&shown.stdout)?;
        let call = shown["events"][0]["id"].as_str().context("no call")?.to_owned();
        let (code, said) = typed(&gateway, &["confirm", session, &call, word].map(str::to_owned))?;
        let later = "once a gateway runs, or with `manyhands wake";
        ensure!(code == Some(0) && said.contains(later) == (session != "soon"), "{session}: {said}");
        ensure!(session != "soon" || said.ends_with("\nallowed: the call goes on\n"), "{said}");
        if session == "yes" {
            let mut woken = tests::gateway::command(folder.path());
            let woken =
                woken.env("MANYHANDS_BRAIN_MODEL", "scripted/demo").args(["wake", session]).output()?;
            ensure!(String::from_utf8(woken.stdout)?.contains("It said: ran"));
            gateway = Gateway::start(options()).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn only_a_person_answers_and_only_what_asked() -> Result<()> {
    let gateway = gateway().await?;
    let client = client(&gateway, Era::Modern, "four", json!({})).await?;
    let refused = bash(&client, "echo ran").await?;
    let words = command_in(&refused)?;
    let event =
        json!({"type": "user.tool_confirmation", "data": {"tool_use_id": words[2], "result": "allow"}});
    let emitted = client.call("session_emit", event.clone()).await;
    ensure!(emitted.is_err() || emitted?["isError"] == true, "a brain answered for itself");
    let tools = client.result("tools/list", json!({})).await?.to_string();
    ensure!(!tools.contains("confirm"), "there is a tool for it");
    let read = client.call("sandbox__read", json!({"path": "/etc/passwd"})).await?;
    let read = read["_meta"]["manyhands/seq"].as_i64().context("no place")?;
    let uses = client.read_json(&format!("session://{}/events?type=agent.tool_use", words[1])).await?;
    let allowed = uses["events"].as_array().and_then(|uses| uses.last()).context("no use")?["id"].clone();
    ensure!(read > 0);
    for (session, call) in [
        ("four", allowed.as_str().unwrap_or_default()),
        ("four", "sevt_00000000000000000000000000000000"),
        ("four", "nonsense"),
        ("nowhere", words[2].as_str()),
    ] {
        let words = ["confirm", session, call, "allow"].map(str::to_owned);
        let (code, said) = typed(&gateway, &words)?;
        ensure!(code == Some(1) && said.starts_with("manyhands: "), "{session} {call}: {said}");
    }
    let words = ["confirm", "four", &words[2], "allow", "--principal", "somebody"].map(str::to_owned);
    let (code, said) = typed(&gateway, &words)?;
    ensure!(code == Some(1), "another's session: {said}");
    Ok(())
}

#[tokio::test]
async fn a_permission_that_would_not_hold_is_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("manyhands.toml");
    for (hand, why) in [
        ("kind = \"sandbox\"\npermission = { bahs = \"deny\" }", "no such tool"),
        ("kind = \"sandbox\"\npermission = \"maybe\"", "allow, ask, ask-owner or deny"),
        ("kind = \"mcp\"\nurl = \"http://127.0.0.1:9/\"\nlog = false\npermission = \"ask\"", "needs the log"),
    ] {
        fs::write(&file, format!("[hands.odd]\n{hand}\n"))?;
        let file = file.to_str().context("a path")?;
        let data = folder.path().join("data");
        let said = tests::gateway::run(&data, &["serve", "--listen", "127.0.0.1:0", "--config", file])?;
        let said = String::from_utf8(said.stderr)?;
        ensure!(said.contains(why), "{hand}: {said}");
    }
    let gateway = gateway().await?;
    let add =
        ["hand", "add", "more", "--kind", "sandbox", "--permission", "ask", "--permission", "read=allow"];
    ensure!(gateway.cli(&add)?.status.success());
    let shown = gateway.cli(&["hand", "show", "more", "--json"])?;
    let shown: Value = serde_json::from_slice(&shown.stdout)?;
    ensure!(shown["config"]["permission"] == json!({"*": "ask", "read": "allow"}), "{shown}");
    Ok(())
}
