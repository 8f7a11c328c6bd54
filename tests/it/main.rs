//! The one test binary: everything here drives the real thing.

mod hand;
mod sandbox_kit;
mod tidy;
