//! Everything that a server started, and how it is found: by its group, by descent, and by the mark that all of them
//! have in their environment.
//!
//! A process that leaves the group and its parents keeps the mark, unless it clears its environment as well.

use std::collections::HashSet;
use std::fs;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getuid, kill_process, kill_process_group};
use tokio::process::Command;

use crate::{HandError, InstanceId};

/// The variable that names the instance that a server was started for.
const INSTANCE: &str = "MANYHANDS_INSTANCE";
/// The variable that names the server, and the gateway that started it.
const SERVER: &str = "MANYHANDS_SERVER";
/// How often killed processes are looked for again: one may fork before it dies.
const PASSES: usize = 20;
/// Pause between two looks.
const PASS: Duration = Duration::from_millis(5);
/// How long orphans may take to end.
const REAP_MAX: Duration = Duration::from_secs(5);

static COUNT: AtomicU64 = AtomicU64::new(0);
/// This process, as no other is named.
static GATEWAY: LazyLock<Gateway> = LazyLock::new(|| {
    let pid = std::process::id();
    Gateway { namespace: namespace(), pid, start: stat(pid).map(|stat| stat.start).unwrap_or_default() }
});

/// A gateway's process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Gateway {
    /// The inode of its pid namespace: in another one its pid means nothing.
    namespace: String,
    pid: u32,
    /// When it started, in clock ticks since boot.
    start: u64,
}

impl Gateway {
    fn is_dead(&self) -> bool {
        self.namespace == GATEWAY.namespace && stat(self.pid).is_none_or(|stat| stat.start != self.start)
    }
}

/// What one server and everything that it starts have in their environment.
#[derive(Clone, Debug)]
pub(super) struct Mark(String);

impl Mark {
    pub(super) fn new() -> Self {
        let Gateway { namespace, pid, start } = &*GATEWAY;
        Self(format!("{namespace}.{pid}.{start}.{}", COUNT.fetch_add(1, Ordering::Relaxed)))
    }

    pub(super) fn put_on(&self, command: &mut Command, instance: &InstanceId) {
        command.env(INSTANCE, &instance.0).env(SERVER, &self.0);
    }
}

fn gateway_of(mark: &str) -> Option<Gateway> {
    let mut parts = mark.split('.');
    let namespace = parts.next()?.to_owned();
    Some(Gateway { namespace, pid: parts.next()?.parse().ok()?, start: parts.next()?.parse().ok()? })
}

/// A process, as long as it is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Known {
    pid: u32,
    start: u64,
}

impl Known {
    fn kill(self) {
        // A pid may have been given to another since.
        if stat(self.pid).is_some_and(|stat| stat.start == self.start && !stat.zombie)
            && let Some(pid) = pid_of(self.pid)
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    fn lives(self) -> bool {
        stat(self.pid).is_some_and(|stat| stat.start == self.start && !stat.zombie)
    }
}

/// A server's process and everything that came of it. Its group is killed when this is dropped.
pub(super) struct Family {
    leader: Option<u32>,
    mark: Mark,
    seen: HashSet<Known>,
}

impl Family {
    pub(super) fn of(leader: Option<u32>, mark: Mark) -> Self {
        Self { leader, mark, seen: HashSet::new() }
    }

    /// Notes who is there, while descent can still be seen.
    pub(super) async fn remember(&mut self) {
        let (leader, mark) = (self.leader, self.mark.clone());
        let found = tokio::task::spawn_blocking(move || members(leader, &mark)).await;
        self.seen.extend(found.unwrap_or_default());
    }

    /// Asks the group to end.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Kills everybody, and looks until nobody is left.
    pub(super) async fn kill(&mut self) {
        self.signal(Signal::KILL);
        for _ in 0..PASSES {
            self.remember().await;
            let alive: Vec<_> = self.seen.iter().filter(|known| known.lives()).copied().collect();
            if alive.is_empty() {
                break;
            }
            for known in alive {
                known.kill();
            }
            tokio::time::sleep(PASS).await;
        }
        self.leader = None;
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.leader.and_then(pid_of) {
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Who is in the group, or below its leader, or marked. Never this process.
fn members(leader: Option<u32>, mark: &Mark) -> Vec<Known> {
    let all = everybody();
    let mut tree: HashSet<u32> = leader.into_iter().collect();
    loop {
        let below = all.iter().filter(|(_, stat)| tree.contains(&stat.parent)).map(|(pid, _)| *pid);
        let more: Vec<u32> = below.filter(|pid| !tree.contains(pid)).collect();
        if more.is_empty() {
            break;
        }
        tree.extend(more);
    }
    let belongs = |pid: u32, stat: &Stat| {
        tree.contains(&pid)
            || leader == Some(stat.group)
            || variables(pid).is_some_and(|all| value(&all, SERVER) == Some(&mark.0))
    };
    all.into_iter()
        .filter(|(pid, stat)| *pid != std::process::id() && !stat.zombie && belongs(*pid, stat))
        .map(|(pid, stat)| Known { pid, start: stat.start })
        .collect()
}

/// Kills what an earlier gateway left behind of `instances`, and every server whose gateway is dead: a shared one is
/// named after an instance that may be long gone.
pub(in crate::upstream) async fn reap(instances: &[InstanceId]) -> Result<(), HandError> {
    let wanted: HashSet<String> = instances.iter().map(|instance| instance.0.clone()).collect();
    let until = Instant::now() + REAP_MAX;
    loop {
        let wanted = wanted.clone();
        let found = tokio::task::spawn_blocking(move || orphans(&wanted)).await.unwrap_or_default();
        if found.is_empty() {
            return Ok(());
        }
        if Instant::now() > until {
            let source = std::io::Error::other(format!("{} processes do not end", found.len()));
            return Err(HandError::Io { doing: "ending an orphaned MCP server", source });
        }
        for known in found {
            known.kill();
        }
        tokio::time::sleep(PASS).await;
    }
}

fn orphans(instances: &HashSet<String>) -> Vec<Known> {
    let orphan = |pid: u32| {
        let Some(all) = variables(pid) else { return false };
        let Some(gateway) = value(&all, SERVER).and_then(gateway_of) else { return false };
        // What this very process has started under such a name is not left behind.
        let named = value(&all, INSTANCE).is_some_and(|instance| instances.contains(instance));
        gateway.is_dead() || (named && gateway != *GATEWAY)
    };
    everybody()
        .into_iter()
        .filter(|(pid, stat)| !stat.zombie && orphan(*pid))
        .map(|(pid, stat)| Known { pid, start: stat.start })
        .collect()
}

struct Stat {
    zombie: bool,
    parent: u32,
    group: u32,
    start: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything, parentheses and spaces too.
    let fields: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_whitespace().collect();
    Some(Stat {
        zombie: matches!(*fields.first()?, "Z" | "X"),
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
    })
}

fn everybody() -> Vec<(u32, Stat)> {
    let Ok(proc) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = proc.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| Some((pid, stat(pid)?))).collect()
}

/// The environment that a process of our own user was started with.
fn variables(pid: u32) -> Option<Vec<u8>> {
    use std::os::unix::fs::MetadataExt;
    let owner = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    if owner != getuid().as_raw() {
        return None;
    }
    fs::read(format!("/proc/{pid}/environ")).ok()
}

fn value<'a>(variables: &'a [u8], name: &str) -> Option<&'a str> {
    variables.split(|byte| *byte == 0).find_map(|variable| {
        let rest = variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        std::str::from_utf8(rest).ok()
    })
}

fn namespace() -> String {
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    link.to_string_lossy().chars().filter(char::is_ascii_digit).collect()
}

fn pid_of(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}
