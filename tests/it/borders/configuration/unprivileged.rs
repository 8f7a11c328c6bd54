//! All of it once more as an ordinary user, when the tests run as root.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::PathBuf;
use std::process::Command;

use tests::gateway::binary;

use super::{Said, is_root};

/// A user with nothing of its own.
const NOBODY: &str = "65534";

#[test]
fn all_of_it_holds_without_root_too() {
    if !is_root() {
        // Then the tests around this one are the same thing.
        return;
    }
    // Copies, for the target directory may lie where nobody else can look.
    let folder = tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir().unwrap();
    let (deps, scratch) = (folder.path().join("deps"), folder.path().join("scratch"));
    fs::create_dir(&deps).unwrap();
    fs::create_dir(&scratch).unwrap();
    fs::set_permissions(&scratch, Permissions::from_mode(0o1777)).unwrap();
    fs::copy(std::env::current_exe().unwrap(), deps.join("it")).unwrap();
    fs::copy(binary(), folder.path().join("manyhands")).unwrap();
    let as_nobody = |program: PathBuf| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).arg(program);
        command
    };
    // Of the files that this user has not written, root's alone is read.
    let file = folder.path().join("gateway.toml");
    fs::write(&file, "drain_s = 3\n").unwrap();
    for (owner, read) in [(0, true), (1234, false)] {
        chown(&file, Some(owner), None).unwrap();
        let mut command = as_nobody(folder.path().join("manyhands"));
        command.arg("--data").arg(scratch.join(format!("data-{owner}"))).arg("--config").arg(&file);
        let said = Said::of(&command.args(["session", "new", "one"]).current_dir("/").output().unwrap());
        if read {
            said.succeeds();
        } else {
            said.refuses(&["belongs to the user 1234"]);
        }
    }
    let output = as_nobody(deps.join("it"))
        .args([
            "borders::configuration::",
            "--test-threads",
            "2",
            "--skip",
            "all_of_it_holds_without_root_too",
        ])
        .env("TMPDIR", &scratch)
        .current_dir("/")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    println!("{printed}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let ran = printed.lines().filter(|line| line.starts_with("test ") && line.ends_with(" ... ok")).count();
    assert!(ran >= 16, "only {ran} tests ran");
}
