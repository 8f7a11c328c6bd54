//! The same with the gateway: what `hand add` and the start see, and what lies in a home directory.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::folder;
use crate::cli::{Home, Said};
use tests::gateway::binary;

fn bash(home: &Home, hand: &str, command: &str) -> Said {
    home.run(&["hand", "call", hand, "bash", &serde_json::json!({"command": command}).to_string()])
}

fn home() -> Home {
    let home = Home::new();
    for name in ["source", "source/sub", "victim"] {
        folder(&home.path().join(name));
    }
    fs::write(home.path().join("victim/key"), "secret").unwrap();
    home
}

/// The attack as it was made: two mounts, the inner one replaced by a link, and the next instance.
#[test]
fn what_hand_add_saw_is_mounted_or_nothing() {
    let home = home();
    symlink("source/sub", home.path().join("typed")).unwrap();
    let shown = home.json(&[
        "hand",
        "add",
        "work",
        "--kind",
        "sandbox",
        "--mount",
        "source:/src",
        "--mount",
        "typed:/sub:ro",
    ]);
    // The link that a person made was followed once, and what it led to is kept.
    let host = home.path().canonicalize().unwrap();
    let kept = format!("{}:/sub:ro", host.join("source/sub").display());
    assert_eq!(shown["config"]["mounts"][1], kept.as_str());
    fs::remove_file(home.path().join("typed")).unwrap();
    symlink("victim", home.path().join("typed")).unwrap();
    let attack = format!("mv /src/sub /src/old && ln -s {}/victim /src/sub", host.display());
    let said = bash(&home, "work", &attack);
    assert_eq!(said.code, Some(0), "{said:?}");
    let said = bash(&home, "work", "cat /sub/key");
    assert_eq!(said.code, Some(1));
    assert!(said.out.contains("has become a link") && !said.out.contains("secret"), "{said:?}");
    // Nor can a person be led to add it.
    home.run(&["hand", "add", "more", "--kind", "sandbox", "--mount", "source/sub:/sub:ro"])
        .refuses(1, &["source/sub is a link in a folder that a hand may write to"]);
}

#[test]
fn a_start_follows_no_link_that_an_agent_made() {
    let home = home();
    let host = home.path().canonicalize().unwrap();
    let (host, file) = (host.display(), home.path().join("manyhands.toml"));
    home.json(&["hand", "add", "work", "--kind", "sandbox", "--mount", "source:/src"]);
    let attack =
        format!("rmdir /src/sub && ln -s {host}/victim /src/sub && ln -s {host}/victim/key /src/rom");
    let said = bash(&home, "work", &attack);
    assert_eq!(said.code, Some(0), "{said:?}");
    let hands = format!(
        "[hands.more]\nkind = \"sandbox\"\nmounts = [\"{host}/source/sub:/sub:ro\"]\n[hands.game]\nkind = \"emulator\"\n\
         rom = \"source/rom\"\n[hands.sandbox]\nkind = \"sandbox\"\n"
    );
    fs::write(&file, hands).unwrap();
    let file = file.to_str().unwrap();
    for hand in ["more", "game"] {
        let said = home.run(&["--config", file, "hand", "show", hand]);
        assert!(said.out.contains("is a link in a folder that a hand may write to"), "{said:?}");
        home.run(&["--config", file, "hand", "call", hand, "bash", "{\"command\": \"cat /sub/key\"}"])
            .refuses(1, &["is a link in a folder that a hand may write to"]);
    }
    // It keeps nobody else from anything.
    let said = home.run(&["--config", file, "hand", "call", "work", "bash", "{\"command\": \"echo fine\"}"]);
    assert!(said.out.ends_with("fine\n"), "{said:?}");
}

/// A person's home directory, read-only, with the data in it, and the same folder at another place.
#[test]
fn a_home_directory_shows_nothing_of_the_gateway() {
    let home = home();
    home.json(&["token", "new", "first"]);
    home.json(&["hand", "add", "home", "--kind", "sandbox", "--mount", ".:/h:ro"]);
    assert!(home.data().join("owner.token").exists());
    let looks = "cat /h/victim/key; ls -A /h/data /h/alias; cat /h/data/owner.token /h/alias/owner.token";
    let said = bash(&home, "home", looks);
    assert!(
        said.out.starts_with("secret") && said.out.contains("data/owner.token: No such file"),
        "{said:?}"
    );
    assert!(said.out.contains("/h/data:\n") && !said.out.contains("manyhands.sock"), "{said:?}");
    if !rustix::process::geteuid().is_root() {
        return;
    }
    fs::create_dir(home.path().join("alias")).unwrap();
    let arguments = serde_json::json!({ "command": looks }).to_string();
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", "mount --bind data alias && exec \"$@\"", "sh"])
        .arg(binary())
        .args(["--data", home.data().to_str().unwrap(), "hand", "call", "home", "bash", &arguments])
        .current_dir(home.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = Said::of(&output);
    assert!(said.out.contains("secret/h/alias:\n\n/h/data:\ncat:"), "{said:?}");
    assert!(!said.out.contains("manyhands.sock"), "{said:?}");
}

/// A gateway that runs from a mounted folder: what an agent puts in its place is not run on the host.
#[test]
fn the_program_itself_is_not_run_anew_from_where_it_lay() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let home = home();
    let program = home.path().join("source/manyhands");
    fs::copy(binary(), &program).unwrap();
    home.json(&["hand", "add", "work", "--kind", "sandbox", "--mount", "source:/src"]);
    let mut serving = Command::new(&program)
        .args(["--data", home.data().to_str().unwrap(), "serve", "--listen", "127.0.0.1:0"])
        .current_dir(home.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_mins(1);
    while !home.data().join("manyhands.sock").exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    let marker = home.path().join("victim/ran");
    let attack = format!(
        "rm /src/manyhands; printf '#!/bin/sh\\ntouch {}\\n' > /src/manyhands; chmod +x /src/manyhands",
        marker.display()
    );
    let first = bash(&home, "work", &attack);
    let released = home.run(&["hand", "release", "work"]);
    // In the sandbox it may be what the agent made of it, which then does not start.
    let second = bash(&home, "work", "echo fine");
    let ran = marker.exists();
    serving.kill().unwrap();
    serving.wait().unwrap();
    assert_eq!(first.code, Some(0), "{first:?} {released:?}");
    assert!(!ran, "an agent's program ran on the host: {second:?}");
}
