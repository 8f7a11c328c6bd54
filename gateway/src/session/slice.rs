//! Reading a log: slices by position, pages of them, and following its end.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use serde_json::{Map, Value};
use sqlx::{AnyPool, AssertSqlSafe};

use super::row::{COLUMNS, column, event};
use super::sql::topic;
use super::{
    Event, LogError, SLICE_BYTES_MAX, SLICE_EVENTS_DEFAULT, SLICE_EVENTS_MAX, Seq, SessionId, Slice, SqlLog,
};
use crate::database::{Database, DatabaseError, Dialect, Subscription};

/// Most types that one slice may ask for.
pub const SLICE_TYPES_MAX: usize = 32;
/// How long a follower waits on PostgreSQL for a signal before it looks for itself. A signal that another
/// process sent may be lost with the connection that carries it.
const FOLLOW_POLL: Duration = Duration::from_secs(5);

/// A slice, and how to go on from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// The events, ascending.
    pub events: Vec<Event>,
    /// Place of the first of them.
    pub first: Option<Seq>,
    /// Place of the last of them.
    pub last: Option<Seq>,
    /// Whether the slice ended at its limit and not at the end of what was asked for: behind it (forward, that
    /// is with `after`), or ahead of it (backward, that is without `after`).
    pub has_more: bool,
    /// Where to go on. Forward it is the next `after` (a `before` stays as it was), and always there: once
    /// `has_more` is false it is a place up to which everything has been read, to wait behind. Backward it is the
    /// next `before`, and there only if `has_more`.
    pub next: Option<Seq>,
}

impl Page {
    /// The page as every face shows it.
    pub fn to_json(&self) -> Value {
        let place = |seq: Option<Seq>| seq.map_or(Value::Null, |seq| seq.0.into());
        let mut shown = Map::new();
        shown.insert("events".into(), self.events.iter().map(Event::to_json).collect());
        shown.insert("first".into(), place(self.first));
        shown.insert("last".into(), place(self.last));
        shown.insert("has_more".into(), self.has_more.into());
        shown.insert("next".into(), place(self.next));
        Value::Object(shown)
    }

    pub(super) fn of(read: Read, slice: &Slice) -> Self {
        let Read { events, more, end } = read;
        let first = events.first().map(|event| event.seq);
        let last = events.last().map(|event| event.seq);
        let next = match slice.after {
            // Without more, everything up to `end` was looked at, whatever its type.
            Some(after) if !more => {
                let seen = slice.before.map_or(end, |before| end.min(Seq(before.0.saturating_sub(1))));
                Some(last.unwrap_or(after).max(seen).max(after))
            }
            Some(_) => last,
            None => first.filter(|_| more),
        };
        Self { events, first, last, has_more: more, next }
    }
}

/// What a slice found.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) events: Vec<Event>,
    /// Whether something was left out for the sake of a limit.
    pub(super) more: bool,
    /// Where the log ended before the slice was read.
    pub(super) end: Seq,
}

/// Reads a slice.
pub(super) async fn read(database: &Database, id: SessionId, slice: &Slice) -> Result<Read, LogError> {
    if slice.types.len() > SLICE_TYPES_MAX {
        return Err(LogError::Malformed("a slice asks for at most 32 types"));
    }
    let end = end(database.reader(), id).await?;
    let limit = slice.limit.unwrap_or(SLICE_EVENTS_DEFAULT).clamp(1, SLICE_EVENTS_MAX);
    let mut query = sqlx::query(AssertSqlSafe(text(slice)))
        .bind(id.to_string())
        .bind(slice.after.map_or(0, |seq| seq.0))
        .bind(slice.before.map_or(i64::MAX, |seq| seq.0))
        .bind(i64::from(limit) + 1)
        .bind(i64::from(limit))
        .bind(i64::try_from(SLICE_BYTES_MAX).unwrap_or(i64::MAX));
    for kind in &slice.types {
        query = query.bind(kind.clone());
    }
    let rows = query.fetch_all(database.reader()).await.map_err(DatabaseError::from)?;
    let found: i64 = rows.first().map_or(Ok(0), |row| column(row, "found"))?;
    let more = usize::try_from(found).unwrap_or(usize::MAX) > rows.len();
    let events = rows.iter().map(|row| event(id, row)).collect::<Result<_, _>>()?;
    Ok(Read { events, more, end })
}

/// Where the log ends.
async fn end(reader: &AnyPool, id: SessionId) -> Result<Seq, LogError> {
    sqlx::query_scalar("select last_seq from session where id = $1 and status <> 'deleting'")
        .bind(id.to_string())
        .fetch_optional(reader)
        .await
        .map_err(DatabaseError::from)?
        .map(Seq)
        .ok_or(LogError::NoSession)
}

/// First which places, by the sizes alone; then their events, so that no more than a slice is ever loaded.
/// `cross join` keeps SQLite from turning the order round; to PostgreSQL it says nothing.
fn text(slice: &Slice) -> String {
    let order = if slice.after.is_some() { "" } else { " desc" };
    let types = match slice.types.len() {
        0 => String::new(),
        types => {
            let places: Vec<String> = (7..7 + types).map(|place| format!("${place}")).collect();
            format!(" and type in ({})", places.join(", "))
        }
    };
    format!(
        "with picked as (
            select seq, size from event where session = $1 and seq > $2 and seq < $3{types}
            order by seq{order} limit $4),
        weighed as (
            select seq, sum(size) over (order by seq{order}) as total, row_number() over (order by seq{order}) as n
            from picked)
        select {COLUMNS}, (select count(*) from picked) as found
        from weighed w cross join event e
        where e.session = $1 and e.seq = w.seq and (w.n = 1 or (w.n <= $5 and w.total <= $6))
        order by e.seq"
    )
}

impl SqlLog {
    /// A slice with how to go on from it.
    pub async fn page(&self, id: SessionId, slice: Slice) -> Result<Page, LogError> {
        Ok(Page::of(read(&self.database, id, &slice).await?, &slice))
    }

    /// Every event behind `after`, then each new one as it is appended, in order, none missing and none twice.
    ///
    /// Ends with the first error, such as [`LogError::NoSession`] once the session is deleted. A slow reader
    /// costs no memory: what it has not read is in the log.
    pub fn follow(
        &self,
        id: SessionId,
        after: Seq,
    ) -> impl Stream<Item = Result<Event, LogError>> + Send + use<> {
        let mut subscription = self.database.signals().subscribe();
        // Before the first read, so that an append after it is not missed.
        subscription.add(&topic(id));
        let follower =
            Follower { database: self.database.clone(), id, after, subscription, ready: VecDeque::new() };
        stream::try_unfold(follower, |mut follower| async move {
            let event = follower.next().await?;
            Ok(Some((event, follower)))
        })
    }
}

struct Follower {
    database: Database,
    id: SessionId,
    after: Seq,
    subscription: Subscription,
    ready: VecDeque<Event>,
}

impl Follower {
    async fn next(&mut self) -> Result<Event, LogError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.after = event.seq;
                return Ok(event);
            }
            let slice = Slice { after: Some(self.after), ..Slice::default() };
            self.ready = read(&self.database, self.id, &slice).await?.events.into();
            if self.ready.is_empty() {
                self.wait().await;
            }
        }
    }

    async fn wait(&mut self) {
        let changed = self.subscription.changed();
        match self.database.dialect() {
            Dialect::Sqlite => {
                changed.await;
            }
            Dialect::Postgres => {
                tokio::time::timeout(FOLLOW_POLL, changed).await.ok();
            }
        }
    }
}
