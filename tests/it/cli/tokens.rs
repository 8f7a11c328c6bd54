//! `manyhands token …` and `manyhands session …`: names, spans, listings.

use super::Home;

#[test]
fn tokens_are_made_listed_and_revoked() {
    let home = Home::new();
    let made = home.json(&["token", "new", "ci", "--expires", "90d"]);
    let secret = made["token"].as_str().unwrap();
    assert!(secret.starts_with("mh_"));
    for at in ["12h", "2099-01-01T00:00:00Z"] {
        let said = home.run(&["token", "new", &format!("t{}", at.len()), "--expires", at]);
        assert_eq!((said.code, said.out.lines().count()), (Some(0), 1), "{said:?}");
    }
    let listed = home.run(&["token", "list"]);
    assert!(listed.out.contains("ci") && !listed.out.contains(secret), "{listed:?}");
    home.run(&["token", "new", "ci"]).refuses(1, &["\"ci\" exists", "revoke it first"]);
    assert_eq!(home.run(&["token", "revoke", "ci"]).out, "ci is revoked\n");
    home.run(&["token", "revoke", "ci"]).refuses(1, &["no token named \"ci\"", "token list"]);
    home.run(&["token", "new", "Bad Name"]).refuses(1, &["no name for a token"]);
    home.run(&["token", "new", "x", "--expires", "soon"]).refuses(2, &["--expires", "90d"]);
    home.run(&["token", "new", "x", "--expires=-1h"]).refuses(1, &["in the past"]);
    let names: Vec<_> =
        home.json(&["token", "list"]).as_array().unwrap().iter().map(|token| token["name"].clone()).collect();
    assert_eq!(names, ["owner", "ci", "t3", "t20"]);
}

#[test]
fn sessions_are_made_shown_archived_and_deleted() {
    let home = Home::new();
    let made = home.json(&["session", "new", "demo"]);
    assert_eq!(home.json(&["session", "new", "demo"])["id"], made["id"], "found, not made again");
    assert_eq!(home.json(&["session", "show", "demo"])["status"], "active");
    assert_eq!(home.json(&["session", "archive", "demo"])["status"], "archived");
    home.run(&["hand", "call", "sandbox", "bash", r#"{"command":"true"}"#, "--session", "demo"])
        .refuses(1, &["archived and read-only", "did not run"]);
    assert_eq!(home.types("demo"), ["session.created", "session.updated"]);
    assert_eq!(home.json(&["session", "delete", "demo"])["deleted"], true);
    for args in
        [&["session", "show", "demo"][..], &["session", "events", "demo"], &["session", "delete", "demo"]]
    {
        home.run(args).refuses(1, &["there is no session demo", "session list"]);
    }
    home.run(&["session", "new", "No Name"]).refuses(1, &["a session name is"]);
    home.run(&["session", "events", "demo", "--limit", "1001"]).refuses(2, &["--limit"]);
    home.run(&["session", "events", "demo", "--before", "3", "--follow"]).refuses(2, &["--follow"]);
}
