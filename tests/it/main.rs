//! it

mod wire;
