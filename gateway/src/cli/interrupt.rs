//! `manyhands interrupt SESSION ["TEXT"]`: a person stops the built-in brain, and may say what it is to do instead.

use clap::Args;
use http::Method;
use serde_json::json;

use super::Setting;
use super::control::{Owner, Stay, encoded, with_owner};
use super::terminal::tell;

#[derive(Args)]
pub(super) struct Options {
    /// The session's name or id
    session: String,
    /// What it is to do instead
    text: Option<String>,
    /// Whose session a name means
    #[arg(long, value_name = "PRINCIPAL", default_value = "local:owner")]
    principal: String,
}

pub(super) async fn run(setting: &Setting, options: Options) -> anyhow::Result<()> {
    // Not for long: a loop that began to work here would first do what it is to stop.
    with_owner(setting, Stay::Brief, async |owner| interrupt(setting, owner, &options).await).await
}

async fn interrupt(setting: &Setting, owner: &mut Owner, options: &Options) -> anyhow::Result<()> {
    let path = format!(
        "/sessions/{}/interrupt?principal={}",
        encoded(&options.session),
        encoded(&options.principal)
    );
    let said = owner.ask(Method::POST, &path, Some(json!({"text": options.text}))).await?;
    Ok(tell(setting, &said, said["note"].as_str().unwrap_or_default())?)
}
