//! Whether a daemon can be given the path of a work folder, which it opens as root, by its name and a moment later.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::engine::Lack;

/// Others of the owner's group, and everybody, may write.
const GROUP: u32 = 0o020;
const EVERYBODY: u32 = 0o002;
/// What lies in it can only be renamed by its owner.
const STICKY: u32 = 0o1000;

/// The folder's path without links, when nobody but root and the gateway's user can exchange a part of it.
pub(super) fn fixed(work: &Path) -> Result<PathBuf, Lack> {
    let unseen = |error: io::Error| Lack {
        why: format!("the work folder {} can't be looked at ({error})", work.display()),
        remedy: "see to the data directory, or set the hand's workspace to volume".into(),
    };
    let path = work.canonicalize().map_err(unseen)?;
    let ours = rustix::process::geteuid().as_raw();
    for parent in path.ancestors().skip(1) {
        let found = fs::symlink_metadata(parent).map_err(unseen)?;
        let (owner, mode) = (found.uid(), found.mode());
        // A group of one's own has one's own number.
        let others = mode & EVERYBODY != 0 || (mode & GROUP != 0 && found.gid() != owner && found.gid() != 0);
        let loose = others && mode & STICKY == 0;
        if loose || (owner != 0 && owner != ours) {
            let parent = parent.display();
            let whose = if loose { "can be changed by others" } else { "belongs to another user" };
            return Err(Lack {
                why: format!(
                    "{parent} {whose}, who could have the Docker daemon show any folder of this machine"
                ),
                remedy: format!(
                    "chmod go-w {parent}, keep the data elsewhere with --data, or set the hand's workspace to volume"
                ),
            });
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_daemon_gets_no_path_that_others_can_change() {
        let folder = tempfile::tempdir().unwrap();
        let work = folder.path().join("data/hands/one");
        fs::create_dir_all(&work).unwrap();
        symlink(folder.path().join("data"), folder.path().join("link")).unwrap();
        let mode =
            |mode| fs::set_permissions(folder.path().join("data"), fs::Permissions::from_mode(mode)).unwrap();
        for good in [0o700, 0o755, 0o775, 0o1777] {
            mode(good);
            assert_eq!(fixed(&work).ok(), work.canonicalize().ok(), "{good:o}");
        }
        assert_eq!(fixed(&folder.path().join("link/hands/one")).ok(), work.canonicalize().ok());
        for bad in [0o777, 0o757] {
            mode(bad);
            let why = fixed(&work).unwrap_err().why;
            assert!(why.contains("/data can be changed by others"), "{bad:o}: {why}");
        }
        assert!(fixed(&folder.path().join("none")).is_err());
    }
}
