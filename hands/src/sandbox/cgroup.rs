//! Limits for all processes of an instance together, where this machine lets us set them.
//!
//! Version 1 has a tree for each controller, version 2 one tree for all. Where none may be written the
//! instance has resource limits of single processes alone, and `doctor` says so.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

use super::Limits;
use crate::InstanceId;

/// What a group of ours is called, before the instance.
const PREFIX: &str = "manyhands-";
/// Length of the period that processor time is given out for, in microseconds.
const PERIOD: u64 = 100_000;
/// How often an emptied group is tried to be removed: its processes take a moment to go.
const TRIES: u32 = 100;
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(10);
/// Deepest group that is looked at for leftovers.
const DEPTH: usize = 8;

/// Where groups can be made on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hierarchies {
    memory: Option<PathBuf>,
    pids: Option<PathBuf>,
    cpu: Option<PathBuf>,
    version: Version,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Version {
    #[default]
    One,
    Two,
}

impl Hierarchies {
    /// Looks at this machine.
    pub(super) fn find() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let two = mounted(&mounts, |kind, _| kind == "cgroup2").and_then(|root| unified(&root, &own));
        if let Some(base) = two {
            return Self {
                memory: Some(base.clone()),
                pids: Some(base.clone()),
                cpu: offers(&base, "cpu").then_some(base),
                version: Version::Two,
            };
        }
        let one = |controller: &str| {
            let root = mounted(&mounts, |kind, options| {
                kind == "cgroup" && options.split(',').any(|option| option == controller)
            })?;
            let path = own_path(&own, |names| names.split(',').any(|name| name == controller))?;
            [root.join(path), root].into_iter().find(|base| writable(base))
        };
        Self { memory: one("memory"), pids: one("pids"), cpu: one("cpu"), version: Version::One }
    }

    /// Which limits hold for an instance as a whole, in words.
    pub(super) fn offered(&self) -> Vec<&'static str> {
        let all = [("memory", &self.memory), ("processes", &self.pids), ("CPU", &self.cpu)];
        all.into_iter().filter_map(|(name, base)| base.as_ref().map(|_| name)).collect()
    }

    /// Makes an instance's groups with their limits.
    pub(super) fn make(&self, instance: &InstanceId, limits: &Limits) -> io::Result<Group> {
        let mut group = Group { folders: Vec::new(), memory: None, pids: None, version: self.version };
        let made = self.fill(&mut group, instance, limits);
        if made.is_err() {
            for folder in &group.folders {
                let _ = fs::remove_dir(folder);
            }
        }
        made.map(|()| group)
    }

    fn fill(&self, group: &mut Group, instance: &InstanceId, limits: &Limits) -> io::Result<()> {
        let quota = limits.millicpus * PERIOD / 1000;
        let two = self.version == Version::Two;
        if let Some(base) = &self.memory {
            let folder = group.folder(base, instance)?;
            let (file, swap) = if two {
                ("memory.max", ("memory.swap.max", "0".to_owned()))
            } else {
                ("memory.limit_in_bytes", ("memory.memsw.limit_in_bytes", limits.memory.to_string()))
            };
            fs::write(folder.join(file), limits.memory.to_string())?;
            // Only there when the kernel counts swap.
            let _ = fs::write(folder.join(swap.0), swap.1);
            group.memory = Some(folder);
        }
        if let Some(base) = &self.pids {
            let folder = group.folder(base, instance)?;
            fs::write(folder.join("pids.max"), limits.processes.to_string())?;
            group.pids = Some(folder);
        }
        if let Some(base) = &self.cpu {
            let folder = group.folder(base, instance)?;
            if two {
                fs::write(folder.join("cpu.max"), format!("{quota} {PERIOD}"))?;
            } else {
                fs::write(folder.join("cpu.cfs_period_us"), PERIOD.to_string())?;
                fs::write(folder.join("cpu.cfs_quota_us"), quota.to_string())?;
            }
        }
        Ok(())
    }
}

/// The groups of one instance.
#[derive(Debug)]
pub(super) struct Group {
    folders: Vec<PathBuf>,
    memory: Option<PathBuf>,
    pids: Option<PathBuf>,
    version: Version,
}

impl Group {
    /// Makes the instance's group below `base`, once where two controllers share a tree.
    fn folder(&mut self, base: &Path, instance: &InstanceId) -> io::Result<PathBuf> {
        let folder = base.join(format!("{PREFIX}{instance}"));
        if !self.folders.contains(&folder) {
            match fs::create_dir(&folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Ok(()) | Err(_) => self.folders.push(folder.clone()),
            }
        }
        Ok(folder)
    }

    /// Whether memory is limited for all processes together.
    pub(super) fn limits_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// Whether the number of processes is limited for the instance alone.
    pub(super) fn limits_processes(&self) -> bool {
        self.pids.is_some()
    }

    /// The files by which a process joins.
    pub(super) fn doors(&self) -> Vec<PathBuf> {
        self.folders.iter().map(|folder| folder.join("cgroup.procs")).collect()
    }

    /// How many processes the memory limit has killed so far.
    pub(super) fn killed_for_memory(&self) -> u64 {
        let file = if self.version == Version::Two { "memory.events" } else { "memory.oom_control" };
        let Some(folder) = &self.memory else { return 0 };
        let text = fs::read_to_string(folder.join(file)).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.trim().parse().ok()).unwrap_or_default()
    }

    /// Removes the groups, once their processes are gone.
    pub(super) async fn remove(&self) {
        for folder in &self.folders {
            remove(folder).await;
        }
    }
}

async fn remove(folder: &Path) {
    for _ in 0..TRIES {
        match fs::remove_dir(folder) {
            Ok(()) => return,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(_) => sleep(PAUSE).await,
        }
    }
    tracing::warn!(cgroup = %folder.display(), "a cgroup can't be removed");
}

/// Kills what is left in groups of `instances` anywhere on this machine, and removes the groups.
pub(super) async fn reap(instances: &[InstanceId]) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let names: Vec<String> = instances.iter().map(|instance| format!("{PREFIX}{instance}")).collect();
    let mut found = Vec::new();
    for root in every_mount(&mounts, |kind, _| kind.starts_with("cgroup")) {
        search(&root, &names, DEPTH, &mut found);
    }
    for folder in found {
        for pid in fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default().lines() {
            if let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        remove(&folder).await;
    }
}

fn search(folder: &Path, names: &[String], depth: usize, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if names.iter().any(|name| entry.file_name() == name.as_str()) {
            found.push(entry.path());
        } else if depth > 0 {
            search(&entry.path(), names, depth - 1, found);
        }
    }
}

/// The folder of the unified tree below which groups with limits on memory and processes can be made.
fn unified(root: &Path, own: &str) -> Option<PathBuf> {
    let path = own_path(own, str::is_empty)?;
    // Beside us, for a group with processes can't have limited groups below it; else at the top.
    let beside = root.join(path).parent().filter(|parent| parent.starts_with(root)).map(Path::to_owned);
    beside.into_iter().chain([root.to_owned()]).find(|base| {
        // It may be ours to switch on.
        let _ = fs::write(base.join("cgroup.subtree_control"), "+memory +pids");
        let _ = fs::write(base.join("cgroup.subtree_control"), "+cpu");
        writable(base)
            && writable(&base.join("cgroup.procs"))
            && offers(base, "memory")
            && offers(base, "pids")
    })
}

fn offers(base: &Path, controller: &str) -> bool {
    let on = fs::read_to_string(base.join("cgroup.subtree_control")).unwrap_or_default();
    on.split_whitespace().any(|name| name == controller)
}

fn writable(path: &Path) -> bool {
    access(path, Access::WRITE_OK).is_ok()
}

/// Our own group in the tree whose controllers are `wanted`, relative to its root.
fn own_path(own: &str, wanted: impl Fn(&str) -> bool) -> Option<&str> {
    own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        wanted(controllers).then(|| path.trim_start_matches('/'))
    })
}

fn mounted(mounts: &str, wanted: impl Fn(&str, &str) -> bool) -> Option<PathBuf> {
    every_mount(mounts, wanted).into_iter().next()
}

/// Mount points by file system type and options, from `/proc/self/mountinfo`.
fn every_mount(mounts: &str, wanted: impl Fn(&str, &str) -> bool) -> Vec<PathBuf> {
    let of_line = |line: &str| {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut file_system = file_system.split(' ');
        let (kind, options) = (file_system.next()?, file_system.nth(1)?);
        wanted(kind, options).then(|| mount.split(' ').nth(4).map(PathBuf::from)).flatten()
    };
    mounts.lines().filter_map(of_line).collect()
}
