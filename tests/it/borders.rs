//! What an agent in a hand, and a client without a right, try against this machine and its gateway. Each test plays the
//! attack, and then looks at what must not have changed.

mod configuration;
mod connections;
pub(crate) mod copies;
mod disk;
mod kernel;
mod memory;
mod mounts;
mod people;
mod states;
mod walks;
