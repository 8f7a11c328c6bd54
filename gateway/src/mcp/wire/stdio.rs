//! MCP over a pair of pipes.
