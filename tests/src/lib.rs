//! The kit: what the tests have in common. Fake only what we do not own.

pub mod dockerd;
pub mod faulty;
pub mod fixture;
pub mod gateway;
pub mod models;
pub mod postgres;
