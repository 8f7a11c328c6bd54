//! A person's word on the calls that need one: `user.tool_confirmation`.
//!
//! **Invariant:** a call is answered once, and a yes lets one call run. The database holds both: an answer is unique by
//! its call, and the call that a yes lets run takes the yes as its key.

use serde_json::{Map, Value};

use super::row::{column, digest};
use super::{
    Body, By, CallKey, Confirmation, Event, EventId, LogError, NewEvent, SessionError, SessionId, Sessions,
    Via,
};
use crate::database::DatabaseError;

/// Of the answers to calls of one kind, how many are looked through for a yes that nobody used, newest first.
const LOOKED_THROUGH_MAX: i64 = 100;

/// From whom a yes counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Giver {
    /// From a person behind a client, too.
    Anybody,
    /// From the command line of the gateway's machine alone.
    Owner,
}

impl Giver {
    fn takes(self, by: &By) -> bool {
        self == Self::Anybody || by.via == Via::Cli
    }
}

/// A yes that one call may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Yes(EventId);

impl Yes {
    /// The key of the call that uses it: no other can have it ([`LogError::KeyTaken`]).
    pub fn key(self) -> CallKey {
        CallKey::Forever(format!("yes {}", self.0))
    }
}

/// A person's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// The call may run.
    Yes(Yes),
    /// It may not, for this reason.
    No(Option<String>),
}

/// What a call is, for a yes that came after it: one like it may use it.
#[derive(Clone, Debug)]
pub struct Likeness(CallKey);

impl Likeness {
    /// That of a call of this hand's tool with these arguments.
    pub fn of(hand: &str, tool: &str, arguments: &Map<String, Value>) -> Self {
        // Maps are sorted by their keys, so equal arguments have one text. The log keeps a digest of it.
        let arguments = serde_json::to_string(arguments).unwrap_or_default();
        Self(CallKey::Resend(format!("like {hand} {tool} {arguments}")))
    }

    /// That of an `agent.tool_use`. None where the built-in loop asked: it waits for the answer to the very call.
    pub fn of_event(asked: &Event) -> Option<Self> {
        match (asked.by.via, asked.known()) {
            (Via::Mcp | Via::Cli, Some(Body::ToolUse { hand, tool, input, .. })) => {
                Some(Self::of(&hand.name, &tool, &input))
            }
            _ => None,
        }
    }
}

/// The call that a person speaks of, as the log has it.
#[derive(Clone, Debug, PartialEq)]
pub struct InQuestion {
    /// Its `agent.tool_use`.
    pub asked: Event,
    /// Its answer, if it has one.
    pub word: Option<Word>,
}

impl NewEvent {
    /// A person's answer to a call. With a likeness, the next call like it may use a yes.
    pub fn confirmation(
        by: By,
        call: EventId,
        like: Option<Likeness>,
        result: Confirmation,
        deny_message: Option<String>,
    ) -> Self {
        let body = Body::ToolConfirmation { tool_use_id: call, result, deny_message };
        Self { key: like.map(|like| like.0), ..Self::of(by, &body) }
    }
}

impl Sessions {
    /// A call and its answer. None: no call has this id.
    pub async fn in_question(
        &self,
        id: SessionId,
        call: EventId,
    ) -> Result<Option<InQuestion>, SessionError> {
        let which = "e.type = 'agent.tool_use' and e.id = $2";
        let Some(asked) = self.one_event(id, which, call.to_string()).await? else { return Ok(None) };
        Ok(Some(InQuestion { asked, word: self.word(id, call).await? }))
    }

    /// What a person said of a call.
    pub async fn word(&self, id: SessionId, call: EventId) -> Result<Option<Word>, SessionError> {
        let which = "e.tool_use_id = $2 and e.type = 'user.tool_confirmation'";
        let Some(said) = self.one_event(id, which, call.to_string()).await? else { return Ok(None) };
        Ok(match said.known() {
            Some(Body::ToolConfirmation { result: Confirmation::Allow, .. }) => Some(Word::Yes(Yes(said.id))),
            Some(Body::ToolConfirmation { result: Confirmation::Deny, deny_message, .. }) => {
                Some(Word::No(deny_message))
            }
            _ => None,
        })
    }

    /// A yes to an earlier call of this likeness that no call has used.
    pub async fn unused_yes(
        &self,
        id: SessionId,
        like: &Likeness,
        giver: Giver,
    ) -> Result<Option<Yes>, SessionError> {
        let CallKey::Resend(key) = &like.0 else { return Ok(None) };
        let rows = sqlx::query(
            "select e.id, e.by, e.body from event e
             where e.session = $1 and e.resend_key = $2 and e.type = 'user.tool_confirmation'
             order by e.seq desc limit $3",
        )
        .bind(id.to_string())
        .bind(digest(key))
        .bind(LOOKED_THROUGH_MAX)
        .fetch_all(self.database.reader())
        .await
        .map_err(DatabaseError::from)?;
        for row in rows {
            let body: String = column(&row, "body")?;
            let said: Option<Body> = serde_json::from_str(&body).ok();
            let Some(Body::ToolConfirmation { result: Confirmation::Allow, .. }) = said else { continue };
            let by: Option<By> = serde_json::from_str(&column::<String>(&row, "by")?).ok();
            if !by.is_some_and(|by| giver.takes(&by)) {
                continue;
            }
            let corrupt = |_| LogError::Malformed("the id of an event is none");
            let yes = Yes(column::<String>(&row, "id")?.parse().map_err(corrupt)?);
            if !self.is_taken(id, &yes.key()).await? {
                return Ok(Some(yes));
            }
        }
        Ok(None)
    }

    async fn is_taken(&self, id: SessionId, key: &CallKey) -> Result<bool, SessionError> {
        let CallKey::Forever(key) = key else { return Ok(false) };
        let taken = sqlx::query("select 1 from event where session = $1 and call_key = $2")
            .bind(id.to_string())
            .bind(digest(key))
            .fetch_optional(self.database.reader())
            .await
            .map_err(DatabaseError::from)?;
        Ok(taken.is_some())
    }
}
