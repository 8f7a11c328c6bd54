//! The one test binary: everything here drives the real thing.

mod database;
mod hand;
mod log;
mod sandbox;
mod sandbox_kit;
mod sandbox_limits;
mod sandbox_tools;
mod session;
mod tidy;
