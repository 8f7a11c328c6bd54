//! The channel that looks after an instance.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::sync::oneshot;

use super::script;
use super::{Event, Line, OpenError, Reader, Terms, Writer};
use crate::{HandError, InstanceId};

/// Most bytes that a host's start-up files may print before our script begins.
pub(super) const MOST_NOISE: usize = 256 * 1024;

/// What a keeper is told.
pub(super) enum Order {
    /// End everything that a call started. `process`: the group it began with.
    Kill { call: u64, process: u64, done: oneshot::Sender<bool> },
    /// End everything and yourself.
    Quit,
}

/// What a keeper says.
pub(super) enum Said {
    /// Nothing of a call is left; or not all could be ended.
    Done { call: u64, all: bool },
    /// Nothing of the instance is left.
    Swept,
}

/// A keeper that is ready.
pub(super) struct Keeper {
    writer: Box<dyn Writer>,
    reader: Box<dyn Reader>,
    buffer: BytesMut,
    pub(super) shell: &'static str,
    pub(super) folder: String,
}

impl Keeper {
    /// Starts one and waits until it is ready.
    pub(super) async fn start(
        line: &dyn Line,
        terms: &Terms,
        instance: &InstanceId,
        work: &str,
    ) -> Result<Self, HandError> {
        let host = &terms.host;
        let opened = line.open().await.map_err(|error| match error {
            OpenError::Refused(why) => unavailable(host, &format!("starts no command: {why}")),
            OpenError::Broken => {
                let why = line.why_broken().unwrap_or_else(|| "it broke".into());
                unavailable(host, &format!("was lost while an instance was made there: {why}"))
            }
        })?;
        let (mut writer, reader) = opened;
        let nonce = script::nonce();
        let workspace = terms.workspace.replace("{work}", work);
        let text = script::line(&script::keeper(&nonce, instance, work, &workspace));
        // Where it fails, the reader tells why.
        let _ = writer.send(Bytes::from(text)).await;
        let mut keeper = Self { writer, reader, buffer: BytesMut::new(), shell: "sh", folder: String::new() };
        let mut errors = Vec::new();
        let attention = format!("{}{nonce} ", script::ATTENTION);
        loop {
            while let Some(text) = keeper.take_line() {
                let Some((_, said)) = text.split_once(&attention) else { continue };
                let Some((shell, folder)) = said.strip_prefix("ready ").and_then(|said| said.split_once(' '))
                else {
                    let why = shown(&errors).unwrap_or_default();
                    return Err(HandError::Unavailable {
                        why: format!("the folder {workspace} can't be made on {host}: {why}"),
                        remedy: "name another with the hand's setting `workspace`".into(),
                    });
                };
                keeper.shell = if shell == "bash" { "bash" } else { "sh" };
                keeper.folder = folder.to_owned();
                return Ok(keeper);
            }
            match keeper.reader.next().await {
                Some(Event::Output(bytes)) if keeper.buffer.len() < MOST_NOISE => keeper.buffer.extend(bytes),
                Some(Event::Error(bytes)) if errors.len() < MOST_NOISE => errors.extend(bytes),
                Some(Event::Output(_) | Event::Error(_)) => {
                    return Err(unavailable(host, "prints without end when somebody logs in"));
                }
                Some(Event::Exit(_) | Event::Signal(_)) => {}
                Some(Event::End) | None => {
                    let why = shown(&keeper.buffer).or_else(|| shown(&errors)).or_else(|| line.why_broken());
                    let why = why.unwrap_or_else(|| "it said nothing".into());
                    return Err(unavailable(host, &format!("runs no `sh` for us: {why}")));
                }
            }
        }
    }

    /// Has everything that a call started ended.
    pub(super) async fn kill(&mut self, call: u64, process: u64) -> io::Result<()> {
        self.writer.send(Bytes::from(format!("kill {call} {process}\n"))).await
    }

    /// Has everything ended. Its writer stays: some lines know but one end for both directions.
    pub(super) async fn quit(&mut self) -> io::Result<()> {
        self.writer.finish().await
    }

    /// The next thing it says; `None` once it is gone. Loses nothing when it is dropped while it waits.
    pub(super) async fn said(&mut self) -> Option<Said> {
        loop {
            while let Some(text) = self.take_line() {
                let mut words = text.split(' ');
                match (words.next(), words.next().and_then(|call| call.parse().ok()), words.next()) {
                    (Some("done"), Some(call), Some(code)) => {
                        return Some(Said::Done { call, all: code == "0" });
                    }
                    (Some("swept"), ..) => return Some(Said::Swept),
                    _ => {}
                }
            }
            match self.reader.next().await {
                Some(Event::Output(bytes)) if self.buffer.len() < MOST_NOISE => self.buffer.extend(bytes),
                Some(Event::Output(_) | Event::End) | None => return None,
                Some(Event::Error(_) | Event::Exit(_) | Event::Signal(_)) => {}
            }
        }
    }

    fn take_line(&mut self) -> Option<String> {
        let end = self.buffer.iter().position(|byte| *byte == b'\n')?;
        let line = self.buffer.split_to(end + 1);
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }
}

fn unavailable(host: &str, what: &str) -> HandError {
    HandError::Unavailable {
        why: format!("{host} {what}"),
        remedy: "log in there by hand and see what it says".into(),
    }
}

/// The last line that says something.
pub(super) fn shown(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
    Some(line.chars().filter(|c| !c.is_control()).take(300).collect())
}
