//! Every setting, its default, its environment name and its limit. The only reader of the environment.
//!
//! A setting comes from the command line, else from the environment, else from `manyhands.toml`, else from
//! its default. Its environment name is `MANYHANDS_` and its path in the file, in capitals, joined by `_`:
//! `limits.running_calls` is `MANYHANDS_LIMITS_RUNNING_CALLS`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use etcetera::BaseStrategy as _;
use secrecy::SecretString;
use serde::Deserialize;

use crate::hand::{HandConfig, HandName, SandboxSettings};

/// What environment names of settings begin with.
const ENVIRONMENT: &str = "MANYHANDS_";
/// The settings that are not tables: each can be set from the environment.
const SETTINGS: [&str; 16] = [
    "listen",
    "allowed_hosts",
    "allowed_origins",
    "data",
    "database_url",
    "drain_s",
    "work_retention_days",
    "nodes.heartbeat_ms",
    "nodes.dead_after_ms",
    "limits.sessions",
    "limits.instances",
    "limits.running_calls",
    "limits.streams",
    "limits.mcp_sessions",
    "limits.stored_bytes",
    "limits.body_bytes",
];

/// What the gateway was told, parsed into what it means.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where HTTP is served. Default `127.0.0.1:7777`; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Further names that a `Host` header may carry, beside loopback ones.
    pub allowed_hosts: Vec<String>,
    /// Further origins that browsers may come from, beside loopback ones.
    pub allowed_origins: Vec<String>,
    /// The data directory. Default `$XDG_DATA_HOME/manyhands`.
    pub data: PathBuf,
    /// `postgres://…`; without it, SQLite in the data directory.
    pub database_url: Option<SecretString>,
    /// How long running calls may go on at shutdown before they are cancelled, in seconds. Default 10.
    pub drain_s: u64,
    /// How long the work of an archived session's hands is kept on this machine, in days. Default 30.
    pub work_retention_days: u16,
    /// How processes on one database watch each other.
    pub nodes: Nodes,
    /// What one principal may have at a time.
    pub limits: Limits,
    /// The hands. Default: one sandbox called `sandbox`.
    pub hands: BTreeMap<HandName, HandConfig>,
}

/// How processes on one database watch each other.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Nodes {
    /// Time between two signs of life, in milliseconds. Default 2000.
    pub heartbeat_ms: u64,
    /// Silence after which a process counts as dead, in milliseconds. Default 10000.
    pub dead_after_ms: u64,
}

impl Nodes {
    /// Time between two signs of life.
    pub fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.heartbeat_ms)
    }

    /// Silence after which a process counts as dead.
    pub fn dead_after(&self) -> Duration {
        Duration::from_millis(self.dead_after_ms)
    }
}

impl Default for Nodes {
    fn default() -> Self {
        Self { heartbeat_ms: 2_000, dead_after_ms: 10_000 }
    }
}

/// What one principal may have at a time. What is over answers with an error that names the limit.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Sessions, archived ones too. Default 10000.
    pub sessions: u64,
    /// Live instances of hands. Default 16.
    pub instances: usize,
    /// Running calls. Default 32.
    pub running_calls: usize,
    /// Listening streams. Default 32.
    pub streams: usize,
    /// MCP sessions of clients from before 2026-07-28. Default 64.
    pub mcp_sessions: usize,
    /// Bytes of events and outputs. Default 10 GiB.
    pub stored_bytes: u64,
    /// Bytes of one request's body. Default 4 MiB.
    pub body_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: 10_000,
            instances: 16,
            running_calls: 32,
            streams: 32,
            mcp_sessions: 64,
            stored_bytes: 10 << 30,
            body_bytes: 4 << 20,
        }
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file was named and can't be read.
    #[error("the configuration {path} can't be read: {source}")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file, or an environment name, says something that means nothing.
    #[error("{from}: {message}")]
    Invalid {
        /// The file's path, or the environment name.
        from: String,
        /// What is wrong, in the parser's words.
        message: String,
    },
    /// There is no home directory to keep data in.
    #[error("there is no home directory to keep data in: set HOME, or name a directory with --data")]
    NoHome,
}

impl Config {
    /// Reads the file (`manyhands.toml` in the current folder when none is named, and only if it is there) and
    /// the environment.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let (path, required) = file.map_or((Path::new("manyhands.toml"), false), |path| (path, true));
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if !required && error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(ConfigError::Unreadable { path: path.to_owned(), source }),
        };
        Self::parse(&text, path, environment())
    }

    /// The configuration that `text` and `environment` make together.
    pub fn parse(
        text: &str,
        path: &Path,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let invalid = |from: String| move |message: String| ConfigError::Invalid { from, message };
        // Parsed once for messages that point into the file, and once more with the environment laid over it.
        toml::from_str::<Self>(text)
            .map_err(|error| invalid(path.display().to_string())(error.to_string().trim_end().to_owned()))?;
        let mut table: toml::Table = text.parse().unwrap_or_default();
        for (name, value) in environment {
            let Some(setting) = setting_of(&name) else { continue };
            lay_over(&mut table, setting, &value);
            table.clone().try_into::<Self>().map_err(|error| invalid(name)(error.message().to_owned()))?;
        }
        let mut config: Self = table.try_into().map_err(|error: toml::de::Error| {
            invalid(path.display().to_string())(error.message().to_owned())
        })?;
        if config.hands.is_empty() {
            let name = "sandbox".parse().map_err(|_| ConfigError::NoHome)?;
            config.hands.insert(name, HandConfig::Sandbox(SandboxSettings::default()));
        }
        if config.data.as_os_str().is_empty() {
            config.data = default_data()?;
        }
        Ok(config)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7777)),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            data: PathBuf::new(),
            database_url: None,
            drain_s: 10,
            work_retention_days: 30,
            nodes: Nodes::default(),
            limits: Limits::default(),
            hands: BTreeMap::new(),
        }
    }
}

/// The environment, and the command line's part of it.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with(ENVIRONMENT))
        .collect()
}

/// How much is logged, as `tracing` filters have it: `MANYHANDS_LOG`, default `info,rmcp=warn`.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub fn log_filter() -> String {
    std::env::var("MANYHANDS_LOG").unwrap_or_else(|_| "info,rmcp=warn".to_owned())
}

fn setting_of(name: &str) -> Option<&'static str> {
    let wanted = name.strip_prefix(ENVIRONMENT)?;
    SETTINGS.into_iter().find(|setting| setting.replace('.', "_").eq_ignore_ascii_case(wanted))
}

/// Puts `value` at `setting`: as the number, list or truth value that it reads as, else as text.
fn lay_over(table: &mut toml::Table, setting: &str, value: &str) {
    let parsed = format!("value = {value}").parse::<toml::Table>().ok().and_then(|mut t| t.remove("value"));
    let value = parsed.unwrap_or_else(|| toml::Value::String(value.to_owned()));
    match setting.split_once('.') {
        None => {
            table.insert(setting.to_owned(), value);
        }
        Some((section, key)) => {
            let section = table.entry(section).or_insert_with(|| toml::Value::Table(toml::Table::new()));
            if let toml::Value::Table(section) = section {
                section.insert(key.to_owned(), value);
            }
        }
    }
}

fn default_data() -> Result<PathBuf, ConfigError> {
    let base = etcetera::base_strategy::choose_base_strategy().map_err(|_| ConfigError::NoHome)?;
    Ok(base.data_dir().join("manyhands"))
}
