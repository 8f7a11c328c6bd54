//! Modes, names and shared limits that reach through the kernel.

mod modes;
mod shares;
mod shows;

use crate::sandbox_unprivileged::run_as;

/// Most open files of the ordinary user: few, so that a part of them is less than any other limit.
const FILES: &str = "--nofile=4096:4096";

/// What needs no daemon, as a user that nobody else has: its limits are counted for it alone.
#[test]
fn all_of_it_holds_for_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() {
        // Then the tests around this one are the same thing.
        return;
    }
    let user = (100_000 + std::process::id() % 1_000_000).to_string();
    let ran = run_as(&user, &["prlimit", FILES], &["borders::kernel::"], &["container", "ordinary_user"]);
    assert!(ran > 5, "only {ran} tests ran");
}
