//! The keeper: the container's main process, which ends what a call started.
//!
//! Docker can start a process in a container and has no way to end one. So the main process is a shell that does it
//! when it is asked to. Once it is ready it starts nothing itself: all that it uses is built into every shell, so it
//! works where no process can be started any more. A call's processes are known by the call's token in their
//! environment; what has emptied its environment is taken for the call's when it is younger than the call.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::swap;
use crate::END_GRACE;

/// The variable by which a call's processes are known.
pub(super) const MARK: &str = "MANYHANDS_CALL";
/// Longest line that a keeper says, in bytes.
const MOST_LINE: usize = 256;

/// Reads `TICKET VERB …` and answers `TICKET …`. `end TOKEN PID`: ends the call whose wrapper is PID. `all`: ends
/// everything. `busy`: whether anything runs. `killed`: how many processes the memory limit has killed.
const SCRIPT: &str = r#"
exec 2> /dev/null
me=$$
mine() { # FOLDER TOKEN PID: whether it lives, is to be ended, and in which state it is
  pid=${1#/proc/}
  [ "$pid" -ne 1 ] && [ "$pid" -ne "$me" ] || return 1
  stat= ; IFS= read -r stat < "$1/stat" || return 1
  state=${stat##*) } state=${state%% *}
  case $state in Z | X) return 1 ;; esac
  comm= ; IFS= read -r comm < "$1/comm" || return 1
  case $comm in runc:* | docker-init | tini) return 1 ;; esac
  [ "$2" = all ] && return 0
  named=
  while IFS= read -r line || [ "$line" ]; do
    case $line in *MANYHANDS_CALL="$2"*) return 0 ;; *MANYHANDS_CALL=*) named=yes ;; esac
  done < "$1/environ"
  [ ! "$named" ] && [ "$pid" -gt "$3" ]
}
killed() { # how many processes the memory limit has killed
  killed=0
  for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
    [ -r "$file" ] || continue
    while read -r key value; do [ "$key" = oom_kill ] && killed=$value; done < "$file"
  done
}
end() { # TOKEN PID
  for signal in STOP KILL; do
    left=yes
    while [ "$left" ]; do
      left=
      for folder in /proc/[0-9]*; do
        mine "$folder" "$1" "$2" || continue
        [ $signal = STOP ] && [ "$state" = T ] && continue
        kill -$signal "$pid" && left=yes
      done
    done
  done
}
bash=no writable=no IFS=:
for at in $PATH; do [ -x "$at/bash" ] && bash=yes; done
unset IFS
[ -w /workspace ] && [ -w /tmp ] && writable=yes
killed
echo "0 ready $bash $writable $killed"
while read -r ticket verb token pid; do
  case $verb in
    end) end "$token" "$pid"; echo "$ticket ended" ;;
    all) end all 0; echo "$ticket ended" ;;
    busy)
      answer=no
      for folder in /proc/[0-9]*; do mine "$folder" all 0 && answer=yes; done
      echo "$ticket $answer" ;;
    killed) killed; echo "$ticket $killed" ;;
  esac
done
"#;

/// What the main process runs.
pub(super) fn script() -> String {
    // Before any call can see the workspace.
    format!("{}{SCRIPT}", swap::at_start())
}

/// Speaks with a keeper.
pub(super) struct Keeper {
    input: tokio::sync::Mutex<Option<Pin<Box<dyn AsyncWrite + Send>>>>,
    tickets: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<String>>>,
    /// The beginning of a line.
    heard: Mutex<Vec<u8>>,
}

impl Keeper {
    /// Over the main process' standard input. The receiver gets what it says first.
    pub(super) fn new(input: Pin<Box<dyn AsyncWrite + Send>>) -> (Self, oneshot::Receiver<String>) {
        let (first, ready) = oneshot::channel();
        let keeper = Self {
            input: tokio::sync::Mutex::new(Some(input)),
            tickets: AtomicU64::new(1),
            waiting: Mutex::new(HashMap::from([(0, first)])),
            heard: Mutex::default(),
        };
        (keeper, ready)
    }

    /// Asks and waits for the answer; `None` when there is no keeper any more or it can't answer in time.
    pub(super) async fn ask(&self, request: &str) -> Option<String> {
        timeout(END_GRACE, self.answer(request)).await.ok().flatten()
    }

    async fn answer(&self, request: &str) -> Option<String> {
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.waiting().insert(ticket, answer);
        {
            let mut input = self.input.lock().await;
            let input = input.as_mut()?;
            input.write_all(format!("{ticket} {request}\n").as_bytes()).await.ok()?;
            input.flush().await.ok()?;
        }
        answered.await.ok()
    }

    /// It said something.
    pub(super) fn hear(&self, bytes: &[u8]) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        for byte in bytes {
            if *byte != b'\n' {
                // Somebody in the container may write here as well: what is no answer is nothing.
                if heard.len() < MOST_LINE {
                    heard.push(*byte);
                }
                continue;
            }
            let line = String::from_utf8_lossy(&heard).into_owned();
            heard.clear();
            if let Some((ticket, answer)) = line.split_once(' ')
                && let Some(asked) =
                    ticket.parse().ok().and_then(|ticket: u64| self.waiting().remove(&ticket))
            {
                let _ = asked.send(answer.to_owned());
            }
        }
    }

    /// Nobody will answer any more.
    pub(super) async fn hang_up(&self) {
        self.waiting().clear();
        self.input.lock().await.take();
        self.waiting().clear();
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<String>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
