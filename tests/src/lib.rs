//! The kit: what the tests have in common. Fake only what we do not own.

pub mod device;
pub mod dockerd;
pub mod faulty;
pub mod fixture;
pub mod game;
pub mod gateway;
pub mod guest;
pub mod models;
pub mod postgres;
pub mod sshd;
pub mod tls;
