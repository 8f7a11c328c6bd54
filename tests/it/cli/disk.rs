//! Disks that are full or read-only: small file systems in a mount namespace of their own.

use std::process::Command;

use super::{Home, Said, said};

/// Runs a script that may mount; `m` in it is the binary on the data directory `$PWD/data`, of whose disk nothing is kept
/// free.
fn mounting(home: &Home, script: &str) -> Said {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    let binary = tests::gateway::binary();
    let m = format!(
        "M={}; export MANYHANDS_DATA=$PWD/data MANYHANDS_LIMITS_FREE_DISK_MIB=0; m() {{ $M \"$@\"; }}",
        binary.display()
    );
    command.args(["--mount", "bash", "-c", &format!("set -u\n{m}\n{script}")]).current_dir(home.path());
    said(command)
}

/// Writing stops with a sentence, what was acknowledged is there, and it goes on when there is room again. Deleting goes
/// on all the while, from the reserve.
#[test]
fn a_full_disk_stops_writing_until_there_is_room() {
    let home = Home::new();
    let said = mounting(
        &home,
        r#"
        mkdir data; mount -t tmpfs -o size=3m tmpfs data
        MANYHANDS_LIMITS_FREE_DISK_MIB=1024 m hand call sandbox bash '{"command":"true"}' 2>&1 | sed 's/^/call: /'
        $M serve --listen 127.0.0.1:0 > serving 2> log & serving=$!
        until grep -q listening serving; do sleep 0.05; done
        m session new kept > /dev/null
        head -c 10000000 /dev/zero > data/fill 2> /dev/null
        acknowledged=0
        while m session new "s$acknowledged" > /dev/null 2> why; do acknowledged=$((acknowledged + 1)); done
        echo "stopped: $(cat why)"
        m token new late 2>&1 | sed 's/^/token: /'
        m session delete kept > /dev/null && echo deletes
        [ "$(m session list | grep -c ' s[0-9]')" = $acknowledged ] && echo all there
        rm data/fill
        m session new after > /dev/null && echo goes on
        m token new late > /dev/null && echo tokens too
        kill $serving; wait $serving; echo "ended $?"
        [ "$(m session list | grep -c ' s[0-9]')" = $acknowledged ] && echo still there
        head -c 10000000 /dev/zero > data/fill 2> /dev/null
        m session delete after > /dev/null && echo deletes without a gateway
        "#,
    );
    let shown: Vec<_> = said.out.lines().collect();
    for (line, begins) in shown.iter().zip(["call: ", "stopped: ", "token: "]) {
        assert!(
            line.starts_with(begins) && line.contains("are kept free (limits.free_disk_mib)"),
            "{said:?}"
        );
    }
    assert_eq!(
        shown[3..],
        [
            "deletes",
            "all there",
            "goes on",
            "tokens too",
            "ended 0",
            "still there",
            "deletes without a gateway"
        ],
        "{said:?}"
    );
}

#[test]
fn a_disk_that_is_full_from_the_start_keeps_nothing_half_written() {
    let home = Home::new();
    let said = mounting(
        &home,
        r"
        mkdir data; mount -t tmpfs -o size=64k tmpfs data
        m session new one 2>&1
        mount -o remount,size=9m data
        m session new one > /dev/null && m session list | wc -l
        ",
    );
    let shown: Vec<_> = said.out.lines().collect();
    assert!(shown[0].contains("disk of the database is full"), "{said:?}");
    assert_eq!(shown[1..], ["1"], "{said:?}");
}

#[test]
fn a_read_only_disk_is_refused() {
    let home = Home::new();
    home.json(&["session", "new", "one"]);
    let said = mounting(
        &home,
        r"
        mount --bind data data; mount -o remount,bind,ro data
        m session list 2>&1; m serve --listen 127.0.0.1:0 2>&1; m --data data/deeper session new x 2>&1
        ",
    );
    assert_eq!(said.out.lines().count(), 3, "{said:?}");
    for line in said.out.lines() {
        assert!(line.contains("Read-only file system") && line.contains("--data"), "{said:?}");
    }
    assert_eq!(home.types("one"), ["session.created"]);
}
