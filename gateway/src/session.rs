//! Sessions: append-only logs of everything that happened, and who owns them.

mod event;
mod log;

pub use event::*;
pub use log::*;
