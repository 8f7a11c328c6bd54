//! What a person is shown, and who may answer.

mod pty;
mod questions;
mod terminal;
