//! What this machine can offer to sandboxes.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::cgroup::Hierarchies;
use super::refusal::{self, Lack, OLDEST_BWRAP};
use super::{SandboxConfig, owner};
use crate::disk::{shown, space};

/// A user without privilege, for trying out as root what sandboxes do.
const NOBODY: u32 = 65534;
/// What a cgroup would limit for an instance as a whole.
const LIMITED: [&str; 3] = ["memory", "processes", "CPU"];

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at, in a word or two.
    pub subject: &'static str,
    /// Whether it is as it should be.
    pub state: State,
    /// What was found, in a sentence without a full stop.
    pub found: String,
    /// The one thing to do about a lack.
    pub remedy: Option<String>,
}

/// How well something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// As it should be.
    Fine,
    /// Sandboxes run, with weaker limits.
    Weaker,
    /// No sandbox runs.
    Missing,
}

/// Looks at everything that sandboxes need. `data`: a folder on the disk where work folders are.
pub fn inspect(config: &SandboxConfig, data: &Path) -> Vec<Finding> {
    let bubblewrap = bubblewrap(config);
    let mut findings = vec![bubblewrap];
    if findings.iter().all(|finding| finding.state == State::Fine) {
        findings.push(user_namespaces(config));
        findings.extend(mounts(config));
    }
    findings.push(limits());
    findings.push(users());
    findings.push(disk(config, data));
    findings
}

fn fine(subject: &'static str, found: String) -> Finding {
    Finding { subject, state: State::Fine, found, remedy: None }
}

fn lacking(subject: &'static str, state: State, Lack { why, remedy }: Lack) -> Finding {
    Finding { subject, state, found: why, remedy: Some(remedy) }
}

fn bubblewrap(config: &SandboxConfig) -> Finding {
    let subject = "bubblewrap";
    let printed = match Command::new(&config.bwrap).arg("--version").output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return lacking(subject, State::Missing, refusal::no_bubblewrap());
        }
        Err(error) => format!("unknown ({error})"),
    };
    let version = printed.trim_start_matches("bubblewrap ");
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < OLDEST_BWRAP {
        return lacking(subject, State::Missing, refusal::old_bubblewrap(version));
    }
    fine(subject, format!("version {version}"))
}

/// Tries it, without privilege, as sandboxes do.
fn user_namespaces(config: &SandboxConfig) -> Finding {
    let subject = "user namespaces";
    let mut command = Command::new(&config.bwrap);
    command.args(["--unshare-user", "--disable-userns", "--unshare-pid", "--unshare-net"]);
    command.args(["--ro-bind", "/", "/", "--proc", "/proc", "true"]);
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    match command.current_dir("/").output() {
        Ok(output) if output.status.success() => fine(subject, "bubblewrap may make them".to_owned()),
        _ => lacking(subject, State::Missing, refusal::no_user_namespaces()),
    }
}

/// Whether an ordinary user's mounts can be handed on open. Root mounts them itself.
fn mounts(config: &SandboxConfig) -> Option<Finding> {
    if rustix::process::geteuid().is_root() {
        return None;
    }
    let help = Command::new(&config.bwrap).arg("--help").output().ok()?;
    let has =
        [help.stdout, help.stderr].iter().any(|text| String::from_utf8_lossy(text).contains("--ro-bind-fd"));
    let subject = "mounts";
    if has {
        return Some(fine(
            subject,
            "bubblewrap takes them open (--bind-fd), so that nobody can exchange them".into(),
        ));
    }
    let Lack { why, remedy } = refusal::no_bind_fd();
    let why = format!("{why}: sandboxes with mounts do not start, others do");
    Some(lacking(subject, State::Weaker, Lack { why, remedy }))
}

fn limits() -> Finding {
    let subject = "limits";
    let offered = Hierarchies::find().offered();
    let alone: Vec<&str> = LIMITED.into_iter().filter(|name| !offered.contains(name)).collect();
    if alone.is_empty() {
        return fine(subject, "memory, processes and CPU of a sandbox as a whole, by cgroup".to_owned());
    }
    let whole = if offered.is_empty() { "nothing" } else { &offered.join(", ") };
    let why =
        format!("by cgroup: {whole}; of single processes only, by resource limits: {}", alone.join(", "));
    let remedy =
        "run the gateway where it may make cgroups: as a systemd service with Delegate=yes, or once by \
                  systemd-run --user --scope -p Delegate=yes manyhands"
            .to_owned();
    lacking(subject, State::Weaker, Lack { why, remedy })
}

/// Whether an instance shares with anybody else what the kernel counts for a user.
fn users() -> Finding {
    let subject = "users";
    if owner::gives_users() {
        return fine(subject, "each sandbox has a user of its own".to_owned());
    }
    let why = "sandboxes and containers run as this user, and one can use up what the kernel counts for a user: \
               epoll watches, large pipes and descriptors on their way through sockets; a container inotify as well"
        .to_owned();
    let remedy = "run the gateway as root: then each of them has a user of its own".to_owned();
    lacking(subject, State::Weaker, Lack { why, remedy })
}

fn disk(config: &SandboxConfig, data: &Path) -> Finding {
    let subject = "disk";
    let kept = shown(config.limits.free_disk);
    match space(data).map(|disk| disk.free) {
        Ok(free) if free >= config.limits.free_disk => fine(subject, format!("{} free", shown(free))),
        Ok(free) => {
            let why = format!(
                "only {} free on the disk of {}; no call starts below {kept}",
                shown(free),
                data.display()
            );
            lacking(subject, State::Missing, Lack { why, remedy: "free some space on it".to_owned() })
        }
        Err(error) => {
            let why = format!("{} can't be looked at ({error})", data.display());
            lacking(subject, State::Missing, Lack { why, remedy: "choose another data directory".to_owned() })
        }
    }
}
