//! Where on this machine the gateway's own files appear, by whatever mount.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A line of `/proc/self/mountinfo`.
struct Mounted {
    /// The file system, as `major:minor`.
    device: String,
    /// Which of its folders is mounted.
    root: PathBuf,
    /// Where.
    at: PathBuf,
}

/// Every path at which one of `places`, or a part of it, appears. A place that does not exist appears nowhere.
pub(super) fn appearances(places: &[PathBuf]) -> io::Result<Vec<PathBuf>> {
    let places = places.iter().filter_map(|place| place.canonicalize().ok());
    let mountinfo = fs::read("/proc/self/mountinfo")?;
    let mounts: Vec<Mounted> = mountinfo.split(|byte| *byte == b'\n').filter_map(parse).collect();
    Ok(places.flat_map(|place| of_one(&place, &mounts)).collect())
}

fn of_one(place: &Path, mounts: &[Mounted]) -> Vec<PathBuf> {
    // Parts of it may be mounts of their own, and those may appear elsewhere, too.
    let parts = mounts.iter().map(|mounted| mounted.at.as_path()).filter(|at| at.starts_with(place));
    let mut found = Vec::new();
    for part in parts.chain([place]) {
        // The longest is the one that is seen, and of equal ones the last.
        let holder = mounts
            .iter()
            .filter(|mounted| part.starts_with(&mounted.at))
            .max_by_key(|mounted| mounted.at.as_os_str().len());
        let Some(holder) = holder else { continue };
        let within = holder.root.join(part.strip_prefix(&holder.at).unwrap_or(part));
        found.push(part.to_owned());
        for other in mounts.iter().filter(|other| other.device == holder.device) {
            if let Ok(rest) = within.strip_prefix(&other.root) {
                found.push(other.at.join(rest));
            } else if other.root.starts_with(&within) {
                found.push(other.at.clone());
            }
        }
    }
    // A path that is joined with nothing ends with a slash.
    let mut found: Vec<PathBuf> = found.into_iter().map(|path| path.components().collect()).collect();
    found.sort();
    found.dedup();
    found
}

fn parse(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|byte| *byte == b' ').skip(2);
    let device = String::from_utf8(fields.next()?.to_vec()).ok()?;
    let (root, at) = (unescape(fields.next()?), unescape(fields.next()?));
    Some(Mounted { device, root, at })
}

/// Blanks and the like stand there as `\040`.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, behind)) = rest.split_first() {
        let octal = behind.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *byte == b'\\') {
            Some(escaped) => {
                bytes.push(escaped);
                rest = behind.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*byte);
                rest = behind;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn appear(place: &str) -> Vec<PathBuf> {
        let mountinfo = "1 0 8:1 / / rw - ext4 /dev/a rw\n\
            2 1 8:2 /home /home rw - ext4 /dev/b rw\n\
            3 1 8:2 /home/you /mnt/my\\040files rw - ext4 /dev/b rw\n\
            4 1 8:2 /home/you/data/work /srv/work rw - ext4 /dev/b rw\n\
            5 1 8:3 / /home/you/data/disk rw - ext4 /dev/c rw\n\
            6 1 8:3 /deep /srv/disk rw - ext4 /dev/c rw\n\
            7 1 8:2 /other /srv/other rw - ext4 /dev/b rw\n";
        let mounts: Vec<Mounted> =
            mountinfo.as_bytes().split(|byte| *byte == b'\n').filter_map(parse).collect();
        of_one(Path::new(place), &mounts)
    }

    #[test]
    fn a_place_appears_wherever_its_file_system_is_mounted() {
        let expected =
            ["/home/you/data", "/home/you/data/disk", "/mnt/my files/data", "/srv/disk", "/srv/work"];
        assert_eq!(appear("/home/you/data"), expected.map(PathBuf::from));
        assert_eq!(appear("/opt/data"), [PathBuf::from("/opt/data")]);
        assert_eq!(unescape(b"/a\\134\\040b\\1"), Path::new("/a\\ b\\1"));
    }
}
