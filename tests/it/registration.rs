//! MCP servers as hands: how they are set up, registered and kept, live.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

mod abandoned;
mod commands;
mod elsewhere;
mod kept;
mod kinds;
mod live;
mod secure;
mod settings;
