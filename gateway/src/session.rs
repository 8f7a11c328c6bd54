//! Sessions: append-only logs of everything that happened, and who owns them.
//!
//! [`Sessions`] is the door. A [`SessionInfo`] comes only from [`Sessions::open`], [`Sessions::find`] and
//! [`Sessions::list`], which ask whose it is; what takes one, acts on it.

mod awake;
mod calls;
mod changes;
mod confirm;
mod delete;
mod emit;
mod event;
mod log;
mod moves;
mod name;
mod outputs;
mod row;
mod slice;
mod snapshot;
mod sql;
mod state;
mod turns;

use std::sync::Arc;

use futures_util::Stream;
use jiff::Timestamp;
use sqlx::any::AnyRow;
use uuid::Uuid;

pub use calls::{KeyedCall, OpenCall};
pub use changes::{Change, Changes};
pub use confirm::{Giver, InQuestion, Likeness, Word, Yes};
pub use emit::*;
pub use event::*;
pub use log::*;
pub use name::{BadName, SESSION_NAME_MAX, SessionName, SessionRef};
pub use outputs::{OUTPUT_BYTES_MAX, OUTPUT_CHUNK_BYTES, OutputError, OutputWriter, Outputs};
pub use row::EVENT_TYPE_MAX;
pub use slice::{Page, SLICE_TYPES_MAX};
pub use sql::{APPEND_EVENTS_MAX, SqlLog, Statements};
pub use state::*;

use crate::access::Principal;
use crate::clock;
use crate::database::{self, Connection, Database, DatabaseError};
use row::column;

/// Sessions in one page of a listing when nobody says, and at most.
pub const LIST_DEFAULT: u32 = 100;
/// Most sessions in one page of a listing.
pub const LIST_MAX: u32 = 1_000;

/// What one principal may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Sessions, archived ones included.
    pub sessions: u64,
    /// Bytes of events and outputs, over all its sessions.
    pub stored_bytes: u64,
}

/// What one principal has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Sessions, archived ones included.
    pub sessions: u64,
    /// Bytes of events and outputs, over all its sessions.
    pub stored_bytes: u64,
}

/// Whether a session can be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionStatus {
    /// It can.
    Active,
    /// It can be read only.
    Archived,
}

impl SessionStatus {
    /// As it is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Archived => "archived",
        }
    }
}

/// A session of the principal that asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Its id.
    pub id: SessionId,
    /// Whose it is.
    pub principal: Principal,
    /// Its name, when it has one.
    pub name: Option<SessionName>,
    /// Whether it can be written to.
    pub status: SessionStatus,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last appended to.
    pub updated_at: Timestamp,
    /// Where its log ends.
    pub last_seq: Seq,
    /// What its events and outputs take.
    pub bytes: u64,
}

/// Which sessions to list, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Only those made before this one: the last of the page before.
    pub before: Option<SessionId>,
    /// At most so many; 1 to [`LIST_MAX`], [`LIST_DEFAULT`] when absent.
    pub limit: Option<u32>,
    /// Only those of this status.
    pub status: Option<SessionStatus>,
}

/// Why something about a session failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// There is no such session, or it is somebody else's.
    #[error("no such session")]
    NoSession,
    /// Another session of the same principal has the name.
    #[error("there is a session called {0} already: choose another name, or use that one")]
    NameTaken(SessionName),
    /// The principal has as many sessions as it may.
    #[error(
        "you have {limit} sessions, the most that one principal may have (limits.sessions): delete some with `manyhands session delete`"
    )]
    TooManySessions {
        /// The limit.
        limit: u64,
    },
    /// The principal stores as much as it may.
    #[error(
        "you store {limit} bytes or more, the most that one principal may (limits.stored_bytes): delete some sessions with `manyhands session delete`"
    )]
    TooManyBytes {
        /// The limit.
        limit: u64,
    },
    /// A call of the session has no outcome yet.
    #[error("a call is running in this session: cancel it or wait for it, then try again")]
    Running,
    /// The log refused.
    #[error(transparent)]
    Log(LogError),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl From<LogError> for SessionError {
    fn from(error: LogError) -> Self {
        match error {
            LogError::NoSession => Self::NoSession,
            LogError::Database(error) => Self::Database(error),
            other => Self::Log(other),
        }
    }
}

/// All sessions. Clones share them.
#[derive(Clone, Debug)]
pub struct Sessions {
    database: Database,
    log: SqlLog,
    limits: SessionLimits,
}

impl Sessions {
    /// `node` is this process, as its open calls name it.
    pub fn new(database: Database, node: String, limits: SessionLimits) -> Self {
        let log = SqlLog::new(database.clone(), node);
        Self { database, log, limits }
    }

    /// The log itself, which asks nobody whose it is and counts no bytes: for outcomes, and for the gateway's own.
    pub fn log(&self) -> &SqlLog {
        &self.log
    }

    /// Stored outputs.
    pub fn outputs(&self) -> Outputs {
        Outputs::new(self.database.clone())
    }

    /// The session; a named one is made, with its `session.created`, when there is none. Of racing makers all get
    /// the same one.
    pub async fn open(
        &self,
        principal: &Principal,
        wanted: &SessionRef,
        by: &By,
    ) -> Result<SessionInfo, SessionError> {
        match (self.find(principal, wanted).await, wanted) {
            (Err(SessionError::NoSession), SessionRef::Name(name)) => {
                match self.create(principal, Some(name), by).await {
                    Err(SessionError::NameTaken(_)) => self.find(principal, wanted).await,
                    made => made,
                }
            }
            (found, _) => found,
        }
    }

    /// The session, if there is one. Makes none.
    pub async fn find(
        &self,
        principal: &Principal,
        wanted: &SessionRef,
    ) -> Result<SessionInfo, SessionError> {
        let query = match wanted {
            SessionRef::Id(id) => {
                sqlx::query("select * from session where principal = $1 and id = $2 and status <> 'deleting'")
                    .bind(principal.0.clone())
                    .bind(id.to_string())
            }
            SessionRef::Name(name) => sqlx::query(
                "select * from session where principal = $1 and name = $2 and status <> 'deleting'",
            )
            .bind(principal.0.clone())
            .bind(name.to_string()),
        };
        let row = query.fetch_optional(self.database.reader()).await.map_err(DatabaseError::from)?;
        row.as_ref().map_or(Err(SessionError::NoSession), |row| Ok(info(row)?))
    }

    /// Makes a session, with its `session.created` in the same transaction.
    pub async fn create(
        &self,
        principal: &Principal,
        name: Option<&SessionName>,
        by: &By,
    ) -> Result<SessionInfo, SessionError> {
        self.database.check_disk()?;
        let id = SessionId::new();
        let created = Body::SessionCreated { name: name.map(ToString::to_string) };
        let first = Arc::new(self.log.batch(id, At::End, &[NewEvent::of(by.clone(), &created)])?);
        let (owner, called, limit) = (principal.clone(), name.cloned(), self.limits.sessions);
        let dialect = self.database.dialect();
        let (signals, list) = (Arc::clone(self.database.signals()), list_topic(principal));
        self.database
            .write_then(
                move |connection| {
                    Box::pin(async move {
                        insert(connection, id, &owner, called.as_ref(), limit).await?;
                        first.append(&mut *connection).await?;
                        let told = list_topic(&owner);
                        database::notify(connection, dialect, &told, 0).await.map_err(DatabaseError::from)?;
                        by_id(connection, id).await
                    })
                },
                move |_| signals.publish(&list, 0),
            )
            .await
    }

    /// The principal's sessions, newest first, and whether there are more.
    pub async fn list(
        &self,
        principal: &Principal,
        listing: &Listing,
    ) -> Result<(Vec<SessionInfo>, bool), SessionError> {
        let limit = listing.limit.unwrap_or(LIST_DEFAULT).clamp(1, LIST_MAX);
        let rows = sqlx::query(
            "select * from session where principal = $1 and id < $2 and status <> 'deleting'
                and ($3 = '' or status = $3)
             order by id desc limit $4",
        )
        .bind(principal.0.clone())
        // Behind every id, in any collation: of their form and not one that is ever made.
        .bind(listing.before.unwrap_or(SessionId(Uuid::max())).to_string())
        .bind(listing.status.map_or("", SessionStatus::as_str))
        .bind(i64::from(limit) + 1)
        .fetch_all(self.database.reader())
        .await
        .map_err(DatabaseError::from)?;
        let mut sessions = rows.iter().map(info).collect::<Result<Vec<_>, _>>()?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let more = sessions.len() > limit;
        sessions.truncate(limit);
        Ok((sessions, more))
    }

    /// Appends for the session's owner, as long as that may store more.
    pub async fn append(
        &self,
        session: &SessionInfo,
        at: At,
        events: &[NewEvent],
    ) -> Result<Seq, SessionError> {
        self.check_room(&session.principal).await?;
        Ok(self.log.append(session.id, at, events).await?)
    }

    /// A slice with how to go on from it.
    pub async fn slice(&self, session: &SessionInfo, slice: Slice) -> Result<Page, SessionError> {
        Ok(self.log.page(session.id, slice).await?)
    }

    /// The event at a place.
    pub async fn event(&self, session: &SessionInfo, seq: Seq) -> Result<Option<Event>, SessionError> {
        let Some(after) = seq.0.checked_sub(1).filter(|after| *after >= 0) else { return Ok(None) };
        let slice = Slice { after: Some(Seq(after)), limit: Some(1), ..Slice::default() };
        let events = self.log.read(session.id, slice).await?;
        Ok(events.into_iter().find(|event| event.seq == seq))
    }

    /// Everything behind `after`, then what is appended, as it is ([`SqlLog::follow`]).
    pub fn follow(
        &self,
        session: &SessionInfo,
        after: Seq,
    ) -> impl Stream<Item = Result<Event, LogError>> + Send + use<> {
        self.log.follow(session.id, after)
    }

    /// Makes a session read-only, on that condition. Not while a call of it is open: its outcome could not be written.
    pub async fn archive(&self, session: &SessionInfo, by: &By, at: At) -> Result<SessionInfo, SessionError> {
        let id = session.id;
        let status = SessionStatus::Archived.as_str().to_owned();
        let event = NewEvent::of(by.clone(), &Body::SessionUpdated { status, model: None });
        let archival = Arc::new(self.log.batch(id, at, &[event])?);
        let (signals, owner) = (Arc::clone(self.database.signals()), session.principal.clone());
        let dialect = self.database.dialect();
        let list = list_topic(&owner);
        self.database
            .write_then(
                move |connection| {
                    Box::pin(async move {
                        // Holds the session's row, so that no call is opened meanwhile.
                        archival.append(&mut *connection).await?;
                        refuse_while_running(connection, id).await?;
                        sqlx::query("update session set status = 'archived' where id = $1")
                            .bind(id.to_string())
                            .execute(&mut *connection)
                            .await
                            .map_err(DatabaseError::from)?;
                        let told = list_topic(&owner);
                        database::notify(connection, dialect, &told, 0).await.map_err(DatabaseError::from)?;
                        by_id(connection, id).await
                    })
                },
                move |archived: &SessionInfo| {
                    sql::publish(&signals, id, archived.last_seq);
                    signals.publish(&list, 0);
                },
            )
            .await
    }

    /// Whether the database answers.
    pub async fn ready(&self) -> Result<(), DatabaseError> {
        sqlx::query("select 1").execute(self.database.reader()).await?;
        Ok(())
    }

    /// What a principal has.
    pub async fn usage(&self, principal: &Principal) -> Result<Usage, SessionError> {
        let row = sqlx::query(
            "select count(*) as sessions, cast(coalesce(sum(bytes), 0) as bigint) as bytes from session
             where principal = $1 and status <> 'deleting'",
        )
        .bind(principal.0.clone())
        .fetch_one(self.database.reader())
        .await
        .map_err(DatabaseError::from)?;
        Ok(Usage { sessions: count(&row, "sessions")?, stored_bytes: count(&row, "bytes")? })
    }

    /// Refuses when the disk has no room for anything new.
    pub fn check_disk(&self) -> Result<(), SessionError> {
        Ok(self.database.check_disk()?)
    }

    /// Refuses when the disk has no room, or a principal stores as much as it may. Others are not slowed down: its own
    /// rows are summed.
    pub async fn check_room(&self, principal: &Principal) -> Result<(), SessionError> {
        self.check_disk()?;
        let limit = self.limits.stored_bytes;
        if self.usage(principal).await?.stored_bytes >= limit {
            return Err(SessionError::TooManyBytes { limit });
        }
        Ok(())
    }
}

/// What the signals of a principal's list of sessions are called.
fn list_topic(principal: &Principal) -> String {
    format!("sessions/{principal}")
}

/// The row of a new session. On PostgreSQL two at the same moment may pass the limit by one.
async fn insert(
    connection: &mut Connection,
    id: SessionId,
    principal: &Principal,
    name: Option<&SessionName>,
    limit: u64,
) -> Result<(), SessionError> {
    let now = format!("{:.6}", clock::now());
    let inserted = sqlx::query(
        "insert into session (id, principal, name, status, created_at, updated_at)
         values ($1, $2, $3, 'active', $4, $4) on conflict (principal, name) do nothing",
    )
    .bind(id.to_string())
    .bind(principal.0.clone())
    .bind(name.map(ToString::to_string))
    .bind(now)
    .execute(&mut *connection)
    .await
    .map_err(DatabaseError::from)?;
    if let (0, Some(name)) = (inserted.rows_affected(), name) {
        return Err(SessionError::NameTaken(name.clone()));
    }
    let row =
        sqlx::query("select count(*) as sessions from session where principal = $1 and status <> 'deleting'")
            .bind(principal.0.clone())
            .fetch_one(connection)
            .await
            .map_err(DatabaseError::from)?;
    if count(&row, "sessions")? > limit {
        return Err(SessionError::TooManySessions { limit });
    }
    Ok(())
}

/// After the session's row was changed in this transaction.
async fn refuse_while_running(connection: &mut Connection, id: SessionId) -> Result<(), SessionError> {
    let open = sqlx::query("select 1 from open_call where session = $1 limit 1")
        .bind(id.to_string())
        .fetch_optional(connection)
        .await
        .map_err(DatabaseError::from)?;
    open.map_or(Ok(()), |_| Err(SessionError::Running))
}

async fn by_id(connection: &mut Connection, id: SessionId) -> Result<SessionInfo, SessionError> {
    let row = sqlx::query("select * from session where id = $1")
        .bind(id.to_string())
        .fetch_one(connection)
        .await
        .map_err(DatabaseError::from)?;
    Ok(info(&row)?)
}

fn info(row: &AnyRow) -> Result<SessionInfo, DatabaseError> {
    let status: String = column(row, "status")?;
    let name: Option<String> = column(row, "name")?;
    Ok(SessionInfo {
        id: parsed(row, "id")?,
        principal: Principal(column(row, "principal")?),
        name: name.map(|name| name.parse()).transpose().map_err(|error| unreadable("name", error))?,
        status: if status == "active" { SessionStatus::Active } else { SessionStatus::Archived },
        created_at: parsed(row, "created_at")?,
        updated_at: parsed(row, "updated_at")?,
        last_seq: Seq(column(row, "last_seq")?),
        bytes: count(row, "bytes")?,
    })
}

fn parsed<T>(row: &AnyRow, name: &str) -> Result<T, DatabaseError>
where
    T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    column::<String>(row, name)?.parse().map_err(|error| unreadable(name, error))
}

fn unreadable(name: &str, error: impl std::error::Error + Send + Sync + 'static) -> DatabaseError {
    sqlx::Error::ColumnDecode { index: name.to_owned(), source: Box::new(error) }.into()
}

fn count(row: &AnyRow, name: &str) -> Result<u64, DatabaseError> {
    Ok(u64::try_from(column::<i64>(row, name)?).unwrap_or_default())
}
