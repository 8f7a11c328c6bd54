//! The contract is worth something: a log without one of its checks does not pass it.

use anyhow::{Result, ensure};
use gateway::session::Statements;

use super::Store;
use super::append::{after_is_compared, writers_to_the_end_never_conflict};
use super::leases::{a_take_over_that_races_fences, what_is_not_held_is_fenced};

async fn stores() -> Result<[Store; 2]> {
    Ok([Store::sqlite().await?, Store::postgres().await?])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contract_notices_a_missing_position_check() -> Result<()> {
    for store in stores().await? {
        after_is_compared(&store).await?;
        // Without `and last_seq = $5`; the parameter has to be used for PostgreSQL to know its type.
        let broken = store.with_statements(|statements: &mut Statements| {
            statements.after =
                "update session set last_seq = last_seq + $2, bytes = bytes + $3, updated_at = $4
                where id = $1 and status = 'active' and $5 >= 0 returning last_seq";
        });
        ensure!(after_is_compared(&broken).await.is_err());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contract_notices_a_missing_epoch_check() -> Result<()> {
    for store in stores().await? {
        what_is_not_held_is_fenced(&store).await?;
        let broken = store.with_statements(|statements: &mut Statements| {
            statements.held = "select 1 from lease where subject = $1 and $2 >= 0";
        });
        ensure!(what_is_not_held_is_fenced(&broken).await.is_err());
    }
    Ok(())
}

/// On SQLite there is one writer, and nothing to lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contract_notices_a_lease_that_is_not_locked() -> Result<()> {
    let store = Store::postgres().await?;
    a_take_over_that_races_fences(&store).await?;
    let broken = store.with_statements(|statements: &mut Statements| {
        statements.held = "select 1 from lease where subject = $1 and epoch = $2";
    });
    ensure!(a_take_over_that_races_fences(&broken).await.is_err());
    Ok(())
}

/// Places that are read first and written later collide.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contract_notices_an_end_that_is_not_locked() -> Result<()> {
    let store = Store::postgres().await?;
    writers_to_the_end_never_conflict(&store).await?;
    let broken = store.with_statements(|statements: &mut Statements| {
        statements.end = "with moved as (update session set bytes = bytes where false)
            select (select coalesce(max(seq), 0) from event where session = $1) + $2 as last_seq
            where $3 >= 0 and $4 <> ''";
        // One event at a time is appended there.
        statements.place = "(select coalesce(max(seq), 0) + 1 from event where session = $1)";
    });
    ensure!(writers_to_the_end_never_conflict(&broken).await.is_err());
    Ok(())
}
