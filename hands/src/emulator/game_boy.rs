//! The Game Boy, by `boytacean`.
//!
//! It starts where a console stands once its boot program has run, so that no boot ROM is needed; the ones that the
//! crate ships are never used. The crate prints warnings to standard output, which leads nowhere in the worker.

use boytacean::gb::{GameBoy as Console, GameBoyMode};
use boytacean::pad::PadKey;
use boytacean::state::{FromGbOptions, SaveStateFormat, StateFormat, StateManager, ToGbOptions};

use super::core::{Button, Core, CoreError, Screen};

/// The width of its screen, in pixels.
const WIDTH: u16 = 160;
/// The height of its screen, in pixels.
const HEIGHT: u16 = 144;
/// Clock cycles of one picture.
const FRAME: u32 = 70_224;

/// A Game Boy that is switched on.
pub(super) struct GameBoy {
    console: Console,
    rom: Vec<u8>,
}

impl GameBoy {
    pub(super) fn start(rom: &[u8]) -> Result<Self, CoreError> {
        Ok(Self { console: switch_on(rom, None)?, rom: rom.to_vec() })
    }
}

/// A new console that has run its boot program.
fn switch_on(rom: &[u8], battery: Option<&[u8]>) -> Result<Console, CoreError> {
    let mut console = Console::new(Some(GameBoyMode::Dmg));
    console.load(false).map_err(|error| CoreError(error.to_string()))?;
    console.load_rom(rom, battery).map_err(|error| CoreError(error.to_string()))?;
    console.load_boot_state();
    Ok(console)
}

impl Core for GameBoy {
    fn hold(&mut self, buttons: &[Button]) {
        for button in Button::ALL {
            if buttons.contains(&button) {
                self.console.key_press(key(button));
            } else {
                self.console.key_lift(key(button));
            }
        }
    }

    fn frame(&mut self) {
        let before = self.console.ppu_frame();
        let mut cycles = 0;
        // With the screen switched off no picture is ever complete, but time passes.
        while self.console.ppu_frame() == before && cycles < FRAME {
            cycles += u32::from(self.console.clock());
        }
    }

    fn screen(&mut self) -> Screen {
        Screen { width: WIDTH, height: HEIGHT, rgb: self.console.frame_buffer().to_vec() }
    }

    fn read(&mut self, address: u32) -> Option<u8> {
        u16::try_from(address).ok().map(|address| self.console.read_memory(address))
    }

    fn save(&mut self) -> Result<Vec<u8>, CoreError> {
        let options = FromGbOptions::new(false, Some(StateFormat::Full), None, None);
        StateManager::save(&mut self.console, Some(SaveStateFormat::Bos), Some(options))
            .map_err(|error| CoreError(error.to_string()))
    }

    fn load(&mut self, state: &[u8]) -> Result<(), CoreError> {
        let mut console = switch_on(&self.rom, None)?;
        // Without `reload`, which would run a boot ROM.
        let options = ToGbOptions::new(false, true);
        StateManager::load(state, &mut console, Some(SaveStateFormat::Bos), Some(options))
            .map_err(|error| CoreError(error.to_string()))?;
        self.console = console;
        Ok(())
    }

    fn reset(&mut self) -> Result<(), CoreError> {
        let cartridge = self.console.cartridge_i();
        let battery = cartridge.has_battery().then(|| cartridge.ram_data().clone());
        self.console = switch_on(&self.rom, battery.as_deref())?;
        Ok(())
    }
}

fn key(button: Button) -> PadKey {
    match button {
        Button::Up => PadKey::Up,
        Button::Down => PadKey::Down,
        Button::Left => PadKey::Left,
        Button::Right => PadKey::Right,
        Button::A => PadKey::A,
        Button::B => PadKey::B,
        Button::Start => PadKey::Start,
        Button::Select => PadKey::Select,
    }
}
