//! The options of `manyhands hand add` that belong to one kind of hand. What is rarer is set in `manyhands.toml`.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::bail;
use clap::Args;

use crate::cli::terminal::{can_ask, note, yes};
use crate::hand::{
    Acceleration, AndroidSettings, ContainerSettings, EmulatorSettings, Ground, RootAccess, ShellProgram,
    Source, SshSettings, TlsSettings, VmSettings, WorkspacePlace,
};

#[derive(Args)]
pub(super) struct Container {
    /// Container: its image, pulled when it is missing
    #[arg(long, value_name = "NAME")]
    image: Option<String>,
    /// Container: a tar of a root file system, instead of an image
    #[arg(long, value_name = "TAR", conflicts_with = "image")]
    rootfs: Option<PathBuf>,
    /// Container: the daemon [default: `DOCKER_HOST`, else this machine's]
    #[arg(long, value_name = "unix:///PATH|tcp://HOST:PORT")]
    docker_host: Option<String>,
    /// Container: a folder with ca.pem, cert.pem and key.pem for a daemon behind TLS
    #[arg(long, value_name = "DIR", requires = "docker_host")]
    docker_certs: Option<PathBuf>,
    /// Container: the OCI runtime, such as runsc [default: the daemon's]
    #[arg(long, value_name = "NAME")]
    runtime: Option<String>,
    /// Container: where /workspace is [default: bind]
    #[arg(long, value_enum)]
    workspace_in: Option<WorkspacePlace>,
    /// Container: whether all else may be written [default: read-only]
    #[arg(long, value_enum)]
    root: Option<RootAccess>,
    /// Container: what runs commands [default: bash]
    #[arg(long, value_enum)]
    shell: Option<ShellProgram>,
}

impl Container {
    pub(super) fn given(&self) -> bool {
        self.image.is_some()
            || self.rootfs.is_some()
            || self.docker_host.is_some()
            || self.runtime.is_some()
            || self.workspace_in.is_some()
            || self.root.is_some()
            || self.shell.is_some()
    }

    pub(super) fn settings(self, network: Option<String>, idle_s: u64) -> ContainerSettings {
        let usual = ContainerSettings::default();
        let tls = self.docker_certs.map(|folder| TlsSettings {
            ca: folder.join("ca.pem"),
            certificate: folder.join("cert.pem"),
            key: folder.join("key.pem"),
        });
        ContainerSettings {
            image: self.image,
            rootfs: self.rootfs,
            host: self.docker_host,
            tls,
            runtime: self.runtime,
            network: network.unwrap_or(usual.network),
            workspace: self.workspace_in.unwrap_or_default(),
            root: self.root.unwrap_or_default(),
            shell: self.shell.unwrap_or_default(),
            idle_s,
            ..ContainerSettings::default()
        }
    }
}

#[derive(Args)]
pub(super) struct Ssh {
    /// SSH: the host, with or without a user
    #[arg(long, value_name = "[USER@]HOST")]
    host: Option<String>,
    /// SSH: who we are there
    #[arg(long, requires = "host")]
    user: Option<String>,
    /// SSH: the port [default: 22]
    #[arg(long, requires = "host")]
    port: Option<u16>,
    /// SSH: a private key that nobody else can read [default: the agent's keys]
    #[arg(long, value_name = "FILE", requires = "host")]
    key: Option<PathBuf>,
    /// SSH: a file with the key's passphrase, that nobody else can read
    #[arg(long, value_name = "FILE", requires = "key")]
    passphrase_file: Option<PathBuf>,
    /// SSH: the socket of an agent [default: `SSH_AUTH_SOCK`]
    #[arg(long, value_name = "SOCKET", requires = "host", conflicts_with = "key")]
    agent: Option<PathBuf>,
    /// SSH: the file that has the host's key [default: `~/.ssh/known_hosts`]
    #[arg(long, value_name = "FILE", requires = "host")]
    known_hosts: Option<PathBuf>,
    /// SSH: connect once, show the host's key, and pin it: on a terminal you are asked first
    #[arg(long, requires = "host", conflicts_with = "known_hosts")]
    pub(super) accept_host_key: bool,
    /// SSH: the folder there that persists [default: `~/.manyhands/{work}/workspace`]
    #[arg(long, value_name = "FOLDER", requires = "host")]
    remote_workspace: Option<String>,
}

impl Ssh {
    pub(super) fn given(&self) -> bool {
        self.host.is_some()
    }

    pub(super) fn settings(self, idle_s: u64) -> SshSettings {
        let host = self.host.unwrap_or_default();
        let (user, host) = match host.rsplit_once('@') {
            Some((user, host)) => (Some(user.to_owned()), host.to_owned()),
            None => (None, host),
        };
        let usual = SshSettings::default();
        SshSettings {
            host,
            port: self.port.unwrap_or(usual.port),
            user: self.user.or(user).unwrap_or_default(),
            key: self.key,
            passphrase: self.passphrase_file.map(|file| Source::File { file, prefix: String::new() }),
            agent: self.agent,
            known_hosts: self.known_hosts,
            workspace: self.remote_workspace,
            idle_s,
            ..usual
        }
    }
}

/// Pins the key that the host shows. Whoever sits at a terminal is asked whether it is the host's.
pub(super) async fn accept(settings: &mut SshSettings, ground: &Ground) -> anyhow::Result<()> {
    let shown = hands::ssh::host_key(&settings.resolve(ground)?).await?;
    note(format_args!("{} shows the key {}", settings.host, shown.fingerprint));
    if can_ask() && yes("Is that the host's? Compare it with what its owner says.").await? != Some(true) {
        bail!("the key was not accepted, and the hand was not added");
    }
    (settings.known_hosts, settings.host_keys) = (None, vec![shown.line]);
    Ok(())
}

#[derive(Args)]
pub(super) struct Android {
    /// Android: the device, as `adb devices` lists it
    #[arg(long)]
    serial: Option<String>,
    /// Android: host:port of its adbd, instead of a serial
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "serial")]
    address: Option<String>,
    /// Android: where the adb server listens [default: 127.0.0.1:5037]
    #[arg(long, value_name = "IP:PORT")]
    adb_server: Option<SocketAddr>,
}

impl Android {
    pub(super) fn given(&self) -> bool {
        self.serial.is_some() || self.address.is_some() || self.adb_server.is_some()
    }

    pub(super) fn settings(self, idle_s: u64) -> AndroidSettings {
        let usual = AndroidSettings::default();
        AndroidSettings {
            serial: self.serial,
            address: self.address,
            server: self.adb_server.unwrap_or(usual.server),
            idle_s,
            ..usual
        }
    }
}

#[derive(Args)]
pub(super) struct Emulator {
    /// Emulator: the game
    #[arg(long, value_name = "FILE")]
    rom: Option<PathBuf>,
    /// Emulator: how many pixels of a picture are one of the screen, each way: 1 to 4 [default: 2]
    #[arg(long, requires = "rom")]
    scale: Option<u8>,
}

impl Emulator {
    pub(super) fn given(&self) -> bool {
        self.rom.is_some()
    }

    pub(super) fn settings(self, idle_s: u64) -> EmulatorSettings {
        let usual = EmulatorSettings::default();
        EmulatorSettings {
            rom: self.rom.unwrap_or_default(),
            scale: self.scale.unwrap_or(usual.scale),
            idle_s,
            ..usual
        }
    }
}

#[derive(Args)]
pub(super) struct Vm {
    /// Virtual machine: its kernel
    #[arg(long, value_name = "FILE", requires = "initrd")]
    kernel: Option<PathBuf>,
    /// Virtual machine: its initial file system
    #[arg(long, value_name = "FILE", requires = "kernel")]
    initrd: Option<PathBuf>,
    /// Virtual machine: a qcow2 image with a Linux system, in which commands run
    #[arg(long, value_name = "FILE", requires = "kernel")]
    disk_image: Option<PathBuf>,
    /// Virtual machine: how it is run [default: auto]
    #[arg(long, value_enum, requires = "kernel")]
    accel: Option<Acceleration>,
    /// Virtual machine: memory in MiB [default: 256]
    #[arg(long, value_name = "MIB", requires = "kernel")]
    memory_mib: Option<u32>,
    /// Virtual machine: processors [default: 1]
    #[arg(long, requires = "kernel")]
    cpus: Option<u8>,
    /// Virtual machine: its disk in MiB [default: 2048]
    #[arg(long, value_name = "MIB", requires = "kernel")]
    disk_mib: Option<u64>,
}

impl Vm {
    pub(super) fn given(&self) -> bool {
        self.kernel.is_some()
    }

    pub(super) fn settings(self, idle_s: u64) -> VmSettings {
        let usual = VmSettings::default();
        VmSettings {
            kernel: self.kernel.unwrap_or_default(),
            initrd: self.initrd.unwrap_or_default(),
            image: self.disk_image,
            accel: self.accel.unwrap_or_default(),
            memory_mib: self.memory_mib.unwrap_or(usual.memory_mib),
            cpus: self.cpus.unwrap_or(usual.cpus),
            disk_mib: self.disk_mib.unwrap_or(usual.disk_mib),
            idle_s,
            ..usual
        }
    }
}
