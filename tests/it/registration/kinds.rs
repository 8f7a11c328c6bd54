//! Every kind of hand, in the file and by `hand add`: what it is made of, what it can, and what makes no sense.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tests::gateway::{Gateway, Options};

/// All kinds, with settings that reach nothing.
const FILE: &str = r#"
[hands.box]
kind = "container"
image = "debian:stable-slim"
runtime = "runsc"
memory_mib = 512

[hands.host]
kind = "ssh"
host = "build.example"
user = "you"
key = "keys/id"
passphrase = { file = "keys/passphrase" }
host_keys = ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0000000000000000000000000000000000000000000"]

[hands.phone]
kind = "android"
address = "127.0.0.1:5555"

[hands.game]
kind = "emulator"
rom = "game.gb"

[hands.machine]
kind = "vm"
kernel = "vmlinuz"
initrd = "initrd.img"
accel = "tcg"
"#;

fn json_of(gateway: &Gateway, arguments: &[&str]) -> Result<Value> {
    let done = gateway.cli(arguments)?;
    ensure!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    Ok(serde_json::from_slice(&done.stdout)?)
}

#[tokio::test]
async fn every_kind_stands_in_the_file_and_says_what_it_can() -> Result<()> {
    let mut gateway = Gateway::start(Options::default().config(FILE)).await?;
    for (name, kind, [posix, files, checkpoints]) in [
        ("box", "container", [true, true, true]),
        ("host", "ssh", [true, true, false]),
        ("phone", "android", [true, true, false]),
        ("game", "emulator", [false, false, true]),
        ("machine", "vm", [true, true, true]),
    ] {
        let shown = json_of(&gateway, &["--json", "hand", "show", name])?;
        let can = json!({"posix": posix, "files": files, "checkpoints": checkpoints, "movable": true});
        ensure!(shown["kind"] == kind && shown["capabilities"] == can, "{shown}");
        ensure!(shown["tools"].as_array().is_some_and(|tools| tools.len() >= 6), "{shown}");
    }
    let machine = json_of(&gateway, &["--json", "hand", "show", "machine"])?;
    ensure!(machine["config"]["accel"] == "tcg" && machine["config"]["memory_mib"] == 256, "{machine}");
    // Paths are seen from the file's folder.
    let host = json_of(&gateway, &["--json", "hand", "show", "host"])?;
    let key = host["config"]["key"].as_str().context("a path")?;
    ensure!(key.starts_with('/') && key.ends_with("/keys/id"), "{host}");
    ensure!(
        host["config"]["passphrase"]["file"].as_str().is_some_and(|file| file.starts_with('/')),
        "{host}"
    );
    gateway.stop()
}

#[tokio::test]
async fn every_kind_is_added_by_its_options() -> Result<()> {
    let mut gateway = Gateway::start(Options::default()).await?;
    let cases: [&[&str]; 5] = [
        &["box", "--kind", "container", "--image", "debian:stable-slim", "--network", "bridge"],
        &["host", "--host", "you@build.example", "--key", "/keys/id", "--known-hosts", "/keys/known_hosts"],
        &["phone", "--serial", "emulator-5554"],
        &["game", "--rom", "/games/game.gb", "--scale", "3"],
        &["machine", "--kernel", "/boot/vmlinuz", "--initrd", "/boot/initrd.img", "--accel", "kvm"],
    ];
    for options in cases {
        let added = json_of(&gateway, &[&["--json", "hand", "add"], options].concat())?;
        ensure!(added["name"] == options[0], "{added}");
    }
    ensure!(json_of(&gateway, &["--json", "hand", "show", "host"])?["config"]["user"] == "you");
    ensure!(json_of(&gateway, &["--json", "hand", "show", "box"])?["config"]["network"] == "bridge");
    for (wrong, why) in [
        (&["x", "--kind", "container"][..], "a container needs an image"),
        (&["x", "--host", "build.example"][..], "needs its host and the user"),
        (&["x", "--kind", "android"][..], "needs a serial"),
        (&["x", "--rom", "/g.gb", "--scale", "9"][..], "scale must be 1 to 4"),
        (&["x", "--kind", "vm"][..], "needs a kernel and an initrd"),
        (&["x", "--image", "a", "--rom", "b"][..], "different kinds of hand"),
        (&["x"][..], "say what it is"),
    ] {
        let done = gateway.cli(&[&["hand", "add"], wrong].concat())?;
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(!done.status.success() && said.contains(why), "{wrong:?}: {said}");
    }
    gateway.stop()
}
