//! it
mod hand;
mod sandbox_kit;
