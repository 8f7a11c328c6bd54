//! `manyhands confirm SESSION CALL allow|deny`: a person's word on a call that needs one.

use clap::{Args, ValueEnum};
use http::Method;
use serde_json::json;

use super::control::{Owner, Stay, encoded, with_owner};
use super::Setting;
use super::terminal::tell;

#[derive(Args)]
pub(super) struct Options {
    /// The session's name or id
    session: String,
    /// The call, as its answer or `session events --type agent.tool_use` names it: sevt_…
    call: String,
    /// Whether it may run
    #[arg(value_enum)]
    word: Word,
    /// Why not, for the brain to read
    #[arg(long, value_name = "TEXT")]
    message: Option<String>,
    /// Whose session a name means
    #[arg(long, value_name = "PRINCIPAL", default_value = "local:owner")]
    principal: String,
}

#[derive(Clone, Copy, ValueEnum)]
enum Word {
    /// It may run, once
    Allow,
    /// It may not
    Deny,
}

pub(super) async fn run(setting: &Setting, options: Options) -> anyhow::Result<()> {
    with_owner(setting, Stay::Brief, async |owner| confirm(setting, owner, &options).await).await
}

async fn confirm(setting: &Setting, owner: &mut Owner, options: &Options) -> anyhow::Result<()> {
    let path = format!(
        "/sessions/{}/calls/{}/confirmation?principal={}",
        encoded(&options.session),
        encoded(&options.call),
        encoded(&options.principal)
    );
    let result = match options.word {
        Word::Allow => "allow",
        Word::Deny => "deny",
    };
    let body = json!({"result": result, "deny_message": options.message});
    let said = owner.ask(Method::POST, &path, Some(body)).await?;
    Ok(tell(setting, &said, said["note"].as_str().unwrap_or_default())?)
}
