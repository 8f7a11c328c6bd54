//! Connections that send nothing, and a standard error that nobody reads.
