//! One of each: the servers that hands need, a gateway that has them all, and what it has of them outside of it.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use gateway::session::Event;
use hands::InstanceId;
use hands::android::Device;
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::device::Bench;
use tests::dockerd::{Dockerd, rootfs};
use tests::game;
use tests::gateway::{Gateway, Options};
use tests::guest::guest;
use tests::sshd::Sshd;

use crate::crash::client::Client;
use crate::crash::truth::{Reader, field, of};
use crate::hand::marked::marked;
use crate::sandbox_kit::processes_of;

/// How long something in another process may take to happen.
const SOON: Duration = Duration::from_mins(1);

/// What the hands of a gateway reach: an engine, a host, a device, a game, a guest. Each is real and its own.
pub(super) struct Machines {
    pub(super) daemon: Dockerd,
    pub(super) sshd: Sshd,
    pub(super) phone: Bench,
    pub(super) folder: TempDir,
}

impl Machines {
    pub(super) async fn start() -> Result<Self> {
        let (daemon, sshd, phone) = tokio::try_join!(Dockerd::start(), Sshd::start(), Bench::start())?;
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("game.gb"), game::game())?;
        Ok(Self { daemon, sshd, phone, folder })
    }

    /// A `manyhands.toml` with a hand of each kind that has instances of its own, and two of containers.
    pub(super) fn config(&self) -> Result<String> {
        let phone = self.phone.config();
        let Device::Address(address) = phone.device else { bail!("a device with an address") };
        let host = self.sshd.config()?;
        let key = std::fs::read_to_string(self.sshd.path("host.pub"))?;
        let guest = guest()?;
        let hands = json!({
            "sandbox": {"kind": "sandbox"},
            "box": {"kind": "container", "rootfs": rootfs()?, "host": self.daemon.host()},
            "tub": {
                "kind": "container", "rootfs": rootfs()?, "host": self.daemon.host(), "workspace": "volume",
            },
            "host": {
                "kind": "ssh", "host": host.host, "port": host.port, "user": host.user,
                "key": self.sshd.path("user"), "host_keys": [key.trim()],
            },
            "phone": {
                "kind": "android", "address": address, "server": phone.server, "folder": phone.folder,
            },
            "game": {"kind": "emulator", "rom": self.folder.path().join("game.gb")},
            "machine": {
                "kind": "vm", "kernel": guest.kernel, "initrd": guest.initrd, "cache": guest.cache,
                "accel": "tcg",
            },
        });
        toml(&hands)
    }

    /// A gateway that has them, on a data directory that stays.
    pub(super) async fn gateway(&self) -> Result<Gateway> {
        let options = Options::default().data(&self.data()).config(&self.config()?);
        Gateway::start(options).await
    }

    pub(super) fn data(&self) -> std::path::PathBuf {
        self.folder.path().join("data")
    }

    /// Containers that the engine has, running or not.
    pub(super) fn containers(&self) -> Vec<String> {
        lines(&self.daemon.docker(&["ps", "--all", "--format", "{{.Names}} {{.Status}}"]))
    }

    /// Containers of instances that the engine has ever made.
    pub(super) fn containers_made(&self) -> Vec<String> {
        let made = ["events", "--since", "1h", "--until", "0s", "--filter", "event=create"];
        let only = ["--filter", "type=container", "--format", "{{.Actor.Attributes.name}}"];
        let mut made = lines(&self.daemon.docker(&[&made[..], &only].concat()));
        // What a volume is made with is none.
        made.retain(|name| name.starts_with("manyhands-inst_"));
        made
    }

    pub(super) fn volumes(&self) -> Vec<String> {
        lines(&self.daemon.docker(&["volume", "ls", "--quiet"]))
    }
}

/// As TOML, which texts, numbers and lists of JSON are as well.
pub(crate) fn toml(hands: &Value) -> Result<String> {
    let mut text = String::new();
    for (name, settings) in hands.as_object().context("a table of hands")? {
        text.push_str(&format!("[hands.{name}]\n"));
        for (setting, value) in settings.as_object().context("a table of settings")? {
            text.push_str(&format!("{setting} = {value}\n"));
        }
    }
    Ok(text)
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// What a call answers, and how it ended.
pub(super) async fn call(
    client: &Client,
    session: &str,
    tool: &str,
    input: Value,
) -> Result<(String, String)> {
    let result = client.tool(session, tool, input, None).await?;
    let outcome = result["_meta"]["manyhands/outcome"].as_str();
    let outcome = outcome.with_context(|| format!("{tool} has no outcome: {result}"))?.to_owned();
    let texts = result["content"].as_array().into_iter().flatten().filter_map(|block| block["text"].as_str());
    Ok((outcome, texts.collect::<Vec<_>>().join("\n")))
}

/// The same of one that must succeed: what it answers.
pub(super) async fn text(client: &Client, session: &str, tool: &str, input: Value) -> Result<String> {
    let (outcome, text) = call(client, session, tool, input).await?;
    ensure!(outcome == "ok", "{tool}: {outcome}: {text}");
    Ok(text)
}

/// The instances that a log tells of, by the names of their hands.
pub(super) fn instances(events: &[Event]) -> Vec<(String, InstanceId)> {
    let provisioned = of(events, "hand.provisioned").into_iter();
    let named = |event| (field(event, "hand").to_owned(), InstanceId(field(event, "instance").to_owned()));
    provisioned.map(named).collect()
}

/// All that runs of an instance on this machine, whichever kind it is of: named in a command line, as a machine, or
/// marked in the environment.
pub(super) fn running(instance: &InstanceId) -> Vec<String> {
    let machine = InstanceId(format!("manyhands-{instance}"));
    let named = processes_of(instance).into_iter().chain(processes_of(&machine));
    named.map(|pid| format!("{pid:?}")).chain(marked(instance)).collect()
}

/// Files below a folder, of the kinds that `find` is told.
pub(super) fn found(folder: &Path, which: &[&str]) -> Result<Vec<String>> {
    let found = Command::new("find").arg(".").args(which).current_dir(folder).output()?;
    let mut found = lines(&String::from_utf8(found.stdout)?);
    found.sort();
    Ok(found)
}

/// Waits until `look` finds nothing any more; what it found at last is the failure.
pub(super) async fn nothing<T: std::fmt::Debug>(what: &str, mut look: impl FnMut() -> Vec<T>) -> Result<()> {
    let start = Instant::now();
    loop {
        let left = look();
        if left.is_empty() {
            return Ok(());
        }
        ensure!(start.elapsed() < SOON, "{what}: {left:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The owner's client, and the log beside the gateway.
pub(super) async fn seen(gateway: &Gateway) -> Result<(Client, Reader)> {
    Ok((Client::of(gateway)?, Reader::directory(gateway.data()).await?))
}
