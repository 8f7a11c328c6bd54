//! The fixture MCP server: `mcp-fixture --http PORT|--stdio [--era both|2026|2025] [--chunk BYTES] [--page ITEMS]`.
//!
//! With `--http` line 1 of its standard output is its URL; port 0 takes a free one.

use std::process::ExitCode;

use tests::fixture::{Options, run};

fn main() -> anyhow::Result<ExitCode> {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error:#}");
            return Ok(ExitCode::from(2));
        }
    };
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(run(options))?;
    // A read of standard input may still block a thread of the runtime.
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}
