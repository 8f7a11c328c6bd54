//! Modes, names and shared limits that reach through the kernel.
