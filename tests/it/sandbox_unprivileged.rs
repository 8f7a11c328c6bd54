//! All of it once more as an ordinary user, when the tests run as root.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::sandbox_kit::{impostor, program};

/// A user with nothing of its own.
pub(crate) const NOBODY: &str = "65534";

#[test]
fn everything_holds_without_root_too() {
    if !rustix::process::geteuid().is_root() {
        // Then the tests around this one are the same thing.
        return;
    }
    let ran = run_as(
        NOBODY,
        &[],
        // The other kinds of hand need servers that only root can start.
        &["hand::sandbox::", "sandbox_", "sandbox::"],
        &[
            "everything_holds_without_root_too",
            "leaves_others_their_speed",
            // These drive the gateway, which has tests of its own for that.
            "cli::",
            "crash::",
            "leases::",
            "mcp::",
            "borders::",
        ],
    );
    assert!(ran > 30, "only {ran} tests ran");
}

/// Runs these tests and not those once more, by way of the program `through`, as a user of that number; how many
/// there were. All of them hold.
pub(crate) fn run_as(user: &str, through: &[&str], tests: &[&str], but: &[&str]) -> usize {
    // Copies, for the target directory may lie where nobody else can look.
    let folder = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    let program_of_tests = folder.path().join("it");
    fs::copy(std::env::current_exe().unwrap(), &program_of_tests).unwrap();
    fs::copy(program(), folder.path().join("sandbox-program")).unwrap();
    fs::copy(impostor(), folder.path().join("sandbox-impostor")).unwrap();
    let scratch = folder.path().join("scratch");
    fs::create_dir(&scratch).unwrap();
    fs::set_permissions(&scratch, fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", user, "--regid", user, "--clear-groups"]).args(through).arg(&program_of_tests);
    command.args(tests).args(["--test-threads", "2"]).args(but.iter().flat_map(|test| ["--skip", test]));
    let output = command.env("TMPDIR", &scratch).current_dir("/").output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    println!("{printed}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    printed.lines().filter(|line| line.starts_with("test ") && line.ends_with(" ... ok")).count()
}
