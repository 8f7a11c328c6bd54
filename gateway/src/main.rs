//! The binary `manyhands`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // First of all, while there is one thread: these commands replace or become small processes.
    if let Some(code) = hands::open_files::dispatch(std::env::args_os().skip(1)) {
        return code;
    }
    if let Some(code) = hands::sandbox::dispatch(std::env::args_os().skip(1)) {
        return code;
    }
    if let Some(code) = hands::emulator::worker_main(std::env::args_os().skip(1)) {
        return code;
    }
    if let Some(code) = hands::vm::dispatch(std::env::args_os().skip(1)) {
        return code;
    }
    gateway::cli::main()
}
