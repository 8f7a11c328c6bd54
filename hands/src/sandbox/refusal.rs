//! Why a sandbox could not start, in one sentence with what to do.

use crate::HandError;

/// Turns what `sandbox-enter` and `bwrap` printed before they gave up into a reason and a remedy.
pub(super) fn explain(report: &str) -> HandError {
    let text = report.trim();
    let says = |part: &str| text.contains(part);
    let (why, remedy) = if says("running bwrap: No such file") {
        ("bubblewrap is not installed".to_owned(), "install it: sudo apt-get install bubblewrap".to_owned())
    } else {
        (format!("the sandbox did not start: {text}"), "run manyhands doctor for what is missing".to_owned())
    };
    HandError::Unavailable { why, remedy }
}
