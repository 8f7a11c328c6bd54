//! `manyhands hand add`: a hand of any kind. The options of the kinds beside sandboxes and MCP servers are in `add/kinds.rs`.

mod kinds;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, ValueEnum};
use hands::sandbox::Access;
use http::Method;
use serde_json::{Value, json};

use super::super::control::Owner;
use super::super::terminal::{Meanwhile, note};
use super::super::{Arguments, Setting, doctor};
use crate::config::from_home;
use crate::hand::{
    BadMount, BadSetting, HandConfig, HandName, McpSettings, Network, Permissions, Protocol, SandboxSettings,
    Share, Source, split_mount,
};
use crate::serve;

#[derive(Args)]
pub(in crate::cli) struct Options {
    /// Its name: [a-z][a-z0-9-]{0,23}
    name: HandName,
    /// What kind of hand; told by --url, by -- COMMAND, or by an option that only one kind has
    #[arg(long, value_enum)]
    kind: Option<Kind>,
    #[command(flatten)]
    container: kinds::Container,
    #[command(flatten)]
    ssh: kinds::Ssh,
    #[command(flatten)]
    android: kinds::Android,
    #[command(flatten)]
    emulator: kinds::Emulator,
    #[command(flatten)]
    vm: kinds::Vm,
    /// Sandbox: a folder of this machine inside it, read-write unless :ro; may be repeated
    #[arg(long = "mount", value_name = "HOST:/PATH[:ro]", value_parser = mount, conflicts_with_all = ["url", "command"])]
    mounts: Vec<String>,
    /// Sandbox: a socket in a mount that stays open to it, or a folder whose sockets do, by its path inside; may be repeated
    #[arg(long = "socket", value_name = "/PATH", requires = "mounts")]
    sockets: Vec<PathBuf>,
    /// Sandbox: what it can reach, none or host; container: none or a network of the daemon's [default: none]
    #[arg(long, conflicts_with_all = ["url", "command"])]
    network: Option<String>,
    /// MCP server: its Streamable HTTP URL
    #[arg(long, conflicts_with = "command")]
    url: Option<String>,
    /// URL: a header of every request; may be repeated
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = header, requires = "url", conflicts_with = "command")]
    headers: Vec<(String, Source)>,
    /// URL: a header whose value is in the gateway's environment, perhaps behind a word: 'Authorization=Bearer NAME'
    #[arg(long, value_name = "HEADER=NAME", value_parser = from_variable, requires = "url", conflicts_with = "command")]
    header_env: Vec<(String, Source)>,
    /// URL: a header whose value is in a file that only you can read: 'Authorization=Bearer /path'
    #[arg(long, value_name = "HEADER=PATH", value_parser = from_file, requires = "url", conflicts_with = "command")]
    header_file: Vec<(String, Source)>,
    /// URL of https://: a PEM file with who must have signed its certificate [default: whomever this machine trusts]
    #[arg(long, value_name = "PEM", requires = "url", conflicts_with = "command")]
    ca: Option<PathBuf>,
    /// Command: a variable of its environment; may be repeated
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = plain, requires = "command", conflicts_with = "url")]
    variables: Vec<(String, Source)>,
    /// Command: a variable whose value is in the gateway's environment
    #[arg(long, value_name = "NAME=NAME", value_parser = from_variable, requires = "command", conflicts_with = "url")]
    env_from: Vec<(String, Source)>,
    /// Command: a variable whose value is in a file that only you can read
    #[arg(long, value_name = "NAME=PATH", value_parser = from_file, requires = "command", conflicts_with = "url")]
    env_file: Vec<(String, Source)>,
    /// Command: its working directory [default: the current one]
    #[arg(long, value_name = "DIR", requires = "command", conflicts_with = "url")]
    directory: Option<PathBuf>,
    /// MCP server: which era it speaks [default: auto]
    #[arg(long, value_enum, conflicts_with_all = ["mounts", "network"])]
    protocol: Option<Protocol>,
    /// MCP server: who shares one [default: session for a command, principal for a URL]
    #[arg(long, value_enum, conflicts_with_all = ["mounts", "network"])]
    share: Option<Share>,
    /// MCP server: the longest that one call may take, in seconds [default: 3600]
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["mounts", "network"])]
    call_max_s: Option<u64>,
    /// MCP server: keep its calls out of the log; nothing holds then that a call runs at most once
    #[arg(long, conflicts_with_all = ["mounts", "network"])]
    no_log: bool,
    /// Add it without looking whether what it needs is there, or its server answers
    #[arg(long, conflicts_with = "mounts")]
    no_check: bool,
    /// Release an instance that nobody called for so long, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    idle_s: u64,
    /// Which tools may be called: allow, ask (once a person says yes, a client's too), ask-owner (once you say yes on this
    /// machine) or deny; for one tool TOOL=ask; may be repeated
    #[arg(long = "permission", value_name = "[TOOL=]allow|ask|ask-owner|deny", value_parser = permission)]
    permissions: Vec<String>,
    /// MCP server: its program and arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// A sandbox on this machine
    Sandbox,
    /// An MCP server
    Mcp,
    /// A container of a Docker daemon
    Container,
    /// A host over SSH
    Ssh,
    /// An Android device
    Android,
    /// A game console
    Emulator,
    /// A virtual machine
    Vm,
}

/// Asks the owner to add it. Returns what the owner says of it.
pub(super) async fn run(setting: &Setting, owner: &mut Owner, options: Options) -> anyhow::Result<Value> {
    let (name, unseen, accept) = (options.name.clone(), options.no_check, options.ssh.accept_host_key);
    let mut config = config(options)?;
    if let HandConfig::Ssh(settings) = &mut config
        && accept
    {
        kinds::accept(settings, &serve::ground(&setting.config)).await?;
    }
    if let HandConfig::Mcp(settings) = &config {
        settings.check()?;
        if !unseen && Meanwhile::new().is_told() && setting.output == super::Output::Text {
            let shown = settings.shown();
            let what = shown["url"].as_str().map_or_else(|| words(&shown["command"]), str::to_owned);
            note(format_args!("asking {what} what it offers …"));
        }
    }
    let body = json!({"name": name, "config": config, "unseen": unseen});
    let added = owner.ask(Method::POST, "/hands", Some(body)).await?;
    if !unseen {
        doctor::warn(&name, &config, &serve::ground(&setting.config)).await;
    }
    Ok(added)
}

/// A command as a person reads it.
pub(super) fn words(command: &Value) -> String {
    command.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
}

/// What the options say. Only here it is known which folder is the current one.
fn config(mut options: Options) -> anyhow::Result<HandConfig> {
    let permissions = std::mem::take(&mut options.permissions);
    let mut config = match kind(&options) {
        Kind::Sandbox => HandConfig::Sandbox(sandbox(options)),
        Kind::Mcp => HandConfig::Mcp(server(options)?),
        Kind::Container => HandConfig::Container(options.container.settings(options.network, options.idle_s)),
        Kind::Ssh => HandConfig::Ssh(options.ssh.settings(options.idle_s)),
        Kind::Android => HandConfig::Android(options.android.settings(options.idle_s)),
        Kind::Emulator => HandConfig::Emulator(options.emulator.settings(options.idle_s)),
        Kind::Vm => HandConfig::Vm(options.vm.settings(options.idle_s)),
    };
    for one in &permissions {
        config.permissions_mut().add(one)?;
    }
    config.place(&std::env::current_dir()?, etcetera::home_dir().ok().as_deref());
    config.check()?;
    Ok(config)
}

/// What kind of hand is meant. Wrong usage ends the program here.
fn kind(options: &Options) -> Kind {
    let server = options.url.is_some() || !options.command.is_empty();
    let told = [
        (Kind::Mcp, server),
        (Kind::Container, options.container.given()),
        (Kind::Ssh, options.ssh.given()),
        (Kind::Android, options.android.given()),
        (Kind::Emulator, options.emulator.given()),
        (Kind::Vm, options.vm.given()),
        (Kind::Sandbox, !options.mounts.is_empty()),
    ];
    let mut told: Vec<Kind> = told.into_iter().filter(|(_, given)| *given).map(|(kind, _)| kind).collect();
    if told.is_empty() && options.kind.is_none() && options.network.is_some() {
        told.push(Kind::Sandbox);
    }
    match (options.kind, told.as_slice()) {
        (Some(Kind::Sandbox), [Kind::Mcp, ..]) => wrong("a sandbox has neither a --url nor a command"),
        (Some(Kind::Mcp), told) if !told.contains(&Kind::Mcp) => {
            wrong("an MCP server needs a --url, or its command behind --")
        }
        (None, []) => wrong(
            "say what it is: --url URL, -- COMMAND, or --kind sandbox, container, ssh, android, emulator or vm",
        ),
        (Some(kind), []) => kind,
        (None, [kind]) => *kind,
        (Some(kind), [one]) if kind == *one => kind,
        _ => wrong("these options belong to different kinds of hand: give those of one"),
    }
}

fn sandbox(options: Options) -> SandboxSettings {
    let network = match options.network.as_deref() {
        None | Some("none") => Network::None,
        Some("host") => Network::Host,
        Some(_) => wrong("the --network of a sandbox is none or host"),
    };
    let Options { mounts, sockets, .. } = options;
    SandboxSettings { mounts, sockets, network, idle_s: options.idle_s, ..SandboxSettings::default() }
}

fn server(options: Options) -> anyhow::Result<McpSettings> {
    let together = |of: [Vec<(String, Source)>; 3]| -> anyhow::Result<BTreeMap<String, Source>> {
        let mut sources = BTreeMap::new();
        for (name, source) in of.into_iter().flatten() {
            if sources.insert(name.clone(), source).is_some() {
                bail!("{name} is given twice");
            }
        }
        Ok(sources)
    };
    let mut settings = McpSettings {
        url: options.url,
        command: options.command,
        directory: options.directory,
        env: together([options.variables, options.env_from, options.env_file])?,
        headers: together([options.headers, options.header_env, options.header_file])?,
        ca: options.ca,
        protocol: options.protocol.unwrap_or_default(),
        share: options.share,
        log: !options.no_log,
        idle_s: options.idle_s,
        ..McpSettings::default()
    };
    settings.call_max_s = options.call_max_s.unwrap_or(settings.call_max_s);
    Ok(settings)
}

/// Wrong usage, said as clap says it.
fn wrong(sentence: &str) -> ! {
    Arguments::command().error(ErrorKind::MissingRequiredArgument, sentence).exit()
}

/// A mount with its host's end made absolute.
fn mount(text: &str) -> Result<String, BadMount> {
    let (host, at, access) = split_mount(text)?;
    let host =
        std::path::absolute(from_home(Path::new(host))).map_err(|_| BadMount::Form(text.to_owned()))?;
    let end = if access == Access::ReadOnly { ":ro" } else { "" };
    let host = host.to_str().ok_or_else(|| BadMount::Form(text.to_owned()))?;
    Ok(format!("{host}:{at}{end}"))
}

/// A permission that can be added to others.
fn permission(text: &str) -> Result<String, BadSetting> {
    Permissions::default().add(text).map(|()| text.to_owned())
}

fn header(text: &str) -> Result<(String, Source), &'static str> {
    let (name, value) = text.split_once(':').ok_or("write 'NAME: VALUE'")?;
    Ok((name.trim().to_owned(), Source::Plain(value.trim().to_owned())))
}

fn plain(text: &str) -> Result<(String, Source), &'static str> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), Source::Plain(value.to_owned())))
}

fn from_variable(text: &str) -> Result<(String, Source), &'static str> {
    let (name, place) = text.split_once('=').ok_or("write NAME=VARIABLE, or 'NAME=Bearer VARIABLE'")?;
    let (prefix, env) = behind_prefix(place);
    Ok((name.trim().to_owned(), Source::Variable { env: env.to_owned(), prefix }))
}

fn from_file(text: &str) -> Result<(String, Source), &'static str> {
    let (name, place) = text.split_once('=').ok_or("write NAME=PATH, or 'NAME=Bearer PATH'")?;
    let (prefix, file) = behind_prefix(place);
    Ok((name.trim().to_owned(), Source::File { file: PathBuf::from(file), prefix }))
}

/// `Bearer x` is a prefix and what comes behind it. A path may hold blanks, its first part no letter alone.
fn behind_prefix(place: &str) -> (String, &str) {
    match place.split_once(' ') {
        Some((word, rest)) if !word.is_empty() && word.chars().all(|c| c.is_ascii_alphabetic()) => {
            (format!("{word} "), rest)
        }
        _ => (String::new(), place),
    }
}
