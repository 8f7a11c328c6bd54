//! Mounts that an agent changes between two instances, and what they must not show.
