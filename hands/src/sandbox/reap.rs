//! Ending what an earlier gateway left behind, found by the marks that every sandbox carries.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::cgroup;
use crate::{HandError, InstanceId};

/// How long the end of killed processes may take.
const END: Duration = Duration::from_secs(5);
/// Pause between two looks at them.
const LOOK: Duration = Duration::from_millis(10);

/// Kills every process of `instances`, waits for their end and removes their cgroups.
pub(super) async fn reap(instances: &[InstanceId]) -> Result<(), HandError> {
    let until = Instant::now() + END;
    loop {
        let found =
            marked(instances).map_err(|source| HandError::Io { doing: "looking for processes", source })?;
        if found.is_empty() {
            break;
        }
        if Instant::now() > until {
            let source = io::Error::other(format!("{} processes do not end", found.len()));
            return Err(HandError::Io { doing: "ending an orphaned sandbox", source });
        }
        for pid in found {
            let _ = kill_process(pid, Signal::KILL);
        }
        tokio::time::sleep(LOOK).await;
    }
    cgroup::reap(instances).await;
    Ok(())
}

/// Processes whose command line says that they hold up one of `instances`: `bwrap` and PID 1, with
/// which the kernel ends the rest.
fn marked(instances: &[InstanceId]) -> io::Result<Vec<Pid>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // It may have ended since.
        let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else { continue };
        if let Some(instance) = mark(&line)
            && instances.iter().any(|wanted| wanted.0.as_bytes() == instance)
        {
            found.extend(Pid::from_raw(pid));
        }
    }
    Ok(found)
}

/// The instance that a command line belongs to: the argument after `sandbox-init`.
fn mark(line: &[u8]) -> Option<&[u8]> {
    let mut arguments = line.split(|byte| *byte == 0).skip_while(|argument| *argument != b"sandbox-init");
    arguments.nth(1)
}
