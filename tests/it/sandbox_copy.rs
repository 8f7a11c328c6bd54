//! Copying in and out of a sandbox, and what `doctor` says.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use hands::sandbox::{CopyError, SandboxConfig, State, inspect, pack};
use hands::{Files as _, Hand, HandError};
use tokio_util::sync::CancellationToken;

use crate::sandbox_kit::{Rig, config, program, unpack};

/// Copies as the command line does, with files in between.
async fn copy_in(rig: &Rig, from: &Path, to: &str) -> Result<(), CopyError> {
    let handle = rig.hand.provision(&rig.lease, &hands::NoProgress).await.unwrap();
    let mut archive = Vec::new();
    pack(from, &mut archive)?;
    rig.hand.copy_in(&handle, to, Box::new(std::io::Cursor::new(archive)), &CancellationToken::new()).await
}

async fn copy_out(rig: &Rig, from: &str, to: &Path) -> Result<u64, CopyError> {
    let handle = rig.hand.provision(&rig.lease, &hands::NoProgress).await.unwrap();
    let mut archive = Vec::new();
    let bytes = AtomicU64::new(0);
    let moved = |so_far| bytes.store(so_far, Ordering::Relaxed);
    rig.hand.copy_out(&handle, from, &mut archive, &moved, &CancellationToken::new()).await?;
    unpack(&archive, to)?;
    assert_eq!(bytes.load(Ordering::Relaxed), archive.len() as u64);
    Ok(archive.len() as u64)
}

#[tokio::test]
async fn a_project_goes_in_and_comes_out_the_same() {
    let rig = Rig::new();
    let here = rig.folder.path().join("project");
    fs::create_dir_all(here.join("src/deep")).unwrap();
    fs::write(here.join("src/deep/odd |&\\ name"), vec![7; 3_000_000]).unwrap();
    fs::write(here.join("run"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(here.join("run"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("src/deep", here.join("link")).unwrap();
    symlink("/etc/shadow", here.join("absolute")).unwrap();
    copy_in(&rig, &here, "a/b|&\\c").await.unwrap();
    assert_eq!(
        rig.prints("cd 'a/b|&\\c'; ls; readlink link absolute; stat -c '%U %a' run; wc -c < link/odd*").await,
        "absolute\nlink\nrun\nsrc\nsrc/deep\n/etc/shadow\nhand 755\n3000000"
    );
    let back = rig.folder.path().join("back");
    assert!(copy_out(&rig, "/workspace/a/b|&\\c", &back).await.unwrap() > 3_000_000);
    let same = std::process::Command::new("diff")
        .arg("-r")
        .arg("--no-dereference")
        .args([&here, &back])
        .output()
        .unwrap();
    assert!(same.status.success(), "{}", String::from_utf8_lossy(&same.stdout));
    assert_eq!(fs::metadata(back.join("run")).unwrap().permissions().mode() & 0o777, 0o755);
    // One file, into a name of its own.
    copy_in(&rig, &here.join("run"), "runs").await.unwrap();
    let one = rig.folder.path().join("one");
    copy_out(&rig, "runs", &one).await.unwrap();
    assert_eq!(fs::read_to_string(&one).unwrap(), "#!/bin/sh\n");
    let again = copy_out(&rig, "runs", &one).await.unwrap_err();
    assert!(again.to_string().contains("exists already"), "{again}");
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn a_copy_that_cannot_be_says_why() {
    let rig = Rig::new();
    let nothing = copy_out(&rig, "missing", &rig.folder.path().join("x")).await.unwrap_err();
    assert!(nothing.to_string().contains("missing: Cannot stat: No such file"), "{nothing}");
    let file = rig.folder.path().join("file");
    fs::write(&file, "x").unwrap();
    for (to, why) in [("../usr/x", "without `..`"), ("/usr/x", "Read-only"), ("/", "must name")] {
        let refused = copy_in(&rig, &file, to).await.unwrap_err();
        assert!(refused.to_string().contains(why), "{to}: {refused}");
    }
    rig.hand.shutdown().await;
}

/// Archives that a sandbox could send instead of an honest one.
#[tokio::test]
async fn a_hostile_archive_writes_nothing_outside() {
    let rig = Rig::new();
    let perl = r#"
sub entry { my ($name, $type, $link, $data) = @_;
  my $h = pack('a100 a8 a8 a8 a12 a12 A8 a1 a100 a6 a2 a32 a32 a8 a8 a155 x12', $name, '0004777', '0000000', '0000000',
    sprintf('%011o', length $data), '00000000000', ' ' x 8, $type, $link, "ustar\0", '00', '', '', '', '', '');
  substr($h, 148, 8) = sprintf("%06o\0 ", unpack('%32C*', $h));
  print $h, $data, "\0" x (-length($data) % 512) }
my ($kind, $outside) = @ARGV;
entry('top/', '5', '', '');
entry('top/../../escaped', '0', '', 'x') if $kind eq 'dots';
entry('/escaped', '0', '', 'x') if $kind eq 'absolute';
if ($kind eq 'link') { entry('top/l', '2', $outside, ''); entry('top/l/escaped', '0', '', 'x') }
if ($kind eq 'hard') { entry('top/h', '1', "$outside/secret", ''); entry('top/h', '0', '', 'x') }
entry('top/dev', '3', '', '') if $kind eq 'device';
entry('top/suid', '0', '', 'x') if $kind eq 'suid';
print "\0" x 1024;
"#;
    let outside = rig.folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "untouched").unwrap();
    for kind in ["dots", "absolute", "link", "hard", "device", "suid"] {
        let archive = std::process::Command::new("perl")
            .args(["-e", perl, kind])
            .arg(&outside)
            .output()
            .unwrap()
            .stdout;
        assert!(archive.len() > 1024);
        let to = rig.folder.path().join("to").join(kind);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        let unpacked = unpack(&archive, &to);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "{kind}");
        assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), "untouched", "{kind}");
        assert!(!rig.folder.path().join("escaped").exists() && !Path::new("/escaped").exists(), "{kind}");
        match kind {
            "suid" => assert_eq!(fs::metadata(to.join("suid")).unwrap().permissions().mode() & 0o7000, 0),
            "device" => assert!(!to.join("dev").exists()),
            _ => assert!(unpacked.is_err(), "{kind}"),
        }
    }
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn doctor_and_the_first_call_say_the_same_about_a_lack() {
    let rig = Rig::new();
    let script = |name: &str, text: &str| {
        let path = rig.folder.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    let refusing = "case $1 in --version) echo bubblewrap 0.9.0 ;; *) echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1 ;; esac";
    for (bwrap, why) in [
        ("/nowhere/bwrap".into(), "bubblewrap is not installed"),
        (
            script(
                "old",
                "case $1 in --version) echo bubblewrap 0.6.1 ;; *) echo 'bwrap: Unknown option --disable-userns' >&2; exit 1 ;; esac",
            ),
            "too old",
        ),
        (script("refusing", refusing), "user namespaces"),
    ] {
        // The instance's user must find the script, too.
        fs::set_permissions(rig.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let config = SandboxConfig { bwrap, ..config() };
        let findings = inspect(&config, rig.folder.path());
        let lack = findings.iter().find(|finding| finding.state == State::Missing).expect(why);
        assert!(lack.found.contains(why), "{lack:?}");
        let other = Rig::with(config);
        let error = other.hand.provision(&other.lease, &hands::NoProgress).await.unwrap_err();
        let HandError::Unavailable { why: said, remedy } = error else { panic!("{error}") };
        assert!(said.contains(why), "{said}");
        assert_eq!(lack.remedy.as_ref(), Some(&remedy));
    }
    let fine = inspect(&SandboxConfig::new(program()), rig.folder.path());
    assert!(fine.iter().all(|finding| finding.state != State::Missing), "{fine:?}");
    let full = SandboxConfig {
        limits: hands::sandbox::Limits { free_disk: u64::MAX, ..Default::default() },
        ..config()
    };
    assert!(
        inspect(&full, rig.folder.path())
            .iter()
            .any(|finding| finding.subject == "disk" && finding.state == State::Missing)
    );
    rig.hand.shutdown().await;
}
