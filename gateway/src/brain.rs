//! How brains are set up: `[brain]` of `manyhands.toml`, its environment names, and the choice of one session.
//!
//! ```toml
//! [brain]
//! model = "anthropic/claude-sonnet-4-5"        # PROVIDER/MODEL, or provider = "…" and model = "…"
//! key_file = "/etc/manyhands/anthropic.key"   # or key_env = "NAME"
//! ```

mod thinking;

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Uri;
use serde::{Deserialize, Serialize};

use crate::hand::{self, Source};

pub use thinking::{Effort, ThinkingSetting};

/// Most tokens that one thought may be allowed.
const TOKENS_MAX: u32 = 1_000_000;
/// The fewest tokens that a budget for thinking may have; providers refuse less.
const BUDGET_MIN: u32 = 1_024;
/// The longest that a provider may be allowed to be silent, in seconds.
const SILENCE_S_MAX: u64 = 3_600;
/// The longest that the scripted model may be told to wait, in milliseconds.
const DELAY_MS_MAX: u64 = 60_000;
/// Shortest key of a provider, in characters.
const KEY_LENGTH_MIN: usize = 20;

/// Who runs a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// The Messages API.
    Anthropic,
    /// The Chat Completions or the Responses API: `OpenAI`, Ollama, vLLM, llama.cpp and many more.
    #[serde(rename = "openai")]
    OpenAi,
    /// No model: what it says stands in the prompt. For tests and demonstrations.
    Scripted,
}

impl Provider {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Anthropic, Self::OpenAi, Self::Scripted];

    /// Its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::OpenAi => "openai",
            Self::Scripted => "scripted",
        }
    }

    /// Where it is when nothing is said, and which variable holds its key there. A key is never sent anywhere else
    /// unless that was said.
    fn home(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Anthropic => Some(("https://api.anthropic.com", "ANTHROPIC_API_KEY")),
            Self::OpenAi => Some(("https://api.openai.com/v1", "OPENAI_API_KEY")),
            Self::Scripted => None,
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which of `OpenAI`'s two APIs is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// Chat Completions, which local servers have.
    #[default]
    Chat,
    /// Responses, which keeps reasoning from one call to the next.
    Responses,
}

/// The `[brain]` section.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BrainSetting {
    /// Who runs the model. Default: what stands before the `/` of `model`.
    pub provider: Option<Provider>,
    /// The model: `PROVIDER/MODEL`, or as the provider names it when `provider` is given.
    pub model: Option<String>,
    /// Where the provider is. Default `https://api.anthropic.com`, `https://api.openai.com/v1`.
    pub base_url: Option<String>,
    /// `chat` or `responses`, for `openai`. Default `chat`.
    pub api: Option<Api>,
    /// A file with the key, which nobody but its owner may read.
    pub key_file: Option<PathBuf>,
    /// The environment variable with the key. Default `ANTHROPIC_API_KEY` or `OPENAI_API_KEY`, where `base_url` is not
    /// set.
    pub key_env: Option<String>,
    /// Most tokens of one thought. Default 16384.
    pub max_tokens: u32,
    /// `off`, `low`, `medium`, `high`, or, for `anthropic`, the most tokens that it takes. Default `off`.
    pub thinking: ThinkingSetting,
    /// How long the provider may be silent, in seconds. Default 300.
    pub silence_s: u64,
    /// How long the scripted model waits before its first token, in milliseconds. Default 0.
    pub first_token_ms: u64,
    /// How long the scripted model takes for each token, in milliseconds. Default 0.
    pub token_ms: u64,
}

impl Default for BrainSetting {
    fn default() -> Self {
        Self {
            provider: None,
            model: None,
            base_url: None,
            api: None,
            key_file: None,
            key_env: None,
            max_tokens: 16_384,
            thinking: ThinkingSetting::Off,
            silence_s: 300,
            first_token_ms: 0,
            token_ms: 0,
        }
    }
}

/// What the settings mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Brain {
    /// Who runs the model, and how it is reached.
    pub reach: Reach,
    /// The model, as its provider names it.
    pub model: String,
    /// Most tokens of one thought.
    pub max_tokens: u32,
    /// Whether and how long it thinks before it speaks.
    pub thinking: ThinkingSetting,
}

/// Who runs a model, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The Messages API.
    Anthropic(Endpoint),
    /// One of `OpenAI`'s two.
    OpenAi(Endpoint, Api),
    /// Nobody. It takes so long for the first token and for each.
    Scripted(Duration, Duration),
}

/// Where a provider is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its URL, without `/` at its end.
    pub base_url: String,
    /// Whether that is where the provider itself is, rather than somebody who speaks as it does.
    pub home: Home,
    /// Where the key comes from. None: none is sent.
    pub key: Option<Source>,
    /// How long it may be silent.
    pub silence: Duration,
}

impl Endpoint {
    /// Whether what is sent leaves this machine unencrypted.
    pub fn is_open(&self) -> bool {
        let uri: Option<Uri> = self.base_url.parse().ok();
        let Some(uri) = uri.filter(|uri| uri.scheme_str() == Some("http")) else { return false };
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        !loopback
    }
}

/// Whether a URL is that of the provider itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// It is.
    Own,
    /// Somebody speaks as the provider does.
    Other,
}

/// Why a brain can't be as it is set up. No sentence shows a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBrain {
    /// Nothing says which model.
    #[error(
        "no model is chosen: write model = \"anthropic/…\" or \"openai/…\" under [brain], or set MANYHANDS_BRAIN_MODEL"
    )]
    NoModel,
    /// What stands before the `/` is no provider.
    #[error(
        "the model {0:?} does not begin with a provider: write anthropic/…, openai/… or scripted/…, or set provider, too"
    )]
    NoProvider(String),
    /// There are two keys.
    #[error("key_file and key_env are both set: keep one of the two")]
    TwoKeys,
    /// The key stands where the path of its file should.
    #[error("key_file must be the path of a file that holds the key, and looks like the key itself")]
    KeyAsFile,
    /// The file's path is relative.
    #[error("the key_file {} is not an absolute path", .0.display())]
    Relative(PathBuf),
    /// It can't name a variable.
    #[error(
        "key_env is no name of an environment variable: write the name, such as ANTHROPIC_API_KEY, not the key itself"
    )]
    Variable,
    /// The URL is none that can be reached.
    #[error(
        "base_url must be http:// or https:// with a host and without user, query and fragment, such as {example}"
    )]
    Url {
        /// One that is.
        example: &'static str,
    },
    /// A setting of another provider.
    #[error("{setting} means nothing to {provider}: take it out")]
    Misplaced {
        /// The setting.
        setting: &'static str,
        /// Who does not know it.
        provider: Provider,
    },
    /// A number out of its range.
    #[error("{setting} must be {must}, and is {value}")]
    Range {
        /// The setting.
        setting: &'static str,
        /// What it may be.
        must: String,
        /// What it is.
        value: u64,
    },
    /// A number of tokens for a provider that counts none.
    #[error(
        "thinking = {0} is a number of tokens, which openai does not know: write \"low\", \"medium\" or \"high\""
    )]
    NoBudget(u32),
}

impl BrainSetting {
    /// Another model, as a session or `--model` chooses it. Where and with which key its provider is reached stays as it
    /// is set when it is the same provider, and is that provider's default otherwise.
    pub fn with_model(&self, model: &str) -> Result<Self, BadBrain> {
        let (provider, name) = match split(model) {
            Some((provider, name)) => (provider, name),
            // The provider's own names may have any form.
            None => (self.named().map_err(|_| BadBrain::NoProvider(model.to_owned()))?.0, model),
        };
        let mut other = self.clone();
        if self.named().is_ok_and(|(own, _)| own != provider) {
            other = Self { max_tokens: self.max_tokens, silence_s: self.silence_s, ..Self::default() };
        }
        other.provider = Some(provider);
        other.model = Some(name.to_owned());
        Ok(other)
    }

    /// What the settings mean. Touches nothing.
    pub fn resolve(&self) -> Result<Brain, BadBrain> {
        let (provider, model) = self.named()?;
        self.check(provider)?;
        let reach = match provider {
            Provider::Scripted => Reach::Scripted(
                Duration::from_millis(self.first_token_ms),
                Duration::from_millis(self.token_ms),
            ),
            Provider::Anthropic => Reach::Anthropic(self.endpoint(provider)?),
            Provider::OpenAi => Reach::OpenAi(self.endpoint(provider)?, self.api.unwrap_or_default()),
        };
        Ok(Brain { reach, model: model.to_owned(), max_tokens: self.max_tokens, thinking: self.thinking })
    }

    /// Refuses what can be read and makes no sense. That no model is chosen does.
    pub fn sensible(&self) -> Result<(), BadBrain> {
        match self.resolve() {
            Err(BadBrain::NoModel) if self.provider.is_none() => self.numbers(),
            resolved => resolved.map(|_| ()),
        }
    }

    /// Relative paths are seen from `folder`, `~` from `home`.
    pub fn place(&mut self, folder: &Path, home: Option<&Path>) {
        let Some(file) = &mut self.key_file else { return };
        *file = match (file.strip_prefix("~"), home) {
            (Ok(rest), Some(home)) => home.join(rest),
            _ => folder.join(&*file),
        };
        // It is opened later without following any link.
        *file = hand::canonical(file);
    }

    fn named(&self) -> Result<(Provider, &str), BadBrain> {
        let model = self.model.as_deref().map(str::trim).filter(|model| !model.is_empty());
        match (self.provider, model) {
            (Some(Provider::Scripted), None) => Ok((Provider::Scripted, "scripted")),
            (_, None) => Err(BadBrain::NoModel),
            (None, Some(model)) => split(model).ok_or_else(|| BadBrain::NoProvider(model.to_owned())),
            // Both may say it.
            (Some(provider), Some(model)) => match split(model) {
                Some((same, rest)) if same == provider => Ok((provider, rest)),
                _ => Ok((provider, model)),
            },
        }
    }

    fn check(&self, provider: Provider) -> Result<(), BadBrain> {
        self.numbers()?;
        let misplaced = |setting| Err(BadBrain::Misplaced { setting, provider });
        if provider != Provider::OpenAi && self.api.is_some() {
            return misplaced("api");
        }
        if provider == Provider::Scripted {
            for (setting, set) in [
                ("base_url", self.base_url.is_some()),
                ("key_file", self.key_file.is_some()),
                ("key_env", self.key_env.is_some()),
            ] {
                if set {
                    return misplaced(setting);
                }
            }
        } else if self.first_token_ms > 0 {
            return misplaced("first_token_ms");
        } else if self.token_ms > 0 {
            return misplaced("token_ms");
        }
        match (provider, self.thinking) {
            (Provider::OpenAi, ThinkingSetting::Budget(tokens)) => Err(BadBrain::NoBudget(tokens)),
            _ => Ok(()),
        }
    }

    fn numbers(&self) -> Result<(), BadBrain> {
        within("max_tokens", self.max_tokens.into(), 1, TOKENS_MAX.into())?;
        within("silence_s", self.silence_s, 1, SILENCE_S_MAX)?;
        within("first_token_ms", self.first_token_ms, 0, DELAY_MS_MAX)?;
        within("token_ms", self.token_ms, 0, DELAY_MS_MAX)?;
        match self.thinking {
            ThinkingSetting::Budget(tokens) if !(BUDGET_MIN..self.max_tokens).contains(&tokens) => {
                let must = format!("{BUDGET_MIN} or more, and less than max_tokens ({})", self.max_tokens);
                Err(BadBrain::Range { setting: "thinking", must, value: tokens.into() })
            }
            ThinkingSetting::Budget(_) | ThinkingSetting::Off | ThinkingSetting::Effort(_) => Ok(()),
        }
    }

    fn endpoint(&self, provider: Provider) -> Result<Endpoint, BadBrain> {
        let (example, variable) = provider.home().unwrap_or_default();
        let base_url = self.base_url.as_deref().map_or(example, |url| url.trim().trim_end_matches('/'));
        let home = if base_url == example { Home::Own } else { Home::Other };
        let uri: Uri = base_url.parse().map_err(|_| BadBrain::Url { example })?;
        let sound = matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.host().is_some_and(|host| !host.is_empty())
            && !uri.authority().is_some_and(|authority| authority.as_str().contains('@'))
            && uri.query().is_none()
            && !base_url.contains('#');
        if !sound {
            return Err(BadBrain::Url { example });
        }
        let key = self.key(home, variable)?;
        Ok(Endpoint {
            base_url: base_url.to_owned(),
            home,
            key,
            silence: Duration::from_secs(self.silence_s),
        })
    }

    fn key(&self, home: Home, variable: &str) -> Result<Option<Source>, BadBrain> {
        let env = |env: &str| Source::Variable { env: env.to_owned(), prefix: String::new() };
        let source = match (&self.key_file, &self.key_env) {
            (Some(_), Some(_)) => return Err(BadBrain::TwoKeys),
            (Some(file), None) if looks_like_key(file) => return Err(BadBrain::KeyAsFile),
            (Some(file), None) if !file.is_absolute() => return Err(BadBrain::Relative(file.clone())),
            (Some(file), None) => Source::File { file: file.clone(), prefix: String::new() },
            (None, Some(name)) => env(name),
            (None, None) if home == Home::Own => env(variable),
            (None, None) => return Ok(None),
        };
        if source.is_sound() { Ok(Some(source)) } else { Err(BadBrain::Variable) }
    }
}

/// Whether a path ends with what providers' keys look like: it would be told, and written to logs, as a path is.
fn looks_like_key(file: &Path) -> bool {
    let name = file.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    name.len() >= KEY_LENGTH_MIN && name.starts_with("sk-") && !name.contains('.')
}

/// A provider and what it calls a model.
fn split(model: &str) -> Option<(Provider, &str)> {
    let (provider, name) = model.split_once('/')?;
    let provider = Provider::ALL.into_iter().find(|known| known.name() == provider)?;
    (!name.is_empty()).then_some((provider, name))
}

fn within(setting: &'static str, value: u64, least: u64, most: u64) -> Result<(), BadBrain> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(BadBrain::Range { setting, must: format!("{least} to {most}"), value })
}
