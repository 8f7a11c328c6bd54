//! `manyhands hand add|list|show|remove` for MCP servers, as a person types them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};
use tests::fixture::{Fixture, binary};
use tests::gateway::{Gateway, Options};

use crate::cli::{Home, until};

/// What must never be seen.
const CANARY: &str = "CANARY-77aa";

#[test]
fn a_command_is_added_looked_at_and_kept() {
    let home = Home::new();
    let server = binary().display().to_string();
    let args = ["hand", "add", "fix", "--env", "GREETING=CANARY-77aa", "--", &server, "--stdio"];
    let said = home.run(&args);
    assert_eq!(said.code, Some(0), "{said:?}");
    for part in
        ["fix is added", "mcp-fixture", "MCP 2026-07-28", "fix__echo", "each session has its own", "GREETING"]
    {
        assert!(said.out.contains(part), "{part:?} is not in {}", said.out);
    }
    assert!(!said.out.contains(CANARY), "{}", said.out);
    // Relative to where it was typed.
    let shown = home.json(&["hand", "show", "fix"]);
    assert_eq!(shown["config"]["directory"], home.path().canonicalize().unwrap().to_str().unwrap());
    assert!(!shown.to_string().contains(CANARY), "{shown}");
    home.run(&args).refuses(1, &["a hand named fix exists already"]);

    // It is there after a start, with its tools, and nothing was started for that.
    let gateway = Gateway::start_blocking(&Options::default().data(&home.data())).unwrap();
    let list = home.json(&["hand", "list"]);
    assert_eq!((&list[0]["name"], &list[0]["state"]), (&json!("fix"), &json!("ok")));
    assert_eq!(list[0]["tools"], shown["tools"]);
    assert_eq!(home.run(&["hand", "remove", "fix"]).out, "fix is removed\n");
    assert_eq!(home.json(&["hand", "list"]).as_array().map(Vec::len), Some(1));
    assert!(!gateway.stderr().contains(CANARY), "{}", gateway.stderr());
}

#[test]
fn a_server_that_does_not_answer_is_added_only_when_told_so() {
    let home = Home::new();
    let nobody = ["hand", "add", "away", "--url", "http://127.0.0.1:9/mcp"];
    home.run(&nobody).refuses(1, &["127.0.0.1:9", "away was not added", "--no-check"]);
    home.run(&["hand", "add", "away", "--", "/no/such/program"])
        .refuses(1, &["/no/such/program", "away was not added"]);
    home.run(&["hand", "add", "away", "--", "false"]).refuses(1, &["away was not added"]);
    assert_eq!(home.run(&[&nobody[..], &["--no-check", "--no-log"]].concat()).code, Some(0));
    let shown = home.json(&["hand", "show", "away"]);
    assert!(shown["note"].as_str().unwrap().contains("not in the log"), "{shown}");
}

#[test]
fn wrong_usage_says_what_is_right() {
    let home = Home::new();
    for (args, part) in [
        (&[][..], "--url URL, -- COMMAND, or --kind sandbox"),
        (&["--kind", "mcp"], "needs a --url"),
        (&["--kind", "sandbox", "--url", "http://h"], "neither a --url nor a command"),
        (&["--url", "http://h", "--mount", "/a:/b"], "cannot be used with"),
        (&["--env", "A=b", "--url", "http://h"], "cannot be used with"),
        (&["--header", "A=b", "--url", "http://h"], "NAME: VALUE"),
        (&["--url", "http://h", "--protocol", "2024"], "2026-07-28"),
    ] {
        home.run(&[&["hand", "add", "x"], args].concat()).refuses(2, &[part]);
    }
    let secret = format!("Authorization: Bearer {CANARY}");
    let said = home.run(&["hand", "add", "x", "--url", "http://h", "--header", &secret]);
    said.refuses(1, &["looks like a credential", "--header-env 'Authorization=Bearer NAME'"]);
    assert!(!said.err.contains(CANARY), "{said:?}");
}

/// A credential from a file reaches the server, and is seen nowhere else.
#[tokio::test]
async fn a_credential_from_a_file_goes_to_its_server_and_nowhere_else() {
    let fixture = Fixture::start(&[]).await.unwrap();
    let url = fixture.url().to_owned();
    tokio::task::spawn_blocking(move || {
        let home = Home::new();
        fs::write(home.path().join("token"), format!("{CANARY}\n")).unwrap();
        let gateway = Gateway::start_blocking(&Options::default().data(&home.data())).unwrap();
        let args = [
            "hand",
            "add",
            "web",
            "--url",
            &url,
            "--header-file",
            "Authorization=Bearer token",
            "--header",
            "X-Team: blue",
        ];
        home.run(&args).refuses(1, &["chmod 600", "web was not added"]);
        fs::set_permissions(home.path().join("token"), fs::Permissions::from_mode(0o600)).unwrap();
        let added = home.json(&args);
        assert_eq!(added["config"]["headers"]["Authorization"]["prefix"], "Bearer ", "{added}");
        let saw = home.json(&["hand", "call", "web", "whoami"]).to_string();
        assert!(saw.contains("authorization") && saw.contains("blue"), "{saw}");
        for seen in [added.to_string(), saw, gateway.stderr(), home.run(&["hand", "show", "web"]).out] {
            assert!(!seen.contains(CANARY), "{seen}");
        }
        drop(gateway);
        let mut files = vec![home.data()];
        while let Some(path) = files.pop() {
            if path.is_dir() {
                files.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            } else if let Ok(bytes) = fs::read(&path) {
                let found = bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes());
                assert!(!found, "{} holds the credential", path.display());
            }
        }
    })
    .await
    .unwrap();
}

/// Lists answer at once, whatever has become of the server; a call says what is wrong.
#[tokio::test]
async fn a_dead_server_keeps_its_tools() {
    let mut fixture = Fixture::start(&[]).await.unwrap();
    let url = fixture.url().to_owned();
    let home = tokio::task::spawn_blocking(move || {
        let home = Home::new();
        home.json(&["hand", "add", "web", "--url", &url]);
        home
    })
    .await
    .unwrap();
    fixture.kill().unwrap();
    tokio::task::spawn_blocking(move || {
        let _gateway = Gateway::start_blocking(&Options::default().data(&home.data())).unwrap();
        let shown = home.json(&["hand", "show", "web"]);
        assert!(shown["tools"].as_array().unwrap().len() > 40, "{shown}");
        let said = home.run(&["hand", "call", "web", "echo", r#"{"text": "x"}"#]);
        assert_eq!(said.code, Some(1), "{said:?}");
        until("the hand is shown to be down", || home.json(&["hand", "show", "web"])["state"] == "down");
        let line = home.run(&["hand", "list"]).out;
        assert!(line.contains("down since "), "{line}");
        let shown: Value = home.json(&["hand", "show", "web"]);
        assert!(shown["tools"].as_array().unwrap().len() > 40, "{shown}");
    })
    .await
    .unwrap();
}
