//! MCP servers as hands, against servers of our own that record what they get and can misbehave.

mod calls;
mod eras;
mod kit;
mod processes;
mod trouble;
mod web;
