//! An MCP server of our own, in both eras, over HTTP and stdio: what the conformance suite looks for, what our own
//! tests want beyond that, and a record of what it was sent.
//!
//! It is written against the specification and on no SDK, for two reasons: it must be able to say what typed models
//! can't (unknown content, unknown fields, numbers as they were written), and a fault that both halves of one SDK share
//! would never show.

mod definitions;
mod exchange;
mod extras;
mod headers;
mod http;
mod legacy;
mod pages;
mod peer;
mod process;
mod server;
mod stdio;
mod tasks;
mod tools;

use anyhow::{Context, Result, bail};

pub use self::process::{Fixture, binary, offered};

/// How the server is started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The port on 127.0.0.1, 0 for a free one. None: standard input and output.
    pub port: Option<u16>,
    /// Which eras it speaks.
    pub eras: Eras,
    /// Answers are written in pieces of so many bytes. 0: as they come.
    pub chunk: usize,
    /// Lists come in pages of so many items. 0: in one.
    pub page: usize,
}

/// Which eras a server speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eras {
    /// Both, each request in its own.
    #[default]
    Both,
    /// 2026-07-28 alone.
    Modern,
    /// 2025-11-25 and before alone.
    Legacy,
}

impl Options {
    /// Options as the command line gives them.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let (mut options, mut somewhere) = (Self::default(), false);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--stdio" => somewhere = true,
                "--http" => (options.port, somewhere) = (Some(value()?.parse()?), true),
                "--era" => options.eras = Eras::parse(&value()?)?,
                "--chunk" => options.chunk = value()?.parse()?,
                "--page" => options.page = value()?.parse()?,
                _ => bail!("{argument} is no option"),
            }
        }
        anyhow::ensure!(somewhere, "--http PORT or --stdio");
        Ok(options)
    }
}

impl Eras {
    fn parse(text: &str) -> Result<Self> {
        match text {
            "both" => Ok(Self::Both),
            "2026" => Ok(Self::Modern),
            "2025" => Ok(Self::Legacy),
            _ => bail!("{text} is no era: both, 2026 or 2025"),
        }
    }

    fn modern(self) -> bool {
        self != Self::Legacy
    }

    fn legacy(self) -> bool {
        self != Self::Modern
    }
}

/// Serves until standard input ends, or for ever.
pub async fn run(options: Options) -> Result<()> {
    let server = server::Server::new(options.clone());
    match options.port {
        Some(port) => http::serve(server, port).await,
        None => stdio::serve(server).await,
    }
}
