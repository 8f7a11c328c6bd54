//! What is killed, frozen or cut off leaves a log that tells the truth: every call that started has one outcome, nothing
//! ran twice, nothing that was acknowledged is missing, nothing is left running.

pub(crate) mod client;
mod faults;
mod kill;
mod shutdown;
pub(crate) mod takeover;
pub(crate) mod truth;
