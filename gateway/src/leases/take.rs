//! Taking the lease on a hand, and the rows of its instances.

use hands::InstanceId;
use sqlx::Row as _;

use super::instance::Slot;
use super::{LeaseError, Leases, subject};
use crate::clock;
use crate::database::{Connection, DatabaseError};
use crate::hand::HandName;
use crate::leases::node::NodeId;
use crate::session::{Held, LogError};

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

/// What is written when an instance goes from one session to another.
#[derive(Clone)]
pub(super) struct Handover {
    /// The claim of who has it.
    pub(super) held: Held,
    /// What the claim of who gets it is called.
    pub(super) subject: String,
    pub(super) node: String,
    pub(super) instance: String,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) hand: HandName,
    pub(super) home: String,
    /// Its work.
    pub(super) folder: String,
}

/// Fences who had the instance, gives it and its work to who gets it, and returns the epoch of that claim.
pub(super) async fn hand_over(connection: &mut Connection, handover: Handover) -> Result<i64, LeaseError> {
    let Handover { held, subject, node, instance, from, to, hand, home, folder } = handover;
    let epoch = swap_leases(connection, &held, &subject, &node).await?;
    let has_one = sqlx::query("select 1 from instance where session = $1 and hand = $2 and lost = 0")
        .bind(to.clone())
        .bind(hand.to_string())
        .fetch_optional(&mut *connection)
        .await
        .map_err(DatabaseError::from)?;
    if has_one.is_some() {
        return Err(LeaseError::HasOne(hand));
    }
    let moved = sqlx::query(
        "update instance set session = $1 where id = $2 and session = $3 and lost = 0
         and node in (select id from node where status = 'alive')",
    )
    .bind(to.clone())
    .bind(instance)
    .bind(from.clone())
    .execute(&mut *connection)
    .await
    .map_err(DatabaseError::from)?;
    if moved.rows_affected() == 0 {
        return Err(LeaseError::NothingToMove(hand));
    }
    sqlx::query("delete from moved_work where session = $1 and hand = $2 and home = $3")
        .bind(from)
        .bind(hand.to_string())
        .bind(home.clone())
        .execute(&mut *connection)
        .await
        .map_err(DatabaseError::from)?;
    sqlx::query(
        "insert into moved_work (session, hand, home, folder) values ($1, $2, $3, $4)
         on conflict (session, hand, home) do update set folder = excluded.folder",
    )
    .bind(to.clone())
    .bind(hand.to_string())
    .bind(home.clone())
    .bind(folder.clone())
    .execute(&mut *connection)
    .await
    .map_err(DatabaseError::from)?;
    sqlx::query("update far_work set session = $1 where home = $2 and folder = $3")
        .bind(to)
        .bind(home)
        .bind(folder)
        .execute(&mut *connection)
        .await
        .map_err(DatabaseError::from)?;
    Ok(epoch)
}

/// Fences one claim and raises the other, in one order everywhere, so that nobody waits in a circle.
async fn swap_leases(
    connection: &mut Connection,
    held: &Held,
    subject: &str,
    node: &str,
) -> Result<i64, LeaseError> {
    if held.subject.as_str() < subject {
        fence_held(connection, held).await?;
        return Ok(raise(connection, subject, node).await?);
    }
    let epoch = raise(connection, subject, node).await?;
    fence_held(connection, held).await?;
    Ok(epoch)
}

async fn fence_held(connection: &mut Connection, held: &Held) -> Result<(), LeaseError> {
    let fenced = sqlx::query("update lease set epoch = epoch + 1 where subject = $1 and epoch = $2")
        .bind(held.subject.clone())
        .bind(held.epoch)
        .execute(connection)
        .await
        .map_err(DatabaseError::from)?;
    match fenced.rows_affected() {
        0 => Err(LogError::Fenced(held.subject.clone()).into()),
        _ => Ok(()),
    }
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
