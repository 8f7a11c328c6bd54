//! The built-in loop: what it does next, what it tells a model, what it does with what a model says, and that nothing of
//! it is lost or done twice when it dies.

mod asleep;
mod brains;
mod caching;
mod context;
mod crash;
mod faults;
mod interrupt;
mod kills;
pub(crate) mod rig;
mod state;
mod step;
mod takeover;
mod terminal;
mod turns;
