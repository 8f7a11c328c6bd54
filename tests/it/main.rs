//! The one test binary: everything here drives the real thing.

mod tidy;
