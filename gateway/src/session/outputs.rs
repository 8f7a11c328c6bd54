//! Outputs too large for the log: stored in chunks before the event that names them, and swept when none does.

use std::ops::Range;
use std::sync::Arc;

use jiff::Timestamp;

use super::row::column;
use super::{OutputRef, SessionId};
use crate::clock;
use crate::database::{Database, DatabaseError};

/// Bytes in one row.
pub const OUTPUT_CHUNK_BYTES: usize = 256 << 10;
/// Most bytes of one output.
pub const OUTPUT_BYTES_MAX: u64 = 64 << 20;
/// Outputs looked at in one transaction of a sweep.
const SWEEP_AT_ONCE: i64 = 64;

/// Why an output was not stored or read.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// It is larger than [`OUTPUT_BYTES_MAX`].
    #[error("an output is at most {OUTPUT_BYTES_MAX} bytes")]
    TooLarge,
    /// The session does not exist, or can't be written to.
    #[error("no such session, or it is read-only")]
    NoSession,
    /// There is no such output.
    #[error("no such output")]
    NoOutput,
    /// The principal stores as much as it may.
    #[error("you store {limit} bytes or more, the most that one principal may (limits.stored_bytes)")]
    NoRoom {
        /// The limit.
        limit: u64,
    },
    /// What was to be stored can't be read.
    #[error("it can't be read: {0}")]
    Unreadable(#[from] std::io::Error),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// The stored outputs of all sessions. Asks nobody whose they are.
#[derive(Clone, Debug)]
pub struct Outputs {
    database: Database,
}

impl Outputs {
    pub(super) fn new(database: Database) -> Self {
        Self { database }
    }

    /// Begins an output, to be written as it comes. Until an event names it, [`Outputs::sweep`] may remove it.
    pub fn writer(&self, session: SessionId) -> OutputWriter {
        OutputWriter {
            database: self.database.clone(),
            session,
            id: format!("out_{}", clock::id().simple()),
            written: 0,
            chunks: 0,
            buffer: Vec::new(),
        }
    }

    /// Stores a whole output.
    pub async fn store(&self, session: SessionId, bytes: &[u8]) -> Result<OutputRef, OutputError> {
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > OUTPUT_BYTES_MAX {
            return Err(OutputError::TooLarge);
        }
        let mut writer = self.writer(session);
        writer.write(bytes).await?;
        writer.finish().await
    }

    /// The bytes of an output within `range`, as far as it goes. Past its end there are none, which is no error.
    pub async fn read(
        &self,
        session: SessionId,
        output: &OutputRef,
        range: Range<u64>,
    ) -> Result<Vec<u8>, OutputError> {
        let end = range.end.min(output.bytes);
        if range.start >= end {
            return Ok(Vec::new());
        }
        let size = OUTPUT_CHUNK_BYTES as u64;
        let (first, last) = (range.start / size, (end - 1) / size);
        let rows = sqlx::query(
            "select chunk from output where session = $1 and id = $2 and n >= $3 and n <= $4 order by n",
        )
        .bind(session.to_string())
        .bind(output.id.clone())
        .bind(i64::try_from(first).unwrap_or(i64::MAX))
        .bind(i64::try_from(last).unwrap_or(i64::MAX))
        .fetch_all(self.database.reader())
        .await
        .map_err(DatabaseError::from)?;
        let mut bytes = Vec::new();
        for row in &rows {
            bytes.extend_from_slice(&column::<Vec<u8>>(row, "chunk")?);
        }
        let within = |place: u64| usize::try_from(place - first * size).unwrap_or(usize::MAX);
        // All chunks of it are there, or it was deleted.
        bytes.get(within(range.start)..within(end)).map(<[u8]>::to_vec).ok_or(OutputError::NoOutput)
    }

    /// Removes outputs that nobody has written to since `older_than` and no event names. Returns how many.
    ///
    /// A writer that is still at work is safe by the age of its last chunk: let `older_than` lie further back
    /// than any call lasts.
    pub async fn sweep(&self, older_than: Timestamp) -> Result<u64, OutputError> {
        let mut swept = 0;
        loop {
            let unnamed = sqlx::query(
                "select session, id from output o
                 where not exists (select 1 from event e where e.session = o.session and e.output_id = o.id)
                 group by session, id having max(created_at) < $1 limit $2",
            )
            .bind(format!("{older_than:.6}"))
            .bind(SWEEP_AT_ONCE)
            .fetch_all(self.database.reader())
            .await
            .map_err(DatabaseError::from)?;
            if unnamed.is_empty() {
                return Ok(swept);
            }
            for row in &unnamed {
                remove(&self.database, column(row, "session")?, column(row, "id")?).await?;
                swept += 1;
            }
            self.database.freed();
        }
    }
}

/// Removes an output that no event names.
async fn remove(database: &Database, session: String, id: String) -> Result<(), DatabaseError> {
    database
        .write(move |connection| {
            Box::pin(async move {
                let bytes: i64 = sqlx::query_scalar(
                    "select cast(coalesce(sum(length(chunk)), 0) as bigint) from output
                     where session = $1 and id = $2",
                )
                .bind(session.clone())
                .bind(id.clone())
                .fetch_one(&mut *connection)
                .await?;
                // Named by now? Then it stays.
                let removed = sqlx::query(
                    "delete from output where session = $1 and id = $2 and not exists
                        (select 1 from event where session = $1 and output_id = $2)",
                )
                .bind(session.clone())
                .bind(id)
                .execute(&mut *connection)
                .await?;
                if removed.rows_affected() > 0 {
                    sqlx::query("update session set bytes = bytes - $2 where id = $1")
                        .bind(session)
                        .bind(bytes)
                        .execute(connection)
                        .await?;
                }
                Ok(())
            })
        })
        .await
}

/// An output that is being written. Dropped before [`OutputWriter::finish`], it is left for the sweep.
#[derive(Debug)]
pub struct OutputWriter {
    database: Database,
    session: SessionId,
    id: String,
    /// Bytes taken so far, those in the buffer included.
    written: u64,
    chunks: i64,
    buffer: Vec<u8>,
}

impl OutputWriter {
    /// Takes more bytes. At most [`OUTPUT_CHUNK_BYTES`] of them are kept in memory.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), OutputError> {
        self.written += bytes.len() as u64;
        if self.written > OUTPUT_BYTES_MAX {
            return Err(OutputError::TooLarge);
        }
        while !bytes.is_empty() {
            let taken = bytes.len().min(OUTPUT_CHUNK_BYTES - self.buffer.len());
            self.buffer.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if self.buffer.len() == OUTPUT_CHUNK_BYTES {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Writes the rest, durably. What it returns goes into the event.
    pub async fn finish(mut self) -> Result<OutputRef, OutputError> {
        if !self.buffer.is_empty() || self.chunks == 0 {
            self.flush().await?;
        }
        Ok(OutputRef { id: self.id, bytes: self.written, holds: None })
    }

    /// Removes what was written. What can't be removed is left for the sweep.
    pub async fn abandon(self) {
        if self.chunks == 0 {
            return;
        }
        match remove(&self.database, self.session.to_string(), self.id).await {
            Ok(()) => self.database.freed(),
            Err(error) => {
                tracing::warn!(error = %error, "an output that was not finished could not be removed");
            }
        }
    }

    async fn flush(&mut self) -> Result<(), OutputError> {
        self.database.check_disk()?;
        let chunk = Arc::new(std::mem::take(&mut self.buffer));
        let (session, id, n) = (self.session.to_string(), self.id.clone(), self.chunks);
        self.database
            .write(move |connection| {
                Box::pin(async move {
                    let counted = sqlx::query(
                        "update session set bytes = bytes + $2 where id = $1 and status = 'active'",
                    )
                    .bind(session.clone())
                    .bind(i64::try_from(chunk.len()).unwrap_or(i64::MAX))
                    .execute(&mut *connection)
                    .await
                    .map_err(DatabaseError::from)?;
                    if counted.rows_affected() == 0 {
                        return Err(OutputError::NoSession);
                    }
                    sqlx::query(
                        "insert into output (session, id, n, created_at, chunk) values ($1, $2, $3, $4, $5)",
                    )
                    .bind(session)
                    .bind(id)
                    .bind(n)
                    .bind(format!("{:.6}", clock::now()))
                    .bind(chunk.to_vec())
                    .execute(connection)
                    .await
                    .map_err(DatabaseError::from)?;
                    Ok(())
                })
            })
            .await?;
        self.chunks += 1;
        Ok(())
    }
}
