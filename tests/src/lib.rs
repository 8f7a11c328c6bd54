//! The kit that the tests share.

pub mod postgres;
