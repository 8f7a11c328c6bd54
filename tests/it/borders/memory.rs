//! Outputs that are large, many at once.
