//! `manyhands allow [FILE]`, and the same question before a configuration is read that was only found.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::json;

use super::terminal::{can_ask, json as say_json, note, say, yes};
use super::{Common, Output};
use crate::config::{Config, Question, Said};
use crate::stderr;

/// The most that a person is shown, in bytes: nobody reads more.
const SHOWN_MAX: usize = 32 << 10;

#[derive(Args)]
pub(super) struct Options {
    /// The configuration file [default: --config, else ./manyhands.toml]
    file: Option<PathBuf>,
}

/// Shows all of a configuration file, asks, and keeps the yes.
pub(super) async fn run(common: &Common, options: &Options) -> anyhow::Result<()> {
    let file = options.file.as_ref().or(common.config.as_ref());
    let questions = Config::questions(file.map(PathBuf::as_path), common.data.as_deref())?;
    let Some(whole) = questions.first() else { bail!("the configuration has no folder") };
    let name = whole.file.display();
    if !is_person() {
        bail!(
            "`manyhands allow` asks a person: type it on a terminal, or start the gateway with --config {name}"
        );
    }
    require_yes(&format!("{name} says"), whole).await?;
    for question in &questions {
        question.allow().context("your yes can't be kept")?;
    }
    let done = json!({"file": whole.file, "allowed": true});
    match common.output() {
        Output::Json => say_json(done)?,
        Output::Text => say(format_args!("{name} is allowed, as it is now"))?,
    }
    Ok(())
}

/// Whether a command can ask a person on its own streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Streams {
    /// They are a person's, if they are a terminal's.
    Free,
    /// They carry a protocol.
    Taken,
}

/// Asks what a configuration that was found needs to be asked, and keeps the yes. Without a person there, an error says
/// what to do.
pub(super) async fn ask(question: &Question, streams: Streams) -> anyhow::Result<()> {
    let name = question.file.display();
    if streams == Streams::Taken || !is_person() {
        bail!(
            "{name} is in the current folder and says what needs a person's yes ({}): name it with --config, or look at it \
             and type `{}`",
            question.settings(),
            question.command()
        );
    }
    require_yes(
        &format!("{name} is in the current folder, and says what reaches beyond the gateway"),
        question,
    )
    .await?;
    question.allow().context("your yes can't be kept")
}

/// Ends in an error unless a person says yes to what is shown.
async fn require_yes(head: &str, question: &Question) -> anyhow::Result<()> {
    let said = |said: &Said| format!("  {} = {}", said.setting, without_password(&said.value));
    let lines: Vec<String> = question.says.iter().map(said).collect();
    if lines.iter().map(String::len).sum::<usize>() > SHOWN_MAX {
        bail!("{head}, more than can be shown here: read the file, and name it with --config");
    }
    note(format_args!("{head}:"));
    note("");
    lines.iter().for_each(note);
    note("");
    let asked = "Commands run as you, and whoever wrote them decides what they do. Allow this?";
    if yes(asked).await? == Some(true) {
        return Ok(());
    }
    bail!("nothing was done: the file was not read")
}

/// Whether a person sees the question and can answer it.
fn is_person() -> bool {
    can_ask() && stderr::is_terminal()
}

/// `scheme://user:password@host` without its password. No other value hides anything: a person must see it all.
fn without_password(value: &str) -> String {
    let hidden = || {
        let (scheme, rest) = value.strip_prefix("\"postgres")?.split_once("://")?;
        let (user, host) = rest.split_once('@')?;
        let (user, _) = user.split_once(':')?;
        Some(format!("\"postgres{scheme}://{user}:…@{host}"))
    };
    hidden().unwrap_or_else(|| value.to_owned())
}
