//! `manyhands connect [claude|codex|gemini|json]`: a client's configuration, ready to paste.

use std::net::SocketAddr;

use clap::{Args, ValueEnum};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use super::control::{Found, answering};
use super::terminal::{json, say_lines};
use super::{Output, Setting, base_url};
use crate::serve::{claude_line, read_token};
use crate::session::SessionName;

#[derive(Args)]
pub(super) struct Options {
    /// Which client
    #[arg(value_enum, default_value_t = Client::Claude)]
    client: Client,
    /// The session that its calls go to [default: the current folder's name]
    #[arg(long, value_name = "NAME")]
    session: Option<SessionName>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Client {
    /// Claude Code
    Claude,
    /// Codex CLI
    Codex,
    /// Gemini CLI
    Gemini,
    /// The form that most clients take
    Json,
}

pub(super) async fn run(setting: &Setting, options: &Options) -> anyhow::Result<()> {
    let token = read_token(&setting.config.data)?;
    let session = match &options.session {
        Some(session) => session.to_string(),
        None => folder_name(),
    };
    let base = base_url(listening(setting).await?);
    let url = format!("{base}/mcp/sessions/{session}");
    let bearer = format!("Bearer {}", token.expose_secret());
    let servers = servers(&url, &bearer);
    if setting.output == Output::Json {
        return Ok(json(servers)?);
    }
    match options.client {
        Client::Claude => {
            say_lines(claude_line(&base, &session, &token))?;
            say_lines(format_args!("\nor in .mcp.json:\n\n{servers:#}"))?;
        }
        Client::Codex => say_lines(format_args!(
            "In ~/.codex/config.toml:\n\n[mcp_servers.manyhands]\nurl = \"{url}\"\nhttp_headers = {{ Authorization = \
             \"{bearer}\" }}"
        ))?,
        Client::Gemini => say_lines(format_args!(
            "gemini mcp add --transport http manyhands {url} --header \"Authorization: {bearer}\""
        ))?,
        Client::Json => say_lines(format_args!("{servers:#}"))?,
    }
    Ok(())
}

/// Where the running gateway listens; else where one would.
async fn listening(setting: &Setting) -> anyhow::Result<SocketAddr> {
    let about = match answering(&setting.config.data).await? {
        Some(Found::There { about, .. }) => about,
        _ => Value::Null,
    };
    let there = about["listen"].as_str().and_then(|listen| listen.parse().ok());
    Ok(there.unwrap_or(setting.config.listen))
}

fn servers(url: &str, authorization: &str) -> Value {
    json!({"mcpServers": {"manyhands": {
        "type": "http", "url": url, "headers": {"Authorization": authorization},
    }}})
}

/// The current folder's name, made into a session's name.
pub(super) fn folder_name() -> String {
    let folder = std::env::current_dir().ok().and_then(|folder| {
        let name = folder.file_name()?.to_string_lossy().to_lowercase();
        let plain: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' })
            .collect();
        let plain: String = plain.trim_start_matches(['.', '_', '-']).chars().take(64).collect();
        plain.parse::<SessionName>().ok()
    });
    folder.map_or_else(|| "default".to_owned(), |name| name.to_string())
}
