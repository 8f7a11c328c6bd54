//! Taking the lease on a hand, and the rows of its instances.

use hands::InstanceId;
use sqlx::Row as _;

use super::instance::Slot;
use super::{LeaseError, Leases, subject};
use crate::clock;
use crate::database::{Connection, DatabaseError};
use crate::leases::node::NodeId;
use crate::session::Held;

/// A call that runs in an instance of another living process, which must not be disturbed. The ids of instances are
/// unique, so that finding one in an event's text is finding it in its `instance`.
const RUNS_ELSEWHERE: &str = "select 1 from instance i
     join node n on n.id = i.node and n.status = 'alive'
     join open_call c on c.session = i.session and c.node = i.node and c.started = 1
     join event e on e.session = c.session and e.tool_use_id = c.tool_use_id and e.type = 'hand.call_started'
     where i.session = $1 and i.hand = $2 and i.lost = 0 and i.node <> $3
         and e.body like '%\"' || i.id || '\"%' limit 1";

/// Takes the lease on the slot's hand for an instance that is about to be made, with the instance's row. Whoever had
/// it is fenced from here on.
///
/// The row says `lost` until the log has `hand.provisioned`: of what never was there, nothing is lost.
pub(super) async fn take(
    leases: &Leases,
    slot: &Slot,
    id: &InstanceId,
    node: &NodeId,
) -> Result<Held, LeaseError> {
    let (id, node, name) = (id.to_string(), node.to_string(), slot.hand.name.clone());
    let (session, hand, kind) =
        (slot.session.to_string(), slot.hand.name.to_string(), slot.hand.config.kind());
    let subject = subject(slot.session, &slot.hand.name);
    let key = subject.clone();
    let epoch = leases
        .database
        .write(move |connection| {
            Box::pin(async move {
                let epoch = raise(connection, &key, &node).await?;
                let mine = sqlx::query("select 1 from node where id = $1 and status = 'alive'")
                    .bind(node.clone())
                    .fetch_optional(&mut *connection)
                    .await
                    .map_err(DatabaseError::from)?;
                if mine.is_none() {
                    return Err(LeaseError::Dead);
                }
                let busy = sqlx::query(RUNS_ELSEWHERE)
                    .bind(session.clone())
                    .bind(hand.clone())
                    .bind(node.clone())
                    .fetch_optional(&mut *connection)
                    .await
                    .map_err(DatabaseError::from)?;
                if busy.is_some() {
                    return Err(LeaseError::Elsewhere(name));
                }
                sqlx::query(
                    "insert into instance (id, session, hand, kind, node, lost, created_at)
                     values ($1, $2, $3, $4, $5, 1, $6)",
                )
                .bind(id)
                .bind(session)
                .bind(hand)
                .bind(kind)
                .bind(node)
                .bind(clock::now().to_string())
                .execute(&mut *connection)
                .await
                .map_err(DatabaseError::from)?;
                Ok(epoch)
            })
        })
        .await?;
    Ok(Held { subject, epoch })
}

async fn raise(connection: &mut Connection, subject: &str, node: &str) -> Result<i64, DatabaseError> {
    let row = sqlx::query(
        "insert into lease (subject, node, epoch) values ($1, $2, 1)
         on conflict (subject) do update set node = excluded.node, epoch = lease.epoch + 1
         returning epoch",
    )
    .bind(subject.to_owned())
    .bind(node.to_owned())
    .fetch_one(connection)
    .await?;
    Ok(row.try_get("epoch")?)
}

/// Fences whatever the process `dead` still wants to write about a hand, unless somebody has taken it since.
pub(super) async fn fence(leases: &Leases, subject: String, dead: String) -> Result<(), DatabaseError> {
    leases
        .database
        .write(move |connection| {
            Box::pin(async move {
                sqlx::query("update lease set epoch = epoch + 1 where subject = $1 and node = $2")
                    .bind(subject)
                    .bind(dead)
                    .execute(connection)
                    .await?;
                Ok::<_, DatabaseError>(())
            })
        })
        .await
}

/// Instances of the slot's hand that the log says are there, in processes of other data directories.
pub(super) async fn left_elsewhere(leases: &Leases, slot: &Slot) -> Result<Vec<InstanceId>, DatabaseError> {
    let left: Vec<String> = sqlx::query_scalar(
        "select id from instance where session = $1 and hand = $2 and lost = 0
         and node not in (select id from node where home = $3)",
    )
    .bind(slot.session.to_string())
    .bind(slot.hand.name.to_string())
    .bind(leases.nodes.home().to_owned())
    .fetch_all(leases.database.reader())
    .await?;
    Ok(left.into_iter().map(InstanceId).collect())
}

/// Removes the row of an instance that is gone.
pub(super) async fn delete_row(leases: &Leases, id: &InstanceId) -> Result<(), DatabaseError> {
    let id = id.to_string();
    leases
        .database
        .write(move |connection| {
            Box::pin(async move {
                sqlx::query("delete from instance where id = $1").bind(id).execute(connection).await?;
                Ok::<_, DatabaseError>(())
            })
        })
        .await
}

/// Removes the row of an instance unless the log still says that it is there: then the next one of its slot says first
/// that it is gone.
pub(super) async fn delete_row_of_gone(leases: &Leases, id: &InstanceId) -> Result<(), DatabaseError> {
    let id = id.to_string();
    leases
        .database
        .write(move |connection| {
            Box::pin(async move {
                let text = "delete from instance where id = $1 and lost = 1";
                sqlx::query(text).bind(id).execute(connection).await?;
                Ok::<_, DatabaseError>(())
            })
        })
        .await
}
