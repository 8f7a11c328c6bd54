//! `manyhands hand …`: mounts, names, calls, copies.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rustix::process::Signal;
use tests::gateway::{Gateway, Options};

use super::{Home, until};

fn bash(home: &Home, hand: &str, command: &str) -> super::Said {
    home.run(&["hand", "call", hand, "bash", &serde_json::json!({"command": command}).to_string()])
}

/// Host paths are the command line's: relative to where it runs, `~` its user's.
#[test]
fn a_mount_is_resolved_where_it_was_typed() {
    let home = Home::new();
    fs::create_dir_all(home.path().join("src/project")).unwrap();
    fs::write(home.path().join("src/project/file"), "from here\n").unwrap();
    // World-writable, so that a sandbox of a gateway that runs as root may write, too.
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let added = home.json(&[
        "hand",
        "add",
        "work",
        "--kind",
        "sandbox",
        "--network",
        "host",
        "--mount",
        "src/project:/project:ro",
        "--mount=~/src:/all/src/:ro",
    ]);
    let shown = home.json(&["hand", "show", "work"]);
    assert_eq!(added, shown);
    let host = home.path().canonicalize().unwrap();
    assert_eq!(shown["about"]["mounts"][0]["host"], host.join("src/project").to_str().unwrap());
    assert_eq!(shown["about"]["mounts"][1]["at"], "/all/src");
    assert_eq!((&shown["config"]["network"], &shown["origin"]), (&"host".into(), &"added".into()));
    let said = bash(&home, "work", "cat /project/file /all/src/project/file; touch /project/new");
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.out.starts_with("from here\nfrom here\n") && said.out.contains("Read-only"), "{said:?}");
}

#[test]
fn a_mount_that_cannot_be_is_refused_when_it_is_added() {
    let home = Home::new();
    let places =
        ["/", "/workspace", "/tmp", "/tmp/x", "/usr", "/usr/local/x", "/proc", "/dev/x", "/etc", "/a/../usr"];
    for at in places {
        home.run(&["hand", "add", "x", "--kind", "sandbox", "--mount", &format!(".:{at}")])
            .refuses(1, &["nothing can be mounted at", "/project"]);
    }
    for (mounts, why) in [
        (["nowhere:/p", ".:/q"], "on this machine to mount"),
        ([".:/p", ".:/p/"], "two mounts have the place /p"),
    ] {
        home.run(&["hand", "add", "x", "--kind", "sandbox", "--mount", mounts[0], "--mount", mounts[1]])
            .refuses(1, &[why]);
    }
    for text in ["/p", ":/p", ".:p", "."] {
        home.run(&["hand", "add", "x", "--kind", "sandbox", "--mount", text]).refuses(2, &["HOST:/path"]);
    }
    home.run(&["hand", "add", "Bad", "--kind", "sandbox"]).refuses(2, &["no name for a hand"]);
    home.run(&["hand", "show", "x"]).refuses(1, &["no hand named x", "hand list"]);
}

/// Its calls say what is missing; everything else goes on, and it can be removed.
#[test]
fn a_mount_that_went_away_harms_only_its_hand() {
    let home = Home::new();
    let gone = home.path().join("gone");
    fs::create_dir(&gone).unwrap();
    home.json(&["hand", "add", "work", "--kind", "sandbox", "--mount", "gone:/project"]);
    fs::remove_dir(&gone).unwrap();
    assert_eq!(bash(&home, "sandbox", "echo fine").out, "fine\n");
    let said = bash(&home, "work", "true");
    assert_eq!(said.code, Some(1));
    assert!(said.out.contains(gone.to_str().unwrap()) && said.out.contains("make it"), "{said:?}");
    assert_eq!(home.run(&["hand", "remove", "work"]).out, "work is removed\n");
}

#[test]
fn one_name_in_both_places_is_refused_naming_both() {
    let home = Home::new();
    home.run(&["hand", "add", "sandbox", "--kind", "sandbox"])
        .refuses(1, &["a hand named sandbox exists already", "manyhands.toml, or as the default"]);
    home.run(&["hand", "remove", "sandbox"]).refuses(1, &["manyhands.toml"]);
    home.json(&["hand", "add", "work", "--kind", "sandbox"]);
    home.run(&["hand", "add", "work", "--kind", "sandbox"]).refuses(1, &["added with `manyhands hand add`"]);
    fs::write(home.path().join("manyhands.toml"), "[hands.work]\nkind = \"sandbox\"\n").unwrap();
    for args in [&["hand", "list"][..], &["serve", "--listen", "127.0.0.1:0"]] {
        home.run(args).refuses(1, &["two hands are named work", "manyhands.toml", "hand add"]);
    }
}

#[test]
fn a_call_fails_as_a_command_does() {
    let home = Home::new();
    let said = bash(&home, "sandbox", "echo out; exit 3");
    assert_eq!((said.code, said.out.as_str()), (Some(1), "out\n[exit code 3]\n"), "{said:?}");
    home.run(&["hand", "call", "sandbox", "nope"]).refuses(1, &["has no tool \"nope\""]);
    home.run(&["hand", "call", "nope", "bash"]).refuses(1, &["no hand named nope"]);
    for arguments in ["[1]", "{", "ls"] {
        home.run(&["hand", "call", "sandbox", "bash", arguments]).refuses(2, &["a JSON object"]);
    }
    assert_eq!(home.run(&["hand"]).code, Some(2));
}

/// A data directory that is given relative to the current folder works as any other.
#[test]
fn a_relative_data_directory_has_working_sandboxes() {
    let home = Home::new();
    let said = home.run(&["--data", "./here", "hand", "call", "sandbox", "bash", r#"{"command":"pwd"}"#]);
    assert_eq!((said.code, said.out.as_str()), (Some(0), "/workspace\n"), "{said:?}");
}

/// Through an owner's socket and without one.
#[test]
fn files_and_folders_go_both_ways() {
    for owned in [true, false] {
        let home = Home::new();
        let _gateway =
            owned.then(|| Gateway::start_blocking(&Options::default().data(&home.data())).unwrap());
        fs::create_dir_all(home.path().join("project/src")).unwrap();
        fs::write(home.path().join("project/src/file"), "text").unwrap();
        let cp = |from: &str, to: &str| home.run(&["hand", "cp", from, to]);
        assert_eq!(cp("project", "sandbox:deep/in").out, "copied project to sandbox:deep/in\n");
        assert_eq!(cp("sandbox:deep/in", "back").code, Some(0));
        assert_eq!(fs::read_to_string(home.path().join("back/src/file")).unwrap(), "text");
        assert_eq!(cp("sandbox:deep/in/src/file", "one").code, Some(0));
        assert_eq!(fs::read_to_string(home.path().join("one")).unwrap(), "text");
        cp("sandbox:deep/in", "back").refuses(1, &["back exists already"]);
        cp("one", "sandbox:deep/in/src/file").refuses(1, &["file exists already"]);
        cp("nowhere", "sandbox:x").refuses(1, &["nowhere can't be read"]);
        cp("sandbox:nowhere", "new").refuses(1, &["nowhere: Cannot stat"]);
        cp("sandbox:deep", "no/folder").refuses(1, &["there is no folder /", "/no: make it first"]);
        cp("one", "two").refuses(1, &["HAND:PATH"]);
        cp("one", "nope:x").refuses(1, &["no hand named nope"]);
        cp("one", "sandbox:../../etc/x").refuses(1, &["without `..`"]);
        let mut here: Vec<_> = fs::read_dir(home.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        here.sort();
        assert_eq!(here, ["back", "data", "one", "project"]);
        assert_eq!(
            bash(&home, "sandbox", "find . -mindepth 1 | sort | tr '\\n' ' '").out.lines().last().unwrap(),
            "./deep ./deep/in ./deep/in/src ./deep/in/src/file "
        );
    }
}

/// More than a socket holds is still to be sent when the answer comes.
#[test]
fn a_refused_copy_is_told_why_however_large_it_is() {
    let home = Home::new();
    let _gateway = Gateway::start_blocking(&Options::default().data(&home.data())).unwrap();
    fs::write(home.path().join("small"), "text").unwrap();
    fs::File::create(home.path().join("large")).unwrap().set_len(64 << 20).unwrap();
    let cp = |from: &str, to: &str| home.run(&["hand", "cp", from, to]);
    assert_eq!(cp("small", "sandbox:there").code, Some(0));
    for _ in 0..5 {
        cp("large", "nope:x").refuses(1, &["no hand named nope"]);
        cp("large", "sandbox:there").refuses(1, &["there exists already"]);
    }
}

#[test]
fn a_copy_that_breaks_off_leaves_nothing() {
    let home = Home::new();
    let gateway = Gateway::start_blocking(&Options::default().data(&home.data())).unwrap();
    // Written, not sparse: holes are copied in no time.
    fs::write(home.path().join("big"), vec![7; 400 << 20]).unwrap();
    let work = || {
        let mut find = std::process::Command::new("find");
        find.arg(gateway.data().join("work")).args(["-name", "*big*", "-o", "-name", "*copy*"]);
        super::said(find).out
    };
    let mut copy = home.spawn(&["hand", "cp", "big", "sandbox:big"]);
    until("the copy is under way", || work().contains("copy"));
    copy.signal(Signal::INT);
    assert_eq!(copy.end().code, Some(130));
    until("nothing of it is left", || work().is_empty());
    assert_eq!(bash(&home, "sandbox", "ls -A").out.lines().last().unwrap_or_default(), "");
}

/// What is neither a file nor a folder is left out of a copy, whichever way it goes, and that is said.
#[test]
fn pipes_and_sockets_are_left_out_both_ways_and_counted() {
    let home = Home::new();
    fs::create_dir_all(home.path().join("project/src")).unwrap();
    fs::write(home.path().join("project/src/file"), "text").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(home.path().join("project/socket")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(home.path().join("project/src/pipe")).status();
    assert!(made.unwrap().success());
    let copied = home.run(&["hand", "cp", "project", "sandbox:in"]);
    assert_eq!((copied.code, copied.out.as_str()), (Some(0), "copied project to sandbox:in\n"));
    assert!(copied.err.contains("pipes, sockets, devices): 2"), "{copied:?}");
    let said = bash(&home, "sandbox", "mkfifo in/one in/two; find in | sort | tr '\\n' ' '");
    assert!(said.out.ends_with("in in/one in/src in/src/file in/two \n"), "{said:?}");
    assert_eq!(home.json(&["hand", "cp", "sandbox:in", "back"])["left_out"], 2);
    assert_eq!(fs::read_to_string(home.path().join("back/src/file")).unwrap(), "text");
    assert_eq!(fs::read_dir(home.path().join("back")).unwrap().count(), 1);
    assert_eq!(home.json(&["hand", "cp", "back", "sandbox:again"])["left_out"], 0);
    for (from, to) in [("project/src/pipe", "sandbox:x"), ("sandbox:in/one", "x"), ("sandbox:/dev/null", "x")]
    {
        home.run(&["hand", "cp", from, to]).refuses(1, &["is neither a file nor a folder"]);
    }
}
