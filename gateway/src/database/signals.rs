//! "This has changed": wakes those who wait for a topic.
//!
//! A signal carries how far the topic has come, and replaces an earlier one that nobody took yet: a slow
//! subscriber misses numbers, never the last. Memory is bounded by what is subscribed to: a topic goes with its
//! last subscriber.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{Connection, Dialect};

/// The channel on which processes that share a PostgreSQL tell each other: `topic position`.
pub const CHANNEL: &str = "manyhands_changed";

/// Most bytes of what is told to other processes; PostgreSQL allows less than 8000.
const PAYLOAD_MAX: usize = 7_900;

/// Within a transaction: once it is committed, tells the other processes that share the database. On SQLite
/// there are none.
pub async fn notify(
    connection: &mut Connection,
    dialect: Dialect,
    topic: &str,
    reached: i64,
) -> Result<(), sqlx::Error> {
    let payload = format!("{topic} {reached}");
    if dialect == Dialect::Postgres && payload.len() <= PAYLOAD_MAX {
        let notify = sqlx::query("select pg_notify($1, $2) is null").bind(CHANNEL).bind(payload);
        notify.execute(connection).await?;
    }
    Ok(())
}

/// How far a topic has come; `None` when it is not known how far.
type Reached = Option<i64>;

/// Subscribers of one topic, by their number.
type Mailboxes = HashMap<u64, Arc<Mailbox>>;

/// All who wait, by topic.
#[derive(Debug, Default)]
pub struct Signals {
    topics: Mutex<HashMap<Arc<str>, Mailboxes>>,
    next: AtomicU64,
}

/// One subscriber's changes that it has not taken yet: at most one a topic.
#[derive(Debug, Default)]
struct Mailbox {
    changed: Mutex<BTreeMap<Arc<str>, Reached>>,
    filled: Notify,
}

impl Signals {
    /// A subscription to nothing, yet.
    pub fn subscribe(self: &Arc<Self>) -> Subscription {
        Subscription {
            signals: Arc::clone(self),
            number: self.next.fetch_add(1, Ordering::Relaxed),
            mailbox: Arc::default(),
            topics: Vec::new(),
        }
    }

    /// Tells the subscribers of `topic` how far it has come.
    pub fn publish(&self, topic: &str, reached: i64) {
        if let Some((topic, subscribers)) = lock(&self.topics).get_key_value(topic) {
            for mailbox in subscribers.values() {
                mailbox.put(topic, Some(reached));
            }
        }
    }

    /// Publishes what a process notified, by [`notify`].
    pub(super) fn publish_payload(&self, payload: &str) {
        if let Some((topic, Ok(reached))) =
            payload.rsplit_once(' ').map(|(topic, text)| (topic, text.parse()))
        {
            self.publish(topic, reached);
        } else {
            tracing::warn!("a notification on {CHANNEL} is not understood");
        }
    }

    /// Wakes everybody: something may have changed that nobody told us of.
    pub(super) fn publish_all(&self) {
        for (topic, subscribers) in lock(&self.topics).iter() {
            for mailbox in subscribers.values() {
                mailbox.put(topic, None);
            }
        }
    }

    /// How many topics somebody waits for.
    pub fn topics(&self) -> usize {
        lock(&self.topics).len()
    }
}

impl Mailbox {
    /// A position replaces a smaller or unknown one; an unknown one replaces nothing.
    fn put(&self, topic: &Arc<str>, reached: Reached) {
        let mut changed = lock(&self.changed);
        let held = changed.entry(Arc::clone(topic)).or_insert(reached);
        *held = (*held).max(reached);
        drop(changed);
        self.filled.notify_one();
    }
}

/// Waits for changes of the topics it has been given. One task at a time waits on it.
#[derive(Debug)]
pub struct Subscription {
    signals: Arc<Signals>,
    number: u64,
    mailbox: Arc<Mailbox>,
    topics: Vec<Arc<str>>,
}

impl Subscription {
    /// Waits for this topic too, from now on.
    pub fn add(&mut self, topic: &str) {
        if self.topics.iter().any(|held| &**held == topic) {
            return;
        }
        let topic: Arc<str> = topic.into();
        let mut topics = lock(&self.signals.topics);
        topics.entry(Arc::clone(&topic)).or_default().insert(self.number, Arc::clone(&self.mailbox));
        drop(topics);
        self.topics.push(topic);
    }

    /// No longer waits for this topic; what it had not taken of it is gone.
    pub fn remove(&mut self, topic: &str) {
        self.topics.retain(|held| &**held != topic);
        self.forget(topic);
        lock(&self.mailbox.changed).remove(topic);
    }

    /// The next change: a topic, and how far it has come when that is known.
    pub async fn changed(&mut self) -> (Arc<str>, Option<i64>) {
        loop {
            if let Some(change) = lock(&self.mailbox.changed).pop_first() {
                return change;
            }
            self.mailbox.filled.notified().await;
        }
    }

    fn forget(&self, topic: &str) {
        let mut topics = lock(&self.signals.topics);
        if let Some(subscribers) = topics.get_mut(topic) {
            subscribers.remove(&self.number);
            if subscribers.is_empty() {
                topics.remove(topic);
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        for topic in &self.topics {
            self.forget(topic);
        }
    }
}

/// What a panicking holder leaves behind is whole: each change to these maps is a single step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
