//! Requests of ours that wait for their answers, and to which of them a server's other messages belong.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::wire::{Event, Failure};
use crate::InstanceId;
use crate::mcp::{Object, RpcError};

/// How much news of one request may wait to be read; more is dropped.
const NEWS: usize = 64;

/// The requests of one connection, by our id.
#[derive(Default)]
pub(super) struct Pending {
    calls: Mutex<BTreeMap<u64, Entry>>,
    /// News that nobody could take.
    dropped: AtomicU64,
}

struct Entry {
    /// For whom it is; none for the gateway's own.
    of: Option<InstanceId>,
    news: mpsc::Sender<Event>,
    answer: Option<oneshot::Sender<Answer>>,
}

type Answer = Result<Result<Object, RpcError>, Failure>;

/// One request that waits. Forgotten when this is dropped.
pub(super) struct Waiting {
    id: u64,
    pending: Arc<Pending>,
    news: mpsc::Receiver<Event>,
    answer: oneshot::Receiver<Answer>,
    answered: Option<Answer>,
}

impl Pending {
    /// A place for the answer to `id`.
    pub(super) fn wait(self: &Arc<Self>, id: u64, of: Option<&InstanceId>) -> Waiting {
        let (news_in, news) = mpsc::channel(NEWS);
        let (answer_in, answer) = oneshot::channel();
        self.lock().insert(id, Entry { of: of.cloned(), news: news_in, answer: Some(answer_in) });
        Waiting { id, pending: Arc::clone(self), news, answer, answered: None }
    }

    /// Gives a request its end. Says whether it was waited for.
    pub(super) fn end(&self, id: &Value, answer: Answer) -> bool {
        let sender = id.as_u64().and_then(|id| self.lock().get_mut(&id)?.answer.take());
        sender.is_some_and(|sender| sender.send(answer).is_ok())
    }

    /// Ends all with the same failure.
    pub(super) fn fail(&self, failure: &Failure) {
        for entry in self.lock().values_mut() {
            if let Some(answer) = entry.answer.take() {
                let _ = answer.send(Err(failure.clone()));
            }
        }
    }

    /// The only request that waits, if it is one.
    pub(super) fn only(&self) -> Option<u64> {
        let calls = self.lock();
        let mut waiting = calls.iter().filter(|(_, entry)| entry.answer.is_some()).map(|(id, _)| *id);
        waiting.next().filter(|_| waiting.next().is_none())
    }

    /// News for the request that the token names.
    pub(super) fn progress(&self, token: &Value, event: Event) {
        let news = token.as_u64().and_then(|id| Some(self.lock().get(&id)?.news.clone()));
        match news {
            Some(news) if news.try_send(event).is_ok() => {}
            _ => self.drop_one(),
        }
    }

    /// News or a question that names no request: it belongs to the one call in flight, or to the latest when all are
    /// of one instance. Otherwise nobody can tell whose it is, and it comes back.
    pub(super) fn unnamed(&self, event: Event) -> Result<(), Event> {
        let news = {
            let calls = self.lock();
            let mut candidates = calls.values().rev().filter(|entry| entry.of.is_some());
            match candidates.next() {
                Some(latest) if candidates.all(|entry| entry.of == latest.of) => Some(latest.news.clone()),
                _ => None,
            }
        };
        let Some(news) = news else { return Err(event) };
        news.try_send(event).map_err(|refused| {
            self.drop_one();
            refused.into_inner()
        })
    }

    fn drop_one(&self) {
        let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
        if dropped.is_power_of_two() {
            tracing::debug!(dropped, "news of a server that nobody waits for, or too much of it");
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Entry>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// What comes next: news in their order, then the answer. Losing nothing when it is dropped and called again.
    pub(super) async fn next(&mut self) -> Result<Event, Failure> {
        loop {
            if let Ok(event) = self.news.try_recv() {
                return Ok(event);
            }
            if let Some(answer) = self.answered.take() {
                return answer.map(Event::Answer);
            }
            tokio::select! {
                biased;
                Some(event) = self.news.recv() => return Ok(event),
                answer = &mut self.answer => {
                    // News that came between the two looks goes first.
                    let gone = || Err(Failure::Cut("the connection was ended".to_owned()));
                    self.answered = Some(answer.unwrap_or_else(|_| gone()));
                }
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.pending.lock().remove(&self.id);
    }
}
