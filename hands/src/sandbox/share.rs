//! What one instance may take of what the kernel counts for a user as a whole.
//!
//! Without root an instance runs as the gateway's user, and what it takes, that user's other programs lack, the
//! gateway among them. So none takes more than a part of it.

use std::fs;
use std::io;

use rustix::process::{Resource, getrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities,
};

/// Most open files of a process. As many descriptors may be on their way through the user's sockets.
const OPEN_FILES: u64 = 16 * 1024;
/// Most pending signals and timers of the user for an instance to get another one.
const SIGNALS: u64 = 1024;
/// Bytes of POSIX message queues: three of the usual size.
const QUEUES: u64 = 256 * 1024;
/// Bytes of locked memory, as programs that keep keys in memory need them.
const LOCKED: u64 = 64 * 1024;
/// The limits that belong to a process and hold back what is counted for its user, with the names that a Docker daemon
/// has for them.
pub(crate) const LIMITS: [(Resource, &str, u64); 4] = [
    (Resource::Nofile, "nofile", OPEN_FILES),
    (Resource::Sigpending, "sigpending", SIGNALS),
    (Resource::Msgqueue, "msgqueue", QUEUES),
    (Resource::Memlock, "memlock", LOCKED),
];
/// An instance gets one of so many parts of what a user may have of inotify.
const PARTS: u64 = 8;
/// What a user may have of inotify: where this machine says it, and where a user namespace does for itself.
const INOTIFY: [(&str, &str); 2] = [
    ("/proc/sys/fs/inotify/max_user_instances", "/proc/sys/user/max_inotify_instances"),
    ("/proc/sys/fs/inotify/max_user_watches", "/proc/sys/user/max_inotify_watches"),
];
/// What PID 1 of a sandbox may until it has set these limits, with the names that `bwrap` has for it: to set them, and
/// to give both up for good.
pub(super) const CAPABILITIES: [(CapabilitySet, &str); 2] =
    [(CapabilitySet::SYS_RESOURCE, "CAP_SYS_RESOURCE"), (CapabilitySet::SETPCAP, "CAP_SETPCAP")];

/// As much as is wanted of something, and at most half of what our own user may have.
pub(crate) fn at_most_half(resource: Resource, wanted: u64) -> u64 {
    wanted.min(getrlimit(resource).maximum.map_or(u64::MAX, |ours| ours / 2))
}

/// Limits inotify for this user namespace, which no process of it can undo.
pub(super) fn limit_inotify() -> io::Result<()> {
    for (machine, namespace) in INOTIFY {
        let all: u64 = fs::read_to_string(machine)?.trim().parse().map_err(io::Error::other)?;
        fs::write(namespace, (all / PARTS).max(1).to_string())?;
    }
    Ok(())
}

/// Gives up every capability, for this process and all that it starts.
pub(super) fn give_up_capabilities() -> io::Result<()> {
    for (capability, name) in CAPABILITIES {
        // AppArmor may keep capabilities from what `bwrap` starts, and then this needs none given up: no program here
        // can gain one.
        if let Err(error) = remove_capability_from_bounding_set(capability) {
            eprintln!("sandbox init: {name} stays in the bounding set: {error}");
        }
    }
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}
