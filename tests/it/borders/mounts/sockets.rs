//! What of a mount is covered: the gateway's own files, and sockets on which somebody listens.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

use hands::Hand as _;
use hands::sandbox::{Access, SandboxConfig};

use super::{folder, mount, refused, release};
use crate::sandbox_kit::{Rig, config};

fn listen(path: &Path) -> UnixListener {
    let listener = UnixListener::bind(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    listener
}

/// What an agent does with a socket.
fn connect(socket: &str) -> String {
    format!(
        "perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0); print connect(S, sockaddr_un(\"{socket}\")) ? \
         \"through\" : \"kept out\"'"
    )
}

fn project(access: Access) -> (tempfile::TempDir, SandboxConfig) {
    let scratch = tempfile::tempdir().unwrap();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let source = scratch.path().join("source");
    folder(&source);
    let mut config = config();
    config.mounts = vec![mount(&source, "/src", access)];
    (scratch, config)
}

#[tokio::test]
async fn sockets_that_somebody_listens_on_are_covered() {
    for access in [Access::ReadWrite, Access::ReadOnly] {
        let (scratch, mut config) = project(access);
        let source = scratch.path().join("source");
        for name in ["deep/er", "keep", "odd \n\u{e4}"] {
            folder(&source.join(name));
        }
        let listening = ["top", "deep/er/socket", "odd \n\u{e4}/socket", "keep/socket", "named"];
        let _listeners = listening.map(|name| listen(&source.join(name)));
        drop(listen(&source.join("left")));
        config.sockets = vec!["/src/keep".into(), "/src/named".into()];
        let rig = Rig::with(config);
        for (socket, outcome) in [
            ("/src/top", "kept out"),
            ("/src/deep/er/socket", "kept out"),
            ("/src/odd \n\u{e4}/socket", "kept out"),
            ("/src/keep/socket", "through"),
            ("/src/named", "through"),
        ] {
            assert_eq!(rig.prints(&connect(socket)).await, outcome, "{socket:?} {access:?}");
        }
        let tried = rig.bash("rm /src/top; mv /src/top /src/moved; : < /src/top").await.text;
        assert!(!source.join("moved").exists() && source.join("top").exists(), "{tried}");
        if access == Access::ReadWrite {
            // What a server left behind leads nowhere, and is the agent's to clear away.
            rig.prints("rm /src/left").await;
        }
        assert_eq!(rig.hand.about()["sockets"][0], "/src/keep");
        rig.hand.shutdown().await;
    }
}

#[tokio::test]
async fn a_read_only_mount_has_no_pipe_to_write_to() {
    let (scratch, config) = project(Access::ReadOnly);
    let pipe = scratch.path().join("source/pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o666),
        0,
    )
    .unwrap();
    fs::set_permissions(&pipe, fs::Permissions::from_mode(0o666)).unwrap();
    let rig = Rig::with(config);
    let said = rig.bash("timeout 5 sh -c 'echo order > /src/pipe'").await.text;
    assert!(said.contains("Permission denied"), "{said}");
    rig.hand.shutdown().await;
}

/// What can't be looked through can't be covered: an agent must not win by making more, deeper or closed folders.
#[tokio::test]
async fn where_sockets_could_be_missed_nothing_starts() {
    let deep = "perl -e 'chdir \"/src\"; for (1..20) { mkdir \"x\" x 250; chdir \"x\" x 250 or die }'";
    let closed = "mkdir -p /src/closed/in && chmod 0 /src/closed";
    let root = rustix::process::geteuid().is_root();
    for (attack, says) in [(deep, "too deep"), (closed, "closed can't be looked into")] {
        let (scratch, mut config) = project(Access::ReadWrite);
        let rig = Rig::with(config.clone());
        rig.prints(attack).await;
        release(&rig).await;
        if root && attack == closed {
            // Nothing is closed to root.
            assert_eq!(rig.prints("echo fine").await, "fine");
        } else {
            let error = refused(&rig).await;
            assert!(error.contains("can't all be covered") && error.contains(says), "{error}");
            assert!(error.contains("sockets = [\"/src\"]"), "{error}");
        }
        rig.hand.shutdown().await;
        // A person may say that they do not mind.
        config.sockets = vec!["/src".into()];
        let rig = Rig::with(config);
        assert_eq!(rig.prints("echo fine").await, "fine");
        rig.hand.shutdown().await;
        let _ = fs::set_permissions(scratch.path().join("source/closed"), fs::Permissions::from_mode(0o777));
    }
}

#[tokio::test]
async fn the_gateways_own_files_are_masked_whatever_is_mounted() {
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let (scratch, mut config) = project(access);
        let home = scratch.path().join("source");
        folder(&home.join("share/data"));
        fs::write(home.join("share/data/owner.token"), "secret").unwrap();
        fs::write(home.join("manyhands.toml"), "secret").unwrap();
        fs::write(home.join("other"), "shown").unwrap();
        fs::set_permissions(home.join("manyhands.toml"), fs::Permissions::from_mode(0o666)).unwrap();
        let _listener = listen(&home.join("share/data/manyhands.sock"));
        // By another name, as settings may have it.
        std::os::unix::fs::symlink(home.join("share"), scratch.path().join("by-link")).unwrap();
        config.hidden =
            vec![scratch.path().join("by-link/data"), home.join("manyhands.toml"), "/not/there".into()];
        // All sockets stay, and these are hidden still.
        config.sockets = vec!["/src".into()];
        let rig = Rig::with(config.clone());
        assert_eq!(rig.prints("cat /src/other; ls -A /src/share/data").await, "shown");
        let said =
            rig.bash("cat /src/manyhands.toml /src/share/data/owner.token; echo > /src/share/data/x").await;
        assert!(!said.text.contains("secret"), "{}", said.text);
        assert_eq!(rig.prints(&connect("/src/share/data/manyhands.sock")).await, "kept out");
        let written = rig.bash("echo evil > /src/manyhands.toml; mv /src/share/data /src/y").await.text;
        assert_eq!(fs::read_to_string(home.join("manyhands.toml")).unwrap(), "secret", "{written}");
        assert!(home.join("share/data/owner.token").exists() && !home.join("share/data/x").exists());
        rig.hand.shutdown().await;
        // Themselves, and what is in them, are no mounts at all.
        for inside in ["share/data", "share/data/owner.token", "manyhands.toml"] {
            config.mounts = vec![mount(&home.join(inside), "/src", access)];
            let rig = Rig::with(config.clone());
            let error = refused(&rig).await;
            assert!(error.contains("the gateway's own files"), "{error}");
            rig.hand.shutdown().await;
        }
    }
}
