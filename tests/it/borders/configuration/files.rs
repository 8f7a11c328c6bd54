//! Files that a stranger could have written.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown, lchown, symlink};
use std::path::Path;
use std::process::Command;

use super::{BARE, Machine, is_root};

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// By whichever way it is chosen.
#[track_caller]
fn refused(machine: &Machine, parts: &[&str]) {
    for args in [&["session", "new", "one"][..], &["--config", "manyhands.toml", "session", "new", "one"]] {
        machine.run(args).refuses(parts);
    }
    assert!(!machine.path("data").exists());
}

#[test]
fn what_others_may_write_is_not_read() {
    let machine = Machine::new();
    machine.write(BARE);
    let (file, project) = (machine.file(), machine.project());
    for mode in [0o666, 0o602, 0o777] {
        chmod(&file, mode);
        refused(&machine, &["is not read, because others could have written it", "everybody", "chmod"]);
    }
    chmod(&file, 0o644);
    chmod(&project, 0o777);
    refused(&machine, &["project can be written by everybody (mode 777)"]);
    // A folder on the way is as good.
    chmod(&project, 0o755);
    chmod(machine.folder.path(), 0o757);
    refused(&machine, &["can be written by everybody (mode 757)"]);
    chmod(machine.folder.path(), 0o700);
    // Where nobody can replace it, many may write beside it.
    chmod(&project, 0o1777);
    machine.run(&["session", "new", "one"]).succeeds();
}

#[test]
fn a_group_may_write_only_if_it_is_this_users_alone() {
    let machine = Machine::new();
    machine.write(BARE);
    let (me, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    chmod(&machine.file(), 0o664);
    chmod(&machine.project(), 0o775);
    let said = machine.run(&["session", "new", "one"]);
    if me == group {
        said.succeeds();
    } else {
        said.refuses(&["can be written by the group"]);
    }
    if is_root() {
        chown(machine.file(), None, Some(100)).unwrap();
        machine.run(&["session", "new", "two"]).refuses(&["the group 100", "chmod g-w"]);
        chmod(&machine.file(), 0o644);
        machine.run(&["session", "new", "two"]).succeeds();
    }
}

#[test]
fn what_belongs_to_somebody_else_is_not_read() {
    if !is_root() {
        // Only root can give a file away. What an ordinary user makes of one is in `unprivileged`.
        return;
    }
    let machine = Machine::new();
    machine.write(BARE);
    chown(machine.file(), Some(1234), None).unwrap();
    refused(&machine, &["belongs to the user 1234", "--config"]);
    // So is what a link of somebody else's leads to.
    fs::rename(machine.file(), machine.path("own.toml")).unwrap();
    chown(machine.path("own.toml"), Some(0), None).unwrap();
    symlink(machine.path("own.toml"), machine.file()).unwrap();
    machine.run(&["session", "new", "one"]).succeeds();
    fs::remove_dir_all(machine.path("data")).unwrap();
    lchown(machine.file(), Some(1234), None).unwrap();
    refused(&machine, &["belongs to the user 1234"]);
    fs::remove_file(machine.file()).unwrap();
    fs::rename(machine.path("own.toml"), machine.file()).unwrap();
    chown(machine.project(), Some(1234), None).unwrap();
    refused(&machine, &["belongs to the user 1234"]);
}

/// One that never ends, or that nobody would read, is none.
#[test]
fn only_a_file_is_read() {
    let machine = Machine::new();
    let made = Command::new("mkfifo").arg(machine.file()).status().unwrap();
    assert!(made.success());
    refused(&machine, &["it is no file"]);
    fs::remove_file(machine.file()).unwrap();
    machine.write(&"#".repeat((1 << 20) + 1));
    refused(&machine, &["it is no file of at most 1 MiB"]);
    // For whoever wants none, whatever lies in the folder.
    machine.run(&["--config", "/dev/null", "session", "new", "one"]).succeeds();
}
