//! All of it once more as an ordinary user, when the tests run as root.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::sandbox_kit::{impostor, program};

/// A user with nothing of its own.
const NOBODY: &str = "65534";

#[test]
fn everything_holds_without_root_too() {
    if !rustix::process::geteuid().is_root() {
        // Then the tests around this one are the same thing.
        return;
    }
    // Copies, for the target directory may lie where nobody else can look.
    let folder = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    let tests = folder.path().join("it");
    fs::copy(std::env::current_exe().unwrap(), &tests).unwrap();
    fs::copy(program(), folder.path().join("sandbox-program")).unwrap();
    fs::copy(impostor(), folder.path().join("sandbox-impostor")).unwrap();
    let scratch = folder.path().join("scratch");
    fs::create_dir(&scratch).unwrap();
    fs::set_permissions(&scratch, fs::Permissions::from_mode(0o777)).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"])
        .arg(&tests)
        // The other kinds of hand need servers that only root can start.
        .args(["hand::sandbox::", "sandbox_", "sandbox::", "--test-threads", "2"])
        .args(["--skip", "everything_holds_without_root_too", "--skip", "leaves_others_their_speed"])
        // These drive the gateway, which has tests of its own for that.
        .args(["--skip", "cli::", "--skip", "crash::", "--skip", "leases::", "--skip", "mcp::"])
        .env("TMPDIR", &scratch)
        .current_dir("/")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    println!("{printed}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let ran = printed.lines().filter(|line| line.starts_with("test ") && line.ends_with(" ... ok")).count();
    assert!(ran > 30, "only {ran} tests ran");
}
