//! MCP servers behind hands, seen by clients of both eras. The server is a hand that does as it is told, but in `asked`.

pub(crate) mod asked;
mod calls;
mod elsewhere;
mod follow;
mod kit;
mod lists;
mod pipes;
mod questions;
mod scripted;
mod tasks;
