//! How much of what the model is told comes from its provider's cache. The Messages server counts as a real provider does:
//! it has the prefixes up to the places that earlier requests have marked, and nothing else.

use std::os::unix::fs::PermissionsExt;

use anyhow::{Context as _, Result, ensure};
use gateway::session::{Event, ModelUsage};
use serde_json::Value;
use tests::gateway::{Gateway, Options};
use tests::models::{KEY, Models};

use super::rig::{field, rests, said};
use crate::crash::truth::{self, Reader, of};

/// What a person asks for, one after the other.
const PROMPTS: usize = 14;
/// Calls of each, one after the other.
const CALLS: usize = 5;
/// The least share that must come from the cache. It is 0.81, and 0.35 when results are trimmed at each request instead of
/// in strides.
const LEAST: f64 = 0.72;

fn prompt(number: usize) -> String {
    let mut script = format!("Count, for the {number}th time.\n@say I count.\n");
    for call in 0..CALLS {
        let from = 1_000 * (1 + number) + 10 * call;
        let to = from + 500;
        script += &format!("@call sandbox__bash {{\"command\": \"seq -s, {from} {to}\"}}\n@then\n");
    }
    script + &format!("@say Counted {number}.")
}

fn usage(events: &[Event]) -> Result<ModelUsage> {
    let mut all = ModelUsage::default();
    for end in of(events, "span.model_request_end") {
        all.add(serde_json::from_value(field(end, "model_usage").clone())?);
    }
    Ok(all)
}

/// A long session, in which results are trimmed and the context is compacted, more than once each. Whatever changes what
/// was told before, at each request, fails this.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_model_was_told_before_comes_from_its_provider_s_cache() -> Result<()> {
    let (models, folder) = (Models::start().await?, tempfile::tempdir()?);
    let key = folder.path().join("key");
    std::fs::write(&key, KEY)?;
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600))?;
    let options = Options::default()
        .env("MANYHANDS_BRAIN_MODEL", "anthropic/counting")
        .env("MANYHANDS_BRAIN_BASE_URL", &models.url)
        .env("MANYHANDS_BRAIN_KEY_FILE", key.to_str().context("a path")?)
        .env("MANYHANDS_LOOP_WHOLE_RESULTS", "6")
        .env("MANYHANDS_LOOP_COMPACT_AT", "11000");
    let gateway = Gateway::start(options).await?;
    let reader = Reader::directory(gateway.data()).await?;
    for number in 0..PROMPTS {
        let (data, prompt) = (gateway.data().to_owned(), prompt(number));
        let run = move || tests::gateway::run(&data, &["run", "--session", "long", &prompt]);
        let ran = tokio::task::spawn_blocking(run).await??;
        ensure!(ran.status.success(), "{ran:?}");
    }
    let events = reader.events("long").await?;
    truth::check(&events)?;
    ensure!(rests(&events) == vec!["end_turn"; PROMPTS] && said(&events).len() == 2 * PROMPTS);
    let summaries = of(&events, "agent.thread_context_compacted").len();
    let seen = models.seen();
    let trimmed =
        seen.iter().filter(|seen| seen.body.to_string().contains("of this older result is in event"));
    let trimmed = trimmed.count();
    let all = usage(&events)?;
    let rate = all.cache_hit_rate().context("nothing was told")?;
    println!(
        "{} requests, {summaries} summaries, {trimmed} with trimmed results: {rate:.3} {all:?}",
        seen.len()
    );
    ensure!(rate >= LEAST, "{rate:.3} of {all:?}");
    ensure!(
        summaries >= 2 && trimmed > PROMPTS,
        "{summaries} summaries, {trimmed} requests with trimmed results"
    );
    let shown = gateway.cli(&["session", "show", "long", "--json"])?;
    let shown: Value = serde_json::from_slice(&shown.stdout)?;
    let told = shown["loop"]["cache_hit_rate"].as_f64().with_context(|| shown.to_string())?;
    ensure!((told - rate).abs() <= 0.001, "{told} is told, and {rate} is true");
    ensure!(shown["loop"]["usage_ever"] == serde_json::to_value(all)?, "{shown}");
    Ok(())
}
