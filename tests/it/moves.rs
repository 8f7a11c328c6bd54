//! A live hand goes from one session to another: with all that it has, once, and to nobody else's.

use anyhow::{Context as _, Result, ensure};
use gateway::session::{At, Body, By, Event, EventLog as _, Held, LogError, NewEvent, SqlLog, Via};
use serde_json::{Value, json};
use tests::game;
use tests::gateway::{Gateway, Options};

use crate::crash::client::Client;
use crate::crash::truth::{Reader, field, of};

struct Rig {
    gateway: Gateway,
    client: Client,
    reader: Reader,
    options: Options,
    _scratch: tempfile::TempDir,
}

/// A gateway with the sessions `a`, whose sandbox has a file in its work and one beside it, and `b`.
async fn rig() -> Result<Rig> {
    let scratch = tempfile::tempdir()?;
    let data = scratch.path().join("data");
    let options = Options::default().data(&data);
    let gateway = Gateway::start(options.clone()).await?;
    let (client, reader) = (Client::of(&gateway)?, Reader::directory(&data).await?);
    let given = client.bash("a", "echo work > /workspace/file; echo state > /tmp/file").await?;
    ensure!(given.outcome == "ok", "{given:?}");
    client.tool("b", "session_create", json!({"name": "b"}), None).await?;
    Ok(Rig { gateway, client, reader, options, _scratch: scratch })
}

impl Rig {
    async fn ask(&self, session: &str, tool: &str, arguments: Value) -> Result<Value> {
        self.client.tool(session, tool, arguments, None).await
    }

    async fn go(&self, from: &str, to: &str) -> Result<Value> {
        self.ask(from, "hand_move", json!({"hand": "sandbox", "to_session": to})).await
    }

    /// Moves it, which must work.
    async fn went(&self, from: &str, to: &str) -> Result<Value> {
        let moved = self.go(from, to).await?;
        ensure!(moved["isError"] != true && moved["structuredContent"]["moved"] == true, "{moved}");
        Ok(moved["structuredContent"].clone())
    }

    async fn text(&self, session: &str, command: &str) -> Result<String> {
        let given = self.client.bash(session, command).await?;
        ensure!(given.outcome == "ok" || given.outcome == "error", "{given:?}");
        Ok(given.text)
    }

    /// Moves it by the command line. Says whether that worked, and what was said.
    fn typed(&self, further: &[&str]) -> Result<(bool, String)> {
        self.said(&[&["hand", "move", "sandbox", "--session", "a", "--to", "b"], further].concat())
    }

    fn said(&self, arguments: &[&str]) -> Result<(bool, String)> {
        let done = self.gateway.cli(arguments)?;
        let said = [done.stdout, done.stderr].concat();
        Ok((done.status.success(), String::from_utf8_lossy(&said).into_owned()))
    }
}

fn last<'a>(events: &'a [Event], kind: &str) -> Result<&'a Event> {
    of(events, kind).last().copied().with_context(|| format!("there is no {kind}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_and_work_go_along_and_both_logs_say_so() -> Result<()> {
    let mut rig = rig().await?;
    let moved = rig.went("a", "b").await?;
    ensure!(moved["kept_aside"] == false, "{moved}");
    ensure!(rig.text("b", "cat /workspace/file /tmp/file").await? == "work\nstate\n");
    let (from, to) = (rig.reader.events("a").await?, rig.reader.events("b").await?);
    let (left, came) = (last(&from, "hand.moved")?, last(&to, "hand.moved")?);
    let instance = field(last(&from, "hand.provisioned")?, "instance");
    for event in [left, came] {
        ensure!(field(event, "instance") == instance && field(event, "hand") == "sandbox", "{event:?}");
        ensure!(field(event, "from") == left.session.to_string(), "{event:?}");
        ensure!(field(event, "to") == came.session.to_string(), "{event:?}");
    }
    ensure!(
        of(&to, "hand.provisioned").is_empty()
            && field(last(&to, "hand.call_started")?, "instance") == instance
    );
    // Who had it gets a fresh one, and is told why.
    let fresh = rig.text("a", "ls /workspace /tmp").await?;
    ensure!(fresh.contains("was moved to another session") && !fresh.contains("file"), "{fresh}");
    ensure!(field(last(&rig.reader.events("a").await?, "hand.provisioned")?, "instance") != instance);
    rig.text("a", "echo second > /workspace/own").await?;
    // The work stays with whoever has it, over restarts.
    rig.gateway.stop()?;
    ensure!(field(last(&rig.reader.events("b").await?, "hand.released")?, "instance") == instance);
    rig.gateway = Gateway::start(rig.options.clone()).await?;
    rig.client = Client::of(&rig.gateway)?;
    ensure!(rig.text("b", "cat file").await?.ends_with("work\n"));
    ensure!(rig.text("a", "ls").await?.ends_with("own\n"));
    // It outlives the session that it was made for, and goes with the one that has it.
    ensure!(rig.gateway.cli(&["session", "delete", "a"])?.status.success());
    ensure!(rig.text("b", "cat file").await? == "work\n");
    ensure!(rig.gateway.cli(&["session", "delete", "b"])?.status.success());
    let left: Vec<_> = std::fs::read_dir(rig.gateway.data().join("work"))?
        .filter_map(|folder| std::fs::read_dir(folder.ok()?.path()).ok())
        .flatten()
        .collect();
    ensure!(left.is_empty(), "{left:?}");
    rig.gateway.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_receiver_had_is_kept_aside_and_comes_back() -> Result<()> {
    let mut rig = rig().await?;
    rig.text("b", "echo own > /workspace/own").await?;
    let refused = rig.go("a", "b").await?;
    ensure!(refused["isError"] == true && refused.to_string().contains("hand_release"), "{refused}");
    rig.ask("b", "hand_release", json!({"hand": "sandbox"})).await?;
    ensure!(rig.went("a", "b").await?["kept_aside"] == true);
    ensure!(rig.text("b", "ls /workspace").await? == "file\n");
    rig.went("b", "a").await?;
    ensure!(rig.text("a", "cat /workspace/file /tmp/file").await? == "work\nstate\n");
    ensure!(rig.text("b", "ls /workspace").await?.ends_with("own\n"));
    rig.gateway.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_in_the_way_is_released_by_the_command_line() -> Result<()> {
    let rig = rig().await?;
    rig.text("b", "echo own > own").await?;
    let (worked, said) = rig.typed(&[])?;
    ensure!(!worked && said.contains("manyhands hand release"), "{said}");
    let release = ["hand", "release", "sandbox", "--session", "b"];
    ensure!(rig.said(&release)? == (true, "sandbox of b is released\n".to_owned()));
    ensure!(rig.said(&release)? == (true, "sandbox of b had no live instance\n".to_owned()));
    let (worked, said) = rig.typed(&[])?;
    ensure!(worked, "{said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_call_is_in_the_way_unless_it_is_cancelled() -> Result<()> {
    let mut rig = rig().await?;
    let call = rig.client.begin("a", "sleep 300");
    rig.reader.until("a", |events| of(events, "hand.call_started").len() == 2).await?;
    let refused = rig.go("a", "b").await?;
    ensure!(refused["isError"] == true && refused.to_string().contains("a call is running"), "{refused}");
    let (worked, said) = rig.typed(&[])?;
    ensure!(!worked && said.contains("a call is running"), "{said}");
    ensure!(of(&rig.reader.events("a").await?, "hand.moved").is_empty());
    let (worked, said) = rig.typed(&["--force"])?;
    ensure!(worked && said.contains("has moved from a to b"), "{said}");
    let given = call.await??;
    ensure!(given.outcome == "cancelled", "{given:?}");
    ensure!(rig.text("b", "cat /workspace/file /tmp/file").await? == "work\nstate\n");
    rig.gateway.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_claim_of_the_former_holder_is_worth_nothing() -> Result<()> {
    let mut rig = rig().await?;
    let before = rig.reader.events("a").await?;
    let started = last(&before, "hand.call_started")?;
    let epoch = started.fields["epoch"].as_i64().context("an epoch")?;
    rig.went("a", "b").await?;
    let held = Held { subject: format!("hand/{}/sandbox", started.session), epoch };
    let by = By { principal: "local:owner".to_owned(), client: None, via: Via::Gateway };
    let (hand, instance) = ("sandbox".to_owned(), field(started, "instance").to_owned());
    let late = NewEvent::of(by, &Body::HandReleased { hand, instance });
    let log = SqlLog::new(rig.reader.database.clone(), "node_late".to_owned());
    let refused = log.append(started.session, At::Held(vec![held]), &[late]).await;
    ensure!(matches!(refused, Err(LogError::Fenced(_))), "{refused:?}");
    ensure!(rig.text("b", "cat /tmp/file").await? == "state\n");
    rig.gateway.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_not_move_says_why() -> Result<()> {
    let mut rig = rig().await?;
    for (from, to, why) in [
        ("a", "a", "has the hand already"),
        ("b", "a", "nothing to move"),
        ("a", "nonesuch", "there is no session nonesuch"),
        ("a", "sesn_01900000000070008000000000000000", "there is no session sesn_0190"),
    ] {
        let refused = rig.go(from, to).await?;
        ensure!(refused["isError"] == true && refused.to_string().contains(why), "{from} {to}: {refused}");
    }
    let keeps = rig.ask("a", "hand_checkpoint", json!({"hand": "sandbox", "name": "one"})).await?;
    ensure!(keeps["isError"] == true && keeps.to_string().contains("keeps no states"), "{keeps}");
    let named = rig.ask("a", "hand_restore", json!({"hand": "sandbox", "name": "No"})).await?;
    ensure!(named["isError"] == true && named.to_string().contains("a state's name is"), "{named}");
    ensure!(rig.text("a", "cat /tmp/file").await? == "state\n", "a refusal left it as it was");
    rig.gateway.stop()
}

/// What stands in the first tile of the game's background: 01 when it is black.
async fn tile(client: &Client, session: &str) -> Result<String> {
    let read = client.tool(session, "game__read_memory", json!({"address": "0x9800"}), None).await?;
    let texts = read["content"].as_array().into_iter().flatten().filter_map(|block| block["text"].as_str());
    let text = texts.collect::<Vec<_>>().join("\n");
    let at = text.find("9800: ").with_context(|| format!("no memory: {read}"))?;
    Ok(text[at + 6..].chars().take(2).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_game_is_kept_by_name_and_moves_where_it_stands() -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let (data, rom) = (scratch.path().join("data"), scratch.path().join("game.gb"));
    std::fs::write(&rom, game::game())?;
    let config = format!("[hands.game]\nkind = \"emulator\"\nrom = \"{}\"\n", rom.display());
    let options = Options::default().data(&data).config(&config);
    let mut gateway = Gateway::start(options.clone()).await?;
    let (client, reader) = (Client::of(&gateway)?, Reader::directory(&data).await?);
    let pressed = client.tool("a", "game__press", json!({"buttons": ["a"]}), None).await?;
    let seen = pressed["content"].as_array().into_iter().flatten();
    ensure!(seen.filter(|block| block["type"] == "image" && block["mimeType"] == "image/png").count() == 1);
    ensure!(tile(&client, "a").await? == "01");
    let black = json!({"hand": "game", "name": "black"});
    let kept = client.tool("a", "hand_checkpoint", black.clone(), None).await?;
    ensure!(kept["structuredContent"]["checkpointed"] == true, "{kept}");
    client.tool("a", "game__reset", json!({}), None).await?;
    ensure!(tile(&client, "a").await? == "00");
    let back = gateway.cli(&["hand", "restore", "game", "black", "--session", "a"])?;
    ensure!(back.status.success(), "{}", String::from_utf8_lossy(&back.stderr));
    ensure!(tile(&client, "a").await? == "01");
    client.tool("b", "session_create", json!({"name": "b"}), None).await?;
    let to = json!({"hand": "game", "to_session": "b"});
    let moved = client.tool("a", "hand_move", to, None).await?;
    ensure!(moved["structuredContent"]["moved"] == true, "{moved}");
    ensure!(tile(&client, "b").await? == "01" && tile(&client, "a").await? == "00");
    let events = reader.events("a").await?;
    for kind in ["hand.checkpointed", "hand.restored", "hand.moved"] {
        ensure!(of(&events, kind).len() == 1, "{kind}");
    }
    gateway.stop()?;
    let mut gateway = Gateway::start(options).await?;
    let client = Client::of(&gateway)?;
    ensure!(tile(&client, "b").await? == "01" && tile(&client, "a").await? == "00", "it forgot");
    let states = client.tool("b", "hand_restore", black, None).await?;
    ensure!(states["isError"] != true, "what was kept by name did not come along: {states}");
    gateway.stop()
}
