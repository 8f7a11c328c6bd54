//! Ending processes that an earlier gateway left behind, found by two arguments of their command lines.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::{HandError, InstanceId};

/// How long the end of killed processes may take.
const END: Duration = Duration::from_secs(5);
/// Pause between two looks at them.
const LOOK: Duration = Duration::from_millis(10);

/// Kills every process that has the argument `before`, followed by `prefix` and the name of one of `instances`, and waits for its end.
pub(crate) async fn end(before: &str, prefix: &str, instances: &[InstanceId]) -> Result<(), HandError> {
    let marks: Vec<String> = instances.iter().map(|instance| format!("{prefix}{instance}")).collect();
    let until = Instant::now() + END;
    loop {
        let found = marked(before, &marks)
            .map_err(|source| HandError::Io { doing: "looking for processes", source })?;
        if found.is_empty() {
            return Ok(());
        }
        if Instant::now() > until {
            let source = io::Error::other(format!("{} processes do not end", found.len()));
            return Err(HandError::Io { doing: "ending an orphaned hand", source });
        }
        for pid in found {
            let _ = kill_process(pid, Signal::KILL);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits until there is no such process, for a while.
pub(crate) async fn wait(before: &str, prefix: &str, instances: &[InstanceId]) {
    let marks: Vec<String> = instances.iter().map(|instance| format!("{prefix}{instance}")).collect();
    let until = Instant::now() + END;
    while Instant::now() < until && marked(before, &marks).is_ok_and(|found| !found.is_empty()) {
        tokio::time::sleep(LOOK).await;
    }
}

fn marked(before: &str, marks: &[String]) -> io::Result<Vec<Pid>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // It may have ended since; one that has ended and waits for its parent has no command line.
        let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else { continue };
        let mut arguments =
            line.split(|byte| *byte == 0).skip_while(|argument| *argument != before.as_bytes());
        if let Some(mark) = arguments.nth(1)
            && marks.iter().any(|wanted| wanted.as_bytes() == mark)
        {
            found.extend(Pid::from_raw(pid));
        }
    }
    Ok(found)
}
