//! How a sandbox is set up.

use std::path::{Path, PathBuf};

use hands::sandbox::{Access, Mount, SandboxConfig};
use serde::{Deserialize, Serialize};

use super::permission::Permissions;

/// How a sandbox is set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxSettings {
    /// Folders of this machine inside it: `HOST:/path` or `HOST:/path:ro`.
    pub mounts: Vec<String>,
    /// What it can reach. Default none.
    pub network: Network,
    /// An instance that no call used for so long is released, in seconds; `/workspace` stays. Default 900.
    pub idle_s: u64,
    /// Which tools a brain may call: allow, ask, ask-owner or deny, for all or by tool. Default allow.
    #[serde(skip_serializing_if = "Permissions::is_usual")]
    pub permission: Permissions,
}

impl Default for SandboxSettings {
    fn default() -> Self {
        Self { mounts: Vec::new(), network: Network::None, idle_s: 900, permission: Permissions::default() }
    }
}

/// Why a mount can't be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMount {
    /// Not the form of one.
    #[error("{0:?} is no mount: write HOST:/path or HOST:/path:ro, both absolute")]
    Form(String),
    /// There is nothing at the host's end.
    #[error("there is no {} on this machine to mount", .0.display())]
    Missing(PathBuf),
    /// The sandbox has something of its own there.
    #[error("nothing can be mounted at {}: the sandbox has its own, name a place such as /project", .0.display())]
    Place(PathBuf),
    /// Two mounts want one place.
    #[error("two mounts have the place {}: give each its own", .0.display())]
    Twice(PathBuf),
}

impl SandboxSettings {
    /// What the sandbox is made of. `program` is our own executable. Whether the host's ends are there is looked at
    /// when an instance starts: a folder that went away harms only calls of this hand.
    pub fn resolve(&self, program: PathBuf) -> Result<SandboxConfig, BadMount> {
        let mounts = self.mounts.iter().map(|mount| read_mount(mount)).collect::<Result<Vec<_>, _>>()?;
        for (n, mount) in mounts.iter().enumerate() {
            if mounts.iter().take(n).any(|earlier| earlier.at == mount.at) {
                return Err(BadMount::Twice(mount.at.clone()));
            }
        }
        let network = match self.network {
            Network::None => hands::sandbox::Network::None,
            Network::Host => hands::sandbox::Network::Host,
        };
        Ok(SandboxConfig { mounts, network, ..SandboxConfig::new(program) })
    }

    /// Refuses mounts of what is not there: for those that are being added.
    pub fn check_hosts(&self) -> Result<(), BadMount> {
        for mount in &self.mounts {
            let host = read_mount(mount)?.host;
            if !host.exists() {
                return Err(BadMount::Missing(host));
            }
        }
        Ok(())
    }
}

/// `HOST:/path` or `HOST:/path:ro`, in its parts.
pub fn split_mount(text: &str) -> Result<(&str, &str, Access), BadMount> {
    let (rest, access) = match text.strip_suffix(":ro") {
        Some(rest) => (rest, Access::ReadOnly),
        None => (text.strip_suffix(":rw").unwrap_or(text), Access::ReadWrite),
    };
    match rest.rsplit_once(':') {
        Some((host, at)) if !host.is_empty() && at.starts_with('/') => Ok((host, at, access)),
        _ => Err(BadMount::Form(text.to_owned())),
    }
}

fn read_mount(text: &str) -> Result<Mount, BadMount> {
    let (host, at, access) = split_mount(text)?;
    // Rebuilt of its parts, so that `/a//b/` and `/a/b` are one place.
    let (host, at) = (PathBuf::from(host), Path::new(at).components().collect::<PathBuf>());
    if !host.is_absolute() {
        return Err(BadMount::Form(text.to_owned()));
    }
    if !hands::sandbox::may_mount_at(&at) {
        return Err(BadMount::Place(at));
    }
    let host = host.canonicalize().unwrap_or(host);
    Ok(Mount { host, at, access })
}

/// What a sandbox can reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Nothing but itself.
    #[default]
    None,
    /// All that this machine can.
    Host,
}
