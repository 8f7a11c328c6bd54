//! Copies and checkpoints of containers whose image has no program for either.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hands::container::Workspace;
use hands::sandbox::{CopyError, pack};
use hands::{Ending, Hand, Handle};
use tests::dockerd::{Dockerd, rootfs};
use tests::gateway::{Gateway, Options, command};
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::sync::CancellationToken;

use super::container::ContainerRig;
use super::rig::{Rig, bash, is_gone, soon};
use crate::sandbox_kit::unpack;

/// A workspace with everything that is not a plain file, and what of it is to be the same wherever it goes.
const MAKE: &str = r#"
mkdir -p tree/deep/er tree/closed
printf %s one > tree/deep/er/one
ln tree/deep/er/one tree/same
ln -s ../../../etc/passwd tree/outside
ln -s /tmp/nowhere tree/absolute
ln -s deep/er tree/inside
mkfifo tree/pipe
printf '#!/bin/sh\n' > tree/run
chmod 755 tree/run
chmod 600 tree/deep/er/one
touch -d @1000000000 tree/deep/er/one
long=$(printf %0200d 7)
mkdir -p "tree/$long"
printf %s long > "tree/$long/$long"
printf %s odd > "tree/  odd
name"
chmod 500 tree/closed"#;
const SHOW: &str = "cd tree && find . | sort | while read -r name; do \
                    [ -e \"$name\" ] || [ -L \"$name\" ] || continue; stat -c '%n %F %a %u %g %h' \"$name\"; done; \
                    readlink outside absolute inside; stat -c %Y deep/er/one; cat same */*/one";

async fn prints(hand: &dyn Hand, handle: &Handle, command: &str) -> String {
    let (ending, text) = bash(hand, handle, command).await;
    assert_eq!(ending, Ending::Ok, "{command}: {text}");
    text
}

/// Both where the daemon sees this machine's files and where it does not.
async fn rig(workspace: Workspace) -> ContainerRig {
    let rig = ContainerRig::with(|config| config.workspace = workspace).await;
    let (hand, lease) = (rig.hand(), rig.lease("without"));
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    let (_, found) = bash(&*hand, &handle, "command -v tar cp cpio pax rsync; echo none").await;
    assert_eq!(found, "none\n");
    hand.release(handle).await.unwrap();
    rig
}

#[tokio::test]
async fn a_checkpoint_brings_back_links_modes_and_owners_as_they_were() {
    for workspace in [Workspace::Bind, Workspace::Volume] {
        let rig = rig(workspace).await;
        let (hand, lease) = (rig.hand(), rig.lease("one"));
        let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
        prints(&*hand, &handle, MAKE).await;
        let before = prints(&*hand, &handle, SHOW).await;
        let checkpoints = hand.checkpoints().unwrap();
        checkpoints.checkpoint(&handle, "one").await.unwrap();
        // What is kept is no part of the next.
        checkpoints.checkpoint(&handle, "two").await.unwrap();
        let sizes =
            "cd .manyhands/checkpoints; ls -A; set -- $(wc -c < one.tar) $(wc -c < two.tar); [ $1 = $2 ]";
        assert_eq!(prints(&*hand, &handle, sizes).await, "one.tar\ntwo.tar\n");
        prints(
            &*hand,
            &handle,
            "chmod 700 tree/closed; rm -r tree; mkdir tree; echo x > tree/new; echo y > .z",
        )
        .await;
        checkpoints.restore(&handle, "one").await.unwrap();
        assert_eq!(prints(&*hand, &handle, SHOW).await, before, "{workspace:?}");
        assert_eq!(
            prints(&*hand, &handle, "ls -A; ls -A .manyhands").await,
            ".manyhands\ntree\ncheckpoints\n"
        );
        hand.release(handle).await.unwrap();
        is_gone(&rig, &lease.instance).await;
        rig.finish().await;
    }
}

#[tokio::test]
async fn copies_reach_all_that_a_container_sees() {
    for workspace in [Workspace::Bind, Workspace::Volume] {
        let rig = rig(workspace).await;
        let (hand, lease) = (rig.hand(), rig.lease("one"));
        let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
        let source = rig.folder.path().join("source");
        fs::create_dir_all(source.join("deep")).unwrap();
        fs::write(source.join("deep/program"), "#!/bin/sh\necho ran\n").unwrap();
        fs::set_permissions(source.join("deep/program"), fs::Permissions::from_mode(0o755)).unwrap();
        symlink("../../../etc/shadow", source.join("outside")).unwrap();
        let mut archive = Vec::new();
        pack(&source, &mut archive).unwrap();
        let never = CancellationToken::new();
        let files = hand.files().unwrap();
        for (number, to) in ["/tmp/there/tree", "here/tree"].into_iter().enumerate() {
            let from = Box::new(std::io::Cursor::new(archive.clone()));
            files.copy_in(&handle, to, from, &never).await.unwrap();
            let show = format!(
                "cd {to} && ./deep/program && readlink outside && touch deep/mine && ln deep/mine same"
            );
            assert_eq!(prints(&*hand, &handle, &show).await, "ran\n../../../etc/shadow\n");
            let mut out = Vec::new();
            files.copy_out(&handle, to, &mut out, &|_| {}, &never).await.unwrap();
            let back = rig.folder.path().join(format!("back-{number}"));
            unpack(&out, &back).unwrap();
            assert_eq!(fs::read_link(back.join("outside")).unwrap().to_str(), Some("../../../etc/shadow"));
            assert_eq!(fs::metadata(back.join("deep/program")).unwrap().mode() & 0o777, 0o755);
            assert_eq!(fs::read(back.join("same")).unwrap(), b"");
        }
        let refused = |copied: Result<(), CopyError>| copied.unwrap_err().to_string();
        for path in ["/tmp/nonesuch", "nonesuch"] {
            let copied = files.copy_out(&handle, path, &mut Vec::new(), &|_| {}, &never).await;
            let said = refused(copied.map(|_| ()));
            assert!(said.ends_with("nonesuch: No such file or directory."), "{said}");
        }
        for (to, archive, why) in [
            ("here/tree", archive.clone(), "tree exists already"),
            ("/usr/tree", archive.clone(), "ead-only file system"),
            ("short", archive[..archive.len() - 1024].to_vec(), "The archive can't be used: it ends"),
        ] {
            let said =
                refused(files.copy_in(&handle, to, Box::new(std::io::Cursor::new(archive)), &never).await);
            assert!(said.contains(why), "{to}: {said}");
        }
        assert_eq!(prints(&*hand, &handle, "ls -A . /tmp .manyhands").await.matches("copy").count(), 0);
        rig.finish().await;
    }
}

#[tokio::test]
async fn a_copy_of_the_workspace_has_nothing_that_is_kept_of_it() {
    let rig = rig(Workspace::Bind).await;
    let hand = rig.hand();
    let handle = hand.provision(&rig.lease("one"), &hands::NoProgress).await.unwrap();
    prints(&*hand, &handle, "echo text > file; mkfifo pipe; mkdir -p /tmp/a; mkfifo /tmp/a/pipe").await;
    hand.checkpoints().unwrap().checkpoint(&handle, "one").await.unwrap();
    let (files, never) = (hand.files().unwrap(), CancellationToken::new());
    for (number, (from, expected)) in
        [("/workspace", vec!["file"]), (".", vec!["file"]), ("/tmp/a", vec![])].into_iter().enumerate()
    {
        let mut out = Vec::new();
        assert_eq!(files.copy_out(&handle, from, &mut out, &|_| {}, &never).await.unwrap(), 1, "{from}");
        let to = rig.folder.path().join(number.to_string());
        unpack(&out, &to).unwrap();
        let names: Vec<_> = fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, expected, "{from}");
    }
    let pipe = files.copy_out(&handle, "pipe", &mut Vec::new(), &|_| {}, &never).await.unwrap_err();
    assert_eq!(pipe.to_string(), "/workspace/pipe is neither a file nor a folder.");
    rig.finish().await;
}

/// Gives a file that never ends, slowly enough for a watch to see it.
struct Endless {
    header: Vec<u8>,
    pause: Pin<Box<tokio::time::Sleep>>,
}

impl AsyncRead for Endless {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if !self.header.is_empty() {
            to.put_slice(&std::mem::take(&mut self.header));
            return Poll::Ready(Ok(()));
        }
        std::task::ready!(self.pause.as_mut().poll(context));
        self.pause = Box::pin(tokio::time::sleep(Duration::from_millis(1)));
        to.initialize_unfilled().fill(0);
        let length = to.remaining();
        to.advance(length);
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_copy_that_grows_beyond_the_workspace_ends_and_leaves_nothing() {
    let rig = ContainerRig::with(|config| config.limits.workspace = 32 << 20).await;
    let (hand, lease) = (rig.hand(), rig.lease("one"));
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    let files = hand.files().unwrap();
    let header = endless_file(rig.folder.path());
    let endless = || Endless { header: header.clone(), pause: Box::pin(tokio::time::sleep(Duration::ZERO)) };
    let grown = files.copy_in(&handle, "large", Box::new(endless()), &CancellationToken::new()).await;
    let said = grown.unwrap_err().to_string();
    assert!(said.contains("/workspace grew beyond its limit of 32 MiB"), "{said}");
    assert_eq!(prints(&*hand, &handle, "ls -A . .manyhands").await, ".:\n.manyhands\n\n.manyhands:\n");
    // One that is cancelled, too.
    let cancel = CancellationToken::new();
    let (copied, ()) = tokio::join!(files.copy_in(&handle, "large", Box::new(endless()), &cancel), async {
        soon(|| fs::read_dir(lease.work.join(".manyhands")).unwrap().count() > 0).await;
        cancel.cancel();
    });
    assert_eq!(copied.unwrap_err().to_string(), "The copy was cancelled.");
    assert_eq!(prints(&*hand, &handle, "ls -A . .manyhands").await, ".:\n.manyhands\n\n.manyhands:\n");
    hand.release(handle).await.unwrap();
    is_gone(&rig, &lease.instance).await;
    rig.finish().await;
}

/// The beginning of an archive of one file of 8 GB.
fn endless_file(folder: &Path) -> Vec<u8> {
    let file = folder.join("small");
    fs::write(&file, "x").unwrap();
    let mut archive = Vec::new();
    pack(&file, &mut archive).unwrap();
    archive.truncate(512);
    archive[124..136].copy_from_slice(format!("{:011o}\0", 8_000_000_000_u64).as_bytes());
    archive[148..156].fill(b' ');
    let sum: u64 = archive.iter().copied().map(u64::from).sum();
    archive[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    archive
}

/// Most memory that this process has used, in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[tokio::test]
async fn large_files_pass_without_being_held() {
    let rig = rig(Workspace::Bind).await;
    let (hand, lease) = (rig.hand(), rig.lease("one"));
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    prints(&*hand, &handle, "head -c 200000000 /dev/zero > large; echo end >> large").await;
    let before = peak();
    let checkpoints = hand.checkpoints().unwrap();
    checkpoints.checkpoint(&handle, "one").await.unwrap();
    prints(&*hand, &handle, "rm large").await;
    checkpoints.restore(&handle, "one").await.unwrap();
    assert_eq!(prints(&*hand, &handle, "wc -c < large; tail -c 4 large").await, "200000004\nend\n");
    let mut nowhere = tokio::io::sink();
    hand.files()
        .unwrap()
        .copy_out(&handle, "large", &mut nowhere, &|_| {}, &CancellationToken::new())
        .await
        .unwrap();
    let grown = peak() - before;
    assert!(grown < 64 << 20, "200 MB took {grown} bytes of memory");
    rig.finish().await;
}

/// Whoever is killed while a checkpoint is made: the one before it is whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_that_a_kill_broke_off_leaves_the_one_before() {
    let daemon = Dockerd::start().await.unwrap();
    let config = format!(
        "[hands.box]\nkind = \"container\"\nrootfs = \"{}\"\nhost = \"{}\"\n",
        rootfs().unwrap().display(),
        daemon.host()
    );
    let data = tempfile::tempdir().unwrap();
    let options = Options::default().config(&config).data(data.path());
    let mut gateway = Gateway::start(options.clone()).await.unwrap();
    let call = |gateway: &Gateway, command: &str| {
        let arguments = serde_json::json!({"command": command, "timeout_s": 300}).to_string();
        let called = gateway.cli(&["hand", "call", "box", "bash", &arguments, "--session", "s"]).unwrap();
        assert!(called.status.success(), "{called:?}");
        String::from_utf8(called.stdout).unwrap()
    };
    let ok = |gateway: &Gateway, arguments: &[&str]| {
        let done = gateway.cli(arguments).unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    call(&gateway, "echo old > file");
    ok(&gateway, &["hand", "checkpoint", "box", "one", "--session", "s"]);
    // Long on its way, and takes next to no room.
    call(&gateway, "echo new > file; truncate -s 2000000000 large");
    for killed in ["gateway", "container"] {
        let mut checkpoint = command(data.path());
        checkpoint.args(["hand", "checkpoint", "box", "one", "--session", "s"]);
        let mut checkpoint = checkpoint.spawn().unwrap();
        let begun = || fs::metadata(found(data.path(), ".one.new")).is_ok_and(|new| new.len() > 1_000_000);
        let start = Instant::now();
        // Making a container takes a busy disk long.
        while !begun() {
            assert!(start.elapsed() < Duration::from_mins(2), "{killed}: it did not begin");
            assert!(checkpoint.try_wait().unwrap().is_none(), "{killed}: it was over at once");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if killed == "gateway" {
            gateway.kill().unwrap();
        } else {
            let containers = daemon.docker(&["ps", "--quiet"]);
            daemon.docker(&["kill", containers.trim()]);
        }
        assert!(!checkpoint.wait().unwrap().success(), "{killed}");
        if killed == "gateway" {
            gateway = Gateway::start(options.clone()).await.unwrap();
        }
        soon(|| daemon.docker(&["ps", "--all", "--quiet"]).is_empty()).await;
        // Behind a word on the instance that was lost. What was broken off is no sign that the next has begun.
        let said = call(&gateway, "cat file; stat -c %s large; rm .manyhands/checkpoints/.one.new");
        assert!(said.contains("new\n2000000000"), "{said}");
    }
    assert_eq!(daemon.docker(&["ps", "--all", "--quiet"]).lines().count(), 1);
    ok(&gateway, &["hand", "restore", "box", "one", "--session", "s"]);
    assert_eq!(call(&gateway, "ls; cat file"), "file\nold\n");
    ok(&gateway, &["hand", "checkpoint", "box", "one", "--session", "s"]);
    assert_eq!(call(&gateway, "ls -A .manyhands/checkpoints"), "one.tar\n");
    gateway.stop().unwrap();
    assert_eq!(daemon.docker(&["volume", "ls", "--quiet"]), "");
}

/// The file of this name below the data directory, where there is one.
fn found(data: &Path, name: &str) -> PathBuf {
    let found = std::process::Command::new("find").arg(data).args(["-name", name]).output().unwrap();
    String::from_utf8(found.stdout).unwrap().trim().into()
}
