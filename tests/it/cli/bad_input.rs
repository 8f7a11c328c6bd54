//! What is wrong on a person's machine: one sentence each, with what to do, and nothing half-written.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tests::gateway::{Gateway, Options};

use super::{Home, Said, said};

const TRUE: [&str; 5] = ["hand", "call", "sandbox", "bash", r#"{"command":"true"}"#];
const SERVE: [&str; 3] = ["serve", "--listen", "127.0.0.1:0"];
/// A user that is neither root nor this one.
const STRANGER: u32 = 65_533;

#[test]
fn a_bad_configuration_is_refused_with_file_and_line() {
    let home = Home::new();
    let file = home.path().join("bad.toml");
    let bad = |text: &str| {
        fs::write(&file, text).unwrap();
        home.run(&["--config", "bad.toml", "hand", "list"])
    };
    bad("listen = \"127.0.0.1:1\"\n\nlisten_on = 1\n")
        .refuses(1, &["bad.toml, line 3: unknown field `listen_on`", "`listen`"]);
    bad("listen = \"localhost\"")
        .refuses(1, &["bad.toml, line 1", "\"localhost\" is no address", "127.0.0.1:7777"]);
    bad("[limits]\nstreams = \"many\"").refuses(1, &["bad.toml, line 2", "a whole number"]);
    bad("[limits]\nstreams = 0").refuses(1, &["limits.streams", "at least 1"]);
    bad("[hands.x]\nkind = \"robot\"").refuses(1, &["line 2", "`sandbox`"]);
    bad("[hands.Bad]\nkind = \"sandbox\"").refuses(1, &["line 1", "no name for a hand"]);
    fs::write(&file, "[hands.x]\nkind = \"sandbox\"\nmounts = [\"relative:/x\"]").unwrap();
    let scratch = home.path().join("scratch");
    home.run(&["--config", "bad.toml", "--data", scratch.to_str().unwrap(), "session", "new"])
        .refuses(1, &["no mount", "absolute"]);
    bad("log = \"a=b=c\"").refuses(1, &["the setting log is no filter"]);
    for text in ["database_url = \"postgres://u:hunter2@h/d", "database_ulr = \"postgres://u:hunter2@h/d\""] {
        let said = bad(text);
        said.refuses(1, &["bad.toml, line 1"]);
        assert!(!said.err.contains("hunter2"), "{said:?}");
    }
    fs::write(&file, [0xff, 0xfe]).unwrap();
    home.run(&["--config", "bad.toml", "hand", "list"]).refuses(1, &["bad.toml can't be read", "UTF-8"]);
    home.run(&["--config", "none.toml", "hand", "list"])
        .refuses(1, &["none.toml can't be read", "No such file"]);
    home.run(&["--config", ".", "hand", "list"]).refuses(1, &["can't be read", "directory"]);
    assert!(!home.data().exists());
}

#[test]
fn a_bad_environment_is_refused_by_name() {
    let home = Home::new();
    let with = |name: &str, value: &str, args: &[&str]| {
        let mut command = home.command(args);
        command.env(name, value);
        said(command)
    };
    with("MANYHANDS_LISTEN", "7777", &SERVE).refuses(1, &["MANYHANDS_LISTEN: \"7777\" is no address"]);
    with("MANYHANDS_LIMITS_STREAMS", "many", &SERVE)
        .refuses(1, &["MANYHANDS_LIMITS_STREAMS", "a whole number"]);
    with("MANYHANDS_NODES_HEARTBEAT_MS", "0", &SERVE).refuses(1, &["nodes.heartbeat_ms"]);
    with("MANYHANDS_NODES_DEAD_AFTER_MS", "2000", &SERVE).refuses(1, &["nodes.dead_after_ms", "twice"]);
    with("MANYHANDS_ALLOWED_HOSTS", "a b/c", &SERVE).refuses(1, &["allowed_hosts", "a b/c"]);
    for url in ["postgres://u:hunter2@127.0.0.1:1/d", "mysql://u:hunter2@h/d"] {
        let refused = with("MANYHANDS_DATABASE_URL", url, &["session", "list"]);
        refused.refuses(1, &["postgres"].map(|_| "atabase URL"));
        assert!(!refused.err.contains("hunter2"), "{refused:?}");
    }
    let mistyped = with("MANYHANDS_LISTENS", "127.0.0.1:1", &["session", "new", "one"]);
    assert_eq!(mistyped.code, Some(0));
    assert!(mistyped.err.contains("MANYHANDS_LISTENS in the environment names no setting"), "{mistyped:?}");
}

#[test]
fn usage_is_2_and_failure_is_1() {
    let home = Home::new();
    for args in
        [&["nonsense"][..], &["session", "show"], &["serve", "--listen", "localhost:1"], &["connect", "vi"]]
    {
        home.run(args).refuses(2, &["Usage"].map(|_| "error:"));
    }
    home.run(&["serve", "--listen", "0.0.0.0:0", "--no-auth"])
        .refuses(1, &["--no-auth", "0.0.0.0:0 is not loopback"]);
    let long = home.path().join("x".repeat(100));
    home.run(&["--data", long.to_str().unwrap(), "session", "new"])
        .refuses(1, &["too long for a socket", "--data"]);
    assert!(!long.exists() && !home.data().exists());
    let file = home.path().join("file");
    fs::write(&file, "").unwrap();
    home.run(&["--data", "file/data", "session", "new"]).refuses(1, &["can't be used", "--data"]);
}

/// As a user whom permissions bind, root or not.
fn unprivileged(home: &Home, args: &[&str]) -> Said {
    if !rustix::process::geteuid().is_root() {
        return home.run(args);
    }
    for entry in fs::read_dir(home.data()).unwrap() {
        chown(entry.unwrap().path(), Some(STRANGER), None).unwrap();
    }
    chown(home.data(), Some(STRANGER), None).unwrap();
    as_stranger(home, args)
}

fn as_stranger(home: &Home, args: &[&str]) -> Said {
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let uid = STRANGER.to_string();
    let mut command = Command::new("setpriv");
    // The target directory may be closed to strangers: they get the program as an open file.
    let program = fs::File::open(tests::gateway::binary()).unwrap();
    command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups", "/proc/self/fd/0"]).args(args);
    command.arg("--data").arg(home.data()).current_dir("/").env("HOME", home.path()).stdin(program);
    said(command)
}

#[test]
fn data_that_cannot_be_used_is_refused() {
    let home = Home::new();
    home.json(&["session", "new", "one"]);
    let (data, database) = (home.data(), home.data().join("manyhands.db"));
    let token = data.join("owner.token");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).unwrap();
    for args in [&SERVE[..], &["connect"]] {
        home.run(args).refuses(1, &["owner.token can be read by others", "chmod 600"]);
    }
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();

    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(&database, 0o400);
    unprivileged(&home, &["session", "new", "two"]).refuses(1, &["the database is read-only", "writable"]);
    mode(&database, 0o600);
    mode(&data.join("lock"), 0o400);
    unprivileged(&home, &["session", "list"])
        .refuses(1, &["lock can't be used", "Permission denied", "--data"]);
    mode(&data.join("lock"), 0o600);

    let whole = fs::read(&database).unwrap();
    fs::write(
        &database,
        "SQLite it is not, whatever else it may be; and long enough to be looked at. ".repeat(99),
    )
    .unwrap();
    unprivileged(&home, &["session", "list"]).refuses(1, &["manyhands.db is not a database", "move it away"]);
    fs::write(&database, whole).unwrap();
    assert_eq!(unprivileged(&home, &["session", "list"]).out.lines().count(), 1);
}

#[test]
fn a_newer_database_is_refused() {
    let home = Home::new();
    home.json(&["session", "new", "one"]);
    let url = format!("sqlite://{}", home.data().join("manyhands.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
        let text = "insert into _sqlx_migrations values (99, 'later', current_timestamp, 1, x'00', 1)";
        sqlx::query(text).execute(&pool).await.unwrap();
        pool.close().await;
    });
    for args in [&["session", "list"][..], &SERVE] {
        home.run(args).refuses(1, &["a newer manyhands", "migration 99", "upgrade"]);
    }
}

/// Where the data directory lets others in, the socket does not; and where the socket does, the gateway looks who
/// is calling.
#[test]
fn another_user_is_turned_away_from_the_socket() {
    assert!(rustix::process::geteuid().is_root(), "this needs a second user, so it needs root");
    let home = Home::new();
    let gateway = Gateway::start_blocking(&Options::default().data(&home.data())).unwrap();
    fs::set_permissions(home.data(), fs::Permissions::from_mode(0o711)).unwrap();
    let socket = home.data().join("manyhands.sock");
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);
    // Without an argument that reads the directory first.
    let args = ["session", "new", "theirs"];
    as_stranger(&home, &args).refuses(1, &["manyhands.sock belongs to another user"]);
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    as_stranger(&home, &args).refuses(1, &["answers only the user that runs it"]);
    assert!(gateway.stderr().contains("another user was turned away"));
    assert!(home.json(&["session", "list"]).as_array().unwrap().is_empty());
}

/// `doctor` and the first call say the same; the call is logged, and did not run.
#[test]
fn a_machine_without_sandboxes_is_told_what_to_do() {
    let home = Home::new();
    let bin = home.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let run = |args: &[&str]| {
        let mut command = home.command(args);
        command.env("PATH", &bin);
        said(command)
    };
    let both = |parts: &[&str]| {
        for said in [run(&["doctor"]), run(&TRUE)] {
            assert_eq!(said.code, Some(1), "{said:?}");
            assert!(parts.iter().all(|part| said.out.contains(part)), "{parts:?} in {said:?}");
        }
    };
    both(&["bubblewrap is not installed", "sudo apt-get install bubblewrap"]);
    let refusing = "#!/bin/sh\ncase $1 in --version) echo bubblewrap 0.9.0 ;;\n*) echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1 ;; esac\n";
    fs::write(bin.join("bwrap"), refusing).unwrap();
    fs::set_permissions(bin.join("bwrap"), fs::Permissions::from_mode(0o755)).unwrap();
    both(&["user namespaces"]);
    let types = home.types("default").into_iter().filter(|kind| kind.starts_with("hand."));
    assert_eq!(types.count(), 0, "nothing was provisioned, and nothing started");
}

/// The key of the chosen model: where it is, or what to do. The key itself is in nothing that is printed.
#[test]
fn doctor_says_whether_the_key_of_the_model_is_there() {
    let home = Home::new();
    let key = home.path().join("key");
    let doctor = |url: &str| {
        let mut command = home.command(&["doctor", "--json"]);
        command.env("MANYHANDS_BRAIN_MODEL", "anthropic/claude-x").env("MANYHANDS_BRAIN_KEY_FILE", &key);
        let said = {
            command.env("MANYHANDS_BRAIN_BASE_URL", url);
            said(command)
        };
        assert!(!said.out.contains("sk-canary") && !said.err.contains("sk-canary"), "{said:?}");
        let lines: Vec<Value> = serde_json::from_str(&said.out).unwrap();
        let line = lines.into_iter().find(|line| line["subject"] == "brain").unwrap();
        let text = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
        (text("state"), text("found"), text("remedy"))
    };
    let https = "https://api.anthropic.com";
    let (state, found, remedy) = doctor(https);
    assert!(state == "missing" && found.contains("there is no key for claude-x"), "{found}");
    assert!(remedy.contains("key_file under [brain]"), "{remedy}");
    fs::write(&key, "sk-canary-1234").unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let (state, found, _) = doctor(https);
    assert!(state == "missing" && found.contains("chmod 600"), "{found}");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let (state, found, _) = doctor(https);
    assert!(state == "ok" && found.contains(&key.display().to_string()), "{found}");
    assert_eq!(doctor("http://127.0.0.1:1").0, "ok");
    let (state, _, remedy) = doctor("http://models.example");
    assert!(state == "weaker" && remedy.contains("https://"), "{remedy}");
    // Where no model is chosen, there is nothing to say.
    assert!(!home.run(&["doctor"]).out.contains("brain"));
    let mut command = home.command(&["hand", "list"]);
    command.env("MANYHANDS_BRAIN_MODEL", "claude-x");
    said(command).refuses(1, &["MANYHANDS_BRAIN_", "does not begin with a provider"]);
}
