//! Where `bwrap` finds what it is to show.
//!
//! As root, `bwrap` runs as a user of its own per instance. The gateway's data may lie where that user
//! can't even look (`/root` is 0700), so everything is first mounted, in a mount namespace of its own,
//! on a small file system which every user can read.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Gid, Mode, OFlags, Uid, fstat};
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change, move_mount,
    open_tree,
};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::covers::{Cover, Finder, Shape};
use super::enter::{EnterError, Spec, at, step};
use super::{Access, idmap, mounts};

/// Covered, in the private namespace, by the small file system. It is on every Linux.
const STAGE: &str = "/run";
/// Names the program that runs, whatever lies at its path by now.
const RUNNING: &str = "/proc/self/exe";
/// A copy of a mount with everything below it, not attached anywhere yet.
const CLONE: OpenTreeFlags =
    OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC).union(OpenTreeFlags::AT_RECURSIVE);

/// What `bwrap` binds, in the order of [`Spec`].
pub(super) struct Places {
    pub(super) program: PathBuf,
    pub(super) work: PathBuf,
    pub(super) mounts: Vec<Source>,
}

/// Where `bwrap` has a mount from.
pub(super) enum Source {
    /// The stage, with its covers in place.
    Staged(PathBuf),
    /// A descriptor. `bwrap` looks, once it has mounted, whether it got what is open there, and puts the covers on.
    Open(OwnedFd, Vec<Cover>),
}

/// Without root everything is where it is, and mounts are handed on open.
pub(super) fn as_we_are(spec: &Spec, hidden: &[PathBuf]) -> Result<Places, EnterError> {
    let mut finder = Finder::new(hidden, &spec.sockets);
    let mut mounts = Vec::new();
    for mount in &spec.mounts {
        let root = mounts::open(mount, hidden)?;
        let covers = finder.find(mount, &root)?;
        mounts.push(Source::Open(root, covers));
    }
    Ok(Places { program: as_it_lies(&spec.program), work: spec.work.clone(), mounts })
}

/// Our own program by its path, where it was named as the one that runs: for `bwrap` that would be another, and the kernel
/// mounts no file of another mount namespace. In the sandbox, any file may lie there: the gateway trusts none.
fn as_it_lies(program: &Path) -> PathBuf {
    let Some(path) = (program == Path::new(RUNNING)).then(|| fs::read_link(program).ok()).flatten() else {
        return program.to_owned();
    };
    // It was replaced; then the new one takes its place in the sandbox, too.
    match path.to_str().and_then(|path| path.strip_suffix(" (deleted)")) {
        Some(path) => PathBuf::from(path),
        None => path,
    }
}

/// Mounts everything where `user` finds it and becomes that user.
pub(super) fn as_user(spec: &Spec, user: u32, hidden: &[PathBuf]) -> Result<Places, EnterError> {
    idmap::own_mount_namespace().map_err(step("making a mount namespace"))?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(step("keeping mounts private"))?;
    // All are opened before the stage is set: one of them may lie where it will stand.
    let program_path = as_it_lies(&spec.program);
    let program = open_tree(CWD, &program_path, CLONE).map_err(at("opening", &program_path))?;
    let work = open_tree(CWD, &spec.work, CLONE).map_err(at("opening", &spec.work))?;
    let mut trees = Vec::new();
    for mount in &spec.mounts {
        let root = mounts::open(mount, hidden)?;
        let tree = open_tree(&root, "", CLONE | OpenTreeFlags::AT_EMPTY_PATH);
        let tree = tree.map_err(at("opening", &mount.host))?;
        share(&tree, mount, user)?;
        trees.push(tree);
    }
    mount("tmpfs", STAGE, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=0755,size=1m"))
        .map_err(step("mounting the stage"))?;
    let places = Places {
        program: set(&program, &program_path, "program")?,
        work: set(&work, &spec.work, "work")?,
        mounts: set_mounts(spec, &trees, hidden)?,
    };
    become_user(user).map_err(step("becoming the instance's user"))?;
    Ok(places)
}

/// Lets `user` do with a mount what its owner may.
fn share(tree: &OwnedFd, mount: &super::Mount, user: u32) -> Result<(), EnterError> {
    match mount.access {
        Access::ReadWrite => idmap::give_to(tree, &mount.host, user),
        // What root keeps from others it keeps from the sandbox, where nobody asked to write.
        Access::ReadOnly if fstat(tree).is_ok_and(|root| root.st_uid == 0) => Ok(()),
        Access::ReadOnly => idmap::give_to(tree, &mount.host, user).or_else(|error| match error {
            // Some file systems can't. Then the sandbox reads what everybody may.
            EnterError::Path { step: idmap::MAPPING, .. } => Ok(()),
            other => Err(other),
        }),
    }
}

/// Attaches all mounts to the stage, and then their covers to them.
fn set_mounts(spec: &Spec, trees: &[OwnedFd], hidden: &[PathBuf]) -> Result<Vec<Source>, EnterError> {
    let mut finder = Finder::new(hidden, &spec.sockets);
    let mut sources = Vec::new();
    for (number, (mount, tree)) in spec.mounts.iter().zip(trees).enumerate() {
        let place = set(tree, &mount.host, &format!("mount{number}"))?;
        let root = rustix::fs::open(&place, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let root = root.map_err(at("opening", &mount.host))?;
        for cover in finder.find(mount, &root)? {
            put_over(&cover).map_err(at("covering what lies in", &mount.host))?;
        }
        sources.push(Source::Staged(place));
    }
    Ok(sources)
}

/// Covers something by its descriptor: whatever its path leads to by now.
fn put_over(cover: &Cover) -> std::io::Result<()> {
    let with = match cover.shape {
        Shape::File => PathBuf::from("/dev/null"),
        Shape::Folder => {
            let empty = Path::new(STAGE).join("empty");
            match fs::create_dir(&empty) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
                Ok(()) | Err(_) => empty,
            }
        }
    };
    let with = open_tree(CWD, &with, CLONE)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    match move_mount(&with, "", &cover.covered, "", flags) {
        // It was removed meanwhile.
        Err(rustix::io::Errno::NOENT) => Ok(()),
        done => Ok(done?),
    }
}

/// Attaches a tree to the stage.
fn set(tree: &OwnedFd, from: &Path, name: &str) -> Result<PathBuf, EnterError> {
    let place = Path::new(STAGE).join(OsStr::new(name));
    let root = fstat(tree).map_err(at("looking at", from))?;
    if FileType::from_raw_mode(root.st_mode).is_dir() {
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
