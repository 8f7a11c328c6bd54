//! Reading a game from a file, and seeing whether it is one.

use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::core::CoreKind;
use crate::{HandError, canonical};

/// The largest game that was ever made for a Game Boy, in bytes.
const MOST: u64 = 8 << 20;
/// The smallest, and what all are multiples of the half of, in bytes.
const LEAST: usize = 32 << 10;
/// The bytes of a Game Boy game that its header checksum is of; the checksum follows them.
const HEADER: std::ops::Range<usize> = 0x134..0x14d;
/// Says whether it needs a Game Boy Color.
const COLOR: usize = 0x143;
/// The value of that byte which says that nothing else will do.
const COLOR_ONLY: u8 = 0xc0;

/// A game.
pub(super) struct Rom {
    pub(super) bytes: Vec<u8>,
    /// Tells it from other games: the folder of its states is named after it.
    pub(super) id: String,
    /// What it calls itself; may be empty.
    pub(super) title: String,
}

/// Reads a game and refuses what is none, in one sentence.
pub(super) fn read(path: &Path, core: CoreKind) -> Result<Rom, HandError> {
    let shown = path.display();
    let unreadable = |error: std::io::Error| {
        let why = format!("the game {shown} can't be read ({error})");
        refuse(why, "give the path of a ROM file that the gateway's user may read")
    };
    let file = canonical::open_file(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(MOST + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if let Err(why) = check(&bytes, core) {
        let why = format!("{shown} is no game for the {}: {why}", core.name());
        return Err(refuse(why, "give the path of a ROM file, as it was read from a cartridge or built"));
    }
    let id = Sha256::digest(&bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let title = title(&bytes, core);
    Ok(Rom { bytes, id, title })
}

fn refuse(why: String, remedy: &str) -> HandError {
    HandError::Unavailable { why, remedy: remedy.to_owned() }
}

fn check(bytes: &[u8], core: CoreKind) -> Result<(), String> {
    match core {
        CoreKind::GameBoy => check_game_boy(bytes),
    }
}

fn check_game_boy(bytes: &[u8]) -> Result<(), String> {
    let length = bytes.len();
    if length as u64 > MOST {
        return Err(format!("it is larger than {} MiB", MOST >> 20));
    }
    if length < LEAST || !length.is_multiple_of(LEAST / 2) {
        return Err(format!("it has {length} bytes, and a game is a multiple of 16 KiB from 32 KiB on"));
    }
    let sum = bytes[HEADER].iter().fold(0u8, |sum, byte| sum.wrapping_sub(*byte).wrapping_sub(1));
    if sum != bytes[HEADER.end] {
        return Err("the checksum of its header is wrong".to_owned());
    }
    if bytes[COLOR] == COLOR_ONLY {
        return Err("it needs a Game Boy Color".to_owned());
    }
    Ok(())
}

/// The printable beginning of the title.
fn title(bytes: &[u8], core: CoreKind) -> String {
    match core {
        CoreKind::GameBoy => {
            let title = bytes[HEADER].iter().take(COLOR - HEADER.start);
            let printable = title.take_while(|byte| byte.is_ascii_graphic() || **byte == b' ');
            printable.map(|byte| char::from(*byte)).collect::<String>().trim().to_owned()
        }
    }
}
