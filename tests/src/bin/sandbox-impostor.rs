//! Plays `sandbox-enter` and all that follows, with a runner that was taken over by something hostile.
//! What it does is the first word of the instance's name.

use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

fn main() -> anyhow::Result<()> {
    let spec: serde_json::Value = serde_json::from_str(&std::env::args().nth(2).unwrap_or_default())?;
    let instance = spec["instance"].as_str().unwrap_or_default().to_owned();
    let mode = instance.split('-').next().unwrap_or_default().to_owned();
    let mut sockets = Vec::new();
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let message =
            recvmsg(std::io::stdin(), &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::empty())?;
        if message.bytes == 0 {
            return Ok(());
        }
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                for fd in fds {
                    let socket = UnixStream::from(fd);
                    let theirs = socket.try_clone()?;
                    sockets.push(socket);
                    let mode = mode.clone();
                    std::thread::spawn(move || play(&mode, theirs));
                }
            }
        }
        if mode == "closed" {
            sockets.clear();
        }
    }
}

fn play(mode: &str, mut socket: UnixStream) -> std::io::Result<()> {
    socket.write_all(b"r\0\0\0\0")?;
    socket.read_exact(&mut [0; 5])?;
    match mode {
        "kind" => socket.write_all(b"z\0\0\0\0"),
        "long" => socket.write_all(b"1\xff\xff\xff\xff"),
        "end" => socket.write_all(b"x\x02\0\0\0{}"),
        "torrent" => loop {
            socket.write_all(b"1\0\x10\0\0")?;
            socket.write_all(&[b'x'; 4096])?;
        },
        "closed" => Ok(()),
        _ => loop {
            std::thread::park();
        },
    }
}
