//! Where `bwrap` finds what it is to show.
//!
//! As root, `bwrap` runs as a user of its own per instance. The gateway's data may lie where that user
//! can't even look (`/root` is 0700), so everything is first mounted, in a mount namespace of its own,
//! on a small file system which every user can read.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Gid, Uid};
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change, move_mount,
    open_tree,
};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::enter::{EnterError, Spec, at, step};
use super::{Access, idmap};

/// Covered, in the private namespace, by the small file system. It is on every Linux.
const STAGE: &str = "/run";

/// What `bwrap` binds, in the order of [`Spec`].
pub(super) struct Places {
    pub(super) program: PathBuf,
    pub(super) work: PathBuf,
    pub(super) mounts: Vec<PathBuf>,
}

/// Without root everything is where it is.
pub(super) fn as_we_are(spec: &Spec) -> Places {
    Places {
        program: spec.program.clone(),
        work: spec.work.clone(),
        mounts: spec.mounts.iter().map(|mount| mount.host.clone()).collect(),
    }
}

/// Mounts everything where `user` finds it and becomes that user.
pub(super) fn as_user(spec: &Spec, user: u32) -> Result<Places, EnterError> {
    idmap::own_mount_namespace().map_err(step("making a mount namespace"))?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(step("keeping mounts private"))?;
    // All are opened before the stage is set: one of them may lie where it will stand.
    let program = tree(&spec.program)?;
    let work = tree(&spec.work)?;
    let mut mounts = Vec::new();
    for mount in &spec.mounts {
        let tree = tree(&mount.host)?;
        share(&tree, mount, user)?;
        mounts.push(tree);
    }
    mount("tmpfs", STAGE, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=0755,size=1m"))
        .map_err(step("mounting the stage"))?;
    let places = Places {
        program: set(&program, &spec.program, "program")?,
        work: set(&work, &spec.work, "work")?,
        mounts: spec
            .mounts
            .iter()
            .zip(&mounts)
            .enumerate()
            .map(|(number, (mount, tree))| set(tree, &mount.host, &format!("mount{number}")))
            .collect::<Result<_, _>>()?,
    };
    become_user(user).map_err(step("becoming the instance's user"))?;
    Ok(places)
}

/// Lets `user` do with a mount what its owner may.
fn share(tree: &OwnedFd, mount: &super::Mount, user: u32) -> Result<(), EnterError> {
    match mount.access {
        Access::ReadWrite => idmap::give_to(tree, &mount.host, user),
        // What root keeps from others it keeps from the sandbox, where nobody asked to write.
        Access::ReadOnly if fs::metadata(&mount.host).is_ok_and(|mount| mount.uid() == 0) => Ok(()),
        Access::ReadOnly => idmap::give_to(tree, &mount.host, user).or_else(|error| match error {
            // Some file systems can't. Then the sandbox reads what everybody may.
            EnterError::Path { step: idmap::MAPPING, .. } => Ok(()),
            other => Err(other),
        }),
    }
}

/// A copy of the mount at `path` with everything below it, not attached anywhere yet.
fn tree(path: &Path) -> Result<OwnedFd, EnterError> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, path, flags).map_err(at("opening", path))
}

/// Attaches a tree to the stage.
fn set(tree: &OwnedFd, from: &Path, name: &str) -> Result<PathBuf, EnterError> {
    let place = Path::new(STAGE).join(OsStr::new(name));
    if from.is_dir() {
        fs::create_dir(&place).map_err(at("making", &place))?;
    } else {
        File::create(&place).map_err(at("making", &place))?;
    }
    move_mount(tree, "", CWD, &place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(at("mounting", from))?;
    Ok(place)
}

/// Gives up root and everything that comes with it. Only ever called with a single thread.
fn become_user(user: u32) -> Result<(), rustix::io::Errno> {
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)
}
