//! `manyhands hand add|list|show|remove|call|cp`

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::{Subcommand, ValueEnum};
use hands::sandbox::Access;
use http::Method;
use serde_json::{Map, Value, json};

use super::control::{Owner, Stay, encoded, with_owner};
use super::{Output, Setting, copy, say};
use crate::config::from_home;
use crate::hand::{BadMount, HandName, Network, split_mount};
use crate::session::SessionRef;

#[derive(Subcommand)]
pub(super) enum Command {
    /// Register a hand
    Add {
        /// Its name: [a-z][a-z0-9-]{0,23}
        name: HandName,
        /// What kind of hand
        #[arg(long, value_enum)]
        kind: Kind,
        /// A folder of this machine inside it, read-write unless :ro; may be repeated
        #[arg(long = "mount", value_name = "HOST:/PATH[:ro]", value_parser = mount)]
        mounts: Vec<String>,
        /// What it can reach
        #[arg(long, value_enum, default_value_t = Network::None)]
        network: Network,
        /// Release an instance that nobody called for so long, in seconds
        #[arg(long, value_name = "SECONDS", default_value_t = 900)]
        idle_s: u64,
    },
    /// List the hands
    List,
    /// Show a hand: its configuration, limits and tools
    Show {
        /// Its name
        name: String,
    },
    /// Remove a hand that was added; its instances are released
    Remove {
        /// Its name
        name: String,
    },
    /// Call one tool, logged like any other call
    Call {
        /// The hand's name
        name: String,
        /// The tool's own name, such as bash
        tool: String,
        /// Its arguments, a JSON object
        #[arg(default_value = "{}", value_parser = object)]
        arguments: Map<String, Value>,
        /// The session that the call belongs to
        #[arg(long, value_name = "SESSION", default_value = "default")]
        session: SessionRef,
    },
    /// Copy a file or a folder in or out
    Cp(copy::Options),
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum Kind {
    /// A sandbox on this machine
    Sandbox,
}

pub(super) async fn run(setting: &Setting, command: Command) -> anyhow::Result<ExitCode> {
    let stay = match command {
        Command::List | Command::Show { .. } => Stay::Read,
        Command::Add { .. } | Command::Remove { .. } => Stay::Brief,
        Command::Call { .. } | Command::Cp(_) => Stay::Long,
    };
    with_owner(setting, stay, async |owner| ask(owner, setting, command).await).await
}

/// A mount with its host's end made absolute: only here is it known which folder is the current one.
fn mount(text: &str) -> Result<String, BadMount> {
    let (host, at, access) = split_mount(text)?;
    let host =
        std::path::absolute(from_home(Path::new(host))).map_err(|_| BadMount::Form(text.to_owned()))?;
    let end = if access == Access::ReadOnly { ":ro" } else { "" };
    let host = host.to_str().ok_or_else(|| BadMount::Form(text.to_owned()))?;
    Ok(format!("{host}:{at}{end}"))
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|_| "write a JSON object, such as '{\"command\": \"ls\"}'".to_owned())
}

async fn ask(owner: &mut Owner, setting: &Setting, command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Add { name, kind: Kind::Sandbox, mounts, network, idle_s } => {
            let config = json!({"kind": "sandbox", "mounts": mounts, "network": network, "idle_s": idle_s});
            let body = json!({"name": name, "config": config});
            show(setting, &owner.ask(Method::POST, "/hands", Some(body)).await?)?;
        }
        Command::List => {
            let hands = owner.ask(Method::GET, "/hands", None).await?;
            match setting.output {
                Output::Json => say(hands)?,
                Output::Text => hands.as_array().into_iter().flatten().try_for_each(line)?,
            }
        }
        Command::Show { name } => {
            show(setting, &owner.ask(Method::GET, &format!("/hands/{}", encoded(&name)), None).await?)?;
        }
        Command::Remove { name } => {
            let done = owner.ask(Method::DELETE, &format!("/hands/{}", encoded(&name)), None).await?;
            match setting.output {
                Output::Json => say(done)?,
                Output::Text => say(format_args!("{name} is removed"))?,
            }
        }
        Command::Cp(options) => copy::run(setting, owner, &options).await?,
        Command::Call { name, tool, arguments, session } => {
            let body = json!({"tool": tool, "arguments": arguments, "session": session.to_string()});
            let answer =
                owner.ask(Method::POST, &format!("/hands/{}/call", encoded(&name)), Some(body)).await?;
            return Ok(result(setting, &answer)?);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what a call gave; a failed call is a failed command.
fn result(setting: &Setting, answer: &Value) -> io::Result<ExitCode> {
    match setting.output {
        Output::Json => say(answer)?,
        Output::Text => {
            for block in answer["content"].as_array().into_iter().flatten() {
                match block["text"].as_str() {
                    Some(text) => say(text.trim_end_matches('\n'))?,
                    None => say(format_args!("[{}]", block["mimeType"].as_str().unwrap_or("content")))?,
                }
            }
        }
    }
    Ok(if answer["is_error"] == true { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn show(setting: &Setting, hand: &Value) -> io::Result<()> {
    match setting.output {
        Output::Json => say(hand),
        Output::Text => say(format_args!("{hand:#}")),
    }
}

fn line(hand: &Value) -> io::Result<()> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let tools = hand["tools"].as_array().map_or(0, Vec::len);
    say(format_args!(
        "{:<24} {:<10} {:<6} {tools} tools",
        text(&hand["name"]),
        text(&hand["kind"]),
        text(&hand["origin"])
    ))
}
