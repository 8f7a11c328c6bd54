//! How a game console is set up.

use std::path::{Path, PathBuf};

use hands::emulator::{CoreKind, EmulatorConfig};
use serde::{Deserialize, Serialize};

use super::permission::Permissions;
use super::setting::{BadSetting, Ground, absolute, place, seconds, within};

/// How a game console is set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EmulatorSettings {
    /// The game, a file.
    pub rom: PathBuf,
    /// Which console: `game-boy`, the only one there is.
    pub core: CoreKind,
    /// How many pixels of a picture are one of the screen, each way: 1 to 4. Default 2.
    pub scale: u8,
    /// An instance that no call used for so long is released, in seconds; where the game stands is kept. Default 900.
    pub idle_s: u64,
    /// Which tools a brain may call: allow, ask, ask-owner or deny, for all or by tool. Default allow.
    #[serde(skip_serializing_if = "Permissions::is_usual")]
    pub permission: Permissions,
}

impl Default for EmulatorSettings {
    fn default() -> Self {
        Self {
            rom: PathBuf::new(),
            core: CoreKind::GameBoy,
            scale: 2,
            idle_s: 900,
            permission: Permissions::default(),
        }
    }
}

impl EmulatorSettings {
    /// Refuses what makes no sense. Touches nothing.
    pub fn check(&self) -> Result<(), BadSetting> {
        if self.rom.as_os_str().is_empty() {
            return Err(BadSetting::Needs("an emulator needs a rom: the path of a game"));
        }
        absolute("rom", &self.rom)?;
        within("scale", self.scale.into(), 1, 4)?;
        seconds("idle_s", self.idle_s)
    }

    /// Makes relative paths absolute, as seen from `folder`; `home` is `~`.
    pub fn place(&mut self, folder: &Path, home: Option<&Path>) {
        if !self.rom.as_os_str().is_empty() {
            place([&mut self.rom], folder, home);
        }
    }

    /// What the hand is made of.
    pub fn resolve(&self, ground: &Ground) -> Result<EmulatorConfig, BadSetting> {
        self.check()?;
        let usual = EmulatorConfig::new(ground.program.clone(), self.rom.clone());
        Ok(EmulatorConfig { core: self.core, scale: self.scale, ..usual })
    }
}
