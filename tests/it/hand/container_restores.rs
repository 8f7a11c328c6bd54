//! Checkpoints of containers that fail or are killed in the middle of being brought back.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};

use hands::{Ending, Hand, Handle};

use crate::borders::copies::{archive, sent};

use super::container::ContainerRig;
use super::rig::{Rig, bash};

async fn prints(hand: &dyn Hand, handle: &Handle, command: &str) -> String {
    let (ending, text) = bash(hand, handle, command).await;
    assert_eq!(ending, Ending::Ok, "{command}: {text}");
    text
}

/// What is somebody else's can't be moved out of the way.
#[tokio::test]
async fn a_restore_that_fails_leaves_what_was_there_whole() {
    let rig = ContainerRig::new().await;
    let (hand, lease) = (rig.hand(), rig.lease("one"));
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    prints(&*hand, &handle, "mkdir a z; echo old > a/file; echo old > z/file; chmod 555 a").await;
    let checkpoints = hand.checkpoints().unwrap();
    checkpoints.checkpoint(&handle, "one").await.unwrap();
    prints(&*hand, &handle, "chmod 755 a; echo new > a/file; echo new > z/file; chmod 555 a").await;
    let theirs = lease.work.join("m");
    fs::DirBuilder::new().mode(0o755).create(&theirs).unwrap();
    fs::write(theirs.join("file"), "theirs\n").unwrap();
    let show = "cat a/file z/file; stat -c %a a; ls -A . .manyhands";
    let now = prints(&*hand, &handle, show).await;
    for _ in 0..2 {
        let said = checkpoints.restore(&handle, "one").await.unwrap_err().to_string();
        assert!(said.contains("could not be brought back") && said.contains("/workspace/m"), "{said}");
        assert!(said.ends_with("see to that in /workspace and try again"), "{said}");
        assert_eq!(prints(&*hand, &handle, show).await, now);
    }
    let ours = fs::metadata(&lease.work).unwrap();
    let owner = |of: &fs::Metadata| {
        use std::os::unix::fs::MetadataExt;
        (Some(of.uid()), Some(of.gid()))
    };
    let (user, group) = owner(&ours);
    chown(&theirs, user, group).unwrap();
    checkpoints.restore(&handle, "one").await.unwrap();
    let then = "old\nold\n555\n.:\n.manyhands\na\nz\n\n.manyhands:\ncheckpoints\n";
    assert_eq!(prints(&*hand, &handle, show).await, then);
    rig.finish().await;
}

/// As a container leaves it that is killed at this moment.
#[tokio::test]
async fn what_was_killed_in_the_middle_is_made_good_by_the_next() {
    let rig = ContainerRig::new().await;
    let (hand, lease) = (rig.hand(), rig.lease("one"));
    let checkpoints = hand.checkpoints().unwrap();
    let show = "cat a/file z/file; stat -c %a a; ls -A";
    for killed in [
        // While the old goes aside, and while the new comes in.
        "mkdir replacing; chmod 755 ../a; mv ../a replacing/a; chmod 555 replacing/a",
        "mkdir replaced; chmod 755 ../a; mv ../a ../z replaced; chmod 555 replaced/a; \
         mkdir -p ../a; echo half > ../a/file; chmod 555 ../a; echo new > ../new",
    ] {
        let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
        prints(&*hand, &handle, "mkdir a z; echo old > a/file; echo old > z/file; chmod 555 a").await;
        checkpoints.checkpoint(&handle, "one").await.unwrap();
        let rest = "mkdir -p restoring/z discarded/ro; echo half > discarded/ro/file; chmod 555 discarded/ro; \
                    echo half > checkpoints/.one.new; echo half > checkpoints/.two.new";
        prints(&*hand, &handle, &format!("cd .manyhands; {killed}; {rest}")).await;
        rig.kill(&lease.instance).await;
        super::rig::soon(|| !hand.alive(&handle)).await;
        // No call sees half of it.
        let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
        assert_eq!(prints(&*hand, &handle, show).await, "old\nold\n555\n.manyhands\na\nz\n", "{killed}");
        checkpoints.checkpoint(&handle, "two").await.unwrap();
        let left = prints(&*hand, &handle, "ls -A .manyhands .manyhands/checkpoints").await;
        assert_eq!(left, ".manyhands:\ncheckpoints\n\n.manyhands/checkpoints:\none.tar\ntwo.tar\n");
        // What is begun again is not in the way of itself.
        prints(&*hand, &handle, "mkdir .manyhands/restoring; echo x > .manyhands/restoring/x").await;
        checkpoints.restore(&handle, "two").await.unwrap();
        assert_eq!(prints(&*hand, &handle, show).await, "old\nold\n555\n.manyhands\na\nz\n", "{killed}");
        prints(&*hand, &handle, "chmod 755 a; rm -r a z").await;
        hand.release(handle).await.unwrap();
    }
    rig.finish().await;
}

/// What is kept lies where the agent writes, so it may be any archive.
#[tokio::test]
async fn a_checkpoint_that_an_agent_wrote_reaches_nothing_but_its_workspace() {
    let rig = ContainerRig::new().await;
    let (hand, lease) = (rig.hand(), rig.lease("one"));
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    let checkpoints = hand.checkpoints().unwrap();
    checkpoints.checkpoint(&handle, "one").await.unwrap();
    let victim = tempfile::tempdir().unwrap();
    let kept = lease.work.join(".manyhands/checkpoints/one.tar");
    let out = victim.path().to_str().unwrap();
    for link in [out, "../../../..", "/"] {
        let planted = format!("x{out}/planted");
        let entries = [sent('2', "x", link), sent('0', "x/planted", ""), sent('0', planted, "")];
        fs::write(&kept, archive(&entries)).unwrap();
        // It may go wrong or not, as long as it goes no further.
        let _ = checkpoints.restore(&handle, "one").await;
        assert_eq!(fs::read_dir(victim.path()).unwrap().count(), 0, "{link}");
    }
    fs::write(&kept, archive(&[sent('0', "program", "")])).unwrap();
    checkpoints.restore(&handle, "one").await.unwrap();
    let mode = fs::metadata(lease.work.join("program")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o777, "it runs as its owner for whoever starts it");
    rig.finish().await;
}
