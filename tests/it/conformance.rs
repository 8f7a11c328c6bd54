//! The official MCP conformance suite, in both eras, against a gateway that has no fixtures.
//!
//! `tests/conformance/*.yml` name every check that fails for want of one.

use std::process::Command;

use anyhow::Result;
use tests::gateway::{Gateway, Options};

/// Scenarios that the suite runs without scoring them, and that need no fixture: they pass, too.
const UNSCORED: [(&str, &[&str]); 2] =
    [("2026-07-28", &["http-header-validation"]), ("2025-11-25", &["server-session-lifecycle"])];

#[tokio::test]
async fn conforms_to_2026_07_28() -> Result<()> {
    conforms("2026-07-28").await
}

#[tokio::test]
async fn conforms_to_2025_11_25() -> Result<()> {
    conforms("2025-11-25").await
}

async fn conforms(revision: &'static str) -> Result<()> {
    let gateway = Gateway::start(Options::default().arg("--no-auth")).await?;
    let url = format!("{}/mcp", gateway.url());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/conformance/run");
    let suite = tokio::task::spawn_blocking(move || Command::new(script).args([&url, revision]).output());
    let output = suite.await??;
    let said = String::from_utf8_lossy(&output.stdout);
    let summary = said.split_once("=== SUMMARY ===").map_or(&*said, |(_, summary)| summary);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{summary}\n{errors}\nthe gateway:\n{}", gateway.stderr());
    let (_, unscored) = UNSCORED.iter().find(|(of, _)| *of == revision).expect("both revisions are listed");
    for scenario in *unscored {
        assert!(summary.contains(&format!("✓ {scenario}:")), "{scenario} does not pass:\n{summary}");
    }
    Ok(())
}
