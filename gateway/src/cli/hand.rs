//! `manyhands hand add|list|show|remove|call|cp|move|release|checkpoint|restore`

mod add;
mod shown;

use std::io;
use std::process::ExitCode;

use anyhow::bail;
use axum::body::Body;
use clap::{Args, Subcommand};
use http::{Method, Response};
use serde_json::{Map, Value, json};

use super::control::{Lines, Owner, Stay, encoded, with_owner};
use super::terminal::{Meanwhile, json as say_json, note, say, say_lines, tell};
use super::{Output, Setting, copy};
use crate::session::SessionRef;

#[derive(Subcommand)]
pub(super) enum Command {
    /// Register a hand: an MCP server (--url URL, or -- COMMAND), or --kind sandbox, container, ssh, android, emulator, vm
    Add(Box<add::Options>),
    /// List the hands
    List,
    /// Show a hand: its configuration, limits and tools; of an MCP server also its problems and changes
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
    /// Give a session's live hand, with its state and work, to another session
    Move {
        /// The hand's name
        name: String,
        /// The session that has it
        #[arg(long, value_name = "SESSION", default_value = "default")]
        session: SessionRef,
        /// The session that gets it
        #[arg(long, value_name = "SESSION")]
        to: SessionRef,
        /// Cancel calls that run in it
        #[arg(long)]
        force: bool,
    },
    /// End a session's live hand. Its work is kept, and its next call gets a fresh one
    Release {
        /// The hand's name
        name: String,
        /// The session that has it
        #[arg(long, value_name = "SESSION", default_value = "default")]
        session: SessionRef,
    },
    /// Keep the state of a session's hand by a name
    Checkpoint(State),
    /// Bring back the state of a session's hand that was kept
    Restore(State),
}

#[derive(Args)]
pub(super) struct State {
    /// The hand's name
    hand: String,
    /// What the state is called: [a-z0-9][a-z0-9-]{0,31}
    name: String,
    /// The session whose hand it is
    #[arg(long, value_name = "SESSION", default_value = "default")]
    session: SessionRef,
}

pub(super) async fn run(setting: &Setting, command: Command) -> anyhow::Result<ExitCode> {
    let stay = match command {
        Command::List | Command::Show { .. } => Stay::Read,
        Command::Remove { .. } | Command::Move { .. } | Command::Release { .. } => Stay::Brief,
        // A server that is added may take its time to answer.
        Command::Add(_)
        | Command::Call { .. }
        | Command::Cp(_)
        | Command::Checkpoint(_)
        | Command::Restore(_) => Stay::Long,
    };
    with_owner(setting, stay, async |owner| ask(owner, setting, command).await).await
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|_| "write a JSON object, such as '{\"command\": \"ls\"}'".to_owned())
}

async fn ask(owner: &mut Owner, setting: &Setting, command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Add(options) => {
            let added = add::run(setting, owner, *options).await?;
            match setting.output {
                Output::Json => say_json(added)?,
                Output::Text => {
                    say(format_args!("{} is added", added["name"].as_str().unwrap_or_default()))?;
                    shown::print(&added)?;
                }
            }
        }
        Command::List => {
            let hands = owner.ask(Method::GET, "/hands", None).await?;
            match setting.output {
                Output::Json => say_json(hands)?,
                Output::Text => hands.as_array().into_iter().flatten().try_for_each(shown::line)?,
            }
            if let Some(waits) = owner.ask(Method::GET, "/about", None).await?["waits"].as_str() {
                note(format_args!("manyhands: {waits}"));
            }
        }
        Command::Show { name } => {
            let hand = owner.ask(Method::GET, &format!("/hands/{}", encoded(&name)), None).await?;
            match setting.output {
                Output::Json => say_json(hand)?,
                Output::Text => shown::print(&hand)?,
            }
        }
        Command::Remove { name } => {
            let done = owner.ask(Method::DELETE, &format!("/hands/{}", encoded(&name)), None).await?;
            tell(setting, &done, format_args!("{name} is removed"))?;
        }
        Command::Cp(options) => copy::run(setting, owner, &options).await?,
        Command::Move { name, session, to, force } => {
            let body = json!({"session": session.to_string(), "to": to.to_string(), "force": force});
            let path = format!("/hands/{}/move", encoded(&name));
            let moved = owner.ask(Method::POST, &path, Some(body)).await?;
            match setting.output {
                Output::Json => say_json(moved)?,
                Output::Text => {
                    say(format_args!("{name} has moved from {session} to {to}"))?;
                    if let Some(folder) = moved["kept_aside"].as_str() {
                        say(format_args!("what {to} had of its own stays in {folder}"))?;
                    }
                }
            }
        }
        Command::Release { name, session } => {
            let body = json!({"session": session.to_string()});
            let path = format!("/hands/{}/release", encoded(&name));
            let done = owner.ask(Method::POST, &path, Some(body)).await?;
            let did = if done["released"] == true { "is released" } else { "had no live instance" };
            tell(setting, &done, format_args!("{name} of {session} {did}"))?;
        }
        Command::Checkpoint(state) => keep(setting, owner, "checkpoint", &state).await?,
        Command::Restore(state) => keep(setting, owner, "restore", &state).await?,
        Command::Call { name, tool, arguments, session } => {
            let body = json!({"tool": tool, "arguments": arguments, "session": session.to_string()});
            let path = format!("/hands/{}/call", encoded(&name));
            let answer = heard(owner.send(Method::POST, &path, Some(body)).await?).await?;
            return Ok(result(setting, &answer)?);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Keeps a state, or brings it back.
async fn keep(setting: &Setting, owner: &mut Owner, what: &str, state: &State) -> anyhow::Result<()> {
    let body = json!({"session": state.session.to_string(), "name": state.name});
    let path = format!("/hands/{}/{what}", encoded(&state.hand));
    let kept = owner.ask(Method::POST, &path, Some(body)).await?;
    let did = if what == "restore" { "is as it was at" } else { "is kept as" };
    let State { hand, name, session } = state;
    Ok(tell(setting, &kept, format_args!("{hand} of {session} {did} {name}"))?)
}

/// Waits for the end of a call, and says on a terminal what is done before it runs.
async fn heard(response: Response<Body>) -> anyhow::Result<Value> {
    let meanwhile = Meanwhile::new();
    let mut lines = Lines::of(response).await?;
    loop {
        let Some(mut line) = lines.next().await? else {
            bail!(
                "the gateway ended while the call was on its way: `manyhands session events` shows what became of it"
            )
        };
        // The answer is no step, and leaves no line.
        meanwhile.say(line["step"].as_str().unwrap_or_default());
        if let Some(answer) = line.get_mut("answer") {
            return Ok(answer.take());
        }
    }
}

/// Prints what a call gave; a failed call is a failed command.
fn result(setting: &Setting, answer: &Value) -> io::Result<ExitCode> {
    match setting.output {
        Output::Json => say_json(answer)?,
        Output::Text => {
            for block in answer["content"].as_array().into_iter().flatten() {
                match block["text"].as_str() {
                    Some(text) => say_lines(text.trim_end_matches('\n'))?,
                    None => say(format_args!("[{}]", block["mimeType"].as_str().unwrap_or("content")))?,
                }
            }
        }
    }
    Ok(if answer["is_error"] == true { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
