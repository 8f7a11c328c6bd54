//! Who owns the data directory, and what commands do with and without an owner.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use rustix::process::Signal;
use tests::gateway::{Gateway, Options};

use super::{Home, until};

const SLEEP: [&str; 5] = ["hand", "call", "sandbox", "bash", r#"{"command":"echo begun; sleep 600"}"#];

#[test]
fn reading_makes_nothing() {
    let home = Home::new();
    for args in [
        &["session", "list"][..],
        &["session", "events", "default"],
        &["session", "show", "default"],
        &["hand", "list"],
        &["token", "list"],
    ] {
        home.run(args).refuses(1, &["there is no data in", "start the gateway once", "--data"]);
        assert!(!home.data().exists(), "{args:?}");
    }
    home.run(&["connect"]).refuses(1, &["owner.token yet", "start the gateway once"]);
    assert!(!home.data().exists());
}

/// Nothing but the data itself stays, and nobody else can read it.
#[test]
fn a_command_without_an_owner_leaves_nothing_behind() {
    let home = Home::new();
    let made = home.json(&["session", "new", "one"]);
    assert_eq!(made["name"], "one");
    for _ in 0..3 {
        assert_eq!(home.types("one"), ["session.created"]);
    }
    let mut left: Vec<_> = fs::read_dir(home.data()).unwrap().map(|entry| entry.unwrap()).collect();
    left.sort_by_key(fs::DirEntry::file_name);
    let names: Vec<_> = left.iter().map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert_eq!(names, ["home", "lock", "manyhands.db", "owner.token", "reserve"]);
    for entry in left {
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o077, 0, "{entry:?}");
    }
    // One row for the last of them at most: the others' are gone.
    let nodes = rows(&home, "select count(*) from node");
    assert_eq!(nodes, 1);
}

fn rows(home: &Home, query: &'static str) -> i64 {
    let url = format!("sqlite://{}", home.data().join("manyhands.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
        sqlx::query_scalar(query).fetch_one(&pool).await.unwrap()
    })
}

#[test]
fn commands_at_once_wait_for_each_other() {
    let home = Home::new();
    let running: Vec<_> = (0..6).map(|n| home.spawn(&["session", "new", &format!("s{n}")])).collect();
    for command in running {
        let said = command.end();
        assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{said:?}");
    }
    assert_eq!(home.json(&["session", "list"]).as_array().unwrap().len(), 6);
}

/// A long command answers the others meanwhile; Ctrl-C ends it, and the call with it.
#[test]
fn a_long_command_answers_others_and_is_interrupted_cleanly() {
    let home = Home::new();
    let mut long = home.spawn(&SLEEP);
    until("the call has started", || {
        home.run(&["session", "events", "default"]).out.contains("hand.call_started")
    });
    for verb in ["delete", "archive"] {
        home.run(&["session", verb, "default"]).refuses(1, &["a call is running", "wait for it"]);
    }
    let inner = home.run(&["hand", "call", "sandbox", "bash", r#"{"command":"echo inner"}"#]);
    assert_eq!((inner.code, inner.out.as_str()), (Some(0), "inner\n"), "{inner:?}");
    long.signal(Signal::INT);
    assert_eq!(long.end().code, Some(130));
    let events = home.run(&["session", "events", "default", "--json"]).out;
    assert!(events.contains(r#""outcome":"cancelled""#), "{events}");
    assert_eq!(home.types("default").last().unwrap(), "hand.released");
    assert!(!home.data().join("manyhands.sock").exists());
}

/// The same with an owner elsewhere: who asked has gone, and the call is cancelled.
#[test]
fn a_call_at_the_owner_is_cancelled_with_its_command() {
    let gateway = Gateway::start_blocking(&Options::default()).unwrap();
    let mut call = tests::gateway::command(gateway.data()).args(SLEEP).spawn().unwrap();
    let events = || {
        let output = gateway.cli(&["session", "events", "default", "--json"]).unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    until("the call has started", || events().contains("hand.call_started"));
    let pid = rustix::process::Pid::from_child(&call);
    rustix::process::kill_process(pid, Signal::INT).unwrap();
    assert_eq!(call.wait().unwrap().code(), Some(130));
    until("the call is cancelled", || events().contains(r#""outcome":"cancelled""#));
}

#[test]
fn a_second_gateway_is_told_who_owns_the_data() {
    let home = Home::new();
    let options = Options::default().data(&home.data());
    let gateway = Gateway::start_blocking(&options).unwrap();
    let port = gateway.url().rsplit(':').next().unwrap();
    let pid = format!("(process {}) owns", gateway.pid());
    for listen in ["127.0.0.1:0", &format!("127.0.0.1:{port}")] {
        home.run(&["serve", "--listen", listen]).refuses(1, &["another manyhands", &pid, "--data"]);
    }
    let elsewhere = home.path().join("elsewhere");
    let taken = format!("127.0.0.1:{port}");
    home.run(&["--data", elsewhere.to_str().unwrap(), "serve", "--listen", &taken])
        .refuses(1, &[&taken, "Address already in use", "--listen"]);
    assert!(!elsewhere.exists());
}

/// What has the data for a moment, and answers nobody meanwhile, does not keep a gateway from its start.
#[test]
fn a_gateway_waits_for_a_command_that_has_the_data_for_a_moment() {
    let home = Home::new();
    assert_eq!(home.run(&["session", "new", "one"]).code, Some(0));
    let lock = fs::OpenOptions::new().write(true).open(home.data().join("lock")).unwrap();
    lock.lock().unwrap();
    fs::write(home.data().join("lock"), std::process::id().to_string()).unwrap();
    let command = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        drop(lock);
    });
    Gateway::start_blocking(&Options::default().data(&home.data())).unwrap();
    command.join().unwrap();
}

/// Where the gateway really listens, whatever the configuration says now.
#[test]
fn connect_prints_what_works() {
    let home = Home::new();
    let gateway = Gateway::start_blocking(&Options::default().data(&home.data())).unwrap();
    let token = gateway.owner_token().unwrap();
    let folder = home.path().join("My Project");
    fs::create_dir(&folder).unwrap();
    let mut command = home.command(&["connect", "json"]);
    let config: serde_json::Value = serde_json::from_str(
        &super::said({
            command.current_dir(&folder);
            command
        })
        .out,
    )
    .unwrap();
    let server = &config["mcpServers"]["manyhands"];
    assert_eq!(server["url"], gateway.session_url("my-project"));
    assert_eq!(server["headers"]["Authorization"], format!("Bearer {token}"));
    for client in ["claude", "codex", "gemini"] {
        let said = home.run(&["connect", client, "--session", "demo"]);
        assert!(said.out.contains(&gateway.session_url("demo")) && said.out.contains(&token), "{said:?}");
    }
    home.run(&["connect", "--session", "Not A Name"]).refuses(2, &["--session"]);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let home = Home::new();
    home.json(&["session", "new", "one"]);
    let mut command = std::process::Command::new("bash");
    // The reader is gone before the first line comes.
    command.args(["-c", r#"{ sleep 0.3; "$0" session list --data "$1"; echo "code $?" >&2; } | true"#]);
    command.arg(tests::gateway::binary()).arg(home.data());
    let said = super::said(command);
    assert_eq!(said.err, "code 0\n", "{said:?}");
}
