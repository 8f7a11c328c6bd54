//! The one test binary: everything here drives the real thing.

mod access;
mod bridge;
mod cli;
mod clients;
mod config;
mod conformance;
mod crash;
mod database;
mod hand;
mod leases;
mod log;
mod lossless;
mod mcp;
mod moves;
mod registration;
mod sandbox;
mod sandbox_copy;
mod sandbox_kit;
mod sandbox_limits;
mod sandbox_tools;
mod sandbox_unprivileged;
mod servers;
mod session;
mod tidy;
mod upstream;
mod wire;
