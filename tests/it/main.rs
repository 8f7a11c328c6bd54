//! it
mod log;
