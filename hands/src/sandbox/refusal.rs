//! Why a sandbox can't start, in one sentence with what to do. `doctor` and the first call say the same.

use std::fs;
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use super::Mount;
use super::enter::REFUSED;
use super::idmap::MAPPING;
use crate::HandError;

/// Oldest bubblewrap that can forbid user namespaces inside.
pub(super) const OLDEST_BWRAP: (u32, u32) = (0, 8);

/// A lack, and the one thing to do about it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Lack {
    pub(super) why: String,
    pub(super) remedy: String,
}

impl Lack {
    pub(super) fn new(why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { why: why.into(), remedy: remedy.into() }
    }
}

impl From<Lack> for HandError {
    fn from(Lack { why, remedy }: Lack) -> Self {
        Self::Unavailable { why, remedy }
    }
}

/// There is no `bwrap`.
pub(super) fn no_bubblewrap() -> Lack {
    Lack::new("bubblewrap is not installed", "install it: sudo apt-get install bubblewrap")
}

/// It can't do what we need.
pub(super) fn old_bubblewrap(version: &str) -> Lack {
    let (major, minor) = OLDEST_BWRAP;
    Lack::new(
        format!("bubblewrap {version} is too old"),
        format!("install {major}.{minor} or newer (Debian 12, Ubuntu 24.04 and later have it)"),
    )
}

/// It can't mount what is open already.
pub(super) fn no_bind_fd() -> Lack {
    Lack::new(
        "this bubblewrap has no --bind-fd, without which somebody could exchange a mount while it is made",
        "install one that has it: those of Debian 12 and Ubuntu with their security updates, or 0.10 or newer",
    )
}

/// What is open is not where it was.
fn changing_mount() -> Lack {
    Lack::new(
        "a mount of this hand was moved or removed while it was made, so nothing was mounted",
        "see who changes the folder that it lies in, then try again",
    )
}

/// The kernel refuses user namespaces to programs without privilege, for the reason that it shows.
pub(super) fn no_user_namespaces() -> Lack {
    let setting = |name: &str| fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default();
    if setting("kernel/apparmor_restrict_unprivileged_userns").trim() == "1" {
        return apparmor();
    }
    if setting("kernel/unprivileged_userns_clone").trim() == "0" {
        return Lack::new(
            "user namespaces are switched off on this machine",
            "switch them on: sudo sysctl -w kernel.unprivileged_userns_clone=1",
        );
    }
    if setting("user/max_user_namespaces").trim() == "0" {
        return Lack::new(
            "user namespaces are switched off on this machine",
            "switch them on: sudo sysctl -w user.max_user_namespaces=15000",
        );
    }
    Lack::new(
        "user namespaces are refused here, as in most containers",
        "run the gateway outside of the container, or start the container with --security-opt seccomp=unconfined \
         --security-opt apparmor=unconfined --security-opt systempaths=unconfined",
    )
}

/// Ubuntu's default since 23.10.
fn apparmor() -> Lack {
    Lack::new(
        "AppArmor refuses user namespaces to bubblewrap",
        "allow them: printf 'abi <abi/4.0>,\\ninclude <tunables/global>\\nprofile bwrap /usr/bin/bwrap \
         flags=(unconfined) {\\n  userns,\\n  include if exists <local/bwrap>\\n}\\n' | sudo tee \
         /etc/apparmor.d/bwrap && sudo apparmor_parser -r /etc/apparmor.d/bwrap",
    )
}

/// No mount may appear where the sandbox has something of its own.
pub(super) fn check_places(mounts: &[Mount]) -> Result<(), HandError> {
    for mount in mounts {
        if !may_mount_at(&mount.at) {
            let why = format!("nothing can be mounted at {} in a sandbox", mount.at.display());
            return Err(Lack::new(why, "name a place of its own for it, such as /project").into());
        }
    }
    Ok(())
}

/// Whether something of this machine can appear at `at` in a sandbox: not where the sandbox has its own.
pub fn may_mount_at(at: &Path) -> bool {
    let plain = at.is_absolute() && !at.components().any(|part| part == Component::ParentDir);
    let taken = super::TAKEN.iter().any(|taken| at == Path::new(taken));
    plain && !taken && !super::SYSTEM.iter().any(|system| at.starts_with(system))
}

/// Turns what `sandbox-enter` and `bwrap` printed before they gave up into a reason and a remedy.
pub(super) fn explain(report: &str) -> HandError {
    let text = report.trim();
    if let Some((_, lack)) = text.lines().find_map(|line| line.split_once(REFUSED))
        && let Ok(lack) = serde_json::from_str::<Lack>(lack)
    {
        return lack.into();
    }
    let says = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    // Where it has neither, it names the option that it stumbled on.
    if says(&["Unknown option --bind-fd", "Unknown option --ro-bind-fd"]) {
        return no_bind_fd().into();
    }
    if says(&["Race condition binding", "Can't find source path /proc/self/fd"]) {
        return changing_mount().into();
    }
    if says(&["running bwrap: No such file"]) {
        return no_bubblewrap().into();
    }
    if says(&["Unknown option"]) {
        return old_bubblewrap("here").into();
    }
    if says(&[
        "No permissions to create new namespace",
        "No permissions to creating new namespace",
        "Creating new namespace failed",
        "creating new namespace",
        "setting up uid map",
        "Failed RTM_NEWADDR",
        "max_user_namespaces",
        "making a mount namespace",
    ]) {
        return no_user_namespaces().into();
    }
    let line = text.lines().last().unwrap_or("it printed no reason").trim_start_matches("manyhands: ");
    if says(&[MAPPING]) {
        let remedy = "add the mount as :ro, or run the gateway as the folder's owner instead of root";
        return Lack::new(line, remedy).into();
    }
    Lack::new(format!("the sandbox did not start: {line}"), "see what manyhands doctor says").into()
}
