//! The owner's socket, reached from inside a sandbox that sees the data directory.

use std::process::Command;

use tests::gateway::{Gateway, Options, binary};

use super::{Machine, Said, is_root};

/// What an agent would gain most by.
const ATTEMPTS: [&[&str]; 3] =
    [&["token", "new", "evil"], &["token", "list"], &["hand", "add", "evil", "--", "true"]];

/// The real binary in another PID namespace, as the same user, with the data directory before it.
fn inside(gateway: &Gateway, wrapper: &[&str], args: &[&str]) -> Said {
    let mut command = Command::new(wrapper[0]);
    command.args(&wrapper[1..]).arg(binary()).arg("--data").arg(gateway.data()).args(args);
    Said::of(&command.output().unwrap())
}

#[test]
fn a_sandbox_that_sees_the_socket_is_turned_away() {
    let machine = Machine::new();
    let gateway = Gateway::start_blocking(&Options::default().data(&machine.path("data"))).unwrap();
    let sandbox = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid", "--"];
    let mut wrappers = vec![&sandbox[..]];
    if is_root() {
        wrappers.push(&["unshare", "--pid", "--fork", "--"]);
        wrappers.push(&["unshare", "--pid", "--fork", "--mount-proc", "--"]);
    }
    for wrapper in wrappers {
        for args in ATTEMPTS {
            let said = inside(&gateway, wrapper, args);
            said.refuses(&["its own PID namespace", "run it where the gateway runs"]);
            assert_eq!(said.out, "");
        }
    }
    let tokens = gateway.cli(&["token", "list"]).unwrap();
    let tokens = String::from_utf8(tokens.stdout).unwrap();
    assert!(tokens.contains("owner") && !tokens.contains("evil"), "{tokens}");
    assert!(gateway.stderr().contains("turned away from the owner's socket"), "{}", gateway.stderr());
    // Whoever sees the same processes is answered, whatever else is its own.
    let same = ["bwrap", "--dev-bind", "/", "/", "--unshare-net", "--"];
    inside(&gateway, &same, &["token", "list"]).succeeds();
}

/// One that connects and ends leaves its connection to another process; the number that it had counts for nothing.
#[test]
fn a_peer_that_is_gone_is_turned_away() {
    let machine = Machine::new();
    let gateway = Gateway::start_blocking(&Options::default().data(&machine.path("data"))).unwrap();
    // The gateway accepts only once it goes on, and by then the one that connected is gone.
    gateway.signal(rustix::process::Signal::STOP).unwrap();
    let script = "import os, socket, sys
peer = socket.socket(socket.AF_UNIX)
pid = os.fork()
if pid == 0:
    peer.connect(sys.argv[1])
    os._exit(0)
os.waitpid(pid, 0)
os.kill(int(sys.argv[2]), 18)
peer.sendall(b'GET /tokens HTTP/1.1\\r\\nHost: manyhands\\r\\nConnection: close\\r\\n\\r\\n')
print(peer.recv(65536).decode())";
    let socket = gateway.data().join("manyhands.sock");
    let asked =
        Command::new("python3").args(["-c", script]).arg(socket).arg(gateway.pid().to_string()).output();
    let asked = Said::of(&asked.unwrap());
    assert!(asked.out.contains("403 Forbidden") && !asked.out.contains("local:owner"), "{asked:?}");
}
