//! What an MCP client sees.

pub mod wire;
