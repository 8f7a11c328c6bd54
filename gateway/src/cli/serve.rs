//! `manyhands [serve]`

use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;

use clap::Args;
use hands::open_files;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::terminal::say_lines;
use super::{EXIT_INTERRUPTED, Setting, base_url, log_to_stderr};
use crate::serve::{Auth, Server, claude_line};

#[derive(Args, Default)]
pub(super) struct Options {
    /// Where to listen [env: MANYHANDS_LISTEN] [default: 127.0.0.1:7777]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Ask nobody for a token: everybody is the owner. On loopback only
    #[arg(long)]
    no_auth: bool,
}

pub(super) async fn run(setting: Setting, options: Options) -> anyhow::Result<()> {
    log_to_stderr(&setting.config);
    open_files::raise()?;
    let mut config = setting.config;
    if let Some(listen) = options.listen {
        config.listen = listen;
    }
    let data = config.data.clone();
    // Before anything is opened: an end that is asked for meanwhile is a clean one.
    let stop = stop_on_signal(&setting.signals)?;
    let hangups = signal(SignalKind::hangup())?;
    let server = Server::bind(config, if options.no_auth { Auth::Off } else { Auth::Token }).await?;
    setting.signals.spawn(reread_on_hangup(hangups, server.reread(), stop.clone()));
    let base = base_url(server.address());
    let line = claude_line(&base, "default", &server.owner_token()?);
    let banner = format!(
        "listening on {base}\n  data in {}\n  add it to Claude Code with\n\n    {line}\n\n  other clients: manyhands \
         connect codex|gemini|json",
        data.display()
    );
    // Whether anybody reads it or not, the gateway runs.
    tokio::task::spawn_blocking(move || say_lines(banner));
    server.run(stop).await?;
    Ok(())
}

/// Has the configuration read again on SIGHUP, as services do, unless it says that the terminal is gone: that ends the
/// gateway.
async fn reread_on_hangup(mut hangups: Signal, reread: impl Fn() + Send, stop: CancellationToken) {
    let on_terminal = io::stdin().is_terminal();
    while hangups.recv().await.is_some() {
        if on_terminal && !io::stdin().is_terminal() {
            stop.cancel();
        } else {
            reread();
        }
    }
}

/// Fires on the first SIGINT or SIGTERM. A second SIGINT is a person who has had enough: it ends the process at
/// once. A second SIGTERM changes nothing, since clients send both within a moment.
pub(super) fn stop_on_signal(tasks: &TaskTracker) -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let fire = stop.clone();
    tasks.spawn(async move {
        let mut interrupts = 0;
        loop {
            tokio::select! {
                _ = interrupt.recv() => interrupts += 1,
                _ = terminate.recv() => {}
            }
            fire.cancel();
            if interrupts > 1 {
                std::process::exit(i32::from(EXIT_INTERRUPTED));
            }
        }
    });
    Ok(stop)
}
