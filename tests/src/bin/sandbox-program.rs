//! The smallest program that a sandbox can be made with: the hidden commands and nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    hands::sandbox::dispatch(std::env::args_os().skip(1)).unwrap_or(ExitCode::FAILURE)
}
