//! Measuring the work folder and the disk while something runs in an instance.
//!
//! The cost is bounded: a pass that took long is followed by a pause ten times as long, and while
//! nothing runs nothing is measured.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::Limits;
use crate::HandError;
use crate::disk::{shown as size, space};
use crate::folder::{Entry, Walk, is_set_id};

/// Shortest pause between two passes.
const PAUSE: Duration = Duration::from_millis(500);
/// How much longer than a pass the pause after it is.
const REST: u32 = 10;
/// Most files of a work folder: a disk has no more room for names than for bytes.
const MOST_FILES: u64 = 1_000_000;
/// How far beyond its limit a work folder may be for a call to start that makes it smaller, in bytes.
const OVERSHOOT: u64 = 2 << 30;

/// What keeps files of a work folder from running as their owner or group outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetId {
    /// The instance's system call filter.
    Filtered,
    /// Each pass takes these bits away.
    TakenAway,
}

/// Watches one instance's work folder.
pub(crate) struct Watch {
    work: PathBuf,
    set_id: SetId,
    workspace: u64,
    free_disk: u64,
    /// What runs: calls, and runners with background processes.
    active: AtomicUsize,
    started: Notify,
    /// Bytes at the last pass.
    used: AtomicU64,
    /// The limit that was passed last, in words.
    passed: watch::Sender<Option<String>>,
    /// Ends background processes.
    background: Mutex<CancellationToken>,
}

/// Keeps the watch awake while it lives.
pub(crate) struct Active(Arc<Watch>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Watch {
    pub(crate) fn new(work: PathBuf, set_id: SetId, limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            work,
            set_id,
            workspace: limits.workspace,
            free_disk: limits.free_disk,
            active: AtomicUsize::new(0),
            started: Notify::new(),
            used: AtomicU64::new(0),
            passed: watch::Sender::new(None),
            background: Mutex::default(),
        })
    }

    /// Says that something runs from now on.
    pub(crate) fn active(self: &Arc<Self>) -> Active {
        self.active.fetch_add(1, Ordering::Relaxed);
        self.started.notify_one();
        Active(Arc::clone(self))
    }

    /// Tells when a limit is passed from now on.
    pub(crate) fn alarm(&self) -> watch::Receiver<Option<String>> {
        self.passed.subscribe()
    }

    /// Fires when background processes are to end.
    pub(crate) fn background(&self) -> CancellationToken {
        self.background.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether there is room for a call to start.
    pub(crate) fn admit(&self) -> Result<(), HandError> {
        let disk = space(&self.work);
        let free = disk.map_err(|source| HandError::Io { doing: "looking at the disk", source })?.free;
        if free < self.free_disk {
            return Err(HandError::Unavailable {
                why: format!(
                    "only {} are free on the disk of the sandboxes, of which {} are kept free",
                    size(free),
                    size(self.free_disk)
                ),
                remedy: "free some space on it".into(),
            });
        }
        let used = self.used.load(Ordering::Relaxed);
        if used > self.workspace.saturating_add(OVERSHOOT) {
            return Err(HandError::Unavailable {
                why: format!("/workspace holds {}, far beyond its {}", size(used), size(self.workspace)),
                remedy: format!("delete the session, or files below {}", self.work.display()),
            });
        }
        Ok(())
    }

    /// Measures while something runs, until `gone` fires.
    pub(crate) async fn run(self: Arc<Self>, gone: CancellationToken) {
        let mut pause = PAUSE;
        loop {
            tokio::select! {
                () = gone.cancelled() => return,
                () = self.started.notified() => {}
            }
            // At least once for every start, even when the call was over in a blink.
            loop {
                tokio::select! {
                    () = gone.cancelled() => return,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = self.pass().await;
                if self.active.load(Ordering::Relaxed) == 0 {
                    break;
                }
            }
        }
    }

    /// Measures once; the pause to make after it.
    async fn pass(self: &Arc<Self>) -> Duration {
        let watch = Arc::clone(self);
        let took = tokio::task::spawn_blocking(move || {
            let start = Instant::now();
            if let Some(why) = watch.measure() {
                watch.alert(why);
            }
            start.elapsed()
        });
        took.await.map_or(PAUSE, |took| PAUSE.max(took * REST))
    }

    /// Which limit is passed now, if any. Beyond its size, a folder may still shrink.
    fn measure(&self) -> Option<String> {
        let before = self.used.load(Ordering::Relaxed);
        if space(&self.work).is_ok_and(|disk| disk.free < self.free_disk / 2) {
            return Some("the disk of the sandboxes is almost full; free some space on it".into());
        }
        let mut files = 0;
        let mut used: u64 = 0;
        let Ok(walk) = Walk::open(&self.work) else { return None };
        for entry in walk {
            let Ok(entry) = entry else {
                return Some("/workspace holds too many folders to be measured; delete some".into());
            };
            files += 1;
            if self.set_id == SetId::TakenAway {
                take_set_id(&entry, &self.work);
            }
            used = used
                .saturating_add(u64::try_from(entry.stat.st_blocks).unwrap_or_default().saturating_mul(512));
            if files > MOST_FILES {
                return Some(format!("/workspace holds more than {MOST_FILES} files; delete some"));
            }
        }
        self.used.store(used, Ordering::Relaxed);
        (used > self.workspace && used > before).then(|| {
            format!("/workspace grew beyond its limit of {}; delete files in it first", size(self.workspace))
        })
    }

    /// Takes away what the passes did not see, once nothing runs in the instance any more.
    pub(crate) async fn finish(self: &Arc<Self>) {
        if self.set_id == SetId::TakenAway {
            let watch = Arc::clone(self);
            let _ = tokio::task::spawn_blocking(move || watch.take_all()).await;
        }
    }

    fn take_all(&self) {
        let Ok(walk) = Walk::open(&self.work) else { return };
        for entry in walk.flatten() {
            take_set_id(&entry, &self.work);
        }
    }

    fn alert(&self, why: String) {
        self.passed.send_replace(Some(why));
        let mut background = self.background.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *background).cancel();
    }
}

/// Has a file run as whoever runs it, and not as its owner or group.
fn take_set_id(entry: &Entry, work: &Path) {
    if is_set_id(&entry.stat)
        && let Err(error) = entry.parent.take_set_id(&entry.name)
    {
        tracing::warn!(folder = %work.display(), %error, "a file in it stays setuid or setgid");
    }
}
