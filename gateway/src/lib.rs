//! Manyhands: many brains, many hands, one log. `ARCHITECTURE.md` is the map.
// `stderr.rs` is the door: a line that is printed directly waits for whoever reads it.
#![deny(clippy::print_stderr)]

pub mod access;
pub mod brain;
pub mod calls;
pub mod cli;
pub mod clock;
pub mod config;
pub mod database;
pub mod error;
pub mod hand;
pub mod harness;
pub mod leases;
pub mod mcp;
pub mod registry;
pub mod seal;
pub mod serve;
pub mod session;
mod stderr;
pub mod text;
