//! Copies to hosts whose client goes away in the middle.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::fs;
use std::path::Path;
use std::process::Command;

use tests::gateway::{Gateway, Options, command};
use tests::sshd::Sshd;

use crate::hand::rig::soon;

/// What there is of copies that are not complete.
fn half(home: &Path) -> String {
    let found = Command::new("find").arg(home).args(["-name", "*copy*"]).output().unwrap();
    String::from_utf8(found.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_killed_leaves_nothing_of_its_copy_on_the_host() {
    let server = Sshd::start().await.unwrap();
    let host = server.config().unwrap();
    let config = format!(
        "[hands.host]\nkind = \"ssh\"\nhost = {:?}\nport = {}\nuser = {:?}\nkey = {:?}\nhost_keys = [{:?}]\n",
        host.host,
        host.port,
        host.user,
        server.path("user"),
        fs::read_to_string(server.path("host.pub")).unwrap().trim(),
    );
    let data = tempfile::tempdir().unwrap();
    let mut gateway = Gateway::start(Options::default().config(&config).data(data.path())).await.unwrap();
    let big = server.path("big");
    // Written, not sparse: holes are copied in no time.
    fs::write(&big, vec![7; 400 << 20]).unwrap();
    for _ in 0..3 {
        let mut copy = command(data.path());
        copy.args(["hand", "cp", big.to_str().unwrap(), "host:big", "--session", "s"]);
        let mut copy = copy.spawn().unwrap();
        soon(|| !half(&server.path("home")).is_empty()).await;
        copy.kill().unwrap();
        copy.wait().unwrap();
        soon(|| half(&server.path("home")).is_empty()).await;
    }
    let echo = ["hand", "call", "host", "bash", r#"{"command": "ls; echo here"}"#, "--session", "s"];
    let called = gateway.cli(&echo).unwrap();
    assert_eq!(String::from_utf8_lossy(&called.stdout), "here\n", "{called:?}");
    gateway.stop().unwrap();
}
