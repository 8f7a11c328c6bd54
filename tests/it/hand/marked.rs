//! Processes on this machine that belong to an instance on a host that is this machine.

use std::fs;

use hands::InstanceId;
use rustix::process::Pid;

/// The processes that look after an instance: one for each time it was made.
pub(crate) fn keepers_of(instance: &InstanceId) -> Vec<Pid> {
    let keepers = having(&format!("MANYHANDS_HOLD={instance}/"));
    keepers
        .iter()
        .copied()
        .filter(|pid| parent(*pid).is_none_or(|parent| !keepers.contains(&parent)))
        .collect()
}

/// All that runs of an instance, in words.
pub(crate) fn marked(instance: &InstanceId) -> Vec<String> {
    let marks = ["CALL", "HOLD"].map(|mark| having(&format!("MANYHANDS_{mark}={instance}/")));
    marks.concat().into_iter().map(|pid| format!("{pid:?} {}", line(pid))).collect()
}

fn line(pid: Pid) -> String {
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ").chars().take(80).collect()
}

/// Processes whose environment has something that begins so.
fn having(mark: &str) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    let has = |pid: &Pid| {
        let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|one| one.starts_with(mark.as_bytes()))
    };
    pids.filter(has).collect()
}

/// The parent of a process.
pub(crate) fn parent(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    Pid::from_raw(rest.split(' ').nth(1)?.parse().ok()?)
}
