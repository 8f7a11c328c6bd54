//! it
mod hand;
mod sandbox;
mod sandbox_copy;
mod sandbox_kit;
mod sandbox_limits;
mod sandbox_tools;
mod sandbox_unprivileged;
