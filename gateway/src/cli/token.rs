//! `manyhands token new|list|revoke`

use anyhow::Context as _;
use clap::Subcommand;
use http::Method;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::control::{Owner, encoded};
use super::{Output, Setting};
use crate::clock;

#[derive(Subcommand)]
pub(super) enum Command {
    /// Make a token, and print it: the only time it is shown
    New {
        /// Its name; its bearer is the principal local:NAME
        name: String,
        /// When it ends: a time (2027-01-01T00:00:00Z) or a span from now (90d, 12h)
        #[arg(long, value_name = "WHEN")]
        expires: Option<String>,
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
    let mut owner = Owner::reach(setting).await?;
    let done = ask(&mut owner, setting, command).await;
    owner.leave().await;
    done
}

async fn ask(owner: &mut Owner, setting: &Setting, command: Command) -> anyhow::Result<()> {
    match command {
        Command::New { name, expires } => {
            let expires_at = expires.as_deref().map(when).transpose()?;
            let body = json!({"name": name, "expires_at": expires_at});
            let made = owner.ask(Method::POST, "/tokens", Some(body)).await?;
            match setting.output {
                Output::Json => println!("{made}"),
                Output::Text => println!("{}", made["token"].as_str().unwrap_or_default()),
            }
        }
        Command::List => {
            let tokens = owner.ask(Method::GET, "/tokens", None).await?;
            match setting.output {
                Output::Json => println!("{tokens}"),
                Output::Text => tokens.as_array().into_iter().flatten().for_each(print),
            }
        }
        Command::Revoke { name } => {
            let done = owner.ask(Method::DELETE, &format!("/tokens/{}", encoded(&name)), None).await?;
            match setting.output {
                Output::Json => println!("{done}"),
                Output::Text => println!("{name} is revoked"),
            }
        }
    }
    Ok(())
}

fn print(token: &Value) {
    let text = |name: &str| token[name].as_str().unwrap_or("-").to_owned();
    let state = if token["revoked_at"].is_string() { "revoked" } else { "living" };
    println!(
        "{:<24} {:<10} created {}  expires {}",
        text("name"),
        state,
        text("created_at"),
        text("expires_at")
    );
}

/// A time, or a span from now.
fn when(text: &str) -> anyhow::Result<Timestamp> {
    if let Ok(at) = text.parse() {
        return Ok(at);
    }
    let span: SignedDuration = text
        .parse()
        .or_else(|error| match text.strip_suffix('d').and_then(|days| days.parse::<i64>().ok()) {
            Some(days) => Ok(SignedDuration::from_hours(days.saturating_mul(24))),
            None => Err(error),
        })
        .with_context(|| format!("{text:?} is no time (2027-01-01T00:00:00Z) and no span (90d, 12h)"))?;
    clock::now().checked_add(span).with_context(|| format!("{text:?} is too far away"))
}
