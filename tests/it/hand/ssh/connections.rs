//! The processes behind an instance's connection, and a daemon's port.

use std::net::TcpStream;

use hands::InstanceId;
use rustix::process::Pid;

use crate::hand::marked::{keepers_of, parent};
use crate::hand::rig::soon;

/// The processes of the connections that hold an instance: the session's own, and where there is one its monitor.
pub(super) fn connections_of(instance: &InstanceId) -> Vec<Pid> {
    let mut found = Vec::new();
    for keeper in keepers_of(instance) {
        let mut above = parent(keeper);
        while let Some(pid) = above {
            // Its title changes with every session, its name does not. The daemon itself is a child of ours.
            let name =
                std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero())).unwrap_or_default();
            let over = parent(pid);
            if name.trim() != "sshd" || over == Some(rustix::process::getpid()) {
                break;
            }
            found.push(pid);
            above = over;
        }
    }
    found
}

/// Whether a process is there and no zombie.
pub(super) fn is_running(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Waits until a port is free.
pub(super) async fn is_closed(port: u16) {
    soon(|| TcpStream::connect(("127.0.0.1", port)).is_err()).await;
}
