//! it
mod hand;
mod sandbox_kit;
//! The one test binary: everything here drives the real thing.

mod tidy;
