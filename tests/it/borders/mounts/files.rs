//! Other files and folders that settings name, after an agent put a link in their place.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gateway::hand::Source;
use hands::emulator::{Emulator, EmulatorConfig};
use hands::mcp::Catalogue;
use hands::upstream::{Protocol, Reach, Share, Upstream, UpstreamConfig};
use hands::vm::{Vm, VmConfig};
use hands::{Hand, NoProgress};

use crate::sandbox_kit::{lease, program};

/// A file and a folder, each replaced by a link to one that is as good: only the link can be what is refused.
struct Replaced {
    scratch: tempfile::TempDir,
    file: PathBuf,
    folder: PathBuf,
}

fn replaced(content: &[u8]) -> Replaced {
    let scratch = tempfile::tempdir().unwrap();
    let root = scratch.path().canonicalize().unwrap();
    fs::write(root.join("victim"), content).unwrap();
    fs::set_permissions(root.join("victim"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(root.join("home")).unwrap();
    symlink("victim", root.join("file")).unwrap();
    symlink("home", root.join("folder")).unwrap();
    Replaced { scratch, file: root.join("file"), folder: root.join("folder") }
}

async fn refused(hand: &dyn Hand, folder: &Path) -> String {
    let error = hand.provision(&lease(folder, "one"), &NoProgress).await.unwrap_err().to_string();
    hand.shutdown().await;
    error
}

#[tokio::test]
async fn a_game_that_became_a_link_is_not_played() {
    let replaced = replaced(&tests::game::game());
    let hand = Emulator::new(EmulatorConfig::new(program(), replaced.file.clone()));
    let error = refused(&hand, replaced.scratch.path()).await;
    assert!(error.contains("file can't be read (it has become a link"), "{error}");
}

#[tokio::test]
async fn a_machine_boots_nothing_that_became_a_link() {
    let replaced = replaced(b"a kernel");
    let (there, cache) = (replaced.file.with_file_name("victim"), replaced.scratch.path().join("cache"));
    for (kernel, initrd) in [(&replaced.file, &there), (&there, &replaced.file)] {
        let hand = Vm::new(VmConfig {
            accel: hands::vm::Accel::Tcg,
            ..VmConfig::new(program(), kernel.clone(), initrd.clone(), cache.clone())
        });
        let error = refused(&hand, replaced.scratch.path()).await;
        assert!(error.contains("it has become a link"), "{error}");
    }
    let config = VmConfig {
        accel: hands::vm::Accel::Tcg,
        image: Some(replaced.file.clone()),
        ..VmConfig::new(program(), there.clone(), there.clone(), cache)
    };
    let error = refused(&Vm::new(config), replaced.scratch.path()).await;
    assert!(error.contains("image") && error.contains("it has become a link"), "{error}");
}

#[tokio::test]
async fn a_server_starts_in_no_folder_that_became_a_link() {
    let replaced = replaced(b"");
    let ran = replaced.scratch.path().join("ran");
    let config = UpstreamConfig {
        name: "files".into(),
        reach: Reach::Stdio {
            command: ["sh", "-c", "touch \"$0\"", ran.to_str().unwrap()].map(str::to_owned).to_vec(),
            directory: Some(replaced.folder.clone()),
            environment: Vec::new(),
        },
        protocol: Protocol::Auto,
        share: Share::Session,
        call_max: Duration::from_mins(1),
    };
    let hand = Upstream::new(config, Catalogue::default());
    let said = match hand.provision(&lease(replaced.scratch.path(), "one"), &NoProgress).await {
        Err(error) => error.to_string(),
        Ok(_) => String::new(),
    };
    let looked = hand.mcp().unwrap().refresh().await.err().map(|error| error.to_string()).unwrap_or_default();
    let down = hand.mcp().unwrap().catalogue().down.as_ref().map(|down| down.why.clone()).unwrap_or_default();
    assert!(
        [&said, &looked, &down].iter().any(|text| text.contains("it has become a link")),
        "{said}{looked}{down}"
    );
    assert!(!ran.exists());
    hand.shutdown().await;
}

#[test]
fn a_credential_is_not_read_through_a_link() {
    let replaced = replaced(b"a secret");
    let source = |file: &Path| Source::File { file: file.to_owned(), prefix: String::new() };
    assert!(source(&replaced.file.with_file_name("victim")).read(|_| None).is_ok());
    let said = source(&replaced.file).read(|_| None).err().unwrap();
    assert!(said.contains("it has become a link"), "{said}");
}
