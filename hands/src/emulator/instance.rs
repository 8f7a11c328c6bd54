//! The gateway's side of one console: its worker process, talking to it, seeing it die, ending it.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::rom::{self, Rom};
use super::states::{StateError, States};
use super::wire::{Reply, Request, receive_async, send_async};
use super::{EmulatorConfig, WORKER};
use crate::instances::Living;
use crate::{END_GRACE, Ending, HandError, InstanceId, Lease, Progress};

/// How long a worker may take to start, on a machine under heavy load.
const START: Duration = Duration::from_secs(30);
/// How long a killed worker may take to be gone.
const END: Duration = Duration::from_secs(5);
/// Most bytes kept of what a worker says last.
const WORDS: usize = 1024;

/// A console with a game in it.
pub(super) struct Instance {
    id: InstanceId,
    pub(super) states: States,
    /// Taken out while a question is open: who gives up in the middle ends the worker with it.
    link: tokio::sync::Mutex<Option<UnixStream>>,
    kill: CancellationToken,
    why: OnceLock<String>,
    /// Fires when its worker is gone.
    gone: CancellationToken,
    words: Arc<Mutex<String>>,
    /// What to tell the next call.
    notices: Mutex<Vec<String>>,
}

/// Who asks, and for how long.
pub(super) struct Asker<'a> {
    /// Fires when nobody wants the answer any more.
    pub(super) cancel: &'a CancellationToken,
    /// Is told how many frames of how many have run.
    pub(super) progress: Option<(&'a dyn Progress, u32)>,
    /// How long it may take.
    pub(super) limit: Duration,
}

/// How a question ended.
pub(super) enum Answer {
    /// With this; `stopped` says why it was cut short, if it was.
    Given { reply: Reply, bytes: Vec<u8>, stopped: Option<Ending> },
    /// It was never asked: it was cancelled while others were asking.
    NotAsked,
    /// The worker would not stop, so it was ended.
    Killed(Ending),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Instance {
    /// Starts a console where its game stood last.
    pub(super) async fn start(
        config: &EmulatorConfig,
        lease: &Lease,
        tasks: &TaskTracker,
    ) -> Result<Arc<Self>, HandError> {
        let (path, core, work) = (config.rom.clone(), config.core, lease.work.clone());
        let (rom, states, latest) = blocking(move || {
            let rom = rom::read(&path, core)?;
            let states = States::open(&work, &rom.id)?;
            let latest = states.latest();
            Ok::<_, HandError>((rom, states, latest))
        })
        .await??;
        let instance = Self::begin(config, lease, &rom, states.clone(), tasks).await?;
        let why = match latest {
            Ok(None) => return Ok(instance),
            Ok(Some(state)) => match instance.restore(state).await {
                Ok(()) => return Ok(instance),
                Err(why) => why,
            },
            Err(error) => error.to_string(),
        };
        // Better from the beginning than never again.
        instance.end("its state could not be used").await?;
        if let Err(error) = states.set_latest_aside() {
            tracing::warn!(instance = %lease.instance, %error, "setting a state aside");
        }
        let instance = Self::begin(config, lease, &rom, states, tasks).await?;
        instance.notice(format!("the game starts anew, because where it stood can't be used: {why}"));
        Ok(instance)
    }

    /// Starts a worker with the game.
    async fn begin(
        config: &EmulatorConfig,
        lease: &Lease,
        rom: &Rom,
        states: States,
        tasks: &TaskTracker,
    ) -> Result<Arc<Self>, HandError> {
        let (link, mut child) = spawn(config, lease)?;
        let stderr = child.stderr.take();
        let instance = Arc::new(Self {
            id: lease.instance.clone(),
            states,
            link: tokio::sync::Mutex::new(Some(link)),
            kill: CancellationToken::new(),
            why: OnceLock::new(),
            gone: CancellationToken::new(),
            words: Arc::default(),
            notices: Mutex::default(),
        });
        let words = Arc::clone(&instance.words);
        let drained = stderr.map(|stderr| tasks.spawn(drain(stderr, instance.id.clone(), words)));
        tasks.spawn(Arc::clone(&instance).watch(child, drained));
        // Ends the worker when nobody waits for it to start.
        let abandoned = instance.kill.clone().drop_guard();
        let insert = Request::Insert { core: config.core, scale: config.scale };
        let why = match instance.ask_alone(insert, &rom.bytes).await {
            Ok((Reply::Done, _)) => {
                abandoned.disarm();
                return Ok(instance);
            }
            Ok((Reply::Refused { why }, _)) => why,
            Ok(_) => "its emulator gives no sensible answer".to_owned(),
            Err(error) => error.to_string(),
        };
        instance.end("it did not start").await?;
        Err(HandError::Unavailable {
            why: format!("the game {} can't be played: {why}", config.rom.display()),
            remedy: "give another game".to_owned(),
        })
    }

    async fn restore(&self, state: Vec<u8>) -> Result<(), String> {
        match self.ask_alone(Request::Restore, &state).await {
            Ok((Reply::Done, _)) => Ok(()),
            Ok((Reply::Refused { why }, _)) => Err(why),
            Ok(_) => Err("the emulator gives no sensible answer".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn ask_alone(&self, request: Request, bytes: &[u8]) -> Result<(Reply, Vec<u8>), HandError> {
        let never = CancellationToken::new();
        match self.ask(request, bytes, &Asker { cancel: &never, progress: None, limit: START }).await? {
            Answer::Given { reply, bytes, .. } => Ok((reply, bytes)),
            Answer::NotAsked | Answer::Killed(_) => {
                let why = format!("it did not answer within {} s", START.as_secs());
                Err(HandError::Lost { may_have_run: true, why })
            }
        }
    }

    /// Asks the worker, one question at a time.
    pub(super) async fn ask(
        &self,
        request: Request,
        bytes: &[u8],
        asker: &Asker<'_>,
    ) -> Result<Answer, HandError> {
        let mut place = tokio::select! {
            biased;
            () = asker.cancel.cancelled() => return Ok(Answer::NotAsked),
            place = self.link.lock() => place,
        };
        let Some(mut link) = place.take() else { return Err(self.lost(Ran::No).await) };
        let answer = self.talk(&mut link, &request, bytes, asker).await;
        match &answer {
            Ok(Answer::Given { .. }) => *place = Some(link),
            Ok(Answer::NotAsked | Answer::Killed(_)) => {
                self.lose("it did not stop when it was asked to, so it was ended");
                self.kill.cancel();
            }
            Err(_) => self.kill.cancel(),
        }
        answer
    }

    async fn talk(
        &self,
        link: &mut UnixStream,
        request: &Request,
        bytes: &[u8],
        asker: &Asker<'_>,
    ) -> Result<Answer, HandError> {
        let (mut from, mut to) = link.split();
        if send_async(&mut to, request, bytes).await.is_err() {
            return Err(self.lost(Ran::No).await);
        }
        let mut stopped = None;
        let mut heard = Ran::No;
        let mut deadline = std::pin::pin!(sleep(asker.limit));
        loop {
            // The rest of a message is never given up: what wants to stop waits for it here.
            let mut receiving = std::pin::pin!(receive_async::<Reply>(&mut from));
            let received = loop {
                let why = tokio::select! {
                    received = &mut receiving => break received,
                    () = asker.cancel.cancelled(), if stopped.is_none() => Ending::Cancelled,
                    () = &mut deadline => match stopped {
                        Some(ending) => return Ok(Answer::Killed(ending)),
                        None => Ending::Timeout,
                    },
                };
                stopped = Some(why);
                deadline.as_mut().reset(tokio::time::Instant::now() + END_GRACE);
                if send_async(&mut to, &Request::Stop, &[]).await.is_err() {
                    return Err(self.lost(Ran::Perhaps).await);
                }
            };
            match received {
                Ok((Reply::Running { frames }, _)) => {
                    heard = Ran::Perhaps;
                    if let Some((progress, of)) = asker.progress {
                        progress.output(&format!("{frames} of {of} frames\n"));
                    }
                }
                Ok((reply, bytes)) => return Ok(Answer::Given { reply, bytes, stopped }),
                // Linux resets what ends with something unread: then it was the request.
                Err(error) if error.kind() == ErrorKind::ConnectionReset && stopped.is_none() => {
                    return Err(self.lost(heard).await);
                }
                Err(_) => return Err(self.lost(Ran::Perhaps).await),
            }
        }
    }

    /// Waits for the end of the worker, however it comes.
    async fn watch(self: Arc<Self>, mut child: Child, drained: Option<tokio::task::JoinHandle<()>>) {
        let status = tokio::select! {
            status = child.wait() => status,
            () = self.kill.cancelled() => {
                let _ = child.start_kill();
                child.wait().await
            }
        };
        if let Some(drained) = drained {
            let _ = timeout(END, drained).await;
        }
        let words = lock(&self.words).trim().to_owned();
        self.lose(match status {
            Ok(status) if !words.is_empty() => format!("the emulator crashed ({words}, {})", code(status)),
            Ok(status) => format!("the emulator's process ended ({})", code(status)),
            Err(error) => format!("the emulator's process can't be watched any more ({error})"),
        });
        self.gone.cancel();
    }

    fn lose(&self, why: impl Into<String>) {
        let _ = self.why.set(why.into());
    }

    /// That it is lost, with the reason, which may take a moment to be known.
    async fn lost(&self, ran: Ran) -> HandError {
        let _ = timeout(Duration::from_secs(1), self.gone.cancelled()).await;
        let why = self.why_lost().unwrap_or_else(|| "the emulator does not answer".into());
        HandError::Lost { may_have_run: ran == Ran::Perhaps, why }
    }

    fn notice(&self, sentence: String) {
        lock(&self.notices).push(sentence);
    }

    /// What the next call should be told, once.
    pub(super) fn notices(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.notices))
    }

    /// Keeps where the game stands now.
    pub(super) async fn keep(&self, state: Vec<u8>) -> Result<(), StateError> {
        let states = self.states.clone();
        blocking(move || states.keep_latest(&state))
            .await
            .map_err(|error| StateError::Io(std::io::Error::other(error)))?
    }
}

#[async_trait]
impl Living for Instance {
    fn why_lost(&self) -> Option<String> {
        self.why.get().cloned()
    }

    async fn end(&self, why: &str) -> Result<(), HandError> {
        self.lose(why);
        self.kill.cancel();
        if timeout(END, self.gone.cancelled()).await.is_err() {
            tracing::warn!(instance = %self.id, "a killed emulator does not end");
        }
        Ok(())
    }
}

/// Whether a call that is lost may have had effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ran {
    No,
    Perhaps,
}

/// How a process ended, in few words.
fn code(status: ExitStatus) -> String {
    status.to_string().replace("exit status: ", "exit code ")
}

/// Does what waits for the disk where waiting is allowed.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, HandError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| HandError::Io { doing: "using the work folder", source: error.into() })
}

fn spawn(config: &EmulatorConfig, lease: &Lease) -> Result<(UnixStream, Child), HandError> {
    let io = |doing| move |source: std::io::Error| HandError::Io { doing, source };
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(io("making a socket"))?;
    ours.set_nonblocking(true).map_err(io("making a socket"))?;
    let ours = UnixStream::from_std(ours).map_err(io("making a socket"))?;
    let child = Command::new(&config.program)
        .args([WORKER, &lease.instance.0])
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .env_clear()
        .current_dir("/")
        // A signal from a terminal is for the gateway, which ends it in its own time.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(io("starting an emulator"))?;
    Ok((ours, child))
}

/// Logs what a worker says and keeps its last line.
async fn drain(stderr: ChildStderr, instance: InstanceId, words: Arc<Mutex<String>>) {
    let mut lines = BufReader::new(stderr.take(1 << 20));
    let mut line = Vec::new();
    while let Ok(1..) = lines.read_until(b'\n', &mut line).await {
        let text = String::from_utf8_lossy(&line).trim().to_owned();
        tracing::debug!(%instance, words = text, "emulator");
        if !text.is_empty() {
            *lock(&words) = text.chars().take(WORDS).collect();
        }
        line.clear();
    }
}
