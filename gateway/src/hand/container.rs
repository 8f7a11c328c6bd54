//! How a container is set up.

use std::path::{Path, PathBuf};

use hands::container::{self, ContainerConfig, DEFAULT_HOST, Image, Root, ShellName, Workspace};
use hands::sandbox::Limits;
use secrecy::ExposeSecret as _;
use serde::{Deserialize, Serialize};

use super::permission::Permissions;
use super::setting::{BadSetting, Ground, absolute, bytes, mib, place, seconds, size, within};

/// The variable that names a daemon when the setting does not.
const DOCKER_HOST: &str = "DOCKER_HOST";
/// What `network` says when there is none.
const NO_NETWORK: &str = "none";

/// How a container is set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContainerSettings {
    /// The image by its name, pulled when it is missing. Either this or `rootfs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// A tar of a root file system on this machine, plain or by gzip, imported when it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rootfs: Option<PathBuf>,
    /// The daemon: `unix:///path` or `tcp://host:port`. Default: `DOCKER_HOST` of the gateway's environment, else this
    /// machine's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// What a daemon behind `tcp://` is spoken to with. Without it, in the clear.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsSettings>,
    /// The OCI runtime, such as `runsc` or `kata`. Default: the daemon's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// `none`, or the daemon's network of this name, such as `bridge`. Default `none`.
    pub network: String,
    /// Where `/workspace` is: `bind`, a folder of this machine, or `volume`, one of the daemon's. Default `bind`.
    pub workspace: WorkspacePlace,
    /// Whether anything but `/workspace` and `/tmp` may be written: `read-only` or `writable`. Default `read-only`.
    pub root: RootAccess,
    /// What runs commands: `bash` or `sh`; the image must have it. Default `bash`.
    pub shell: ShellProgram,
    /// Memory, in MiB. Default 2048.
    pub memory_mib: u64,
    /// Processes and threads. Default 512.
    pub processes: u64,
    /// Processor time per time, in thousandths of a processor. Default 2000, on a small machine three quarters of it.
    pub millicpus: u64,
    /// Size of `/workspace`, in MiB, where it is a folder of this machine. Default 2048.
    pub workspace_mib: u64,
    /// Size of `/tmp`, in MiB. Default 512.
    pub tmp_mib: u64,
    /// What one call may print, in MiB. Default 64.
    pub output_mib: u64,
    /// What must be free on the disk of the work folder for a call to start, in MiB. Default 1024.
    pub free_disk_mib: u64,
    /// An instance that no call used for so long is released, in seconds; `/workspace` stays. Default 900.
    pub idle_s: u64,
    /// Which tools a brain may call: allow, ask, ask-owner or deny, for all or by tool. Default allow.
    #[serde(skip_serializing_if = "Permissions::is_usual")]
    pub permission: Permissions,
}

/// Files that a daemon's TLS needs, PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsSettings {
    /// Whom to believe that it is the daemon.
    pub ca: PathBuf,
    /// Our certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// Where `/workspace` is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum WorkspacePlace {
    /// A folder of this machine
    #[default]
    Bind,
    /// A volume of the daemon's
    Volume,
}

/// Whether the root file system may be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum RootAccess {
    /// It may not
    #[default]
    ReadOnly,
    /// It may; what is written goes with the container
    Writable,
}

/// What runs commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ShellProgram {
    /// `bash -lc`
    #[default]
    Bash,
    /// `sh -c`
    Sh,
}

impl Default for ContainerSettings {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            image: None,
            rootfs: None,
            host: None,
            tls: None,
            runtime: None,
            network: NO_NETWORK.to_owned(),
            workspace: WorkspacePlace::Bind,
            root: RootAccess::ReadOnly,
            shell: ShellProgram::Bash,
            memory_mib: limits.memory >> 20,
            processes: limits.processes,
            millicpus: limits.millicpus,
            workspace_mib: limits.workspace >> 20,
            tmp_mib: limits.tmp >> 20,
            output_mib: (limits.output >> 20) as u64,
            free_disk_mib: limits.free_disk >> 20,
            idle_s: 900,
            permission: Permissions::default(),
        }
    }
}

impl ContainerSettings {
    /// Refuses what makes no sense. Touches nothing.
    pub fn check(&self) -> Result<(), BadSetting> {
        match (&self.image, &self.rootfs) {
            (Some(image), None) if !image.is_empty() => {}
            (None, Some(rootfs)) => absolute("rootfs", rootfs)?,
            _ => {
                return Err(BadSetting::Needs(
                    "a container needs an image, such as \"debian:stable-slim\", or a rootfs, the path of a tar: give \
                     one of the two",
                ));
            }
        }
        let known = |host: &String| ["unix:///", "tcp://"].iter().any(|scheme| host.starts_with(scheme));
        if self.host.as_ref().is_some_and(|host| !known(host)) {
            let must = "unix:///path or tcp://host:port, as in DOCKER_HOST".to_owned();
            return Err(BadSetting::Value { setting: "host", must });
        }
        if let Some(TlsSettings { ca, certificate, key }) = &self.tls {
            for (setting, path) in [("tls.ca", ca), ("tls.certificate", certificate), ("tls.key", key)] {
                absolute(setting, path)?;
            }
        }
        if self.network.is_empty() {
            let must = "none, or the name of a network of the daemon's".to_owned();
            return Err(BadSetting::Value { setting: "network", must });
        }
        for (setting, value) in [
            ("memory_mib", self.memory_mib),
            ("workspace_mib", self.workspace_mib),
            ("tmp_mib", self.tmp_mib),
            ("output_mib", self.output_mib),
            ("free_disk_mib", self.free_disk_mib),
        ] {
            mib(setting, value)?;
        }
        within("processes", self.processes, 8, 1 << 20)?;
        within("millicpus", self.millicpus, 10, 1 << 20)?;
        seconds("idle_s", self.idle_s)
    }

    /// Makes relative paths absolute, as seen from `folder`; `home` is `~`.
    pub fn place(&mut self, folder: &Path, home: Option<&Path>) {
        place(self.paths(), folder, home);
    }

    /// Its files on this machine.
    pub(super) fn paths(&mut self) -> Vec<&mut PathBuf> {
        let tls = self.tls.iter_mut().flat_map(|tls| [&mut tls.ca, &mut tls.certificate, &mut tls.key]);
        self.rootfs.iter_mut().chain(tls).collect()
    }

    /// What the hand is made of.
    pub fn resolve(&self, ground: &Ground) -> Result<ContainerConfig, BadSetting> {
        self.check()?;
        let image = match (&self.image, &self.rootfs) {
            (Some(name), _) => Image::Named(name.clone()),
            (None, rootfs) => Image::Rootfs(rootfs.clone().unwrap_or_default()),
        };
        let told = || (ground.variables)(DOCKER_HOST).map(|host| host.expose_secret().to_owned());
        Ok(ContainerConfig {
            node: ground.data.display().to_string(),
            host: self.host.clone().or_else(told).unwrap_or_else(|| DEFAULT_HOST.to_owned()),
            tls: self.tls.clone().map(|TlsSettings { ca, certificate, key }| container::Tls {
                ca,
                certificate,
                key,
            }),
            image,
            runtime: self.runtime.clone(),
            network: match self.network.as_str() {
                NO_NETWORK => container::Network::None,
                name => container::Network::Named(name.to_owned()),
            },
            workspace: match self.workspace {
                WorkspacePlace::Bind => Workspace::Bind,
                WorkspacePlace::Volume => Workspace::Volume,
            },
            root: match self.root {
                RootAccess::ReadOnly => Root::ReadOnly,
                RootAccess::Writable => Root::Writable,
            },
            shell: match self.shell {
                ShellProgram::Bash => ShellName::Bash,
                ShellProgram::Sh => ShellName::Sh,
            },
            limits: Limits {
                memory: bytes(self.memory_mib),
                processes: self.processes,
                millicpus: self.millicpus,
                workspace: bytes(self.workspace_mib),
                tmp: bytes(self.tmp_mib),
                output: size(self.output_mib),
                free_disk: bytes(self.free_disk_mib),
            },
        })
    }
}
