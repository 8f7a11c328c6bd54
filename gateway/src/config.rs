//! Every setting, its default, its environment name and its limit. The only reader of the environment.
//!
//! A setting comes from the command line, else from the environment, else from `manyhands.toml`, else from
//! its default. Its environment name is `MANYHANDS_` and its path in the file, in capitals, joined by `_`:
//! `limits.running_calls` is `MANYHANDS_LIMITS_RUNNING_CALLS`.

mod blame;
mod consent;
mod error;
mod reload;
mod trust;
mod work;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use etcetera::BaseStrategy as _;
use hands::disk::FREE_DISK;
use secrecy::SecretString;
use serde::Deserialize;

use crate::brain::BrainSetting;
use crate::hand::{HandConfig, HandName, SandboxSettings};

use blame::{in_file, line_of_hand, one_line, place_of};
pub use consent::{About, Question, Said};
pub use error::ConfigError;
pub use reload::{Chosen, FileRead, Reread, Stamp};
pub use work::Work;

/// The file that is read when it is there and none is named.
const DEFAULT_FILE: &str = "manyhands.toml";
/// What environment names of settings begin with.
const ENVIRONMENT: &str = "MANYHANDS_";
/// Shortest time between two signs of life, in milliseconds: more often would only wear the disk.
const HEARTBEAT_MS_MIN: u64 = 10;
/// Bytes of events and outputs that one principal may store unless it is set, on a disk that is large enough.
const STORED_BYTES: u64 = 10 << 30;
/// The part of a smaller disk that one principal may fill with them: one in so many.
const STORED_PART: u64 = 8;
/// The settings that are not tables: each can be set from the environment.
pub const SETTINGS: [&str; 42] = [
    "listen",
    "log",
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
    "limits.connections",
    "limits.free_disk_mib",
    "brain.provider",
    "brain.model",
    "brain.base_url",
    "brain.api",
    "brain.key_file",
    "brain.key_env",
    "brain.max_tokens",
    "brain.thinking",
    "brain.silence_s",
    "brain.first_token_ms",
    "brain.token_ms",
    "loop.steps",
    "loop.tokens",
    "loop.minutes",
    "loop.cost",
    "loop.price_input",
    "loop.price_output",
    "loop.price_cache_read",
    "loop.price_cache_write",
    "loop.tries",
    "loop.backoff_ms",
    "loop.compact_at",
    "loop.whole_results",
];

/// What the gateway was told, parsed into what it means.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where HTTP is served. Default `127.0.0.1:7777`; port 0 takes a free one.
    #[serde(deserialize_with = "address")]
    pub listen: SocketAddr,
    /// How much is logged, as `tracing` filters have it. Default `info,rmcp=warn`.
    pub log: String,
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
    /// The model that the built-in loop calls. Default: none.
    pub brain: BrainSetting,
    /// How that loop goes about its work.
    #[serde(rename = "loop")]
    pub work: Work,
    /// The hands. Default: one sandbox called `sandbox`.
    pub hands: BTreeMap<HandName, HandConfig>,
    /// The file that says so, as it was when it was read.
    #[serde(skip)]
    pub file: FileRead,
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
    /// Live instances of hands that have processes of their own; an idle one makes room for another. Default 16.
    pub instances: usize,
    /// Running calls. Default 32.
    pub running_calls: usize,
    /// Listening streams. Default 32.
    pub streams: usize,
    /// MCP sessions of clients from before 2026-07-28. Default 64.
    pub mcp_sessions: usize,
    /// Bytes of events and outputs. Default 10 GiB, on a disk of less than 80 GiB an eighth of it.
    pub stored_bytes: Option<u64>,
    /// Bytes of one request's body. Default 4 MiB.
    pub body_bytes: usize,
    /// HTTP connections of everybody together. Default 20000, or what the limit of open files leaves room for.
    pub connections: Option<usize>,
    /// What is kept free of the disk of the data directory, in MiB: below that no call starts and no client appends.
    /// Default 1024.
    pub free_disk_mib: u64,
}

impl Limits {
    /// Bytes of events and outputs that one principal may store on a disk of this size, which is none where it is not
    /// known.
    pub fn stored_bytes_on(&self, disk: Option<u64>) -> u64 {
        let share = disk.map_or(STORED_BYTES, |disk| STORED_BYTES.min(disk / STORED_PART));
        self.stored_bytes.unwrap_or(share)
    }

    /// What is kept free of the disk of the data directory, in bytes.
    pub fn free_disk(&self) -> u64 {
        self.free_disk_mib.saturating_mul(1 << 20)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: 10_000,
            instances: 16,
            running_calls: 32,
            streams: 32,
            mcp_sessions: 64,
            stored_bytes: None,
            body_bytes: 4 << 20,
            connections: None,
            free_disk_mib: FREE_DISK >> 20,
        }
    }
}

/// What was read.
pub struct Loaded {
    /// What it means. While a person's yes is missing, nothing of the file is in it.
    pub config: Config,
    /// Environment names that begin as settings do and are none.
    pub unknown: Vec<String>,
    /// What a person has to be asked before the file is read.
    pub unasked: Option<Box<Question>>,
}

impl Config {
    /// Reads the file (`manyhands.toml` in the current folder when none is named, and only if it is there) and
    /// the environment. `data` is what the command line says of the data directory.
    pub fn load(file: Option<&Path>, data: Option<&Path>) -> Result<Loaded, ConfigError> {
        let environment = environment()?;
        let own_data = data_of_person(data, &environment);
        let (path, chosen) = match file {
            Some(path) => (path, Chosen::ByPerson),
            None => (Path::new(DEFAULT_FILE), Chosen::ByFolder),
        };
        let (file, text) = FileRead::open(path, chosen, own_data.as_ref().cloned().unwrap_or_default())?;
        let mut config = Self::parse(&text, path, environment.iter().cloned())?;
        let unasked = file.unasked(&text);
        if unasked.is_some() {
            config = Self::parse("", path, environment.iter().cloned())?;
        }
        config.file = file;
        if config.data.as_os_str().is_empty() || data.is_some() {
            config.data = own_data?;
        }
        // Absolute, because sandboxes are set up from other folders.
        config.data = std::path::absolute(from_home(&config.data)).unwrap_or(config.data);
        let unknown = environment.into_iter().map(|(name, _)| name).filter(|name| setting_of(name).is_none());
        Ok(Loaded { config, unknown: unknown.collect(), unasked })
    }

    /// What a person is asked of all that a file says, and of what reaches beyond the gateway, if anything does.
    pub fn questions(file: Option<&Path>, data: Option<&Path>) -> Result<Vec<Question>, ConfigError> {
        let environment = environment()?;
        let data = data_of_person(data, &environment)?;
        let path = std::path::absolute(file.unwrap_or(Path::new(DEFAULT_FILE))).unwrap_or_default();
        let text = trust::read(&path)?;
        Self::parse(&text, &path, environment)?;
        let questions = [About::Whole, About::Reach].map(|about| Question::new(&path, &text, &data, about));
        Ok(questions.into_iter().flatten().collect())
    }

    /// The configuration that `text` and `environment` make together. The data directory stays empty when neither
    /// names one. An empty value in the environment says nothing.
    pub fn parse(
        text: &str,
        path: &Path,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        // Parsed once for messages that point into the file, and once more with the environment laid over it.
        let mut config: Self = toml::from_str(text).map_err(|error| in_file(path, text, &error))?;
        let mut table: toml::Table = text.parse().unwrap_or_default();
        for (name, value) in environment {
            let Some(setting) = setting_of(&name).filter(|_| !value.is_empty()) else { continue };
            (table, config) = lay_over(&table, setting, &value)
                .map_err(|message| ConfigError::Invalid { from: name, message })?;
        }
        config.check()?;
        config.place_hands(text, path)?;
        config.place_brain(path)?;
        if config.hands.is_empty() {
            let name = "sandbox".parse().map_err(|_| ConfigError::NoHome)?;
            config.hands.insert(name, HandConfig::Sandbox(SandboxSettings::default()));
        }
        Ok(config)
    }

    /// Refuses hands that make no sense. Relative paths are seen from the file's folder, whoever's current one it is.
    fn place_hands(&mut self, text: &str, path: &Path) -> Result<(), ConfigError> {
        let file = std::path::absolute(path).unwrap_or(path.to_owned());
        let (folder, home) = (file.parent().unwrap_or(&file), etcetera::home_dir().ok());
        for (name, hand) in &mut self.hands {
            hand.place(folder, home.as_deref());
            hand.check().map_err(|source| ConfigError::Hand {
                from: place_of(path, line_of_hand(text, name)),
                name: name.clone(),
                source,
            })?;
        }
        Ok(())
    }

    /// Refuses a brain that makes no sense. Relative paths are seen from the file's folder.
    fn place_brain(&mut self, path: &Path) -> Result<(), ConfigError> {
        let file = std::path::absolute(path).unwrap_or(path.to_owned());
        self.brain.place(file.parent().unwrap_or(&file), etcetera::home_dir().ok().as_deref());
        let from = path.display().to_string();
        self.brain.sensible().map_err(|source| ConfigError::Brain { from, source })
    }

    /// Refuses what can be read and makes no sense.
    fn check(&self) -> Result<(), ConfigError> {
        let senseless =
            |setting, message: &str| Err(ConfigError::Senseless { setting, message: message.into() });
        let Nodes { heartbeat_ms, dead_after_ms } = self.nodes;
        if heartbeat_ms < HEARTBEAT_MS_MIN {
            let message = format!("is {heartbeat_ms}: it must be at least {HEARTBEAT_MS_MIN}");
            return senseless("nodes.heartbeat_ms", &message);
        }
        if dead_after_ms < heartbeat_ms.saturating_mul(2) {
            let message = format!(
                "is {dead_after_ms}: it must be at least twice nodes.heartbeat_ms ({heartbeat_ms}), or living \
                 processes count as dead"
            );
            return senseless("nodes.dead_after_ms", &message);
        }
        // Nothing need be kept free.
        let Limits {
            sessions, instances, running_calls, streams, mcp_sessions, body_bytes, connections, ..
        } = self.limits;
        let wide = |limit: usize| u64::try_from(limit).unwrap_or(u64::MAX);
        for (setting, limit) in [
            ("limits.sessions", sessions),
            ("limits.instances", wide(instances)),
            ("limits.running_calls", wide(running_calls)),
            ("limits.streams", wide(streams)),
            ("limits.mcp_sessions", wide(mcp_sessions)),
            ("limits.stored_bytes", self.limits.stored_bytes.unwrap_or(STORED_BYTES)),
            ("limits.body_bytes", wide(body_bytes)),
            ("limits.connections", connections.map_or(u64::MAX, wide)),
        ] {
            if limit == 0 {
                return senseless(setting, "is 0: it must be at least 1");
            }
        }
        if let Some((setting, message)) = self.work.senseless() {
            return senseless(setting, message);
        }
        if let Err(error) = tracing_subscriber::EnvFilter::try_new(&self.log) {
            let message = format!("is no filter ({error}): write a level such as info, or target=level");
            return senseless("log", &message);
        }
        Ok(())
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7777)),
            log: "info,rmcp=warn".to_owned(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            data: PathBuf::new(),
            database_url: None,
            drain_s: 10,
            work_retention_days: 30,
            nodes: Nodes::default(),
            limits: Limits::default(),
            brain: BrainSetting::default(),
            work: Work::default(),
            hands: BTreeMap::new(),
            file: FileRead::default(),
        }
    }
}

/// A variable of this process's environment, for a hand that is set up with its name. None when it is not there, empty,
/// or no text.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub fn variable(name: &str) -> Option<SecretString> {
    std::env::var(name).ok().filter(|value| !value.is_empty()).map(Into::into)
}

/// The data directory as a person chose it, on the command line or in the environment, or the default: what a file says of
/// it is not asked here.
fn data_of_person(told: Option<&Path>, environment: &[(String, String)]) -> Result<PathBuf, ConfigError> {
    let name = environment_name("data");
    let of_environment = environment.iter().find(|(known, value)| *known == name && !value.is_empty());
    let data = match (told, of_environment) {
        (Some(data), _) => data.to_owned(),
        (None, Some((_, data))) => PathBuf::from(data.trim()),
        (None, None) => default_data()?,
    };
    Ok(std::path::absolute(from_home(&data)).unwrap_or(data))
}

/// What of the environment is meant for us.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
fn environment() -> Result<Vec<(String, String)>, ConfigError> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| name.starts_with(ENVIRONMENT))
        .map(|(name, value)| match value.into_string() {
            Ok(value) => Ok((name, value)),
            Err(_) => Err(ConfigError::Invalid { from: name, message: "its value is not UTF-8".to_owned() }),
        })
        .collect()
}

fn setting_of(name: &str) -> Option<&'static str> {
    SETTINGS.into_iter().find(|setting| environment_name(setting) == name)
}

/// What a setting is called in the environment.
pub fn environment_name(setting: &str) -> String {
    format!("{ENVIRONMENT}{}", setting.replace('.', "_").to_ascii_uppercase())
}

/// `table` with `value` at `setting`: as the number, list or truth value that it reads as, else as text, else as
/// texts between commas. When none of them will do, why the first did not.
fn lay_over(table: &toml::Table, setting: &str, value: &str) -> Result<(toml::Table, Config), String> {
    let parsed = format!("value = {value}").parse::<toml::Table>().ok().and_then(|mut t| t.remove("value"));
    let text = |text: &str| toml::Value::String(text.trim().to_owned());
    let list = toml::Value::Array(value.split(',').map(text).collect());
    let mut why = None;
    for value in parsed.into_iter().chain([text(value), list]) {
        let mut table = table.clone();
        put(&mut table, setting, value);
        match table.clone().try_into() {
            Ok(config) => return Ok((table, config)),
            Err(error) => why = why.or(Some(one_line(&error))),
        }
    }
    Err(why.unwrap_or_default())
}

fn put(table: &mut toml::Table, setting: &str, value: toml::Value) {
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

fn address<'de, D: serde::Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    let value = toml::Value::deserialize(from)?;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    text.parse().map_err(|_| {
        serde::de::Error::custom(format!("{text:?} is no address: write IP:PORT, such as 127.0.0.1:7777"))
    })
}

/// A path whose `~` is the home directory, as shells have it.
pub fn from_home(path: &Path) -> PathBuf {
    match (path.strip_prefix("~"), etcetera::home_dir()) {
        (Ok(rest), Ok(home)) => home.join(rest),
        _ => path.to_owned(),
    }
}

fn default_data() -> Result<PathBuf, ConfigError> {
    let base = etcetera::base_strategy::choose_base_strategy().map_err(|_| ConfigError::NoHome)?;
    Ok(base.data_dir().join("manyhands"))
}
