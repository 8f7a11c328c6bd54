//! The command line: one file per command.
//!
//! Exit codes: 0 done, 1 it failed, 2 wrong usage. Answers go to stdout, logs and errors to stderr, both through
//! `terminal.rs` alone.

#![deny(clippy::print_stderr, clippy::print_stdout)]

mod allow;
mod confirm;
mod connect;
mod control;
mod copy;
mod doctor;
mod hand;
mod interrupt;
mod run;
mod serve;
mod session;
mod stdio;
mod terminal;
mod token;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Parser, Subcommand};
use tokio_util::task::TaskTracker;

use crate::config::{Config, Loaded};
use crate::stderr;
use terminal::{LogFields, note};

/// Many brains, many hands, one log: an MCP gateway for long-running agents.
#[derive(Parser)]
#[command(name = "manyhands", version, about, max_term_width = 100)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Option<Command>,
}

/// Options that every command has.
#[derive(Args)]
struct Common {
    /// The data directory [env: MANYHANDS_DATA] [default: ~/.local/share/manyhands]
    #[arg(long, global = true, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The configuration file [default: ./manyhands.toml, when it is there]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long, global = true)]
    json: bool,
}

impl Common {
    fn output(&self) -> Output {
        if self.json { Output::Json } else { Output::Text }
    }
}

#[derive(Subcommand)]
enum Command {
    /// Run the gateway (the default)
    Serve(serve::Options),
    /// Be an MCP server on stdin and stdout
    Stdio(stdio::Options),
    /// Print a client's configuration
    Connect(connect::Options),
    /// Hands: what executes
    #[command(subcommand)]
    Hand(hand::Command),
    /// Bearer tokens
    #[command(subcommand)]
    Token(token::Command),
    /// Sessions: durable logs
    #[command(subcommand)]
    Session(session::Command),
    /// Say something to the built-in brain, and see what it does
    Run(run::Options),
    /// Have the built-in brain go on with a session that stopped on its way
    Wake(run::Wake),
    /// Stop the built-in brain in a session, and say what it is to do instead
    Interrupt(interrupt::Options),
    /// Say whether a call may run that needs a person's yes
    Confirm(confirm::Options),
    /// Say yes to a configuration file that a gateway found, after a look at it
    Allow(allow::Options),
    /// What this machine can offer, and what to do about each lack
    Doctor,
}

/// How an answer is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// What every command gets.
struct Setting {
    config: Config,
    output: Output,
    /// Listens for signals as long as the process lives.
    signals: TaskTracker,
}

/// What a process ends with that SIGINT ended.
const EXIT_INTERRUPTED: u8 = 130;

/// Somebody pressed Ctrl-C, or asked the process to end: that needs no words.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
struct Interrupted;

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    stderr::tell_panics();
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let done = match runtime {
        Ok(runtime) => {
            let done = runtime.block_on(run(arguments));
            // A read of stdin that is under way can't be called off, and nobody waits for it.
            runtime.shutdown_background();
            done
        }
        Err(error) => Err(error.into()),
    };
    let code = match done {
        Ok(code) => code,
        Err(error) if error.is::<Interrupted>() => ExitCode::from(EXIT_INTERRUPTED),
        Err(error) if nobody_reads(&error) => ExitCode::SUCCESS,
        Err(error) => {
            note(format_args!("manyhands: {}", sentence(&error)));
            ExitCode::FAILURE
        }
    };
    stderr::flush();
    code
}

/// An error with its causes. Many name their cause in their own sentence: nothing is said twice.
fn sentence(error: &anyhow::Error) -> String {
    error
        .chain()
        .map(ToString::to_string)
        .reduce(|said, cause| if said.contains(&cause) { said } else { format!("{said}: {cause}") })
        .unwrap_or_default()
}

/// Whether the answer went into a pipe whose reader has seen enough, as with `| head`.
fn nobody_reads(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { common, command } = arguments;
    let command = command.unwrap_or_else(|| Command::Serve(serve::Options::default()));
    if let Command::Allow(options) = &command {
        allow::run(&common, options).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let Loaded { config, unknown, unasked } = load(&common, &command).await?;
    for name in unknown {
        note(format_args!(
            "manyhands: {name} in the environment names no setting and is ignored; README.md lists them"
        ));
    }
    let setting = Setting { config, output: common.output(), signals: TaskTracker::new() };
    match command {
        Command::Allow(_) => {}
        Command::Serve(options) => serve::run(setting, options).await?,
        Command::Stdio(options) => stdio::run(setting, options).await?,
        Command::Connect(options) => connect::run(&setting, &options).await?,
        Command::Hand(command) => return hand::run(&setting, command).await,
        Command::Token(command) => token::run(&setting, command).await?,
        Command::Session(command) => session::run(&setting, command).await?,
        Command::Run(options) => run::run(&setting, options).await?,
        Command::Wake(options) => run::wake(&setting, options).await?,
        Command::Interrupt(options) => interrupt::run(&setting, options).await?,
        Command::Confirm(options) => confirm::run(&setting, options).await?,
        Command::Doctor => return doctor::run(&setting, unasked.as_deref()).await,
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the settings. A file that was only found is read once a person has said yes to it; `doctor` says that one waits.
async fn load(common: &Common, command: &Command) -> anyhow::Result<Loaded> {
    let load = || Config::load(common.config.as_deref(), common.data.as_deref());
    let loaded = load()?;
    let Some(question) = loaded.unasked.as_deref().filter(|_| !matches!(command, Command::Doctor)) else {
        return Ok(loaded);
    };
    let streams = match command {
        Command::Stdio(_) => allow::Streams::Taken,
        _ => allow::Streams::Free,
    };
    allow::ask(question, streams).await?;
    let again = load()?;
    if again.unasked.is_some() {
        bail!("{} was changed meanwhile: look at it again", question.file.display());
    }
    Ok(again)
}

/// Logs go to stderr: stdout belongs to answers, and on stdio to MCP.
fn log_to_stderr(config: &Config) {
    let filter = tracing_subscriber::EnvFilter::new(&config.log);
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| stderr::Log);
    // A second subscriber in one process can only be a test's.
    let _ = if stderr::is_terminal() {
        logs.with_ansi(true).fmt_fields(LogFields).try_init()
    } else {
        logs.with_ansi(false).try_init()
    };
}

/// Where the gateway is found by clients of this machine. One that listens everywhere is found on loopback, too.
fn base_url(listen: SocketAddr) -> String {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, listen.port()))
}
