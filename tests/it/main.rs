//! Everything that drives the real thing, as one test binary.

mod database;
mod log;
mod session;
