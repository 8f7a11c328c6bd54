//! The six tools over anything that can run a command.
