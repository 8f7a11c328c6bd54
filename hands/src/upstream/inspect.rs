//! Whether a server behind a URL answers, before anybody needs it.

use std::time::Duration;

use super::{Limits, Upstream, UpstreamConfig};
use crate::HandError;
use crate::mcp::{Catalogue, McpFace as _};
use crate::sandbox::{Finding, State};

/// How long each step may take: whoever waits for this is a person.
const LIMITS: Limits = Limits {
    connect: Duration::from_secs(10),
    probe: Duration::from_secs(5),
    lists: Duration::from_secs(10),
};

/// Asks the server once what it offers.
pub async fn inspect(config: UpstreamConfig) -> Finding {
    let hand = Upstream::limited(config, Catalogue::default(), LIMITS);
    let looked = hand.refresh().await;
    let seen = hand.catalogue();
    hand.shutdown().await;
    let (state, found, remedy) = match looked {
        Ok(()) => (State::Fine, format!("answers, MCP {}, tools: {}", seen.version, seen.tools.len()), None),
        Err(HandError::Unavailable { why, remedy }) => (State::Missing, why, Some(remedy)),
        Err(other) => (State::Missing, other.to_string(), Some("look at the server".to_owned())),
    };
    Finding { subject: "server", state, found, remedy }
}
