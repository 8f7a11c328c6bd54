//! Mounts that an agent changes between two instances, and what they must not show.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

mod files;
mod gateway;
mod sockets;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use hands::sandbox::{Access, Mount};
use hands::{Hand as _, Handle};

use crate::sandbox_kit::{Rig, config};
use crate::sandbox_unprivileged::{NOBODY, run_as};

/// A folder that root and an ordinary user may change alike.
fn folder(path: &Path) {
    fs::create_dir_all(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}

fn mount(host: &Path, at: &str, access: Access) -> Mount {
    Mount { host: host.canonicalize().unwrap(), at: at.into(), access }
}

/// Ends the instance, as `hand_release` does.
async fn release(rig: &Rig) {
    rig.hand.release(Handle { instance: rig.lease.instance.clone() }).await.unwrap();
}

/// Why the next instance does not start: one sentence.
async fn refused(rig: &Rig) -> String {
    let error = rig.hand.provision(&rig.lease, &hands::NoProgress).await.unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[test]
fn all_of_it_holds_for_an_ordinary_user() {
    if rustix::process::geteuid().is_root() {
        let ran = run_as(NOBODY, &[], &["borders::mounts::"], &["ordinary_user", "mounts::gateway"]);
        assert!(ran >= 8, "only {ran} tests ran");
    }
}

#[tokio::test]
async fn a_mount_that_became_a_link_is_not_followed() {
    for access in [Access::ReadOnly, Access::ReadWrite] {
        // The mount itself, a folder on the way to it, and one that went away.
        for (attack, says) in [
            ("mv /src/deep/sub /src/old && ln -s VICTIM /src/deep/sub", "has become a link"),
            ("mv /src/deep /src/old && ln -s VICTIM/.. /src/deep", "has become a link"),
            ("rm -r /src/deep", "No such file"),
        ] {
            let scratch = tempfile::tempdir().unwrap();
            fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
            let (source, victim) = (scratch.path().join("source"), scratch.path().join("home/sub"));
            for path in [&source, &source.join("deep"), &source.join("deep/sub"), &victim] {
                folder(path);
            }
            fs::write(victim.join("key"), "secret").unwrap();
            let mut config = config();
            config.mounts = vec![
                mount(&source, "/src", Access::ReadWrite),
                mount(&source.join("deep/sub"), "/sub", access),
            ];
            let rig = Rig::with(config);
            rig.prints("true").await;
            rig.prints(&attack.replace("VICTIM", victim.to_str().unwrap())).await;
            // Processes of the old instance end with it; the next one is to mount what the link leads to.
            release(&rig).await;
            let error = refused(&rig).await;
            assert!(error.contains("deep/sub, a mount of this hand, can't be shown"), "{attack}: {error}");
            assert!(error.contains(says), "{attack}: {error}");
            let left: Vec<_> =
                fs::read_dir(&victim).unwrap().flatten().map(|entry| entry.file_name()).collect();
            assert_eq!(left, ["key"], "{attack}");
            rig.hand.shutdown().await;
        }
    }
}

#[tokio::test]
async fn a_link_that_a_mount_leads_through_from_the_start_is_refused_too() {
    let scratch = tempfile::tempdir().unwrap();
    folder(&scratch.path().join("real"));
    symlink("real", scratch.path().join("link")).unwrap();
    let mut config = config();
    let host = scratch.path().canonicalize().unwrap().join("link");
    config.mounts = vec![Mount { host, at: "/x".into(), access: Access::ReadOnly }];
    let rig = Rig::with(config);
    let error = refused(&rig).await;
    assert!(error.contains("has become a link"), "{error}");
    rig.hand.shutdown().await;
}

/// A bubblewrap that can't take a mount open is not given its path instead.
#[tokio::test]
async fn without_bind_fd_nothing_is_mounted_by_path() {
    if rustix::process::geteuid().is_root() {
        // Root mounts without bubblewrap; this runs again as somebody else.
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let bwrap = scratch.path().join("bwrap");
    let script = "#!/bin/sh\ncase \"$*\" in\n--help) echo usage ;;\n*bind-fd*) echo 'bwrap: Unknown option \
                  --bind-fd' >&2; exit 1 ;;\n*) exec bwrap \"$@\" ;;\nesac\n";
    fs::write(&bwrap, script).unwrap();
    fs::set_permissions(&bwrap, fs::Permissions::from_mode(0o755)).unwrap();
    let mut config = config();
    config.bwrap = bwrap;
    let findings = hands::sandbox::inspect(&config, scratch.path());
    let found = findings.iter().find(|finding| finding.subject == "mounts").unwrap();
    assert_eq!(found.state, hands::sandbox::State::Weaker);
    assert!(found.found.contains("has no --bind-fd"), "{found:?}");
    let plain = Rig::with(config.clone());
    assert_eq!(plain.prints("echo fine").await, "fine");
    plain.hand.shutdown().await;
    config.mounts = vec![mount(scratch.path(), "/x", Access::ReadOnly)];
    let rig = Rig::with(config);
    let error = refused(&rig).await;
    assert!(error.contains("has no --bind-fd"), "{error}");
    rig.hand.shutdown().await;
}
