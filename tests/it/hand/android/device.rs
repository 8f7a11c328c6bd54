//! A device that is a process on this machine, and Google's adb server that is connected to it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use hands::android::{AndroidConfig, Device};
use tempfile::TempDir;

/// What the device has beside `sh` and its usual company. Each notes what it was told in `log`.
const PROGRAMS: [(&str, &str); 7] = [
    ("screencap", r#"[ "$1" = -p ] && exec cat "$HOME/screen.png""#),
    (
        "uiautomator",
        r#"[ ! -e "$HOME/restless" ] || { echo 'ERROR: could not get idle state.'; exit 0; }
echo "<hierarchy><node text=\"$(cat "$HOME/typed" 2>/dev/null)\" bounds=\"[0,0][10,10]\"/></hierarchy>" > "$2"
echo "UI hierchary dumped to: $2""#,
    ),
    ("input", r#"[ "$1" != text ] || printf '%s' "$2" | sed 's/%s/ /g' >> "$HOME/typed""#),
    ("am", r#"case $3 in *Missing) echo "Error: Activity class {$3} does not exist." ;; esac"#),
    ("pm", r#"[ -f "$3" ] || { echo "Failure [no such file]"; exit 1; }; echo Success"#),
    (
        "monkey",
        "case $2 in *missing*) echo '** No activities found to run, monkey aborted.'; exit 252 ;; esac",
    ),
    ("logcat", r#"seq 1 "$3""#),
];
/// The smallest PNG there is.
const SCREEN: [u8; 67] = [
    0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, 0, 0, 0, 0x0d, b'I', b'H', b'D', b'R', 0, 0, 0, 1, 0, 0,
    0, 1, 8, 0, 0, 0, 0, 0x3a, 0x7e, 0x9b, 0x55, 0, 0, 0, 0x0a, b'I', b'D', b'A', b'T', 0x78, 0x9c, 0x63,
    0x60, 0, 0, 0, 2, 0, 1, 0x48, 0xaf, 0xa4, 0x71, 0, 0, 0, 0, b'I', b'E', b'N', b'D', 0xae, 0x42, 0x60,
    0x82,
];

pub(super) struct Bench {
    pub(super) folder: TempDir,
    server: Child,
    server_port: u16,
    peer: Mutex<Option<Child>>,
    peer_port: Mutex<u16>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.unplug();
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Bench {
    /// A device, and a server that does not know it yet.
    pub(super) async fn make() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("device");
        fs::create_dir_all(home.join("bin")).unwrap();
        fs::write(home.join("screen.png"), SCREEN).unwrap();
        for (name, script) in PROGRAMS {
            let file = home.join("bin").join(name);
            fs::write(&file, format!("#!/bin/sh\necho \"{name} $*\" >> \"$HOME/log\"\n{script}\n")).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let (server, server_port) = serve(folder.path()).await;
        let bench = Self { folder, server, server_port, peer: Mutex::new(None), peer_port: Mutex::new(0) };
        bench.plug_in();
        bench
    }

    /// Starts the device, on the port that it had before if it had one.
    pub(super) fn plug_in(&self) {
        let port = *self.peer_port.lock().unwrap();
        let mut peer = Command::new(program())
            .arg(self.home())
            .arg(port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(peer.stdout.take().unwrap()).read_line(&mut line).unwrap();
        *self.peer_port.lock().unwrap() = line.trim().parse().unwrap();
        *self.peer.lock().unwrap() = Some(peer);
    }

    /// Kills the device's adbd. What it had started may live on.
    pub(super) fn unplug(&self) {
        if let Some(mut peer) = self.peer.lock().unwrap().take() {
            let _ = peer.kill();
            let _ = peer.wait();
        }
    }

    pub(super) fn home(&self) -> PathBuf {
        self.folder.path().join("device")
    }

    pub(super) fn config(&self) -> AndroidConfig {
        let port = *self.peer_port.lock().unwrap();
        AndroidConfig {
            server: SocketAddr::from(([127, 0, 0, 1], self.server_port)),
            folder: format!("{}/data/local/tmp/manyhands", self.home().display()),
            ..AndroidConfig::new(Device::Address(format!("127.0.0.1:{port}")))
        }
    }
}

/// The device's program: beside a copy of the tests, or where Cargo built it.
fn program() -> PathBuf {
    let beside = std::env::current_exe().unwrap().with_file_name("adbd-peer");
    if beside.exists() { beside } else { PathBuf::from(env!("CARGO_BIN_EXE_adbd-peer")) }
}

/// An adb server with a port and a home of its own, that looks for no other devices.
async fn serve(home: &Path) -> (Child, u16) {
    for _ in 0..10 {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let log = fs::File::create(home.join("adb.log")).unwrap();
        let mut server = Command::new("adb")
            .args(["-P", &port.to_string(), "nodaemon", "server"])
            .env("HOME", home)
            .env("TMPDIR", home)
            .env("ADB_MDNS", "0")
            .env("ANDROID_ADB_SERVER_PORT", port.to_string())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("adb is installed; `.ci/need test` does it");
        for _ in 0..3000 {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() && server.try_wait().unwrap().is_none() {
                return (server, port);
            }
            if server.try_wait().unwrap().is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let _ = server.kill();
        let _ = server.wait();
    }
    panic!("adb does not start: {}", fs::read_to_string(home.join("adb.log")).unwrap_or_default());
}
