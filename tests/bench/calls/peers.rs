//! The processes that calls go through: echo servers, proxies, and one gateway with the servers as hands.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use tests::gateway::{Gateway, Options, binary};

use super::{Era, Target, WAYS, Way};

/// The era of a client and that of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    client: Era,
    server: Era,
}

impl Pair {
    pub(crate) const ALL: [Self; 4] = [
        Self { client: Era::Modern, server: Era::Modern },
        Self { client: Era::Legacy, server: Era::Legacy },
        Self { client: Era::Modern, server: Era::Legacy },
        Self { client: Era::Legacy, server: Era::Modern },
    ];

    /// What is measured, with the eras of client and server before it.
    pub(crate) fn name(self, what: &str) -> &'static str {
        let year = |era| if era == Era::Modern { "2026" } else { "2025" };
        // A row's name lives as long as the run.
        Box::leak(format!("call {}→{}, {what}", year(self.client), year(self.server)).into_boxed_str())
    }

    fn hand(self) -> &'static str {
        match self.server {
            Era::Modern => "new",
            Era::Legacy => "old",
        }
    }
}

/// Everything that runs.
pub(crate) struct Peers {
    gateway: Gateway,
    token: String,
    echo: Peer,
    proxy: Peer,
}

impl Peers {
    pub(crate) async fn start(scratch: &Path) -> Result<Self> {
        let echo = Peer::start(&["echo"])?;
        let proxy = Peer::start(&["proxy", &echo.address])?;
        let url = format!("http://{}/mcp", echo.address);
        let mut config = String::new();
        for (name, protocol) in [("new", "2026-07-28"), ("old", "legacy")] {
            for (suffix, log) in [("", true), ("-unlogged", false)] {
                config += &format!(
                    "[hands.{name}{suffix}]\nkind = \"mcp\"\nurl = \"{url}\"\nprotocol = \"{protocol}\"\nlog = {log}\n"
                );
            }
        }
        let file = scratch.join("calls.toml");
        std::fs::write(&file, config)?;
        let options =
            Options::default().data(&scratch.join("calls")).arg("--config").arg(&file.to_string_lossy());
        // 64 callers are one principal here.
        let options =
            options.env("MANYHANDS_LIMITS_RUNNING_CALLS", "256").env("MANYHANDS_LIMITS_MCP_SESSIONS", "256");
        let gateway = Gateway::start(options).await?;
        let token = gateway.owner_token()?;
        Ok(Self { gateway, token, echo, proxy })
    }

    /// The four ways to the echo: direct, by the proxy, by the gateway without and with the log. A client can speak only
    /// its own era direct.
    pub(crate) fn ways(&self, pair: Pair) -> [Way; WAYS] {
        let direct = |peer: &Peer| Target {
            era: pair.client,
            authority: peer.address.clone(),
            path: "/mcp".to_owned(),
            token: None,
        };
        let authority = self.gateway.url().trim_start_matches("http://").to_owned();
        let hand = |suffix: &str| Target {
            era: pair.client,
            authority: authority.clone(),
            path: format!("/mcp/hands/{}{suffix}", pair.hand()),
            token: Some(self.token.clone()),
        };
        let gateway = Some(self.gateway.pid());
        [
            Way { target: direct(&self.echo), pid: None },
            Way { target: direct(&self.proxy), pid: Some(self.proxy.child.id()) },
            Way { target: hand("-unlogged"), pid: gateway },
            Way { target: hand(""), pid: gateway },
        ]
    }

    /// The most memory that the gateway ever had, in bytes.
    pub(crate) fn highest_memory(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.gateway.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
        let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kilobytes * 1024.0)
    }
}

/// A `bench-peer`.
struct Peer {
    child: Child,
    address: String,
}

impl Peer {
    fn start(arguments: &[&str]) -> Result<Self> {
        let program = binary().with_file_name("bench-peer");
        let mut child = Command::new(&program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} does not start", program.display()))?;
        let mut address = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut address)?;
        Ok(Self { child, address: address.trim().to_owned() })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU time that a process has had, in seconds.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("no stat")?;
    // utime and stime, the 14th and 15th field, in clock ticks.
    let ticks: f64 = fields.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<f64>().ok()).sum();
    #[expect(clippy::cast_precision_loss, reason = "it is 100")]
    Ok(ticks / rustix::param::clock_ticks_per_second() as f64)
}
