//! `manyhands confirm SESSION CALL [allow|deny]`: shows a call that needs a person's word, and takes that word.

use anyhow::bail;
use clap::{Args, ValueEnum};
use http::Method;
use serde_json::{Value, json};

use super::control::{Owner, Stay, encoded, with_owner};
use super::terminal::{can_ask, json as say_json, say, say_lines, yes};
use super::{Output, Setting};

/// Most characters of a client's name that are shown.
const NAME_MAX: usize = 60;

#[derive(Args)]
pub(super) struct Options {
    /// The session's name or id
    session: String,
    /// The call, as its answer or `session events --type agent.tool_use` names it: sevt_…
    call: String,
    /// Whether it may run; on a terminal you are asked
    #[arg(value_enum)]
    word: Option<Word>,
    /// Why not, for the brain to read
    #[arg(long, value_name = "TEXT")]
    message: Option<String>,
    /// Show all of the call's arguments, however long they are
    #[arg(long)]
    whole: bool,
    /// Whose session a name means
    #[arg(long, value_name = "PRINCIPAL", default_value = "local:owner")]
    principal: String,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Word {
    /// It may run, once
    Allow,
    /// It may not
    Deny,
}

pub(super) async fn run(setting: &Setting, options: Options) -> anyhow::Result<()> {
    // Who thinks it over keeps no other command waiting.
    let stay = match options.word {
        Some(_) => Stay::Brief,
        None if setting.output == Output::Text && can_ask() => Stay::Long,
        None => bail!("there is no terminal to ask on: say allow or deny behind the call"),
    };
    with_owner(setting, stay, async |owner| confirm(setting, owner, &options).await).await
}

async fn confirm(setting: &Setting, owner: &mut Owner, options: &Options) -> anyhow::Result<()> {
    let call = format!("/sessions/{}/calls/{}", encoded(&options.session), encoded(&options.call));
    let whose = format!("?principal={}", encoded(&options.principal));
    if setting.output == Output::Text {
        let asked = owner.ask(Method::GET, &format!("{call}{whose}"), None).await?;
        show(&asked, options)?;
        if let (None, Some(closed)) = (options.word, asked["closed"].as_str()) {
            bail!("{closed}");
        }
    }
    let word = match options.word {
        Some(word) => word,
        None => match yes("May it run?").await? {
            Some(true) => Word::Allow,
            Some(false) => Word::Deny,
            None => bail!("nothing was answered, and the call waits on"),
        },
    };
    let result = if word == Word::Allow { "allow" } else { "deny" };
    let message = options.message.as_ref().filter(|_| options.word.is_some() || word == Word::Deny);
    let body = json!({"result": result, "deny_message": message});
    let said = owner.ask(Method::POST, &format!("{call}/confirmation{whose}"), Some(body)).await?;
    match setting.output {
        Output::Json => say_json(said)?,
        Output::Text => say(said["note"].as_str().unwrap_or_default())?,
    }
    Ok(())
}

/// A name with single blanks and of at most [`NAME_MAX`] characters.
fn shortened_name(name: &str) -> String {
    name.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(NAME_MAX).collect()
}

/// Shows the call that a person is to speak of.
fn show(asked: &Value, options: &Options) -> anyhow::Result<()> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let principal = text(&asked["by"]["principal"]);
    let by = match &asked["by"]["client"] {
        // What a client calls itself is its own word, and no part of the sentence.
        Value::String(client) => format!("{principal} (client {:?})", shortened_name(client)),
        _ => principal,
    };
    let (name, at) = (text(&asked["name"]), text(&asked["at"]));
    say(format_args!("{name} in session {}, asked for by {by} at {at}", options.session))?;
    if options.whole {
        return Ok(say_lines(format_args!("{:#}", asked["arguments"]))?);
    }
    say_lines(text(&asked["shown"]))?;
    if asked["whole"] == false {
        say("  (--whole shows all of it)")?;
    }
    Ok(())
}
