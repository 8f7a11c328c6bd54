//! How a sandbox is set up.

use std::path::{Path, PathBuf};

use hands::sandbox::{Access, Mount, SandboxConfig};
use serde::{Deserialize, Serialize};

use super::canonical::{PlantedLink, canonical};
use super::guarded::Guard;
use super::permission::Permissions;
use super::setting::Ground;

/// How a sandbox is set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxSettings {
    /// Folders of this machine inside it: `HOST:/path` or `HOST:/path:ro`.
    pub mounts: Vec<String>,
    /// Sockets in mounts that stay open to it, or folders whose sockets do, by their paths inside. All others on which
    /// somebody listens when an instance starts are covered. Default none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sockets: Vec<PathBuf>,
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
        Self {
            mounts: Vec::new(),
            sockets: Vec::new(),
            network: Network::None,
            idle_s: 900,
            permission: Permissions::default(),
        }
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
    /// A socket that no mount shows.
    #[error("{} of sockets is in no mount: name a socket, or a folder with sockets, by its path in the sandbox", .0.display())]
    Socket(PathBuf),
    /// An agent could change what decides over the gateway.
    #[error(
        "{} can't be mounted to be written to: an agent could change {} there, {}, and so have anything run on this \
         machine; mount another folder, mount it :ro, or {}",
        host.display(), guard.name(), place.display(), guard.way_out()
    )]
    Guarded {
        /// What was to be mounted.
        host: PathBuf,
        /// What it holds.
        guard: Guard,
        /// Where that is.
        place: PathBuf,
    },
}

impl SandboxSettings {
    /// What the sandbox is made of. Whether the host's ends are there is looked at when an instance starts: a folder that
    /// went away harms only calls of this hand.
    pub fn resolve(&self, ground: &Ground) -> Result<SandboxConfig, BadMount> {
        let mounts = self.mounts.iter().map(|mount| read_mount(mount)).collect::<Result<Vec<_>, _>>()?;
        for (n, mount) in mounts.iter().enumerate() {
            if mounts.iter().take(n).any(|earlier| earlier.at == mount.at) {
                return Err(BadMount::Twice(mount.at.clone()));
            }
        }
        let shown = |socket: &&PathBuf| mounts.iter().any(|mount| socket.starts_with(&mount.at));
        if let Some(nowhere) = self.sockets.iter().find(|socket| !shown(socket)) {
            return Err(BadMount::Socket(nowhere.clone()));
        }
        let network = match self.network {
            Network::None => hands::sandbox::Network::None,
            Network::Host => hands::sandbox::Network::Host,
        };
        Ok(SandboxConfig {
            mounts,
            sockets: self.sockets.clone(),
            hidden: ground.hidden.clone(),
            network,
            ..SandboxConfig::new(ground.program.clone())
        })
    }

    /// Makes the host's ends canonical. What is no mount stays as it is, for [`Self::resolve`] to refuse.
    pub(super) fn make_canonical(&mut self, writable: &[PathBuf]) -> Result<(), PlantedLink> {
        // Those of its own that can be written to come to the same brain.
        let writable: Vec<PathBuf> = writable.iter().cloned().chain(self.writable()).collect();
        for mount in &mut self.mounts {
            let Ok((host, at, access)) = split_mount(mount) else { continue };
            if !Path::new(host).is_absolute() {
                continue;
            }
            // A path that is no text stays what it is; the sandbox refuses links in it later.
            if let Some(host) = canonical(Path::new(host), &writable)?.to_str() {
                let end = if access == Access::ReadOnly { ":ro" } else { "" };
                *mount = format!("{host}:{at}{end}");
            }
        }
        Ok(())
    }

    /// The host's ends that can be written to, as they are named and as they are.
    pub(super) fn writable(&self) -> Vec<PathBuf> {
        let mounts = self.mounts.iter().filter_map(|mount| split_mount(mount).ok());
        let named = mounts
            .filter(|(_, _, access)| *access == Access::ReadWrite)
            .map(|(host, ..)| PathBuf::from(host));
        named.flat_map(|host| [host.canonicalize().ok(), Some(host)]).flatten().collect()
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
