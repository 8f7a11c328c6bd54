//! What can't work is one sentence with what to do: the call says it, and `doctor` says the same beforehand.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tests::dockerd::{Dockerd, rootfs};
use tests::gateway::{Gateway, Options, command};
use tests::guest::guest;
use tests::sshd::{Sshd, make_key};

use super::rig::{call, seen, toml};
use crate::crash::truth::of;

/// A hand that can't work, what doctor looks at, and both sentences.
struct Lack {
    hand: &'static str,
    tool: &'static str,
    input: Value,
    subject: &'static str,
    why: String,
    remedy: String,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_not_work_says_the_same_beforehand_and_when_it_is_called() -> Result<()> {
    let (daemon, sshd) = tokio::try_join!(Dockerd::start(), Sshd::start())?;
    let folder = tempfile::tempdir()?;
    let config = toml(&hands(&daemon, &sshd, folder.path())?)?;
    let lacks = lacks(&sshd, folder.path())?;
    let (data, file) = (folder.path().join("data"), folder.path().join("manyhands.toml"));
    std::fs::write(&file, &config)?;
    let doctor = command(&data).arg("--config").arg(&file).args(["doctor", "--json"]).output()?;
    ensure!(doctor.status.code() == Some(1), "{doctor:?}");
    let lines: Vec<Value> = serde_json::from_slice(&doctor.stdout)?;
    for lack in &lacks {
        let subject = format!("hand {}, {}", lack.hand, lack.subject);
        let line = lines.iter().find(|line| line["subject"] == *subject);
        let line = line.with_context(|| format!("nothing of {subject} in {lines:#?}"))?;
        let found = json!({
            "subject": subject, "state": "missing", "found": lack.why, "remedy": lack.remedy,
        });
        ensure!(*line == found, "{line:#}\n{found:#}");
    }
    image(&lines)?;

    let mut gateway = Gateway::start(Options::default().data(&data).config(&config)).await?;
    let (client, reader) = seen(&gateway).await?;
    for Lack { hand, tool, input, why, remedy, .. } in lacks {
        let (outcome, said) = call(&client, "none", &format!("{hand}__{tool}"), input).await?;
        ensure!(
            outcome == "error" && said == format!("{why}; {remedy}. The call did not run."),
            "{hand}: {outcome}: {said}"
        );
    }
    let (outcome, said) = call(&client, "none", "image__bash", json!({"command": "true"})).await?;
    let after = format!("); {ELSEWHERE}. The call did not run.");
    ensure!(outcome == "error" && said.starts_with(NO_IMAGE) && said.ends_with(&after), "{outcome}: {said}");
    // Nothing was made, and nothing started: each call may be repeated.
    let events = reader.events("none").await?;
    for kind in ["hand.provisioned", "hand.call_started"] {
        ensure!(of(&events, kind).is_empty(), "{kind}");
    }
    gateway.stop()
}

/// The hands, each with something that is not as it should be.
fn hands(daemon: &Dockerd, sshd: &Sshd, folder: &Path) -> Result<Value> {
    make_key(&folder.join("former"), "ed25519", "")?;
    let former = std::fs::read_to_string(folder.join("former.pub"))?;
    std::fs::write(folder.join("text.gb"), "This is no game.\n".repeat(3000))?;
    let guest = guest()?;
    let host = sshd.config()?;
    Ok(json!({
        "host": {
            "kind": "ssh", "host": host.host, "port": host.port, "user": host.user,
            "key": sshd.path("user"), "host_keys": [former.trim()],
        },
        "box": {
            "kind": "container", "rootfs": rootfs()?, "host": format!("unix://{}/none", folder.display()),
        },
        "image": {"kind": "container", "image": "127.0.0.1:1/none", "host": daemon.host()},
        "game": {"kind": "emulator", "rom": folder.join("text.gb")},
        "machine": {
            "kind": "vm", "kernel": guest.kernel, "initrd": guest.initrd, "cache": guest.cache,
            "accel": "kvm", "kvm": folder.join("kvm"),
        },
    }))
}

/// What is said of each.
fn lacks(sshd: &Sshd, folder: &Path) -> Result<Vec<Lack>> {
    let bash = json!({"command": "true"});
    let (shown, pinned) = (fingerprint(&sshd.path("host.pub"))?, fingerprint(&folder.join("former.pub"))?);
    let here = folder.display();
    let lack = |hand, tool, input: &Value, subject, why, remedy: &str| Lack {
        hand,
        tool,
        input: input.clone(),
        subject,
        why,
        remedy: remedy.to_owned(),
    };
    Ok(vec![
        lack(
            "host",
            "bash",
            &bash,
            "SSH host",
            format!(
                "the host key of 127.0.0.1:{} changed: pinned is {pinned}, and now it is {shown}; nothing was sent there",
                sshd.port
            ),
            "find out whether the host was set up anew: if so, pin its new key with --accept-host-key, if not, \
             somebody may be in between",
        ),
        lack(
            "box",
            "bash",
            &bash,
            "docker",
            format!("there is no Docker daemon at {here}/none"),
            "start it, or name another by host of the hand",
        ),
        lack(
            "game",
            "press",
            &json!({"buttons": ["a"]}),
            "game",
            format!(
                "{here}/text.gb is no game for the Game Boy: it has 51000 bytes, and a game is a multiple of 16 KiB \
                 from 32 KiB on"
            ),
            "give the path of a ROM file, as it was read from a cartridge or built",
        ),
        lack(
            "machine",
            "bash",
            &bash,
            "acceleration",
            format!(
                "this machine has no KVM for the gateway ({here}/kvm: No such file or directory (os error 2))"
            ),
            "set accel to auto or tcg, or let the gateway's user open that file",
        ),
    ])
}

/// What doctor and the first call say of an image that is not there, nor in its registry.
const NO_IMAGE: &str = "the image 127.0.0.1:1/none:latest is not there and can't be pulled (";
const ELSEWHERE: &str =
    "see whether docker pull 127.0.0.1:1/none:latest works, or name another image for the hand";

fn image(lines: &[Value]) -> Result<()> {
    let line = lines.iter().find(|line| line["subject"] == "hand image, image").context("no image")?;
    let found = line["found"].as_str().unwrap_or_default();
    ensure!(line["state"] == "missing" && found.starts_with(NO_IMAGE), "{line:#}");
    ensure!(line["remedy"] == ELSEWHERE, "{line:#}");
    Ok(())
}

fn fingerprint(key: &Path) -> Result<String> {
    let print = std::process::Command::new("ssh-keygen").arg("-lf").arg(key).output()?;
    let said = String::from_utf8(print.stdout)?;
    Ok(said.split(' ').nth(1).context("a fingerprint")?.to_owned())
}
