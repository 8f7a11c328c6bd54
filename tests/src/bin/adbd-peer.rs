//! The device's end of adb, for tests: what adbd says to Google's adb server, with this machine's `sh` behind it.
//!
//! `adbd-peer FOLDER PORT` prints the port it listens on. Commands run in FOLDER, with FOLDER/bin before all else in
//! their path. Transport messages and `shell,v2,raw:` as in the Android sources, `protocol.txt` and `shell_protocol.h`.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

const CNXN: u32 = u32::from_le_bytes(*b"CNXN");
const OPEN: u32 = u32::from_le_bytes(*b"OPEN");
const OKAY: u32 = u32::from_le_bytes(*b"OKAY");
const WRTE: u32 = u32::from_le_bytes(*b"WRTE");
const CLSE: u32 = u32::from_le_bytes(*b"CLSE");
/// The version from which nobody checks sums.
const VERSION: u32 = 0x0100_0001;
/// Most bytes of a message.
const MOST: u32 = 256 * 1024;
/// Bytes that are read of a command at once.
const PIECE: usize = 32 * 1024;
const BANNER: &str =
    "device::ro.product.name=peer;ro.product.model=Peer;ro.product.device=peer;features=shell_v2,cmd";
const SHELL: &str = "shell,v2,raw:";

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().unwrap());
    let port: u16 = arguments.next().unwrap().parse().unwrap();
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    println!("{}", listener.local_addr().unwrap().port());
    for stream in listener.incoming() {
        let (stream, folder) = (stream.unwrap(), folder.clone());
        stream.set_nodelay(true).unwrap();
        thread::spawn(move || serve(stream, &folder));
    }
}

/// Where messages go out, one at a time.
#[derive(Clone)]
struct Out(Arc<Mutex<TcpStream>>);

impl Out {
    fn send(&self, command: u32, one: u32, other: u32, data: &[u8]) {
        let sum = data.iter().fold(0_u32, |sum, byte| sum.wrapping_add(u32::from(*byte)));
        let length = u32::try_from(data.len()).unwrap();
        let header = [command, one, other, length, sum, !command];
        let message: Vec<u8> =
            header.iter().flat_map(|word| word.to_le_bytes()).chain(data.iter().copied()).collect();
        // A server that is gone is noticed by whoever reads.
        let _ = self.0.lock().unwrap().write_all(&message);
    }
}

/// What a stream is given.
struct Stream {
    input: Sender<Vec<u8>>,
    taken: Sender<()>,
}

fn serve(mut from: TcpStream, folder: &Path) {
    let out = Out(Arc::new(Mutex::new(from.try_clone().unwrap())));
    let mut streams: HashMap<u32, Stream> = HashMap::new();
    let mut next = 1;
    while let Ok((command, one, other, data)) = message(&mut from) {
        match command {
            CNXN => out.send(CNXN, VERSION, MOST, BANNER.as_bytes()),
            OPEN => {
                let service = String::from_utf8_lossy(&data).trim_end_matches('\0').to_owned();
                match service.strip_prefix(SHELL) {
                    Some(line) => {
                        let channel = Channel { out: out.clone(), local: next, remote: one };
                        streams.insert(next, channel.start(line, folder));
                        next += 1;
                    }
                    None => out.send(CLSE, 0, one, &[]),
                }
            }
            WRTE => {
                if let Some(stream) = streams.get(&other) {
                    let _ = stream.input.send(data);
                }
            }
            OKAY => {
                if let Some(stream) = streams.get(&other) {
                    let _ = stream.taken.send(());
                }
            }
            CLSE => {
                streams.remove(&other);
            }
            _ => {}
        }
    }
}

fn message(from: &mut TcpStream) -> io::Result<(u32, u32, u32, Vec<u8>)> {
    let mut header = [0; 24];
    from.read_exact(&mut header)?;
    let word = |n: usize| u32::from_le_bytes(header[4 * n..4 * n + 4].try_into().unwrap());
    let mut data = vec![0; usize::try_from(word(3)).unwrap()];
    from.read_exact(&mut data)?;
    Ok((word(0), word(1), word(2), data))
}

/// One stream's ids.
#[derive(Clone)]
struct Channel {
    out: Out,
    local: u32,
    remote: u32,
}

impl Channel {
    fn start(self, line: &str, folder: &Path) -> Stream {
        let path = format!("{}:/usr/bin:/bin", folder.join("bin").display());
        let mut child = Command::new("setsid")
            .args(["sh", "-c", line])
            .current_dir(folder)
            .env_clear()
            .env("PATH", path)
            .env("HOME", folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, given) = channel();
        let (taken, acknowledged) = channel();
        self.out.send(OKAY, self.local, self.remote, &[]);
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let mine = self.clone();
        thread::spawn(move || mine.feed(&given, stdin));
        let acknowledged = Arc::new(Mutex::new(acknowledged));
        let readers = [
            self.clone().relay(1, stdout, Arc::clone(&acknowledged)),
            self.clone().relay(2, stderr, Arc::clone(&acknowledged)),
        ];
        thread::spawn(move || {
            // As adbd does: the end is said when nobody holds its output any more.
            for reader in readers {
                let _ = reader.join();
            }
            let status = child.wait().unwrap();
            let code = status.code().unwrap_or(128);
            self.write(3, &[u8::try_from(code).unwrap_or(255)], &acknowledged);
            self.out.send(CLSE, self.local, self.remote, &[]);
        });
        Stream { input, taken }
    }

    /// Gives a command its input, packet by packet, until the stream is closed.
    fn feed(&self, given: &Receiver<Vec<u8>>, mut stdin: Option<ChildStdin>) {
        let mut buffer = Vec::new();
        while let Ok(bytes) = given.recv() {
            buffer.extend(bytes);
            while buffer.len() >= 5 {
                let length = usize::try_from(u32::from_le_bytes(buffer[1..5].try_into().unwrap())).unwrap();
                if buffer.len() < 5 + length {
                    break;
                }
                let packet: Vec<u8> = buffer.drain(..5 + length).collect();
                match packet[0] {
                    0 => {
                        let _ = stdin.as_mut().map(|stdin| stdin.write_all(&packet[5..]));
                    }
                    4 => stdin = None,
                    _ => {}
                }
            }
            self.out.send(OKAY, self.local, self.remote, &[]);
        }
    }

    fn relay(
        self,
        kind: u8,
        mut from: impl Read + Send + 'static,
        acknowledged: Arc<Mutex<Receiver<()>>>,
    ) -> thread::JoinHandle<()> {
        thread::spawn(move || {
            let mut piece = vec![0; PIECE];
            while let Ok(length @ 1..) = from.read(&mut piece) {
                if !self.write(kind, &piece[..length], &acknowledged) {
                    return;
                }
            }
        })
    }

    /// Sends a packet and waits until it is taken; says whether it was.
    fn write(&self, kind: u8, bytes: &[u8], acknowledged: &Mutex<Receiver<()>>) -> bool {
        let length = u32::try_from(bytes.len()).unwrap().to_le_bytes();
        let packet: Vec<u8> = [kind].into_iter().chain(length).chain(bytes.iter().copied()).collect();
        let acknowledged = acknowledged.lock().unwrap();
        self.out.send(WRTE, self.local, self.remote, &packet);
        acknowledged.recv().is_ok()
    }
}
