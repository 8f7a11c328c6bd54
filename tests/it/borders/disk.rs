//! A principal that fills the disk.
