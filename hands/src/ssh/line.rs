//! One connection, shared by all calls of an instance.

use std::io;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use russh::client::{Handle, Msg};
use russh::{ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Disconnect, Sig};
use tokio_util::task::TaskTracker;

use super::connect::{Connection, Watch};
use crate::remote::{Event, Line, OpenError, Reader, Tail, Writer, script};

/// The `data_type_code` of standard error (RFC 4254, 5.2).
const STDERR: u32 = 1;

/// Questions to the host until all is sent that it had read: OpenSSH answers one before it sends what it read of a command
/// in the same round of its loop, so that one alone does not do.
const ROUNDS: usize = 3;

/// A connection on which we are known.
pub(super) struct SshLine {
    handle: Handle<Watch>,
    broken: Arc<OnceLock<String>>,
    tasks: TaskTracker,
}

impl SshLine {
    pub(super) fn new(Connection { handle, broken }: Connection, tasks: &TaskTracker) -> Self {
        Self { handle, broken, tasks: tasks.clone() }
    }
}

#[async_trait]
impl Line for SshLine {
    async fn open(&self) -> Result<(Box<dyn Writer>, Box<dyn Reader>), OpenError> {
        let channel = self.handle.channel_open_session().await.map_err(|error| match error {
            russh::Error::ChannelOpenFailure(_) => OpenError::Refused(
                "the host refuses one more session (MaxSessions in its sshd_config)".into(),
            ),
            _ => OpenError::Broken,
        })?;
        let (mut read, write) = channel.split();
        let writer = SshWriter { write: Some(Arc::new(write)), tasks: self.tasks.clone() };
        if let Some(write) = &writer.write {
            write.exec(true, script::COMMAND).await.map_err(|_| OpenError::Broken)?;
        }
        loop {
            match read.wait().await {
                Some(ChannelMsg::Success) => return Ok((Box::new(writer), Box::new(SshReader(read)))),
                Some(ChannelMsg::Failure) => {
                    return Err(OpenError::Refused("the host runs no commands for this user".into()));
                }
                None => return Err(OpenError::Broken),
                Some(_) => {}
            }
        }
    }

    async fn fence(&self) {
        for _ in 0..ROUNDS {
            // One that can't be put up any more holds nothing back.
            let _ = self.handle.send_ping().await;
        }
    }

    fn tail(&self) -> Tail {
        Tail::Channel
    }

    async fn close(&self) {
        let _ = self.handle.disconnect(Disconnect::ByApplication, "", "en").await;
    }

    fn why_broken(&self) -> Option<String> {
        let closed = || self.handle.is_closed().then(|| "the connection was closed".to_owned());
        self.broken.get().cloned().or_else(closed)
    }
}

/// The input of a channel; the channel is closed when it is dropped.
struct SshWriter {
    write: Option<Arc<ChannelWriteHalf<Msg>>>,
    tasks: TaskTracker,
}

#[async_trait]
impl Writer for SshWriter {
    async fn send(&mut self, bytes: Bytes) -> io::Result<()> {
        match &self.write {
            Some(write) => write.data_bytes(bytes).await.map_err(io::Error::other),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    async fn finish(&mut self) -> io::Result<()> {
        match &self.write {
            Some(write) => write.eof().await.map_err(io::Error::other),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Drop for SshWriter {
    fn drop(&mut self) {
        if let Some(write) = self.write.take() {
            self.tasks.spawn(async move {
                let _ = write.close().await;
            });
        }
    }
}

struct SshReader(ChannelReadHalf);

#[async_trait]
impl Reader for SshReader {
    async fn next(&mut self) -> Option<Event> {
        loop {
            return Some(match self.0.wait().await? {
                ChannelMsg::Data { data } => Event::Output(data),
                ChannelMsg::ExtendedData { data, ext: STDERR } => Event::Error(data),
                ChannelMsg::ExitStatus { exit_status } => Event::Exit(exit_status.cast_signed()),
                ChannelMsg::ExitSignal { signal_name, .. } => Event::Signal(number(&signal_name)),
                ChannelMsg::Eof => Event::End,
                ChannelMsg::Close => return None,
                _ => continue,
            });
        }
    }
}

/// A signal's number on Linux; 0 for one that has no name in RFC 4254, 6.10.
fn number(signal: &Sig) -> i32 {
    match signal {
        Sig::ABRT => libc::SIGABRT,
        Sig::ALRM => libc::SIGALRM,
        Sig::FPE => libc::SIGFPE,
        Sig::HUP => libc::SIGHUP,
        Sig::ILL => libc::SIGILL,
        Sig::INT => libc::SIGINT,
        Sig::KILL => libc::SIGKILL,
        Sig::PIPE => libc::SIGPIPE,
        Sig::QUIT => libc::SIGQUIT,
        Sig::SEGV => libc::SIGSEGV,
        Sig::TERM => libc::SIGTERM,
        Sig::USR1 => libc::SIGUSR1,
        Sig::Custom(name) if name == "USR2" => libc::SIGUSR2,
        Sig::Custom(_) => 0,
    }
}
