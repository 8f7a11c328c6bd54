//! What can be said of an MCP server, and what is refused: above all credentials in plain text.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use gateway::config::{Config, ConfigError};
use gateway::hand::{HandConfig, McpSettings, Share, Source};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;

/// What must never be seen.
const CANARY: &str = "CANARY-5f1c";

fn parse(hand: &str) -> Result<Config, ConfigError> {
    Config::parse(
        &format!("# one\n[hands.x]\nkind = \"mcp\"\n{hand}"),
        Path::new("/etc/mh/manyhands.toml"),
        [],
    )
}

fn settings(hand: &str) -> McpSettings {
    match parse(hand).unwrap().hands.into_values().next().unwrap() {
        HandConfig::Mcp(settings) => settings,
        other => panic!("a {}", other.kind()),
    }
}

#[track_caller]
fn refused(hand: &str, parts: &[&str]) {
    let said = parse(hand).unwrap_err().to_string();
    for part in parts {
        assert!(said.contains(part), "{hand}: {part:?} is not in {said:?}");
    }
    assert!(!said.contains(CANARY) && said.lines().count() == 1, "{said}");
}

#[test]
fn defaults_are_those_of_its_kind() {
    let (url, command) = (settings("url = 'https://h/mcp'"), settings("command = ['server']"));
    assert_eq!((url.share(), command.share()), (Share::Principal, Share::Session));
    assert!(url.log && command.log);
    assert_eq!((url.idle_s, url.call_max_s), (900, 3600));
    assert_eq!(command.directory.as_deref(), Some(Path::new("/etc/mh")));
}

/// Relative to the file, whoever starts the gateway where.
#[test]
fn relative_paths_are_seen_from_the_file() {
    let given = settings(
        "command = ['bin/server', 'a/b']\ndirectory = 'work'\nenv.TOKEN = { file = 'token', prefix = 'x ' }",
    );
    assert_eq!(given.command, ["/etc/mh/bin/server", "a/b"]);
    assert_eq!(given.directory.as_deref(), Some(Path::new("/etc/mh/work")));
    assert_eq!(given.env["TOKEN"], Source::File { file: "/etc/mh/token".into(), prefix: "x ".into() });
    assert_eq!(
        settings("command = ['/bin/cat']\ndirectory = '/'").directory.as_deref(),
        Some(Path::new("/"))
    );
}

#[test]
fn what_makes_no_sense_is_refused_with_its_line() {
    let line = "/etc/mh/manyhands.toml, line 2: the hand x can't be: ";
    for (hand, parts) in [
        ("", &["url or a command", line][..]),
        ("url = 'http://h'\ncommand = ['x']", &["url or a command"]),
        ("url = 'ftp://h/'", &["http:// or https://"]),
        ("url = '/mcp'", &["http:// or https://"]),
        ("url = 'http://'", &["http:// or https://"]),
        ("url = 'http://h/#part'", &["http:// or https://"]),
        ("url = 'http://me:CANARY-5f1c@h/'", &["user or a password", "headers.Authorization"]),
        ("url = 'http://h'\nenv.A = 'b'", &["env is for a server with a command"]),
        ("url = 'http://h'\ndirectory = '/'", &["directory is for a server with a command"]),
        ("command = ['x']\nheaders.A = 'b'", &["headers is for a server with a url"]),
        ("command = ['']", &["its program"]),
        ("command = 'x --key CANARY-5f1c'", &["a list of words", "no shell"]),
        ("command = ['x', 5]", &["a text in quotes"]),
        ("url = 'http://h'\nheaders.'a b' = 'c'", &["no name of a header"]),
        ("url = 'http://h'\nheaders.Mcp-Session-Id = 'c'", &["belongs to the protocol"]),
        ("url = 'http://h'\nheaders.Host = 'c'", &["belongs to the protocol"]),
        ("url = 'http://h'\nheaders = { A = 'c', a = 'd' }", &["twice"]),
        ("url = 'http://h'\nheaders = 'A: CANARY-5f1c'", &["are tables"]),
        ("url = 'http://h'\nheaders.A = ['CANARY-5f1c']", &["a text, { env"]),
        ("url = 'http://h'\nheaders.A = 1.5", &["in quotes"]),
        ("url = 'http://h'\nheaders.A = { env = 'A', file = '/b' }", &["a value is a text"]),
        ("url = 'http://h'\nheaders.A = { value = 'CANARY-5f1c' }", &["a value is a text"]),
        ("url = 'http://h'\nheaders.A = { env = 'A', prefix = 'Bearer CANARY-5f1c ' }", &["one word"]),
        ("url = 'http://h'\nheaders.A = { env = 'CANARY-5f1c' }", &["the value of A can't be"]),
        ("url = 'http://h'\nheaders.A = \"b\\nc\"", &["one line"]),
        ("command = ['x']\nenv.'A-B' = 'c'", &["no name of a variable"]),
        ("command = ['x']\nenv.MANYHANDS_DATA = 'c'", &["MANYHANDS_"]),
        ("command = ['x']\ncall_max_s = 0", &["call_max_s is 0"]),
        ("command = ['x']\nprotocol = '2024'", &["2026-07-28"]),
        ("command = ['x']\nshell = true", &["shell"]),
    ] {
        refused(hand, parts);
    }
}

#[test]
fn a_credential_in_plain_text_is_refused_and_told_where_it_may_stand() {
    for name in ["Authorization", "cookie", "X-Api-Key", "Private-Token", "X-Auth", "client_secret"] {
        let hand = format!("url = 'http://h'\nheaders.{name} = 'Bearer {CANARY}'");
        refused(
            &hand,
            &[name, "{ env = \"NAME\" }", "{ file = \"/path\" }", "--header-env", "--header-file"],
        );
    }
    for name in ["GITHUB_TOKEN", "PGPASSWORD", "AWS_SECRET", "OPENAI_API_KEY"] {
        refused(&format!("command = ['x']\nenv.{name} = '{CANARY}'"), &[name, "--env-from", "--env-file"]);
    }
    settings("command = ['x']\nenv = { AUTHOR = 'me', PORT = 8080, DEBUG = true }");
}

/// Neither in a listing nor in what is printed for debugging; in the database, it has to be.
#[test]
fn no_listing_shows_a_value() {
    for hand in [
        "url = 'https://h/mcp?key=CANARY-5f1c'\nheaders.X-Team = 'CANARY-5f1c'",
        "command = ['x', '--api-key=CANARY-5f1c', '--token', 'CANARY-5f1c', 'postgres://me:CANARY-5f1c@h/d']\nenv.A = 'CANARY-5f1c'",
    ] {
        let config = parse(hand).unwrap();
        let hand = config.hands.values().next().unwrap();
        for said in [hand.shown().to_string(), format!("{hand:?}"), format!("{config:?}")] {
            assert!(!said.contains(CANARY), "{said}");
        }
        let stored = serde_json::to_string(hand).unwrap();
        assert!(stored.contains(CANARY));
        assert_eq!(serde_json::from_str::<HandConfig>(&stored).unwrap(), *hand);
    }
    let shown =
        settings("command = ['x', '--token', 'a', '-v', 'b']\nenv.T_TOKEN = { env = 'T', prefix = 'x ' }")
            .shown();
    assert_eq!(shown["command"], json!(["x", "--token", "…", "-v", "b"]));
    assert_eq!(shown["env"], json!({"T_TOKEN": {"env": "T", "prefix": "x "}}));
}

#[test]
fn a_file_that_others_may_read_is_no_place_for_a_credential() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    let source = Source::File { file: path.clone(), prefix: "Bearer ".into() };
    let read = || source.read(|_| None).map(|value| value.expose_secret().to_owned());
    assert!(read().unwrap_err().contains("can't be read"));
    for (text, value) in [("abc\n", "Bearer abc"), ("abc", "Bearer abc"), ("abc\r\n", "Bearer abc")] {
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read().unwrap(), value);
    }
    for text in ["", "\n", "a\nb\n"] {
        fs::write(&path, text).unwrap();
        assert!(read().unwrap_err().contains("not one line of text"), "{text:?}");
    }
    fs::write(&path, CANARY).unwrap();
    for mode in [0o640, 0o604, 0o660] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let why = read().unwrap_err();
        assert!(why.contains(&format!("(mode {mode:o}): chmod 600")) && !why.contains(CANARY), "{why}");
    }
    let folder = Source::File { file: folder.path().into(), prefix: String::new() };
    assert!(folder.read(|_| None).unwrap_err().contains("is not a file"));
}

#[test]
fn a_variable_is_read_when_it_is_used() {
    let source = Source::Variable { env: "A".into(), prefix: "Bearer ".into() };
    let value = source.read(|name| (name == "A").then(|| SecretString::from("b"))).unwrap();
    assert_eq!(value.expose_secret(), "Bearer b");
    assert!(source.read(|_| None).unwrap_err().contains("environment has no A"));
}

#[test]
fn what_the_readme_shows_can_be_written() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md")).unwrap();
    let blocks: Vec<_> =
        readme.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.iter().any(|block| block.contains("kind = \"mcp\"")), "{blocks:?}");
    for block in blocks {
        Config::parse(block, Path::new("manyhands.toml"), []).unwrap();
    }
}
