//! Folders nested so deeply that a recursive walk ends the process.
