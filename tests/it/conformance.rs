//! The official MCP conformance suite: against the gateway alone, against our fixture server as a hand of it, and with
//! the gateway as the client.
//!
//! `tests/conformance/*.yml` name every check that fails and can't but fail, with its reason.

use std::process::{Command, Output};

use anyhow::Result;
use tests::fixture::{self, Fixture};
use tests::gateway::{Gateway, Options, binary};

const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-11-25";

/// Scenarios that the suite runs without scoring them, and that need no fixture: they pass, too.
const UNSCORED: [(&str, &[&str]); 2] =
    [(MODERN, &["http-header-validation"]), (LEGACY, &["server-session-lifecycle"])];

/// No failure is expected.
const NONE: &str = "-";

#[tokio::test]
async fn conforms_to_2026_07_28() -> Result<()> {
    alone(MODERN, "no-fixtures-2026-07-28").await
}

#[tokio::test]
async fn conforms_to_2025_11_25() -> Result<()> {
    alone(LEGACY, "no-fixtures-2025-11-25").await
}

#[tokio::test]
async fn a_server_of_2026_for_clients_of_2026() -> Result<()> {
    over_http("2026", MODERN, NONE).await
}

#[tokio::test]
async fn a_server_of_2026_for_clients_of_2025() -> Result<()> {
    over_http("2026", LEGACY, NONE).await
}

#[tokio::test]
async fn a_server_of_2025_for_clients_of_2025() -> Result<()> {
    over_http("2025", LEGACY, NONE).await
}

#[tokio::test]
async fn a_server_of_2025_for_clients_of_2026() -> Result<()> {
    over_http("2025", MODERN, "legacy-server-2026-07-28").await
}

#[tokio::test]
async fn a_server_over_stdio_for_clients_of_2026() -> Result<()> {
    over_stdio(MODERN).await
}

#[tokio::test]
async fn a_server_over_stdio_for_clients_of_2025() -> Result<()> {
    over_stdio(LEGACY).await
}

/// What the suite looks for in clients of 2026-07-28. Not `auth/*`.
#[tokio::test]
async fn as_a_client_of_2026() -> Result<()> {
    let scenarios = [
        "tools_call",
        "request-metadata",
        "http-standard-headers",
        "http-custom-headers",
        "http-invalid-tool-headers",
        "sep-2322-client-request-state",
        "json-schema-ref-no-deref",
        "json-schema-2020-12-preservation",
    ];
    as_client(MODERN, &scenarios).await
}

/// And of 2025-11-25.
#[tokio::test]
async fn as_a_client_of_2025() -> Result<()> {
    let scenarios = [
        "initialize",
        "tools_call",
        "sse-retry",
        "elicitation-sep1034-client-defaults",
        "json-schema-2020-12-preservation",
    ];
    as_client(LEGACY, &scenarios).await
}

/// A gateway that has nothing but what is its own.
async fn alone(revision: &str, expected: &str) -> Result<()> {
    let gateway = Gateway::start(Options::default().arg("--no-auth")).await?;
    let summary = conforms(&gateway, "/mcp", revision, expected).await?;
    let unscored =
        UNSCORED.iter().find(|(of, _)| *of == revision).map_or(&[][..], |(_, scenarios)| scenarios);
    for scenario in unscored {
        assert!(summary.contains(&format!("✓ {scenario}:")), "{scenario} does not pass:\n{summary}");
    }
    Ok(())
}

async fn over_http(era: &str, revision: &str, expected: &str) -> Result<()> {
    let fixture = Fixture::start(&["--era", era]).await?;
    let hand = format!("kind = \"mcp\"\nurl = \"{}\"", fixture.url());
    as_hand(&hand, revision, expected).await
}

async fn over_stdio(revision: &str) -> Result<()> {
    let program = fixture::binary().to_string_lossy().into_owned();
    let hand = format!("kind = \"mcp\"\ncommand = [{program:?}, \"--stdio\"]");
    as_hand(&hand, revision, NONE).await
}

/// The whole suite, with what it does not score, against a hand that has what it looks for.
async fn as_hand(hand: &str, revision: &str, expected: &str) -> Result<()> {
    let options = Options::default().arg("--no-auth").config(&format!("[hands.fixture]\n{hand}\n"));
    let gateway = Gateway::start(options).await?;
    fixture::offered(&gateway, "fixture").await?;
    let summary = conforms(&gateway, "/mcp/hands/fixture", revision, expected).await?;
    if expected == NONE {
        assert!(!summary.contains('✗'), "{summary}\nthe gateway:\n{}", gateway.stderr());
    }
    Ok(())
}

/// Returns the suite's summary, when nothing failed but what is expected to.
async fn conforms(gateway: &Gateway, path: &str, revision: &str, expected: &str) -> Result<String> {
    let url = format!("{}{path}", gateway.url());
    let output = suite(&["server", &url, revision, expected]).await?;
    let said = String::from_utf8_lossy(&output.stdout);
    let summary = said.split_once("=== SUMMARY ===").map_or(&*said, |(_, summary)| summary);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}\nthe gateway:\n{}", gateway.stderr());
    Ok(summary.to_owned())
}

/// Each scenario has a gateway of its own, which the suite starts.
async fn as_client(revision: &str, scenarios: &[&str]) -> Result<()> {
    let program = binary();
    let mut failed = Vec::new();
    for scenario in scenarios {
        let output = suite(&["client", &program.to_string_lossy(), revision, scenario]).await?;
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        // A scenario that the suite leaves out is no evidence.
        if !output.status.success() || said.contains("SKIPPED: scenario") {
            failed.push(format!("{scenario}:\n{said}\n{errors}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    Ok(())
}

async fn suite(arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/conformance/run"));
    command.args(arguments);
    Ok(tokio::task::spawn_blocking(move || command.output()).await??)
}
