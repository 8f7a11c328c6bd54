//! A session log that fails when it is told to: the write lost, or only its answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use gateway::database::DatabaseError;
use gateway::session::{At, Event, EventLog, LogError, NewEvent, Seq, SessionId, Slice};

/// Which appends to a session fail.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The first of them, from 1.
    pub from: usize,
    /// How many.
    pub times: usize,
    /// What of them is lost.
    pub lost: Lost,
}

/// What of an append is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// All of it.
    Write,
    /// It is written, and the writer is not told.
    Answer,
    /// All of it, and of all that come behind it: the process dies before it.
    Process,
    /// Its answer, and all that come behind it: the process dies after it.
    AnswerAndProcess,
}

/// A log with faults, by session.
pub struct FaultyLog {
    log: Arc<dyn EventLog>,
    faults: Mutex<HashMap<SessionId, (usize, Fault)>>,
}

impl FaultyLog {
    /// No faults yet.
    pub fn new(log: Arc<dyn EventLog>) -> Self {
        Self { log, faults: Mutex::default() }
    }

    /// From here on, appends to `session` fail as told.
    pub fn fail(&self, session: SessionId, fault: Fault) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).insert(session, (0, fault));
    }

    fn fault(&self, session: SessionId) -> Option<Lost> {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let (appends, fault) = faults.get_mut(&session)?;
        *appends += 1;
        match fault.lost {
            Lost::AnswerAndProcess if *appends == fault.from => Some(Lost::Answer),
            Lost::Process | Lost::AnswerAndProcess => (*appends >= fault.from).then_some(Lost::Write),
            Lost::Write | Lost::Answer => {
                (fault.from..fault.from.saturating_add(fault.times)).contains(appends).then_some(fault.lost)
            }
        }
    }
}

#[async_trait]
impl EventLog for FaultyLog {
    async fn append(&self, id: SessionId, at: At, events: &[NewEvent]) -> Result<Seq, LogError> {
        let fault = self.fault(id);
        if fault == Some(Lost::Write) {
            return Err(DatabaseError::Locked.into());
        }
        let written = self.log.append(id, at, events).await;
        if fault == Some(Lost::Answer) { Err(DatabaseError::Locked.into()) } else { written }
    }

    async fn read(&self, id: SessionId, slice: Slice) -> Result<Vec<Event>, LogError> {
        self.log.read(id, slice).await
    }
}
