//! `manyhands session new|list|show|events|archive|delete`

use std::io;

use anyhow::bail;
use axum::body::Body;
use clap::{Args, Subcommand};
use http::{Method, Response};
use serde_json::{Value, json};

use super::control::{Lines, Owner, Stay, encoded, with_owner};
use super::terminal::{json as say_json, say};
use super::{Interrupted, Output, Setting};

#[derive(Subcommand)]
pub(super) enum Command {
    /// Make a session, or find the one of that name
    New {
        /// Its name
        name: Option<String>,
        #[command(flatten)]
        whose: Whose,
    },
    /// List the sessions of a principal, newest first
    List {
        #[command(flatten)]
        whose: Whose,
    },
    /// Show a session's state
    Show {
        /// Its name or id
        session: String,
        #[command(flatten)]
        whose: Whose,
    },
    /// Print a slice of a session's log
    Events(Events),
    /// Make a session read-only; its hands are released, their work stays for 30 days
    Archive {
        /// Its name or id
        session: String,
        #[command(flatten)]
        whose: Whose,
    },
    /// Delete a session: its log, its outputs and its hands' work
    Delete {
        /// Its name or id
        session: String,
        #[command(flatten)]
        whose: Whose,
    },
}

#[derive(Args)]
pub(super) struct Whose {
    /// Whose session a name means
    #[arg(long, value_name = "PRINCIPAL", default_value = "local:owner")]
    principal: String,
}

#[derive(Args)]
pub(super) struct Events {
    /// The session's name or id
    session: String,
    /// Only events behind this place
    #[arg(long, value_name = "N")]
    after: Option<u32>,
    /// Only events ahead of this place
    #[arg(long, value_name = "N", conflicts_with = "follow")]
    before: Option<u32>,
    /// At most so many (1 to 1000) [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: Option<u32>,
    /// Only this type; may be repeated
    #[arg(long = "type", value_name = "T")]
    types: Vec<String>,
    /// Go on with what is appended, until interrupted: behind --after everything, else the last --limit events first
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    whose: Whose,
}

pub(super) async fn run(setting: &Setting, command: Command) -> anyhow::Result<()> {
    let follows = matches!(&command, Command::Events(wanted) if wanted.follow);
    let stay = match command {
        Command::Events(_) if follows => Stay::Long,
        Command::List { .. } | Command::Show { .. } | Command::Events(_) => Stay::Read,
        Command::New { .. } | Command::Archive { .. } | Command::Delete { .. } => Stay::Brief,
    };
    match with_owner(setting, stay, async |owner| ask(owner, setting, command).await).await {
        // That is how following ends.
        Err(error) if follows && error.is::<Interrupted>() => Ok(()),
        done => done,
    }
}

async fn ask(owner: &mut Owner, setting: &Setting, command: Command) -> anyhow::Result<()> {
    let path = |session: &str, whose: &Whose, rest: &str| {
        format!("/sessions/{}{rest}?principal={}", encoded(session), encoded(&whose.principal))
    };
    match command {
        Command::New { name, whose } => {
            let body = json!({"name": name, "principal": whose.principal});
            show(setting, &owner.ask(Method::POST, "/sessions", Some(body)).await?)?;
        }
        Command::List { whose } => {
            let path = format!("/sessions?principal={}", encoded(&whose.principal));
            let sessions = owner.ask(Method::GET, &path, None).await?;
            match setting.output {
                Output::Json => say_json(sessions)?,
                Output::Text => sessions.as_array().into_iter().flatten().try_for_each(line)?,
            }
        }
        Command::Show { session, whose } => {
            show(setting, &owner.ask(Method::GET, &path(&session, &whose, ""), None).await?)?;
        }
        Command::Archive { session, whose } => {
            show(setting, &owner.ask(Method::POST, &path(&session, &whose, "/archive"), None).await?)?;
        }
        Command::Delete { session, whose } => {
            let mut deleted = owner.ask(Method::DELETE, &path(&session, &whose, ""), None).await?;
            if setting.output == Output::Text {
                left_elsewhere(&mut deleted);
            }
            show(setting, &deleted)?;
        }
        Command::Events(wanted) => {
            let mut path = path(&wanted.session, &wanted.whose, "/events");
            path.push_str(&query(&wanted));
            if wanted.follow {
                let response = owner.send(Method::GET, &format!("{path}&follow=true"), None).await?;
                return follow(setting, response).await;
            }
            let page = owner.ask(Method::GET, &path, None).await?;
            match setting.output {
                Output::Json => say_json(page)?,
                Output::Text => page["events"].as_array().into_iter().flatten().try_for_each(event)?,
            }
        }
    }
    Ok(())
}

/// The rest of the query that asks for these events.
fn query(wanted: &Events) -> String {
    let numbers = [("after", wanted.after), ("before", wanted.before), ("limit", wanted.limit)];
    let numbers = numbers.into_iter().filter_map(|(name, value)| Some(format!("&{name}={}", value?)));
    let types = (!wanted.types.is_empty()).then(|| format!("&type={}", encoded(&wanted.types.join(","))));
    numbers.chain(types).collect()
}

/// What a follower is told at the end.
const GATEWAY_ENDED: &str = "the gateway has ended: go on with --after and the last number shown";

/// Prints events as they come, until the gateway closes or somebody interrupts.
async fn follow(setting: &Setting, response: Response<Body>) -> anyhow::Result<()> {
    let mut lines = Lines::of(response).await?;
    loop {
        let Some(shown) = lines.next().await? else { bail!(GATEWAY_ENDED) };
        match setting.output {
            Output::Json => say_json(shown)?,
            Output::Text => event(&shown)?,
        }
    }
}

fn show(setting: &Setting, session: &Value) -> io::Result<()> {
    if setting.output == Output::Json {
        return say_json(session);
    }
    session.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()).try_for_each(
        |(name, value)| {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            say(format_args!("{name:<12} {value}"))
        },
    )
}

/// Makes a sentence of the hands whose work elsewhere is not removed yet.
fn left_elsewhere(deleted: &mut Value) {
    let Some(hands) = deleted["left_elsewhere"].as_array() else { return };
    let hands: Vec<&str> = hands.iter().filter_map(Value::as_str).collect();
    let sentence =
        format!("what {} kept could not be removed yet; it is tried again until it can", hands.join(", "));
    deleted["left_elsewhere"] = sentence.into();
}

fn line(session: &Value) -> io::Result<()> {
    let text = |name: &str| session[name].as_str().unwrap_or("-").to_owned();
    say(format_args!(
        "{}  {:<24} {:<9} {:>8} events  {}",
        text("id"),
        text("name"),
        text("status"),
        session["last_seq"],
        text("updated_at")
    ))
}

/// One event on one line, its longer parts cut.
fn event(event: &Value) -> io::Result<()> {
    const SHOWN: usize = 160;
    let mut fields = event.clone();
    if let Some(fields) = fields.as_object_mut() {
        for known in ["id", "seq", "session", "at", "by", "type"] {
            fields.remove(known);
        }
    }
    let rest: String = fields.to_string().chars().take(SHOWN).collect();
    say(format_args!(
        "{:>6} {} {:<20} {rest}",
        event["seq"],
        event["at"].as_str().unwrap_or_default(),
        event["type"].as_str().unwrap_or_default()
    ))
}
