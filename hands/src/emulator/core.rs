//! The seam between a console and all that does not care which one it is.

use serde::{Deserialize, Serialize};

use super::game_boy::GameBoy;

/// A console with a game in it, which stands still but for [`Core::frame`].
///
/// It runs in the worker alone, so it may panic and loop. What it is given comes from a person or from a model, and
/// what it gives back is checked by nobody in the worker.
pub(super) trait Core {
    /// Holds these buttons and no others.
    fn hold(&mut self, buttons: &[Button]);

    /// Runs until the next picture is complete. Ends even when the game has switched its screen off.
    fn frame(&mut self);

    /// What the screen shows.
    fn screen(&mut self) -> Screen;

    /// The byte that the processor would read at this address; `None` where it has no such address.
    fn read(&mut self, address: u32) -> Option<u8>;

    /// Everything that goes on from here, as bytes of its own form.
    fn save(&mut self) -> Result<Vec<u8>, CoreError>;

    /// Goes on from what was saved by the same kind of core with the same game. After an error it stands where it did.
    fn load(&mut self, state: &[u8]) -> Result<(), CoreError>;

    /// Switches it off and on. What the cartridge keeps with a battery stays.
    fn reset(&mut self) -> Result<(), CoreError>;
}

/// Which console.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CoreKind {
    /// The first Game Boy, in black and white.
    GameBoy,
}

impl CoreKind {
    /// Puts a game in a new console and switches it on.
    pub(super) fn start(self, rom: &[u8]) -> Result<Box<dyn Core>, CoreError> {
        match self {
            Self::GameBoy => Ok(Box::new(GameBoy::start(rom)?)),
        }
    }

    /// What people call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::GameBoy => "Game Boy",
        }
    }

    /// The highest address that can be read.
    pub(super) fn last_address(self) -> u32 {
        match self {
            Self::GameBoy => 0xffff,
        }
    }
}

/// A core refused something, as the words say.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct CoreError(pub(super) String);

/// A button of a console.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Button {
    Up,
    Down,
    Left,
    Right,
    A,
    B,
    Start,
    Select,
}

impl Button {
    pub(super) const ALL: [Self; 8] =
        [Self::Up, Self::Down, Self::Left, Self::Right, Self::A, Self::B, Self::Start, Self::Select];

    /// What the tools call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Left => "left",
            Self::Right => "right",
            Self::A => "a",
            Self::B => "b",
            Self::Start => "start",
            Self::Select => "select",
        }
    }
}

/// A picture: three bytes (red, green, blue) a pixel, row by row from the top left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Screen {
    pub(super) width: u16,
    pub(super) height: u16,
    pub(super) rgb: Vec<u8>,
}
