//! MCP servers behind hands, seen by clients of both eras. The server is a hand that does as it is told.

mod calls;
mod kit;
mod lists;
mod questions;
mod scripted;
