//! A client that has states kept under ever more names.

use anyhow::{Result, ensure};
use serde_json::json;
use tests::game;
use tests::gateway::{Gateway, Options};

use crate::mcp::client::{Client, Era, text};

/// The most states of a hand in one session.
const STATES: usize = 16;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_keeps_so_many_states_of_a_hand_and_no_more() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let rom = folder.path().join("game.gb");
    std::fs::write(&rom, game::game())?;
    let config = format!("[hands.game]\nkind = \"emulator\"\nrom = {rom:?}\n");
    let gateway = Gateway::start(Options::default().config(&config)).await?;
    let client = Client::owner(&gateway, Era::Modern, "played").await?;
    let keep = async |client: &Client, name: &str| {
        client.call("hand_checkpoint", json!({ "hand": "game", "name": name })).await
    };
    client.ask("session_create", json!({ "name": "played" })).await?;
    client.ask("session_create", json!({ "name": "other" })).await?;
    for n in 0..STATES {
        let kept = keep(&client, &format!("state-{n}")).await?;
        ensure!(kept["isError"] != true, "{n}: {kept}");
    }
    let refused = keep(&client, "one-more").await?;
    ensure!(refused["isError"] == true && text(&refused).contains("keeps 16 states of game"), "{refused}");
    let again = keep(&client, "state-3").await?;
    ensure!(again["isError"] != true, "one of their names: {again}");
    let elsewhere = Client::owner(&gateway, Era::Modern, "other").await?;
    ensure!(keep(&elsewhere, "one-more").await?["isError"] != true);
    Ok(())
}
