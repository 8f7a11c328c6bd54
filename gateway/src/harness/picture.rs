//! Which pictures a model can be shown. A provider refuses a whole request for one that it can't read, and the request
//! after it, too: what stays in the log would stop the session for good. So all that is not surely a picture is told of
//! in a line.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::model::{Block, Image, Message, Seen};

/// Largest base64 of a picture, in bytes.
const DATA_BYTES_MAX: usize = 5 << 20;
/// Longest side of a picture, in pixels.
const SIDE_MAX: u32 = 8_000;
/// Longest name of a media type that is told, in characters.
const TYPE_CHARS_MAX: usize = 64;
/// Most pictures in one request: of more, providers take only small ones.
const SHOWN_MAX: usize = 20;
/// How many of the oldest are taken away at once, so that what was told seldom changes.
const STRIDE: usize = 10;
/// What stands for a picture that was taken away.
const OLDER: &str = "[an older picture, which is no longer shown]";
/// The media types that every provider takes.
const TYPES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// A content block of type `image`, as a model is told of it.
pub(super) fn seen(block: &Value) -> Seen {
    // MCP has it flat, the Messages API in a `source`.
    let source = block.get("source").unwrap_or(block);
    let text = |key: &str| source.get(key).and_then(Value::as_str);
    let Some(data) = text("data") else { return Seen::Text(block.to_string()) };
    let named = text("mimeType").or_else(|| text("media_type")).unwrap_or("unknown");
    let data: String = data.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    let bytes = STANDARD.decode(&data).ok();
    let media_type = named.trim().to_ascii_lowercase();
    if data.len() <= DATA_BYTES_MAX && bytes.as_ref().is_some_and(|bytes| is_picture(&media_type, bytes)) {
        return Seen::Image(Image { media_type, data });
    }
    let named: String = named.chars().filter(|c| !c.is_control()).take(TYPE_CHARS_MAX).collect();
    let size = bytes.map_or(data.len(), |bytes| bytes.len());
    Seen::Text(format!("[a picture of type {named}, {size} bytes, which the model cannot be shown]"))
}

/// Takes the oldest pictures away where there are too many.
pub(super) fn fewer(messages: &mut [Message]) {
    let is = |seen: &&Seen| matches!(seen, Seen::Image(_));
    let count = |block: &Block| match block {
        Block::Image(_) => 1,
        Block::ToolResult(result) => result.content.iter().filter(is).count(),
        Block::Text(_) | Block::Thinking(_) | Block::ToolUse(_) => 0,
    };
    let all: usize = messages.iter().flat_map(|message| &message.blocks).map(count).sum();
    let mut away = all.saturating_sub(SHOWN_MAX).div_ceil(STRIDE) * STRIDE;
    for block in messages.iter_mut().flat_map(|message| &mut message.blocks) {
        match block {
            Block::Image(_) if away > 0 => {
                *block = Block::text(OLDER);
                away -= 1;
            }
            Block::ToolResult(result) => {
                let pictures = result.content.iter_mut().filter(|seen| matches!(seen, Seen::Image(_)));
                for picture in pictures.take(away) {
                    *picture = Seen::Text(OLDER.to_owned());
                    away -= 1;
                }
            }
            _ => {}
        }
    }
}

/// Whether the bytes are a whole picture of this type, of a size that every provider takes.
fn is_picture(media_type: &str, bytes: &[u8]) -> bool {
    let size = match TYPES.iter().position(|known| *known == media_type) {
        Some(0) => png(bytes),
        Some(1) => jpeg(bytes),
        Some(2) => gif(bytes),
        Some(_) => webp(bytes),
        None => None,
    };
    size.is_some_and(|(width, height)| [width, height].iter().all(|side| (1..=SIDE_MAX).contains(side)))
}

/// Width and height, if all chunks are there.
fn png(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut rest = bytes.strip_prefix(b"\x89PNG\r\n\x1a\n")?;
    let header = rest.strip_prefix(b"\0\0\0\x0dIHDR")?;
    let size = (big(header.get(..4)?), big(header.get(4..8)?));
    let mut any = false;
    loop {
        let (length, kind) = (big(rest.get(..4)?), rest.get(4..8)?);
        // Length, kind and checksum are 4 bytes each.
        let end = usize::try_from(length).ok()?.checked_add(12)?;
        rest = rest.split_at_checked(end)?.1;
        match kind {
            b"IEND" => return any.then_some(size),
            b"IDAT" => any = true,
            _ => {}
        }
    }
}

/// Width and height, if the image has an end.
fn jpeg(bytes: &[u8]) -> Option<(u32, u32)> {
    const END: [u8; 2] = [0xff, 0xd9];
    let mut rest = bytes.strip_prefix(b"\xff\xd8")?;
    loop {
        // Any number of fill bytes may stand before a marker.
        rest = rest.strip_prefix(b"\xff")?;
        let (marker, after) = rest.split_first()?;
        match marker {
            0xff => {}
            // These have no length.
            0x01 | 0xd0..=0xd7 => rest = after,
            // The frame: precision, height, width. The others of this row are tables.
            0xc0..=0xcf if ![0xc4, 0xc8, 0xcc].contains(marker) => {
                let size = (big(after.get(5..7)?), big(after.get(3..5)?));
                return after.windows(END.len()).any(|pair| pair == END).then_some(size);
            }
            _ => rest = after.split_at_checked(usize::try_from(big(after.get(..2)?)).ok()?)?.1,
        }
    }
}

/// Width and height, if there is a frame and an end.
fn gif(bytes: &[u8]) -> Option<(u32, u32)> {
    let header = bytes.strip_prefix(b"GIF89a").or_else(|| bytes.strip_prefix(b"GIF87a"))?;
    let size = (little(header.get(..2)?), little(header.get(2..4)?));
    let data = header.get(7..)?;
    let last = data.iter().rfind(|byte| **byte != 0);
    (data.contains(&b',') && last == Some(&b';')).then_some(size)
}

/// Width and height, if all is there that the header speaks of.
fn webp(bytes: &[u8]) -> Option<(u32, u32)> {
    let rest = bytes.strip_prefix(b"RIFF")?;
    let (length, rest) = rest.split_at_checked(4)?;
    if usize::try_from(little(length)).ok()? > rest.len() {
        return None;
    }
    let rest = rest.strip_prefix(b"WEBP")?;
    // Behind the name of the chunk and its length.
    let data = rest.get(8..)?;
    match rest.get(..4)? {
        b"VP8 " if data.get(3..6)? == b"\x9d\x01\x2a" => {
            Some((little(data.get(6..8)?) & 0x3fff, little(data.get(8..10)?) & 0x3fff))
        }
        b"VP8L" if data.first()? == &0x2f => {
            let bits = little(data.get(1..5)?);
            Some(((bits & 0x3fff) + 1, ((bits >> 14) & 0x3fff) + 1))
        }
        b"VP8X" => Some((little(data.get(4..7)?) + 1, little(data.get(7..10)?) + 1)),
        _ => None,
    }
}

/// A number whose first byte counts most. At most four bytes.
fn big(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// A number whose last byte counts most. At most four bytes.
fn little(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// One pixel each, as image programs write it.
    const PNG: &str =
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    const GIF: &str = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7";
    const WEBP: &str = "UklGRiIAAABXRUJQVlA4IBYAAAAwAQCdASoBAAEADsD+JaQAA3AAAAAA";
    const JPEG: &[u8] = b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0\xff\xc0\0\x0b\x08\0\x01\0\x01\x01\x01\x11\0\xff\xda\0\x08\x01\x01\0\0\x3f\0\x37\xff\xd9";

    fn shown(media_type: &str, bytes: &[u8]) -> Result<Image, String> {
        match seen(&json!({"type": "image", "mimeType": media_type, "data": STANDARD.encode(bytes)})) {
            Seen::Image(image) => Ok(image),
            Seen::Text(text) => Err(text),
        }
    }

    fn pictures() -> [(&'static str, Vec<u8>); 4] {
        let decoded = |text| STANDARD.decode(text).unwrap();
        [
            ("image/png", decoded(PNG)),
            ("image/jpeg", JPEG.to_vec()),
            ("image/gif", decoded(GIF)),
            ("image/webp", decoded(WEBP)),
        ]
    }

    #[test]
    fn a_whole_picture_of_a_type_that_is_taken_is_shown() {
        for (media_type, bytes) in pictures() {
            let image = shown(media_type, &bytes).unwrap();
            assert_eq!((image.media_type.as_str(), image.data), (media_type, STANDARD.encode(&bytes)));
            assert!(shown(&media_type.to_uppercase(), &bytes).is_ok());
        }
        let source =
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}});
        assert!(matches!(seen(&source), Seen::Image(_)));
        let broken_lines = format!("{}\n{}\n", &PNG[..60], &PNG[60..]);
        let mime = json!({"type": "image", "mimeType": "image/png", "data": broken_lines});
        assert!(matches!(seen(&mime), Seen::Image(Image { data, .. }) if data == PNG));
    }

    #[test]
    fn all_else_is_told_of_in_a_line() {
        let expected = "[a picture of type image/bmp, 1234 bytes, which the model cannot be shown]";
        assert_eq!(shown("image/bmp", &[b'B'; 1234]), Err(expected.to_owned()));
        for (media_type, bytes) in pictures() {
            for length in 0..bytes.len() {
                assert!(shown(media_type, &bytes[..length]).is_err(), "{length} bytes of {media_type}");
            }
            for (other, _) in pictures().iter().filter(|(other, _)| *other != media_type) {
                assert!(shown(other, &bytes).is_err(), "{media_type} as {other}");
            }
        }
        let line = |block: &Value| matches!(seen(block), Seen::Text(text) if !text.contains(['\n', '\r']));
        for data in ["", "no base64!", "iVBORw0KGgo=", &PNG[..PNG.len() - 1]] {
            assert!(line(&json!({"type": "image", "mimeType": "image/png", "data": data})), "{data}");
        }
        assert!(line(&json!({"type": "image", "mimeType": "image\n/png", "data": PNG})));
        assert!(line(&json!({"type": "image", "data": PNG})));
        assert!(line(
            &json!({"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}})
        ));
    }

    #[test]
    fn what_is_too_large_is_told_of_in_a_line() {
        let mut wide = STANDARD.decode(PNG).unwrap();
        wide[16..20].copy_from_slice(&8_001_u32.to_be_bytes());
        assert!(shown("image/png", &wide).is_err());
        let mut heavy = JPEG.to_vec();
        heavy.resize(4 << 20, 0);
        assert!(shown("image/jpeg", &heavy).unwrap_err().contains("4194304 bytes"));
    }
}
