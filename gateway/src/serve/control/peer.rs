//! Who is at the other end of the owner's socket: this user or root, in this process's own PID namespace.
//!
//! A sandbox or container that has the data directory mounted runs as this user, and reading is enough to connect. It has a
//! PID namespace of its own, which it can't leave.

use std::os::fd::AsRawFd;
use std::path::PathBuf;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerPidfd;
use tokio::net::UnixStream;

/// Why a peer is not answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stranger {
    /// It is another user's. It gets no answer at all.
    #[error("it runs as the user {0}")]
    User(u32),
    /// It is in another PID namespace, or on its way out.
    #[error("it runs in another PID namespace than the gateway, or has ended: {0}")]
    Elsewhere(&'static str),
    /// The kernel does not say.
    #[error("the kernel does not say who it is: {0}")]
    Unknown(std::io::Error),
}

/// Refuses everybody but this user and root in this PID namespace.
pub(super) fn check(stream: &UnixStream) -> Result<(), Stranger> {
    let peer = stream.peer_cred().map_err(Stranger::Unknown)?;
    let ours = rustix::process::geteuid().as_raw();
    if peer.uid() != ours && peer.uid() != 0 {
        return Err(Stranger::User(peer.uid()));
    }
    match getsockopt(stream, PeerPidfd) {
        Ok(pidfd) => by_descriptor(&pidfd),
        // Before Linux 6.5 there is the number alone, which may be another process's by now.
        Err(nix::errno::Errno::ENOPROTOOPT) => by_number(peer.pid().unwrap_or_default()),
        Err(_) => Err(Stranger::Elsewhere("its process is gone")),
    }
}

/// By a descriptor of its process: that is the one that connected, and can't be another one meanwhile. It has one number in
/// each namespace from the gateway's on down to its own.
fn by_descriptor(pidfd: &impl AsRawFd) -> Result<(), Stranger> {
    // Only a /proc of the gateway's own namespace counts from there on.
    if numbers("/proc/self/status".into()).len() != 1 {
        return Err(Stranger::Elsewhere("/proc of the gateway is that of another namespace"));
    }
    match numbers(PathBuf::from(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))).as_slice() {
        [number] if *number > 0 => Ok(()),
        [_, _, ..] => Err(Stranger::Elsewhere("its namespace is within that of the gateway")),
        _ => Err(Stranger::Elsewhere("the gateway can't see its process")),
    }
}

/// The numbers of a process in the PID namespaces that it is in.
fn numbers(path: PathBuf) -> Vec<i64> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("NSpid:"));
    line.into_iter().flat_map(str::split_whitespace).filter_map(|number| number.parse().ok()).collect()
}

/// By its number, as the socket has it since it connected.
fn by_number(pid: i32) -> Result<(), Stranger> {
    let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/pid")).ok();
    let own = namespace("self");
    if pid > 0 && own.is_some() && namespace(&pid.to_string()) == own {
        return Ok(());
    }
    Err(Stranger::Elsewhere("its namespace is another one, or can't be seen"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn this_process_is_no_stranger_and_nobody_is() {
        let (one, _other) = UnixStream::pair().unwrap();
        check(&one).unwrap();
        by_number(i32::try_from(std::process::id()).unwrap()).unwrap();
        for pid in [0, -1, i32::MAX] {
            by_number(pid).unwrap_err();
        }
    }
}
