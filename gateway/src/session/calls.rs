//! Calls as the log knows them: those without an outcome, and those that a key finds.

use sqlx::AssertSqlSafe;

use super::row::{COLUMNS, column, digest, event};
use super::{CallKey, Event, EventId, SessionError, SessionId, Sessions, parsed};
use crate::database::DatabaseError;

/// Most nodes that one look asks for.
const NODES_MAX: usize = 1_000;

/// A call that was asked for and has no outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenCall {
    /// In which session.
    pub session: SessionId,
    /// Its `agent.tool_use`.
    pub tool_use_id: EventId,
    /// Which process runs it, or is to run it.
    pub node: String,
    /// Whether it may have touched its hand.
    pub started: bool,
}

/// A call that a key found.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyedCall {
    /// Its `agent.tool_use`.
    pub asked: Event,
    /// Its `agent.tool_result`, when it has one.
    pub outcome: Option<Event>,
}

impl Sessions {
    /// The open calls of these nodes, to settle those of the dead. At most the first 1000 nodes are looked at.
    pub async fn open_calls(&self, nodes: &[String]) -> Result<Vec<OpenCall>, SessionError> {
        let nodes = &nodes[..nodes.len().min(NODES_MAX)];
        if nodes.is_empty() {
            return Ok(Vec::new());
        }
        let places: Vec<String> = (1..=nodes.len()).map(|place| format!("${place}")).collect();
        let text = format!(
            "select session, tool_use_id, node, started from open_call where node in ({})
             order by session, tool_use_id",
            places.join(", ")
        );
        let query =
            nodes.iter().fold(sqlx::query(AssertSqlSafe(text)), |query, node| query.bind(node.clone()));
        let rows =
            query.persistent(false).fetch_all(self.database.reader()).await.map_err(DatabaseError::from)?;
        let open = rows.iter().map(|row| {
            Ok(OpenCall {
                session: parsed(row, "session")?,
                tool_use_id: parsed(row, "tool_use_id")?,
                node: column(row, "node")?,
                started: column::<i64>(row, "started")? != 0,
            })
        });
        open.collect()
    }

    /// Whether a call stands in the log without its outcome.
    pub async fn is_open(&self, id: SessionId, call: EventId) -> Result<bool, SessionError> {
        let open = sqlx::query("select 1 from open_call where session = $1 and tool_use_id = $2")
            .bind(id.to_string())
            .bind(call.to_string())
            .fetch_optional(self.database.reader())
            .await
            .map_err(DatabaseError::from)?;
        Ok(open.is_some())
    }

    /// The latest call of a session with this key.
    pub async fn call_by_key(&self, id: SessionId, key: &CallKey) -> Result<Option<KeyedCall>, SessionError> {
        let (column, key) = match key {
            CallKey::Forever(key) => ("call_key", key),
            CallKey::Resend(key) => ("resend_key", key),
        };
        let which = format!("e.{column} = $2 order by e.seq desc limit 1");
        let Some(asked) = self.one_event(id, &which, digest(key)).await? else { return Ok(None) };
        let outcome = self.outcome(id, asked.id).await?;
        Ok(Some(KeyedCall { asked, outcome }))
    }

    /// The `agent.tool_result` of a call, when it has one.
    pub async fn outcome(&self, id: SessionId, call: EventId) -> Result<Option<Event>, SessionError> {
        self.one_event(id, "e.tool_use_id = $2 and e.type = 'agent.tool_result'", call.to_string()).await
    }

    /// The event of a session that `which`, a condition on `$2`, finds by its indexes.
    pub(super) async fn one_event(
        &self,
        id: SessionId,
        which: &str,
        value: String,
    ) -> Result<Option<Event>, SessionError> {
        let text = format!("select {COLUMNS} from event e where e.session = $1 and {which}");
        let row = sqlx::query(AssertSqlSafe(text))
            .bind(id.to_string())
            .bind(value)
            .fetch_optional(self.database.reader())
            .await
            .map_err(DatabaseError::from)?;
        Ok(row.map(|row| event(id, &row)).transpose()?)
    }
}
