//! The MCP face of the real gateway, over HTTP, in both protocol eras.
//!
//! Requests are written out and answers are read as JSON, so that nothing between here and the wire forgives anything.

mod calls;
pub(crate) mod client;
mod endpoints;
mod faults;
mod lists;
mod pages;
mod repeats;
mod resources;
mod session_tools;
mod snapshots;
mod subscriptions;
