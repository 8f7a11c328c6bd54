//! The loop that calls a model and routes its tool calls.

pub mod model;
