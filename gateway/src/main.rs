//! The `manyhands` binary.

fn main() {}
