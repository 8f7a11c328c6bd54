//! `manyhands connect [claude|codex|gemini|json]`: a client's configuration, ready to paste.

use clap::{Args, ValueEnum};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;

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

pub(super) fn run(setting: &Setting, options: &Options) -> anyhow::Result<()> {
    let token = read_token(&setting.config.data).map_err(|error| {
        anyhow::anyhow!("{error}; start the gateway once, it makes the owner's token (`manyhands`)")
    })?;
    let session = match &options.session {
        Some(session) => session.to_string(),
        None => folder_name(),
    };
    let base = base_url(setting.config.listen);
    let url = format!("{base}/mcp/sessions/{session}");
    let json = servers(&url, &token);
    if setting.output == Output::Json {
        println!("{json}");
        return Ok(());
    }
    match options.client {
        Client::Claude => {
            println!("{}", claude_line(&base, &session, &token));
            println!("\nor in .mcp.json:\n\n{json:#}");
        }
        Client::Codex => println!(
            "In ~/.codex/config.toml:\n\n[mcp_servers.manyhands]\nurl = \"{url}\"\nhttp_headers = {{ Authorization = \"Bearer {}\" }}",
            token.expose_secret()
        ),
        Client::Gemini => println!(
            "gemini mcp add --transport http manyhands {url} --header \"Authorization: Bearer {}\"",
            token.expose_secret()
        ),
        Client::Json => println!("{json:#}"),
    }
    Ok(())
}

fn servers(url: &str, token: &SecretString) -> serde_json::Value {
    let authorization = format!("Bearer {}", token.expose_secret());
    json!({"mcpServers": {"manyhands": {
        "type": "http", "url": url, "headers": {"Authorization": authorization},
    }}})
}

/// The current folder's name, made into a session's name.
fn folder_name() -> String {
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
