//! `manyhands token new|list|revoke`

use clap::Subcommand;
use http::Method;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::control::{Owner, Stay, encoded, with_owner};
use super::terminal::{json as say_json, say, tell};
use super::{Output, Setting};
use crate::clock;

#[derive(Subcommand)]
pub(super) enum Command {
    /// Make a token, and print it: the only time it is shown
    New {
        /// Its name; its bearer is the principal local:NAME
        name: String,
        /// When it ends: a time (2027-01-01T00:00:00Z) or a span from now (90d, 12h)
        #[arg(long, value_name = "WHEN", value_parser = when)]
        expires: Option<Timestamp>,
    },
    /// List the tokens, never showing one
    List,
    /// Make a token worthless, at once
    Revoke {
        /// Its name
        name: String,
    },
}

pub(super) async fn run(setting: &Setting, command: Command) -> anyhow::Result<()> {
    let stay = if matches!(command, Command::List) { Stay::Read } else { Stay::Brief };
    with_owner(setting, stay, async |owner| ask(owner, setting, command).await).await
}

async fn ask(owner: &mut Owner, setting: &Setting, command: Command) -> anyhow::Result<()> {
    match command {
        Command::New { name, expires } => {
            let body = json!({"name": name, "expires_at": expires});
            let made = owner.ask(Method::POST, "/tokens", Some(body)).await?;
            tell(setting, &made, made["token"].as_str().unwrap_or_default())?;
        }
        Command::List => {
            let tokens = owner.ask(Method::GET, "/tokens", None).await?;
            match setting.output {
                Output::Json => say_json(tokens)?,
                Output::Text => tokens.as_array().into_iter().flatten().try_for_each(print)?,
            }
        }
        Command::Revoke { name } => {
            let done = owner.ask(Method::DELETE, &format!("/tokens/{}", encoded(&name)), None).await?;
            tell(setting, &done, format_args!("{name} is revoked"))?;
        }
    }
    Ok(())
}

fn print(token: &Value) -> std::io::Result<()> {
    let text = |name: &str| token[name].as_str().unwrap_or("-").to_owned();
    let past = |at: &Value| {
        at.as_str().and_then(|at| at.parse().ok()).is_some_and(|at: Timestamp| at <= clock::now())
    };
    let state = match () {
        () if token["revoked_at"].is_string() => "revoked",
        () if past(&token["expires_at"]) => "expired",
        () => "living",
    };
    say(format_args!(
        "{:<24} {state:<10} created {}  expires {}",
        text("name"),
        text("created_at"),
        text("expires_at")
    ))
}

/// A time, or a span from now.
fn when(text: &str) -> Result<Timestamp, String> {
    if let Ok(at) = text.parse() {
        return Ok(at);
    }
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok());
    let span = match days {
        Some(days) => Ok(SignedDuration::from_hours(i64::from(days) * 24)),
        None => text.parse(),
    };
    let span =
        span.map_err(|_| "write a time (2027-01-01T00:00:00Z) or a span from now (90d, 12h)".to_owned())?;
    clock::now().checked_add(span).map_err(|_| "it is too far away".to_owned())
}
