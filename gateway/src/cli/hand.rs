//! `manyhands hand add|list|show|remove|call|cp`

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Subcommand, ValueEnum};
use http::Method;
use serde_json::{Value, json};

use super::control::{Owner, encoded};
use super::{Output, Setting, copy};
use crate::hand::Network;

#[derive(Subcommand)]
pub(super) enum Command {
    /// Register a hand
    Add {
        /// Its name: [a-z][a-z0-9-]{0,23}
        name: String,
        /// What kind of hand
        #[arg(long, value_enum)]
        kind: Kind,
        /// A folder of this machine inside it, read-write unless :ro; may be repeated
        #[arg(long = "mount", value_name = "HOST:/PATH[:ro]")]
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
        #[arg(default_value = "{}")]
        arguments: String,
        /// The session that the call belongs to
        #[arg(long, value_name = "SESSION", default_value = "default")]
        session: String,
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
    let mut owner = Owner::reach(setting).await?;
    let done = ask(&mut owner, setting, command).await;
    owner.leave().await;
    done
}

async fn ask(owner: &mut Owner, setting: &Setting, command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Add { name, kind: Kind::Sandbox, mounts, network, idle_s } => {
            let config = json!({"kind": "sandbox", "mounts": mounts, "network": network, "idle_s": idle_s});
            let body = json!({"name": name, "config": config});
            show(setting, &owner.ask(Method::POST, "/hands", Some(body)).await?);
        }
        Command::List => {
            let hands = owner.ask(Method::GET, "/hands", None).await?;
            match setting.output {
                Output::Json => println!("{hands}"),
                Output::Text => hands.as_array().into_iter().flatten().for_each(line),
            }
        }
        Command::Show { name } => {
            show(setting, &owner.ask(Method::GET, &format!("/hands/{}", encoded(&name)), None).await?);
        }
        Command::Remove { name } => {
            let done = owner.ask(Method::DELETE, &format!("/hands/{}", encoded(&name)), None).await?;
            match setting.output {
                Output::Json => println!("{done}"),
                Output::Text => println!("{name} is removed"),
            }
        }
        Command::Cp(options) => copy::run(setting, owner, &options).await?,
        Command::Call { name, tool, arguments, session } => {
            let arguments: Value = serde_json::from_str(&arguments).context("the arguments are not JSON")?;
            let body = json!({"tool": tool, "arguments": arguments, "session": session});
            let answer =
                owner.ask(Method::POST, &format!("/hands/{}/call", encoded(&name)), Some(body)).await?;
            return Ok(result(setting, &answer));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what a call gave; a failed call is a failed command.
fn result(setting: &Setting, answer: &Value) -> ExitCode {
    match setting.output {
        Output::Json => println!("{answer}"),
        Output::Text => {
            for block in answer["content"].as_array().into_iter().flatten() {
                match block["text"].as_str() {
                    Some(text) => println!("{text}"),
                    None => println!("[{}]", block["mimeType"].as_str().unwrap_or("content")),
                }
            }
        }
    }
    if answer["is_error"] == true { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn show(setting: &Setting, hand: &Value) {
    match setting.output {
        Output::Json => println!("{hand}"),
        Output::Text => println!("{hand:#}"),
    }
}

fn line(hand: &Value) {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let tools = hand["tools"].as_array().map_or(0, Vec::len);
    println!(
        "{:<24} {:<10} {:<6} {tools} tools",
        text(&hand["name"]),
        text(&hand["kind"]),
        text(&hand["origin"])
    );
}
