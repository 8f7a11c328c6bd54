//! Manyhands: many brains, many hands, one log. `ARCHITECTURE.md` is the map.

pub mod access;
pub mod clock;
pub mod database;
pub mod mcp;
pub mod session;
