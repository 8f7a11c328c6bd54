//! `manyhands doctor`: what this machine can offer, and the one thing to do about each lack.

use std::path::Path;
use std::process::ExitCode;

use hands::sandbox::{Finding, SandboxConfig, State, inspect};
use serde_json::json;

use super::{Output, Setting, say};

pub(super) fn run(setting: &Setting) -> anyhow::Result<ExitCode> {
    let config = SandboxConfig::new(std::env::current_exe()?);
    let findings = inspect(&config, there(&setting.config.data));
    match setting.output {
        Output::Json => say(findings.iter().map(shown).collect::<serde_json::Value>())?,
        Output::Text => findings.iter().try_for_each(print)?,
    }
    let missing = findings.iter().any(|finding| finding.state == State::Missing);
    Ok(if missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The directory, or before the first start the one that it will be made in.
fn there(data: &Path) -> &Path {
    data.ancestors().find(|path| path.exists()).unwrap_or(data)
}

fn state(state: State) -> &'static str {
    match state {
        State::Fine => "ok",
        State::Weaker => "weaker",
        State::Missing => "missing",
    }
}

fn shown(finding: &Finding) -> serde_json::Value {
    json!({
        "subject": finding.subject,
        "state": state(finding.state),
        "found": finding.found,
        "remedy": finding.remedy,
    })
}

fn print(finding: &Finding) -> std::io::Result<()> {
    say(format_args!("{:<8} {}: {}", state(finding.state), finding.subject, finding.found))?;
    match &finding.remedy {
        Some(remedy) => say(format_args!("         → {remedy}")),
        None => Ok(()),
    }
}
