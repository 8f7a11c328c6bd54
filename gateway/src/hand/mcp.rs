//! How an MCP server is reached and used, and what can't be said of one.

mod read;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hands::upstream::{self, Given, Reach, Trust, UpstreamConfig};
use http::{HeaderName, Uri};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::read::{sources, words};
use super::HandName;
use super::permission::Permissions;
use super::source::{Source, Variables, is_variable, looks_secret};

/// The longest that a call may be allowed to take, in seconds.
const CALL_S_MAX: u64 = 86_400;
/// Headers that belong to the protocols, beside all that begin with [`MCP_HEADERS`].
const PROTOCOL_HEADERS: [&str; 15] = [
    "accept",
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "last-event-id",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// What headers of MCP begin with.
const MCP_HEADERS: &str = "mcp-";
/// What variables begin with that the gateway itself gives and takes.
const OUR_VARIABLES: &str = "MANYHANDS_";

/// How an MCP server is reached and used.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct McpSettings {
    /// Its Streamable HTTP URL. Either this or `command`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Program and arguments of a server on stdin and stdout. No shell. A program without `/` is searched in the
    /// gateway's `PATH`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "words")]
    pub command: Vec<String>,
    /// The command's working directory. Default: the folder of the file that says so, or where `hand add` was typed;
    /// relative paths are seen from there, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// The command's environment, beside `PATH`, `HOME`, `LANG`, `TZ` and `TMPDIR`. It gets nothing else.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "sources")]
    pub env: BTreeMap<String, Source>,
    /// Headers of every request to the URL.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "sources")]
    pub headers: BTreeMap<String, Source>,
    /// By whom the certificate of an `https://` URL must be signed: a PEM file. Default: whomever this machine trusts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Which era it speaks. Default: found out.
    pub protocol: Protocol,
    /// Who shares one server. Default: `session` for a command, `principal` for a URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<Share>,
    /// Whether its calls are in the log. Default true. Without, nothing holds that a call runs at most once.
    pub log: bool,
    /// An instance that no call used for so long is released, in seconds. Default 900.
    pub idle_s: u64,
    /// Which tools a brain may call: allow, ask, ask-owner or deny, for all or by tool. Default allow.
    #[serde(skip_serializing_if = "Permissions::is_usual")]
    pub permission: Permissions,
    /// The longest that one call may take, in seconds, at most a day. Default 3600.
    pub call_max_s: u64,
}

/// Which era a server speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// It is asked
    #[default]
    Auto,
    /// The stateless one, since 2026-07-28
    #[serde(rename = "2026-07-28")]
    #[value(name = "2026-07-28")]
    Modern,
    /// The one with `initialize`, up to 2025-11-25
    Legacy,
}

/// Who shares a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Share {
    /// Nobody: each session has its own
    Session,
    /// All sessions of one principal
    Principal,
    /// Everybody: for servers that keep nothing of their callers
    All,
}

/// Why an MCP server can't be as it is set up. No sentence shows a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadServer {
    /// Neither, or both.
    #[error("an MCP server needs either a url or a command: give one of the two")]
    Reach,
    /// The URL is none that can be reached.
    #[error("the url must be http:// or https:// with a host, such as http://127.0.0.1:8000/mcp")]
    Url,
    /// There is a user or a password in the URL.
    #[error(
        "the url holds a user or a password: take it out, and give headers.Authorization = {{ file = \"/path\", prefix = \
         \"Basic \" }} or {{ env = \"NAME\", … }} instead"
    )]
    UserInUrl,
    /// A setting of the other kind of server.
    #[error("{setting} is for a server with a {needs}")]
    Misplaced {
        /// The setting.
        setting: &'static str,
        /// What it goes with.
        needs: &'static str,
    },
    /// There is no program.
    #[error("the command's first word is its program: it can't be empty")]
    NoProgram,
    /// A path is relative, and nobody knows to what.
    #[error("the path {} is not absolute", .0.display())]
    Relative(PathBuf),
    /// A header that can't be.
    #[error("{0:?} is no name of a header")]
    HeaderName(String),
    /// A header that is not for configuration.
    #[error("the header {0} belongs to the protocol: it can't be set")]
    ProtocolHeader(String),
    /// Two headers with one name.
    #[error("the header {0} stands there twice: headers know no capitals")]
    HeaderTwice(String),
    /// A variable that can't be.
    #[error("{0:?} is no name of a variable: use letters, digits and _")]
    VariableName(String),
    /// A variable that is not for configuration.
    #[error("the variable {0} begins with {OUR_VARIABLES}, as the gateway's own do: it can't be set")]
    OurVariable(String),
    /// A value that stands in the wrong place, or is no value.
    #[error(
        "the value of {0} can't be: it is one line of text, {{ env = \"NAME\" }} or {{ file = \"/absolute/path\" }}; a \
         prefix is one word, such as \"Bearer \""
    )]
    Value(String),
    /// A credential in plain text.
    #[error(
        "{name} looks like a credential, which does not stand in a configuration: give it as {name} = {{ env = \"NAME\" }} \
         or {name} = {{ file = \"/path\" }}, both with or without prefix = \"Bearer \" (on the command line \
         {by_env} '{name}={prefix}NAME' or {by_file} '{name}={prefix}/path')"
    )]
    Credential {
        /// The header or variable.
        name: String,
        /// The option that takes it from the environment.
        by_env: &'static str,
        /// The option that takes it from a file.
        by_file: &'static str,
        /// What stands before the value most often.
        prefix: &'static str,
    },
    /// No call can take so long, or so short.
    #[error("call_max_s is {0}: it must be 1 to {CALL_S_MAX}")]
    CallMax(u64),
}

impl Default for McpSettings {
    fn default() -> Self {
        Self {
            url: None,
            command: Vec::new(),
            directory: None,
            env: BTreeMap::new(),
            headers: BTreeMap::new(),
            ca: None,
            protocol: Protocol::Auto,
            share: None,
            log: true,
            idle_s: 900,
            permission: Permissions::default(),
            call_max_s: 3600,
        }
    }
}

impl McpSettings {
    /// Who shares one server.
    pub fn share(&self) -> Share {
        self.share.unwrap_or(if self.url.is_some() { Share::Principal } else { Share::Session })
    }

    /// What the hand is made of. `variables` reads the gateway's environment, when a value is used.
    pub fn resolve(&self, name: &HandName, variables: Variables) -> Result<UpstreamConfig, BadServer> {
        self.check()?;
        let given = |what: &'static str, of: &BTreeMap<String, Source>| -> Vec<(String, Given)> {
            of.iter().map(|(name, source)| (name.clone(), given(what, name, source, variables))).collect()
        };
        let reach = match &self.url {
            Some(url) => Reach::Http {
                url: url.clone(),
                headers: given("header", &self.headers),
                trust: self.ca.clone().map_or(Trust::Machine, Trust::Only),
            },
            None => Reach::Stdio {
                command: self.command.clone(),
                directory: self.directory.clone(),
                environment: given("variable", &self.env),
            },
        };
        Ok(UpstreamConfig {
            name: name.to_string(),
            reach,
            protocol: match self.protocol {
                Protocol::Auto => upstream::Protocol::Auto,
                Protocol::Modern => upstream::Protocol::Modern,
                Protocol::Legacy => upstream::Protocol::Legacy,
            },
            share: match self.share() {
                Share::Session => upstream::Share::Session,
                Share::Principal => upstream::Share::Principal,
                Share::All => upstream::Share::All,
            },
            call_max: Duration::from_secs(self.call_max_s),
        })
    }

    /// Refuses what makes no sense, and credentials in plain text. Touches nothing.
    pub fn check(&self) -> Result<(), BadServer> {
        if !(1..=CALL_S_MAX).contains(&self.call_max_s) {
            return Err(BadServer::CallMax(self.call_max_s));
        }
        match (&self.url, self.command.first()) {
            (Some(url), None) => self.check_url(url),
            (None, Some(program)) => self.check_command(program),
            _ => Err(BadServer::Reach),
        }
    }

    fn check_url(&self, url: &str) -> Result<(), BadServer> {
        let authority = url.split_once("://").map_or("", |(_, rest)| rest);
        if authority.split(['/', '?', '#']).next().is_some_and(|authority| authority.contains('@')) {
            return Err(BadServer::UserInUrl);
        }
        let parsed: Uri = url.parse().map_err(|_| BadServer::Url)?;
        let known = matches!(parsed.scheme_str(), Some("http" | "https"));
        if !known || url.contains('#') || parsed.host().is_none_or(str::is_empty) {
            return Err(BadServer::Url);
        }
        if let Some(ca) = &self.ca {
            if parsed.scheme_str() != Some("https") {
                return Err(BadServer::Misplaced { setting: "ca", needs: "url of https://" });
            }
            if !ca.is_absolute() {
                return Err(BadServer::Relative(ca.clone()));
            }
        }
        let misplaced = |setting| BadServer::Misplaced { setting, needs: "command" };
        if !self.env.is_empty() {
            return Err(misplaced("env"));
        }
        if self.directory.is_some() {
            return Err(misplaced("directory"));
        }
        let mut seen = BTreeSet::new();
        for (name, source) in &self.headers {
            let known =
                HeaderName::from_bytes(name.as_bytes()).map_err(|_| BadServer::HeaderName(name.clone()))?;
            let lower = known.as_str();
            if lower.starts_with(MCP_HEADERS) || PROTOCOL_HEADERS.contains(&lower) {
                return Err(BadServer::ProtocolHeader(name.clone()));
            }
            if !seen.insert(lower.to_owned()) {
                return Err(BadServer::HeaderTwice(name.clone()));
            }
            check_source(name, source, ("--header-env", "--header-file"))?;
        }
        Ok(())
    }

    fn check_command(&self, program: &str) -> Result<(), BadServer> {
        if program.is_empty() {
            return Err(BadServer::NoProgram);
        }
        if !self.headers.is_empty() {
            return Err(BadServer::Misplaced { setting: "headers", needs: "url" });
        }
        if self.ca.is_some() {
            return Err(BadServer::Misplaced { setting: "ca", needs: "url of https://" });
        }
        if let Some(directory) = self.directory.as_ref().filter(|directory| !directory.is_absolute()) {
            return Err(BadServer::Relative(directory.clone()));
        }
        for (name, source) in &self.env {
            if !is_variable(name) {
                return Err(BadServer::VariableName(name.clone()));
            }
            if name.starts_with(OUR_VARIABLES) {
                return Err(BadServer::OurVariable(name.clone()));
            }
            check_source(name, source, ("--env-from", "--env-file"))?;
        }
        Ok(())
    }

    /// Where its program is, as found in `path`, a list as shells have it; its URL. Else why it can't be used, and what to
    /// do. Touches no server.
    pub fn find(&self, path: &str) -> Result<String, (String, String)> {
        for source in self.env.values().chain(self.headers.values()).filter(|source| source.file().is_some())
        {
            source.read(|_| None).map_err(|why| (why, "see to that file".to_owned()))?;
        }
        let Some(program) = self.command.first() else {
            return Ok(self.shown()["url"].as_str().unwrap_or_default().to_owned());
        };
        // Joined to a folder, an absolute path stays what it is.
        let folders = if program.contains('/') { "/" } else { path };
        let places: Vec<PathBuf> = folders.split(':').map(|folder| Path::new(folder).join(program)).collect();
        let found = places.iter().find(|place| place.metadata().is_ok_and(|file| is_program(&file)));
        found.map(|place| place.display().to_string()).ok_or_else(|| {
            (format!("there is no program {program}"), "install it, or write its whole path".to_owned())
        })
    }

    /// Its program where that is a path, whom it believes, and the files of its values.
    pub(super) fn relies_on(&self) -> Vec<PathBuf> {
        let program = self.command.first().map(PathBuf::from).filter(|program| program.is_absolute());
        let values = self.env.values().chain(self.headers.values()).filter_map(Source::file).cloned();
        program.into_iter().chain(self.ca.clone()).chain(values).collect()
    }

    /// Makes relative paths absolute, as seen from `folder`; `home` is `~`.
    pub fn place(&mut self, folder: &Path, home: Option<&Path>) {
        let placed = |path: &Path| match (path.strip_prefix("~"), home) {
            (Ok(rest), Some(home)) => home.join(rest),
            _ => folder.join(path),
        };
        if let Some(program) = self.command.first_mut().filter(|program| program.contains('/')) {
            *program = placed(Path::new(program.as_str())).to_string_lossy().into_owned();
        }
        if !self.command.is_empty() {
            let directory = self.directory.as_deref().unwrap_or(Path::new(""));
            // Rebuilt of its parts: nothing joined to a folder leaves a slash behind.
            self.directory = Some(placed(directory).components().collect());
        }
        for path in self.paths() {
            *path = placed(path);
        }
    }

    /// Its files and its folder on this machine.
    pub(super) fn paths(&mut self) -> Vec<&mut PathBuf> {
        let sources = self.env.values_mut().chain(self.headers.values_mut());
        let files = sources.filter_map(|source| match source {
            Source::File { file, .. } => Some(file),
            _ => None,
        });
        self.directory.iter_mut().chain(&mut self.ca).chain(files).collect()
    }

    /// As listings and logs show it: no value of a header or variable, and nothing that looks like a credential.
    pub fn shown(&self) -> Value {
        let mut shown = serde_json::to_value(self).unwrap_or_default();
        let sources = |of: &BTreeMap<String, Source>| -> Value {
            of.iter()
                .map(|(name, source)| (name.clone(), source.shown()))
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        if let Some(url) = &self.url {
            shown["url"] = json!(url.split_once('?').map_or(url.clone(), |(place, _)| format!("{place}?…")));
        }
        for (setting, of) in [("env", &self.env), ("headers", &self.headers)] {
            if !of.is_empty() {
                shown[setting] = sources(of);
            }
        }
        if !self.command.is_empty() {
            shown["command"] = json!(shown_command(&self.command));
        }
        shown["share"] = json!(self.share());
        shown
    }

    /// What decides which server it is and what it says: everything else may change without a second look at it.
    pub fn server(&self) -> Value {
        let mut server = vec![
            json!(self.url),
            json!(self.command),
            json!(self.directory),
            json!(self.env),
            json!(self.headers),
            json!(self.protocol),
        ];
        // Only where there is one: what is kept of all others is kept by what they have.
        server.extend(self.ca.as_ref().map(|ca| json!(ca)));
        server.into()
    }
}

impl fmt::Debug for McpSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.shown())
    }
}

fn is_program(file: &std::fs::Metadata) -> bool {
    file.is_file() && file.permissions().mode() & 0o111 != 0
}

fn check_source(
    name: &str,
    source: &Source,
    (by_env, by_file): (&'static str, &'static str),
) -> Result<(), BadServer> {
    if matches!(source, Source::Plain(_)) && looks_secret(name) {
        let prefix = if name.eq_ignore_ascii_case("authorization") { "Bearer " } else { "" };
        return Err(BadServer::Credential { name: name.to_owned(), by_env, by_file, prefix });
    }
    if source.is_sound() { Ok(()) } else { Err(BadServer::Value(name.to_owned())) }
}

fn given(what: &'static str, name: &str, source: &Source, variables: Variables) -> Given {
    let (name, source) = (name.to_owned(), source.clone());
    Given::new(move || source.read(variables).map_err(|why| format!("the {what} {name} has no value: {why}")))
}

/// A command's words without what looks like a credential: others may see it in the list of processes, but need not read
/// it here.
fn shown_command(command: &[String]) -> Vec<String> {
    let mut secret = false;
    let mut shown = Vec::with_capacity(command.len());
    for word in command {
        let option = word.starts_with('-');
        shown.push(match word.split_once('=') {
            _ if secret && !option => "…".to_owned(),
            Some((name, _)) if looks_secret(name) => format!("{name}=…"),
            _ => without_user(word),
        });
        secret = option && !word.contains('=') && looks_secret(word);
    }
    shown
}

/// `scheme://user:password@host` without its user.
fn without_user(word: &str) -> String {
    let Some((scheme, rest)) = word.split_once("://") else { return word.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest.get(..end).and_then(|authority| authority.rfind('@')) {
        Some(at) => format!("{scheme}://…{}", rest.get(at..).unwrap_or_default()),
        None => word.to_owned(),
    }
}
