//! How a host over SSH is set up.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hands::ssh::{Auth, HostKey, SshConfig};
use hands::upstream::Given;
use secrecy::ExposeSecret as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::permission::Permissions;
use super::setting::{BadSetting, Ground, absolute, mib, place, seconds, secret, size};
use super::source::Source;

/// The variable that names an agent's socket when the settings name neither a key nor an agent.
const AGENT_SOCKET: &str = "SSH_AUTH_SOCK";
/// Where OpenSSH keeps the keys of known hosts.
const KNOWN_HOSTS: &str = "~/.ssh/known_hosts";

/// How a host over SSH is set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SshSettings {
    /// Its name or address.
    pub host: String,
    /// The port of its SSH server. Default 22.
    pub port: u16,
    /// Who we are there.
    pub user: String,
    /// A private key, a file that nobody else can read; Ed25519 or ECDSA. Default: an agent's keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// What the key is encrypted with: `{ env = "NAME" }` or `{ file = "/path" }`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passphrase: Option<Source>,
    /// An ssh-agent's socket, instead of `key`. Default: `SSH_AUTH_SOCK` of the gateway's environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<PathBuf>,
    /// A file of OpenSSH's with the host's key. Default `~/.ssh/known_hosts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub known_hosts: Option<PathBuf>,
    /// The host's keys themselves, instead of `known_hosts`: lines such as `ssh-ed25519 AAAA…`. `hand add
    /// --accept-host-key` fills them in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host_keys: Vec<String>,
    /// The folder there that persists, absolute or `~/…`, for all sessions; `{work}` in it stands for a name of each
    /// session's own. Default `~/.manyhands/{work}/workspace`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// How long a connection may be silent before the host is asked whether it is there, in seconds; the third silence
    /// breaks it. Default 15.
    pub keepalive_s: u64,
    /// What one call may print, in MiB. Default 64.
    pub output_mib: u64,
    /// A connection that no call used for so long is closed, in seconds; the workspace stays. Default 900.
    pub idle_s: u64,
    /// Which tools a brain may call: allow, ask, ask-owner or deny, for all or by tool. Default allow.
    #[serde(skip_serializing_if = "Permissions::is_usual")]
    pub permission: Permissions,
}

impl Default for SshSettings {
    fn default() -> Self {
        Self {
            host: String::new(),
            port: 22,
            user: String::new(),
            key: None,
            passphrase: None,
            agent: None,
            known_hosts: None,
            host_keys: Vec::new(),
            workspace: None,
            keepalive_s: 15,
            output_mib: 64,
            idle_s: 900,
            permission: Permissions::default(),
        }
    }
}

impl SshSettings {
    /// Refuses what makes no sense. Touches nothing.
    pub fn check(&self) -> Result<(), BadSetting> {
        if self.host.is_empty() || self.user.is_empty() {
            return Err(BadSetting::Needs("a host over SSH needs its host and the user there: give both"));
        }
        // More than one colon is an address of version 6.
        if self.host.contains(['@', '/', ' ']) || self.host.matches(':').count() == 1 || self.port == 0 {
            let must =
                "a name or an address; user and port (--user, --port) are given on their own".to_owned();
            return Err(BadSetting::Value { setting: "host", must });
        }
        match (&self.key, &self.agent) {
            (Some(_), Some(_)) => {
                return Err(BadSetting::Needs("give a key or an agent, not both"));
            }
            (Some(key), None) => absolute("key", key)?,
            (None, Some(agent)) => absolute("agent", agent)?,
            (None, None) => {}
        }
        if let Some(passphrase) = &self.passphrase {
            if self.key.is_none() {
                return Err(BadSetting::Needs("a passphrase is for a key: name its file"));
            }
            secret("passphrase", passphrase)?;
        }
        if let Some(known_hosts) = &self.known_hosts {
            if !self.host_keys.is_empty() {
                return Err(BadSetting::Needs("give known_hosts or host_keys, not both"));
            }
            absolute("known_hosts", known_hosts)?;
        }
        let fits = |folder: &String| folder.starts_with('/') || folder.starts_with("~/");
        if self.workspace.as_ref().is_some_and(|folder| !fits(folder)) {
            let must = "an absolute path there, or one that begins with ~/".to_owned();
            return Err(BadSetting::Value { setting: "workspace", must });
        }
        mib("output_mib", self.output_mib)?;
        seconds("keepalive_s", self.keepalive_s)?;
        seconds("idle_s", self.idle_s)
    }

    /// Makes relative paths absolute, as seen from `folder`; `home` is `~`.
    pub fn place(&mut self, folder: &Path, home: Option<&Path>) {
        if self.known_hosts.is_none() && self.host_keys.is_empty() && home.is_some() {
            self.known_hosts = Some(PathBuf::from(KNOWN_HOSTS));
        }
        place(&mut self.agent, folder, home);
        place(self.paths(), folder, home);
    }

    /// Its files on this machine. An agent's socket is none: it comes and goes with logins, and is asked for signatures
    /// alone.
    pub(super) fn paths(&mut self) -> Vec<&mut PathBuf> {
        let passphrase = match &mut self.passphrase {
            Some(Source::File { file, .. }) => Some(file),
            _ => None,
        };
        [self.key.as_mut(), self.known_hosts.as_mut(), passphrase].into_iter().flatten().collect()
    }

    /// As listings show it: the passphrase by where it comes from.
    pub fn shown(&self) -> Value {
        let mut shown = serde_json::to_value(self).unwrap_or_default();
        if let Some(passphrase) = &self.passphrase {
            shown["passphrase"] = passphrase.shown();
        }
        shown
    }

    /// What the hand is made of. Secrets are read when they are used.
    pub fn resolve(&self, ground: &Ground) -> Result<SshConfig, BadSetting> {
        self.check()?;
        let variables = ground.variables;
        let auth = match (&self.key, &self.agent) {
            (Some(file), _) => Auth::Key {
                file: file.clone(),
                passphrase: self.passphrase.clone().map(|source| Given::new(move || source.read(variables))),
            },
            (None, Some(socket)) => Auth::Agent(socket.clone()),
            (None, None) => {
                let told = variables(AGENT_SOCKET).map(|socket| PathBuf::from(socket.expose_secret()));
                // One that is not there says so when it is used, and what to do.
                Auth::Agent(told.unwrap_or_else(|| PathBuf::from("/SSH_AUTH_SOCK-is-not-set")))
            }
        };
        let host_key = match &self.known_hosts {
            Some(path) => HostKey::KnownHosts(path.clone()),
            None => HostKey::Accepted(self.host_keys.clone()),
        };
        Ok(SshConfig {
            port: self.port,
            workspace: self.workspace.clone(),
            keepalive: Duration::from_secs(self.keepalive_s),
            output: size(self.output_mib),
            ..SshConfig::new(self.host.clone(), self.user.clone(), auth, host_key)
        })
    }
}
