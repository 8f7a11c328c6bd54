//! Archives that an agent wrote, and copies into folders that it can write.
