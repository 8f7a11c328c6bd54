//! Every kind of hand behind one gateway: what `hand` holds each kind to by itself, seen by clients and in the log.

mod beforehand;
mod disasters;
mod first_calls;
mod killed;
pub(crate) mod rig;
mod transcript;
