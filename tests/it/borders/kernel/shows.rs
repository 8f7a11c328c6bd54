//! What of this machine the kernel shows in a hand.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::path::Path;

use hands::sandbox::{Access, Mount};
use hands::{Ending, Hand};
use serde_json::json;

use crate::hand::container::ContainerRig;
use crate::hand::rig::Rig as _;
use crate::sandbox_kit::{Rig, call, config, context, seen};

/// Prints all that `/proc` has of processes, but for where mounts come from.
const ALL_BUT_MOUNTINFO: &str = "for process in 1 $PPID $$; do cd /proc/$process; \
    cat cgroup cmdline environ limits maps mounts mountstats net/unix numa_maps stat status uid_map gid_map \
    2> /dev/null | tr '\\0' '\\n'; ls -l . cwd exe fd root fd/* map_files 2> /dev/null; done; \
    cat /proc/locks /proc/keys /proc/key-users /proc/sysvipc/*; env; hostname; df 2> /dev/null; true";

/// Where what is mounted at `at` comes from, as the kernel says it.
fn roots<'a>(mountinfo: &'a str, at: &str) -> Vec<&'a str> {
    let fields = mountinfo.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields.filter(|fields| fields.get(4) == Some(&at)).map(|fields| fields[3]).collect()
}

/// Whether the path of a mount's root says where `path` is: it does so from the top of the file system on.
fn tells(root: &str, path: &Path) -> bool {
    root.len() > 1 && path.to_string_lossy().ends_with(root)
}

/// A folder whose name shows wherever it shows.
fn named() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("manyhands-canary-").tempdir().unwrap()
}

#[tokio::test]
async fn nothing_shows_where_a_workspace_lies_but_the_list_of_mounts() {
    let project = named();
    let mut config = config();
    config.mounts =
        vec![Mount { host: project.path().into(), at: "/project".into(), access: Access::ReadWrite }];
    let mut rig = Rig::with(config);
    // As the gateway has it: data directory, session, hand.
    let data = named();
    rig.lease.work = data.path().join("work/sesn_canary/one");
    let shown = rig.prints(ALL_BUT_MOUNTINFO).await;
    assert!(shown.contains(" /workspace "), "{shown}");
    for word in ["canary", "sesn_"] {
        let line = shown.lines().find(|line| line.contains(word));
        assert_eq!(line, None, "{word} shows");
    }
    // README says that these two show, and which parts of the machine's programs do.
    let mountinfo = rig.prints("cat /proc/self/mountinfo").await;
    for (at, path) in [("/workspace", rig.lease.work.as_path()), ("/project", project.path())] {
        let roots = roots(&mountinfo, at);
        assert!(
            roots.iter().all(|root| tells(root, path)) && roots.len() == 1,
            "{at}: {roots:?}\n{mountinfo}"
        );
    }
    let others = mountinfo.lines().filter(|line| line.contains("canary")).count();
    assert_eq!(others, 2, "{mountinfo}");
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn nothing_shows_where_a_workspace_of_a_container_lies_but_the_list_of_mounts() {
    let rig = ContainerRig::with(|_| ()).await;
    let mut lease = rig.lease("one");
    let data = named();
    lease.work = data.path().join("work/sesn_canary/one");
    let hand = rig.hand();
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    let prints = async |command: &str| {
        let seen =
            seen(hand.execute(&handle, &call("bash", json!({"command": command})), context()).await.unwrap());
        assert_eq!(seen.ending, Ending::Ok, "{command}: {}", seen.text);
        seen.text
    };
    let shown = prints(ALL_BUT_MOUNTINFO).await;
    assert_eq!(shown.lines().find(|line| line.contains("canary")), None);
    let mountinfo = prints("cat /proc/self/mountinfo").await;
    let roots = roots(&mountinfo, "/workspace");
    assert!(roots.iter().any(|root| tells(root, &lease.work)), "{roots:?}\n{mountinfo}");
    let others = mountinfo.lines().filter(|line| line.contains("canary")).count();
    assert_eq!(others, 1, "{mountinfo}");
    rig.finish().await;
}
