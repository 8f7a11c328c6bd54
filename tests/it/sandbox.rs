//! What a sandbox keeps in, and what it keeps out.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use hands::sandbox::{Access, Mount, Network, Sandbox, seccomp};
use hands::{Ending, Hand};
use serde_json::json;

use crate::sandbox_kit::{Rig, call, config, context, lease, seen};

#[tokio::test]
async fn nothing_of_this_machine_shows_but_its_programs() {
    let rig = Rig::new();
    let secret = rig.folder.path().join("secret");
    fs::write(&secret, "canary").unwrap();
    for (command, expected) in [
        ("ls /", "bin dev etc lib lib64 proc run sbin tmp usr var workspace"),
        ("ls -A /tmp /run | tr '\\n' ' '", "/run: manyhands  /tmp:"),
        ("ls -A /workspace", ""),
        ("cat /etc/passwd | wc -l", "3"),
        ("ls /home /root /sys /boot /srv /mnt /opt 2>&1 | grep -c 'No such file'", "7"),
        ("ls /etc/shadow /etc/hostname /etc/ssh /etc/machine-id 2>/dev/null", "/etc/hostname"),
        ("whoami; hostname; id -u", "hand sandbox 1000"),
        ("touch /usr/x /etc/x /x /dev/x /var/x /run/x 2>&1 | grep -c 'Read-only file system'", "6"),
        ("env | grep -cE 'CARGO|NEXTEST|TOKEN'", "0"),
        (
            "ls /dev | tr '\\n' ' '",
            "console core fd full null ptmx pts random shm stderr stdin stdout tty urandom zero",
        ),
    ] {
        let text = rig.bash(command).await.text;
        let text = text.split("\n[exit").next().unwrap_or_default();
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut seen = words(text);
        // Some machines have more kinds of libraries, and no console.
        for more in ["lib32 ", "libx32 "] {
            seen = seen.replace(more, "");
        }
        assert_eq!(
            seen.replace("console ", ""),
            expected.replace("  ", " ").replace("console ", ""),
            "{command}"
        );
    }
    let leaked = rig.bash(&format!("cat {}", secret.display())).await;
    assert!(leaked.text.contains("No such file"), "{}", leaked.text);
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn there_is_no_network_no_privilege_and_no_new_namespace() {
    let rig = Rig::new();
    for (command, expected) in [
        ("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '", "lo"),
        ("cat /proc/net/route | wc -l; cat /proc/net/ipv6_route | grep -vc ' lo$'", "1 0"),
        (
            "(exec 3<>/dev/tcp/192.0.2.1/80) 2>&1 | grep -o 'Network is unreachable' | sort -u",
            "Network is unreachable",
        ),
        ("grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status | grep -vc 0000000000000000", "0"),
        ("grep -E 'NoNewPrivs|Seccomp:' /proc/self/status | tr -d '\\t'", "NoNewPrivs:1 Seccomp:2"),
        ("unshare --user true 2>&1 | grep -o 'Operation not permitted'", "Operation not permitted"),
        ("su -c true 2>&1 | wc -l; echo 'int main;' > /dev/null", "1"),
        // Neither PID 1 nor a runner shows its memory or files, and no signal ends PID 1.
        ("ls /proc/1/fd 2>&1 | grep -o 'Permission denied'", "Permission denied"),
        ("ls /proc/$PPID/fd 2>&1 | grep -o 'Permission denied'", "Permission denied"),
        ("kill -9 1; kill -STOP 1; echo $?", "0"),
    ] {
        let seen = rig.bash(command).await;
        let text = seen.text.split("\n[exit").next().unwrap_or_default();
        assert_eq!(text.split_whitespace().collect::<Vec<_>>().join(" "), expected, "{command}");
    }
    let processes = rig.prints("ps -e -o comm= > /tmp/ps; sort -u /tmp/ps | tr '\\n' ' '").await;
    assert_eq!(processes, "bash manyhands ps", "processes of the machine show");
    rig.hand.shutdown().await;
}

/// Each denied call is really made, with arguments that would do no harm if it were let through.
#[tokio::test]
async fn every_denied_system_call_is_denied() {
    let rig = Rig::new();
    let unconditional = seccomp::DENIED
        .iter()
        .chain(seccomp::DENIED_HERE)
        .chain(seccomp::UNKNOWN)
        .map(|(name, number)| ((*name).to_owned(), format!("{number}, 0, 0, 0, 0, 0, 0")));
    let flag = |name: &str, flag: u64| {
        // With CLONE_VM, without CLONE_SIGHAND and with CLONE_THREAD: invalid, so it never makes a process.
        (format!("SYS_clone {name}"), format!("{}, {}, 0, 0, 0, 0", libc_clone(), flag | 0x0001_0000))
    };
    let clones = [
        flag("CLONE_NEWNS", 0x0002_0000),
        flag("CLONE_NEWCGROUP", 0x0200_0000),
        flag("CLONE_NEWUTS", 0x0400_0000),
        flag("CLONE_NEWIPC", 0x0800_0000),
        flag("CLONE_NEWUSER", 0x1000_0000),
        flag("CLONE_NEWPID", 0x2000_0000),
        flag("CLONE_NEWNET", 0x4000_0000),
        flag("CLONE_NEWTIME", 0x80),
    ];
    let others = conditional().into_iter().chain(modes());
    let cases: Vec<(String, String)> = unconditional.chain(clones).chain(others).collect();
    let ask = |(name, arguments): &(String, String)| {
        format!(
            "$r = syscall({arguments}); printf(\"%s: %s\n\", '{name}', $r == -1 ? $!+0 : 'done');
"
        )
    };
    let script: String = cases.iter().map(ask).collect();
    rig.call("write", json!({"path": "denied.pl", "content": script})).await;
    let printed = rig.prints("perl denied.pl").await;
    println!("{printed}");
    let answers: Vec<&str> = printed.lines().collect();
    assert_eq!(answers.len(), cases.len());
    let (eperm, enosys) = (": 1", ": 38");
    let wrong: Vec<&&str> =
        answers.iter().filter(|line| !line.ends_with(eperm) && !line.ends_with(enosys)).collect();
    assert!(wrong.is_empty(), "not denied (name: errno): {wrong:?}");
    // The same way of asking sees calls that are allowed.
    let allowed = rig.prints(&format!("perl -e 'print syscall({}, 0)'", getppid())).await;
    assert!(allowed.parse::<u32>().is_ok_and(|parent| parent > 1), "{allowed}");
    rig.hand.shutdown().await;
}

#[cfg(target_arch = "x86_64")]
fn libc_clone() -> u32 {
    56
}
#[cfg(target_arch = "aarch64")]
fn libc_clone() -> u32 {
    220
}
#[cfg(target_arch = "x86_64")]
fn getppid() -> u32 {
    110
}
#[cfg(target_arch = "aarch64")]
fn getppid() -> u32 {
    173
}

/// Each way to give a file a mode by which it runs as its owner or group: (name, call). No path is given, so none
/// would find a file.
fn modes() -> Vec<(String, String)> {
    let given = seccomp::MODES.map(|(name, number, mode)| (name, number, vec![mode], 0));
    let made = seccomp::OPENINGS.into_iter().flat_map(|(name, number, flags)| {
        [0o100, 0o20_200_000].map(|flag| (name, number, vec![flags, flags + 1], flag))
    });
    let mut cases = Vec::new();
    for (name, number, places, flag) in given.into_iter().chain(made) {
        let Some(number) = number else { continue };
        for mode in [0o4755_u64, 0o2755, 0o6777, 1 << 32 | 0o4000] {
            let mut arguments = [0; 6];
            for (place, value) in places.iter().rev().zip([mode, flag]) {
                arguments[usize::from(*place)] = value;
            }
            let arguments = arguments.map(|argument: u64| argument.to_string()).join(", ");
            cases.push((format!("{name} {flag:o} {mode:o}"), format!("{number}, {arguments}")));
        }
    }
    cases
}

/// Calls that are denied for some arguments: (name, call).
fn conditional() -> Vec<(String, String)> {
    let [ioctl, personality, socket, socketpair] =
        if cfg!(target_arch = "x86_64") { [16, 135, 41, 53] } else { [29, 92, 198, 199] };
    let case = |name: &str, call: String| (name.to_owned(), call);
    let mut cases = vec![
        case("ioctl TIOCSTI", format!("{ioctl}, 0, 0x5412, 0")),
        case("ioctl TIOCSTI with high bits", format!("{ioctl}, 0, 0x100005412, 0")),
        case("ioctl TIOCLINUX", format!("{ioctl}, 0, 0x541c, 0")),
        case("personality ADDR_NO_RANDOMIZE", format!("{personality}, 0x40000")),
        case("personality READ_IMPLIES_EXEC", format!("{personality}, 0x400000")),
        case("socketpair AF_VSOCK", format!("{socketpair}, 40, 1, 0, 0")),
        case("beyond the known", "500, 0".into()),
    ];
    for (name, family) in [
        ("AF_AX25", 3),
        ("AF_IPX", 4),
        ("AF_APPLETALK", 5),
        ("AF_X25", 9),
        ("AF_PACKET", 17),
        ("AF_RDS", 21),
        ("AF_CAN", 29),
        ("AF_TIPC", 30),
        ("AF_BLUETOOTH", 31),
        ("AF_RXRPC", 33),
        ("AF_ALG", 38),
        ("AF_NFC", 39),
        ("AF_VSOCK", 40),
        ("AF_KCM", 41),
        ("AF_QIPCRTR", 42),
        ("AF_SMC", 43),
        ("AF_XDP", 44),
    ] {
        cases.push(case(&format!("socket {name}"), format!("{socket}, {family}, 1, 0")));
    }
    #[cfg(target_arch = "x86_64")]
    cases.push(case("getpid of x32", format!("{}, 0", 0x4000_0000 + 39)));
    cases
}

#[tokio::test]
async fn what_programs_need_works() {
    let rig = Rig::new();
    for (command, expected) in [
        ("(sleep 0.1; echo second) & echo first; wait", "first second"),
        (
            "git init -q r && cd r && echo a > a && git add a && git -c user.name=a -c user.email=a@b commit -qm m && git log --oneline | wc -l",
            "1",
        ),
        ("mkfifo p; (echo through > p &); cat p", "through"),
        ("printf x > /dev/shm/x && cat /dev/shm/x", "x"),
        ("[ -t 0 ] && echo tty || echo none", "none"),
        (
            "perl -MSocket -e 'socket(S,AF_INET,SOCK_STREAM,0) and bind(S,sockaddr_in(0,INADDR_LOOPBACK)) and listen(S,1) and print 1'",
            "1",
        ),
        ("date +%Z | wc -l; localedef --help > /dev/null 2>&1; echo $LANG", "1 C.UTF-8"),
    ] {
        let text = rig.bash(command).await.text;
        let seen = text.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
        assert!(seen.starts_with(expected), "{command}: {text}");
    }
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn work_is_private_to_its_instance() {
    let folder = tempfile::tempdir().unwrap();
    let hand = Sandbox::new(config());
    let (one, two) = (lease(folder.path(), "one"), lease(folder.path(), "two"));
    let first = hand.provision(&one, &hands::NoProgress).await.unwrap();
    let second = hand.provision(&two, &hands::NoProgress).await.unwrap();
    let bash = |handle, command: &str| {
        let call = call("bash", json!({"command": command}));
        let hand = &hand;
        async move { seen(hand.execute(handle, &call, context()).await.unwrap()) }
    };
    bash(&first, "echo mine > file; chmod 666 file; chmod 777 .").await;
    let theirs = bash(&second, &format!("ls -A; cat {}", one.work.join("file").display())).await;
    assert!(theirs.text.contains("No such file"), "{}", theirs.text);
    let owner = |work: &Path| fs::metadata(work).unwrap().uid();
    assert_ne!(owner(&one.work), 0, "commands run as root of this machine");
    assert_eq!(fs::metadata(one.work.join("file")).unwrap().uid(), owner(&one.work));
    if rustix::process::geteuid().is_root() {
        assert_ne!(owner(&one.work), owner(&two.work), "two sandboxes share a user");
        // The folder's owner is the record: another gateway finds the same user.
        let before = owner(&one.work);
        hand.shutdown().await;
        let again = Sandbox::new(config());
        let handle = again.provision(&one, &hands::NoProgress).await.unwrap();
        assert_eq!(owner(&one.work), before);
        let call = call("bash", json!({"command": "cat file"}));
        assert_eq!(seen(again.execute(&handle, &call, context()).await.unwrap()).text, "mine\n");
        again.shutdown().await;
    }
}

#[tokio::test]
async fn work_of_another_user_is_given_to_the_sandbox() {
    let rig = Rig::new();
    let work = &rig.lease.work;
    fs::create_dir_all(work.join("deep/er")).unwrap();
    fs::write(work.join("deep/er/file"), "restored").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", work.join("link")).unwrap();
    let passwd = fs::metadata("/etc/passwd").unwrap().uid();
    assert_eq!(rig.prints("echo more >> deep/er/file; cat deep/er/file").await, "restoredmore");
    assert_eq!(fs::metadata("/etc/passwd").unwrap().uid(), passwd, "a link was followed");
    rig.hand.shutdown().await;
}

/// A folder of somebody on this machine: of root's neighbour when we are root, of ourselves otherwise.
fn project() -> tempfile::TempDir {
    let project = tempfile::tempdir().unwrap();
    fs::write(project.path().join("theirs"), "from the host\n").unwrap();
    if rustix::process::geteuid().is_root() {
        for path in [project.path(), &project.path().join("theirs")] {
            std::os::unix::fs::chown(path, Some(12345), Some(12345)).unwrap();
        }
    }
    fs::set_permissions(project.path(), fs::Permissions::from_mode(0o700)).unwrap();
    project
}

#[tokio::test]
async fn mounts_are_what_they_say() {
    let (project, reference, private) = (project(), project(), project());
    let mounts = vec![
        Mount { host: project.path().into(), at: "/project".into(), access: Access::ReadWrite },
        Mount { host: reference.path().join("theirs"), at: "/srv/notes".into(), access: Access::ReadOnly },
        Mount { host: private.path().into(), at: "/srv/private".into(), access: Access::ReadOnly },
    ];
    let mut config = config();
    config.mounts = mounts;
    let read_only_folder = reference.path().join("theirs");
    // Nothing but the mount forbids writing.
    fs::set_permissions(&read_only_folder, fs::Permissions::from_mode(0o666)).unwrap();
    let rig = Rig::with(config);
    let owner = fs::metadata(project.path()).unwrap().uid();
    assert_eq!(
        rig.prints("cat /project/theirs; echo new > /project/ours; stat -c %U /project/ours /project").await,
        "from the host\nhand\nhand"
    );
    assert_eq!(fs::metadata(project.path().join("ours")).unwrap().uid(), owner, "made by the wrong user");
    assert_eq!(rig.prints("cat /srv/notes /srv/private/theirs").await, "from the host\nfrom the host");
    let written = rig.bash("echo x >> /srv/notes").await;
    assert!(written.text.contains("Read-only file system"), "{}", written.text);
    let written = rig.call("write", json!({"path": "/project/tool", "content": "x"})).await;
    assert_eq!(written.ending, Ending::Ok, "{}", written.text);
    let tools = rig.hand.tools().await.unwrap();
    assert!(
        tools[0].description.contains("/project, /srv/notes (read-only), /srv/private (read-only)"),
        "{}",
        tools[0].description
    );
    assert_eq!(rig.hand.about()["mounts"][0]["at"], "/project");
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn a_missing_mount_is_one_clear_sentence() {
    let mut config = config();
    config.mounts = vec![Mount { host: "/nowhere".into(), at: "/x".into(), access: Access::ReadOnly }];
    let rig = Rig::with(config);
    let error = rig.hand.provision(&rig.lease, &hands::NoProgress).await.unwrap_err().to_string();
    assert!(error.contains("/nowhere"), "{error}");
    assert!(!error.contains('\n'), "{error}");
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn the_hosts_network_is_there_when_it_is_asked_for() {
    let mut config = config();
    config.network = Network::Host;
    let rig = Rig::with(config);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    rig.prints(&format!("exec 3<>/dev/tcp/127.0.0.1/{port}")).await;
    assert!(rig.hand.tools().await.unwrap()[0].description.contains("the network of the machine"));
    rig.hand.shutdown().await;
}
