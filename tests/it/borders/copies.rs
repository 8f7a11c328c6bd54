//! Archives that an agent wrote, and copies into folders that it can write.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

mod exchanged;
mod hostile;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::sandbox_kit::{impostor, program};

/// One entry of an archive, whatever it says.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    path: String,
    /// As the archive has it: `0` is a file, `1` another name, `2` a link, `5` a folder.
    kind: u8,
    link: String,
}

pub(crate) fn sent(kind: char, path: impl Into<String>, link: impl Into<String>) -> Sent {
    Sent { path: path.into(), kind: kind as u8, link: link.into() }
}

/// An archive as no honest program makes it: with names that need not be names, and modes that are not for copies.
pub(crate) fn archive(entries: &[Sent]) -> Vec<u8> {
    let mut archive = Vec::new();
    for entry in entries {
        let data: &[u8] = if entry.kind == b'0' { b"planted" } else { b"" };
        let mut header = [0_u8; 512];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &entry.path.as_bytes()[..entry.path.len().min(100)]);
        put(100, b"0006777\0");
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, format!("{:011o}\0", data.len()).as_bytes());
        put(136, b"00000000000\0");
        put(148, b"        ");
        put(156, &[entry.kind]);
        put(157, &entry.link.as_bytes()[..entry.link.len().min(100)]);
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        archive.extend(header);
        archive.extend(data);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.extend([0; 1024]);
    archive
}

/// Everything below a folder: what it is, how many names it has, and what is in it.
fn seen(folder: &Path) -> BTreeMap<PathBuf, (u32, u64, Vec<u8>)> {
    let mut seen = BTreeMap::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(path) = waiting.pop() {
        let found = path.symlink_metadata().unwrap();
        let content = if found.is_dir() {
            waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            Vec::new()
        } else if found.is_symlink() {
            fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()
        } else {
            fs::read(&path).unwrap()
        };
        seen.insert(path, (found.mode(), found.nlink(), content));
    }
    seen
}

/// A folder that nothing may change, with a folder and a file in it.
fn victim(folder: &Path) -> PathBuf {
    let victim = folder.join("victim");
    fs::create_dir_all(victim.join("deep")).unwrap();
    fs::write(victim.join("file"), "untouched").unwrap();
    victim
}

/// The names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A user with nothing of its own.
const NOBODY: u32 = 65534;

/// Runs tests of this binary once more as that user, when they run as root.
pub(super) fn as_an_ordinary_user(tests: &[&str]) {
    if !rustix::process::geteuid().is_root() {
        // Then the tests around this one are the same thing.
        return;
    }
    // Copies, for the target directory may lie where nobody else can look.
    let folder = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    let deps = folder.path().join("deps");
    fs::create_dir(&deps).unwrap();
    fs::copy(std::env::current_exe().unwrap(), deps.join("it")).unwrap();
    fs::copy(program(), deps.join("sandbox-program")).unwrap();
    fs::copy(impostor(), deps.join("sandbox-impostor")).unwrap();
    fs::copy(tests::gateway::binary(), folder.path().join("manyhands")).unwrap();
    let scratch = folder.path().join("scratch");
    fs::create_dir(&scratch).unwrap();
    std::os::unix::fs::chown(&scratch, Some(NOBODY), Some(NOBODY)).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid", &NOBODY.to_string(), "--regid", &NOBODY.to_string(), "--clear-groups"])
        .arg(deps.join("it"))
        .args(["--exact", "--test-threads", "1"])
        .args(tests)
        .env("TMPDIR", &scratch)
        .env("HOME", &scratch)
        .current_dir("/")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains(&format!("test result: ok. {} passed;", tests.len())), "{printed}");
}

#[test]
fn all_of_it_holds_without_root_too() {
    as_an_ordinary_user(&[
        "borders::copies::hostile::an_archive_with_a_link_as_a_parent_makes_nothing",
        "borders::copies::hostile::an_archive_touches_nothing_but_its_place",
        "borders::copies::hostile::an_agent_that_takes_over_tar_plants_nothing",
        "borders::copies::exchanged::a_copy_goes_where_it_began_whatever_an_agent_renames",
        "borders::copies::exchanged::what_is_exchanged_while_it_is_packed_is_not_followed",
        "borders::copies::exchanged::a_file_system_that_cannot_name_a_copy_is_said",
    ]);
}
