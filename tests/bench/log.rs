//! The log's promises of speed, on SQLite with every commit synced.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use gateway::access::Principal;
use gateway::database::{Database, DatabaseConfig};
use gateway::session::{
    At, Body, By, EventLog, NewEvent, Seq, SessionId, SessionLimits, Sessions, Slice, SqlLog, Via,
};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous};
use tokio::task::JoinSet;

use crate::disk::Disk;
use crate::report::{Bound, Row, percentile};

/// Appends measured, one after the other.
const APPENDS: usize = 600;

/// Appends before those, after which the write-ahead log is as long as it gets.
const WARM_UP: usize = 400;

/// Writers at once, and how long they write.
const WRITERS: usize = 16;
const LOAD: Duration = Duration::from_secs(4);

/// Events of the small and of the large log, and slices read from each.
const FEW: usize = 1_000;
const MANY: usize = 1_000_000;
const SLICES: usize = 300;

pub(crate) async fn rows(scratch: &Path) -> Result<Vec<Row>> {
    let folder = scratch.join("log");
    let database = Database::open(DatabaseConfig::Directory(folder.clone())).await?;
    let limits = SessionLimits { sessions: 100, stored_bytes: u64::MAX };
    let sessions = Sessions::new(database.clone(), "node_bench".into(), limits);
    let rows =
        vec![append(&sessions, scratch).await?, grouped(&sessions, &folder).await?, slices(&sessions).await?];
    database.close().await;
    Ok(rows)
}

fn by() -> By {
    By { principal: Principal::owner().0, client: Some("bench/1".into()), via: Via::Mcp }
}

/// As large as a small call's.
fn event() -> NewEvent {
    NewEvent::of(by(), &Body::UserMessage { content: "x".repeat(400).into() })
}

async fn session(sessions: &Sessions) -> Result<SessionId> {
    Ok(sessions.create(&Principal::owner(), None, &by()).await?.id)
}

/// One writer; D is measured in between, so that both see the same disk.
async fn append(sessions: &Sessions, scratch: &Path) -> Result<Row> {
    let id = session(sessions).await?;
    let disk = Disk::new(scratch)?;
    let (mut appends, mut overwrites) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + APPENDS {
        let event = event();
        let start = Instant::now();
        sessions.log().append(id, At::End, &[event]).await?;
        if round >= WARM_UP {
            appends.push(start.elapsed().as_secs_f64());
            overwrites.push(disk.overwrite()?);
        }
    }
    let (append, d) = (percentile(&mut appends, 0.5), percentile(&mut overwrites, 0.5));
    Ok(Row {
        what: "append, one writer, FULL, p50, against D",
        value: append / d,
        must: Bound::AtMost(1.8),
        aim: Bound::AtMost(1.5),
        unit: "x",
        detail: format!(
            "{:.2} ms, D {:.2} ms; p99 {:.2} ms",
            append * 1e3,
            d * 1e3,
            percentile(&mut appends, 0.99) * 1e3
        ),
    })
}

/// The same statements for each append, grouped by the log, and with a transaction each.
async fn grouped(sessions: &Sessions, folder: &Path) -> Result<Row> {
    let id = session(sessions).await?;
    let log = sessions.log().clone();
    let (grouped, mut grouped_times) = rate(move || {
        let log = log.clone();
        async move { Ok(log.append(id, At::End, &[event()]).await.map(|_| ())?) }
    })
    .await?;
    let options = SqliteConnectOptions::new()
        .filename(folder.join(gateway::database::SQLITE_FILE))
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_mins(1));
    let options = sqlx::ConnectOptions::disable_statement_logging(options);
    let pool = SqlitePoolOptions::new().max_connections(16).connect_with(options).await?;
    let id = session(sessions).await?;
    let (alone, mut alone_times) = rate({
        let pool = pool.clone();
        move || transaction(pool.clone(), id)
    })
    .await?;
    pool.close().await;
    Ok(Row {
        what: "append, 16 writers: grouped against a transaction each",
        value: grouped / alone,
        must: Bound::AtLeast(2.0),
        aim: Bound::AtLeast(3.0),
        unit: "x",
        detail: format!(
            "{grouped:.0}/s, p99 {:.1} ms against {alone:.0}/s, p99 {:.1} ms",
            percentile(&mut grouped_times, 0.99) * 1e3,
            percentile(&mut alone_times, 0.99) * 1e3
        ),
    })
}

/// An append as one who knows nothing of groups would write it.
async fn transaction(pool: sqlx::SqlitePool, id: SessionId) -> Result<()> {
    let event = event();
    let body = serde_json::to_string(&event.fields)?;
    let mut transaction = pool.begin_with("begin immediate").await?;
    let last: i64 = sqlx::query_scalar(
        "update session set last_seq = last_seq + 1, bytes = bytes + $2 where id = $1 returning last_seq",
    )
    .bind(id.to_string())
    .bind(700_i64)
    .fetch_one(&mut *transaction)
    .await?;
    sqlx::query(
        "insert into event (session, seq, id, at, type, size, by, body)
         values ($1, $2, $3, '2026-01-01T00:00:00.000000Z', 'user.message', 700, '{}', $4)",
    )
    .bind(id.to_string())
    .bind(last)
    .bind(event.id.to_string())
    .bind(body)
    .execute(&mut *transaction)
    .await?;
    Ok(transaction.commit().await?)
}

/// How many a second the writers do together, and how long each took.
async fn rate<F, W>(work: F) -> Result<(f64, Vec<f64>)>
where
    F: Fn() -> W + Clone + Send + 'static,
    W: Future<Output = Result<()>> + Send,
{
    let start = Instant::now();
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let work = work.clone();
        writers.spawn(async move {
            let mut times = Vec::new();
            while start.elapsed() < LOAD {
                let begun = Instant::now();
                work().await?;
                times.push(begun.elapsed().as_secs_f64());
            }
            anyhow::Ok(times)
        });
    }
    let mut times = Vec::new();
    while let Some(written) = writers.join_next().await {
        times.extend(written??);
    }
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 appends")]
    let rate = times.len() as f64 / start.elapsed().as_secs_f64();
    Ok((rate, times))
}

/// A hundred events out of the middle of a log.
async fn slices(sessions: &Sessions) -> Result<Row> {
    let (small, large) = (session(sessions).await?, session(sessions).await?);
    fill(sessions.log(), small, FEW).await?;
    fill(sessions.log(), large, MANY).await?;
    let (mut of_few, mut of_many) = (Vec::new(), Vec::new());
    for round in 0..SLICES {
        // Turn by turn, each at places all over its log.
        of_few.push(slice(sessions.log(), small, round * 997 % (FEW - 100)).await?);
        of_many.push(slice(sessions.log(), large, round * 99_991 % (MANY - 100)).await?);
    }
    let (few, many) = (percentile(&mut of_few, 0.5), percentile(&mut of_many, 0.5));
    Ok(Row {
        what: "a slice of 100 out of 1 000 000 events against 1 000",
        value: many / few,
        must: Bound::AtMost(2.0),
        aim: Bound::AtMost(1.2),
        unit: "x",
        detail: format!("{:.2} ms against {:.2} ms", many * 1e3, few * 1e3),
    })
}

async fn fill(log: &SqlLog, id: SessionId, events: usize) -> Result<()> {
    for _ in 0..events / FEW {
        let events: Vec<NewEvent> = (0..FEW).map(|_| event()).collect();
        log.append(id, At::End, &events).await?;
    }
    Ok(())
}

async fn slice(log: &SqlLog, id: SessionId, after: usize) -> Result<f64> {
    let after = Some(Seq(i64::try_from(after)?));
    let start = Instant::now();
    let events = log.read(id, Slice { after, limit: Some(100), ..Slice::default() }).await?;
    anyhow::ensure!(events.len() == 100);
    Ok(start.elapsed().as_secs_f64())
}
