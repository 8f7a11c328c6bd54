//! Hands that may write where the configuration or the data directory lies.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use super::{BARE, Machine, is_root, mount, until};

/// The agent writes the file, and nothing takes it up: neither the running gateway nor the next one.
#[test]
fn a_file_that_an_agent_writes_is_not_read() {
    let machine = Machine::new();
    let mut gateway = machine.gateway(&[]);
    machine.run(&["hand", "add", "work", "--mount", &mount(&machine.project())]).succeeds();
    let write = |toml: &str| {
        let arguments = serde_json::json!({"command": "cat > /mounted/manyhands.toml", "stdin": toml});
        machine.run(&["hand", "call", "work", "bash", &arguments.to_string()])
    };
    write(&machine.evil()).succeeds();
    until("the log says that a file came up", || gateway.stderr().contains("was not there at the start"));
    machine.stays_unharmed();
    let hands = gateway.cli(&["hand", "list"]).unwrap();
    let hands = String::from_utf8(hands.stdout).unwrap();
    assert!(hands.contains("sandbox ") && !hands.contains("evil"), "{hands}");
    assert_eq!(gateway.stderr().matches("was not there at the start").count(), 1);
    gateway.stop().unwrap();

    let serve = ["serve", "--listen", "127.0.0.1:0"];
    machine.run(&serve).refuses(&["hands.evil.command", "manyhands.toml", "allow"]);
    // What would need no yes elsewhere needs one here.
    fs::write(machine.file(), "[hands.other]\nkind = \"sandbox\"\n").unwrap();
    for args in [&serve[..], &["stdio"], &["hand", "list"]] {
        machine.run(args).refuses(&["where the hand work may write", "' allow '", "--config"]);
    }
    machine.on_terminal(&["allow"], "n").refused_on_terminal();
    machine.run(&["hand", "list"]).refuses(&["where the hand work may write"]);

    // Once it is allowed it is in use, and then the mount is not.
    let said = machine.on_terminal(&["allow"], "y");
    assert!(said.code == Some(0) && said.out.contains("hands.other.kind = \"sandbox\""), "{said:?}");
    let gateway = machine.gateway(&[]);
    assert_eq!(machine.hand("other")["state"], "ok");
    assert_eq!(machine.hand("work")["state"], "refused");
    assert!(gateway.stderr().contains("a hand is refused"), "{}", gateway.stderr());
}

#[test]
fn a_writable_mount_of_the_configuration_in_use_is_refused() {
    let machine = Machine::new();
    machine.write(BARE);
    let _gateway = machine.gateway(&[]);
    symlink(machine.project(), machine.path("link")).unwrap();
    fs::create_dir_all(machine.project().join("src")).unwrap();
    let add = |of: &str| machine.run(&["hand", "add", "work", "--mount", of]);
    for place in ["project", "", "link", "project/manyhands.toml", "project/../project/src/.."] {
        add(&mount(&machine.path(place)))
            .refuses(&["an agent could change the configuration in use", "--config FILE"]);
    }
    add("/:/mounted").refuses(&["an agent could change"]);
    add(&format!("{}:ro", mount(&machine.project()))).succeeds();
    machine.run(&["hand", "remove", "work"]).succeeds();
    add(&mount(&machine.project().join("src"))).succeeds();
}

/// Through which links the file is found, counts like the file: an agent would turn them elsewhere.
#[test]
fn a_link_on_the_way_to_the_configuration_is_guarded_too() {
    let machine = Machine::new();
    for folder in ["etc", "etc/real", "links"] {
        fs::create_dir(machine.path(folder)).unwrap();
    }
    fs::write(machine.path("etc/real/gateway.toml"), BARE).unwrap();
    symlink(machine.path("etc/real"), machine.path("links/now")).unwrap();
    let _gateway = machine.gateway(&["--config", &machine.text("links/now/gateway.toml")]);
    for place in ["links", "links/now", "etc/real", "etc"] {
        let said = machine.run(&["hand", "add", "work", "--mount", &mount(&machine.path(place))]);
        said.refuses(&["an agent could change the configuration in use", "gateway.toml"]);
    }
    machine.run(&["hand", "add", "work", "--mount", &mount(&machine.project())]).succeeds();
}

#[test]
fn a_writable_mount_of_the_data_directory_or_a_part_of_it_is_refused() {
    let machine = Machine::new();
    let _gateway = machine.gateway(&[]);
    symlink(machine.path("data"), machine.path("link")).unwrap();
    fs::create_dir_all(machine.path("data/work")).unwrap();
    for place in ["data", "", "link", "data/work", "data/owner.token"] {
        let said = machine.run(&["hand", "add", "work", "--mount", &mount(&machine.path(place))]);
        said.refuses(&["an agent could change the data directory", "--data DIR"]);
    }
}

/// The same folder by another name of the file system's.
#[test]
fn a_bind_mount_fools_nobody() {
    if !is_root() {
        // Nobody else can make one; the names that links give are tested above.
        return;
    }
    let machine = Machine::new();
    machine.write(BARE);
    let _gateway = machine.gateway(&[]);
    for folder in ["bound", "around", "around/with blank"] {
        fs::create_dir(machine.path(folder)).unwrap();
    }
    let bound = [machine.path("bound"), machine.path("around/with blank")];
    for place in &bound {
        let done = Command::new("mount").arg("--bind").arg(machine.project()).arg(place).status().unwrap();
        assert!(done.success());
    }
    let add = |place| machine.run(&["hand", "add", "work", "--mount", &mount(&machine.path(place))]);
    let said = ["bound", "around"].map(add);
    for place in &bound {
        Command::new("umount").arg(place).status().unwrap();
    }
    for said in said {
        said.refuses(&["an agent could change the configuration in use"]);
    }
}

/// A hand of the file that would reach it is refused alone, at the start and by a change.
#[test]
fn a_hand_of_the_file_is_refused_alone() {
    let machine = Machine::new();
    let file = machine.text("project/gateway.toml");
    let toml = |folder: &str| {
        format!("{BARE}[hands.work]\nkind = \"sandbox\"\nmounts = [\"{}:/mounted\"]\n", machine.text(folder))
    };
    fs::write(&file, toml("project")).unwrap();
    fs::create_dir(machine.path("elsewhere")).unwrap();
    let gateway = machine.gateway(&["--config", &file]);
    let call = |hand: &str| machine.run(&["hand", "call", hand, "bash", r#"{"command":"echo here"}"#]);
    assert_eq!(call("sandbox").out, "here\n");
    let work = machine.hand("work");
    let why = work["why"].as_str().unwrap();
    assert!(work["state"] == "refused" && why.contains("--config FILE"), "{work}");
    let list = machine.run(&["hand", "list"]).out;
    assert!(list.contains("refused: ") && list.contains("--config FILE"), "{list}");
    assert!(gateway.stderr().contains("a hand is refused"), "{}", gateway.stderr());
    assert_eq!(call("work").code, Some(1));

    fs::write(&file, toml("elsewhere")).unwrap();
    until("the hand is set up", || machine.hand("work")["state"] == "ok");
    assert_eq!(call("work").out, "here\n");
    fs::write(&file, toml("data")).unwrap();
    until("the hand is refused again", || machine.hand("work")["state"] == "refused");
    assert_eq!(machine.hand("sandbox")["state"], "ok");
}

/// A program, a key, whom to believe: an agent that could change them would run there, or be believed.
#[test]
fn no_hand_may_write_to_what_another_relies_on() {
    let machine = Machine::new();
    let _gateway = machine.gateway(&[]);
    let (server, mounted) = (machine.text("project/server"), mount(&machine.project()));
    let known_hosts = machine.text("project/known_hosts");
    let ssh = ["hand", "add", "host", "--no-check", "--host", "you@127.0.0.1", "--known-hosts", &known_hosts];
    let others: [&[&str]; 2] = [&["hand", "add", "host", "--no-check", "--", &server], &ssh];
    for other in others {
        machine.run(other).succeeds();
        let work = ["hand", "add", "work", "--mount", &mounted];
        machine.run(&work).refuses(&["a file that another hand relies on", "keep that file elsewhere"]);
        machine.run(&["hand", "remove", "host"]).succeeds();
        machine.run(&work).succeeds();
        machine.run(other).refuses(&["where the hand work may write", "keep it elsewhere"]);
        machine.run(&["hand", "remove", "work"]).succeeds();
    }
}
