//! Mounts on which the files of one user appear as those of another.
//!
//! The one room with `unsafe`: neither the standard library nor `rustix` offers these two system calls
//! as safe functions.
#![expect(unsafe_code, reason = "unshare(2) and mount_setattr(2) have no safe wrapper")]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::enter::{EnterError, at};

/// The step that not every file system can do.
pub(super) const MAPPING: &str = "mapping the owner on the file system of";

/// Gives this process mounts of its own.
pub(super) fn own_mount_namespace() -> io::Result<()> {
    // SAFETY: only `UnshareFlags::FILES` can break other threads' file descriptors.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    Ok(())
}

/// Makes the files of the owner of the root of the mount `tree`, which is `path`, appear on it as those of `user`, and
/// what `user` makes there belong to the owner.
pub(super) fn give_to(tree: &OwnedFd, path: &Path, user: u32) -> Result<(), EnterError> {
    let owner = rustix::fs::fstat(tree).map_err(at("looking at", path))?;
    let namespace = mapping((owner.st_uid, owner.st_gid), user).map_err(at("mapping the owner of", path))?;
    map(tree, &namespace).map_err(at(MAPPING, path))
}

/// A user namespace whose only use is its mapping: the owner's ids on disk, the instance's on the mount.
fn mapping((uid, gid): (u32, u32), user: u32) -> io::Result<fs::File> {
    // The namespace lives as long as a process in it or a file of it: `unshare` waits for its input to end.
    let mut holder = Command::new("unshare")
        .args(["--user", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let result = (|| {
        use std::io::{Read, Write};
        let pid = holder.id();
        let (Some(input), Some(output)) = (&mut holder.stdin, &mut holder.stdout) else {
            return Err(io::Error::other("no pipe to the namespace's holder"));
        };
        // An echo says that it is past the unshare.
        input.write_all(b"x")?;
        output.read_exact(&mut [0])?;
        fs::write(format!("/proc/{pid}/uid_map"), format!("{uid} {user} 1"))?;
        fs::write(format!("/proc/{pid}/gid_map"), format!("{gid} {user} 1"))?;
        fs::File::open(format!("/proc/{pid}/ns/user"))
    })();
    drop(holder.stdin.take());
    holder.wait()?;
    result
}

fn map(tree: &OwnedFd, namespace: &fs::File) -> io::Result<()> {
    let descriptor = u64::try_from(namespace.as_raw_fd()).unwrap_or_default();
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: descriptor,
    };
    // SAFETY: the path is a NUL-terminated constant, and the kernel reads `attributes`, which lives
    // until the call returns, no further than the size it is told.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
