//! What a person is shown, and who may answer.

mod owner;
mod pty;
mod questions;
mod terminal;
mod turns;
