//! What stands between the socket and the MCP server: bad input, sessions, silence, pipes. Sent byte by byte, because
//! no client library lets one send what an attacker sends.

mod fixture;
mod noise;
mod pipes;
mod raw;
mod rows;
mod sessions;
mod silence;
