//! One database, of either kind, and the only way to write to it.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use sqlx::AnyConnection;

/// Why the database did not do as told.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// It failed.
    #[error("the database failed")]
    Failed(#[source] Arc<sqlx::Error>),
}

/// Work inside a transaction.
pub type Work<'c, T, E> = BoxFuture<'c, Result<T, E>>;

/// A connection inside a transaction.
pub type Connection = AnyConnection;
