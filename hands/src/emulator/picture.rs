//! Screens as PNG.

use png::{BitDepth, ColorType, Compression, Encoder, EncodingError};

use super::core::Screen;

/// Most colours of a picture with a palette.
const PALETTE: usize = 256;

/// A screen as PNG, every pixel a square of `scale` pixels.
pub(super) fn png(screen: &Screen, scale: u8) -> Result<Vec<u8>, EncodingError> {
    let mut palette = Vec::new();
    let mut indices = Vec::with_capacity(screen.rgb.len() / 3);
    for pixel in screen.rgb.chunks_exact(3) {
        let known = palette.chunks_exact(3).position(|colour| colour == pixel);
        let index = known.unwrap_or_else(|| {
            palette.extend_from_slice(pixel);
            palette.len() / 3 - 1
        });
        let Ok(index) = u8::try_from(index) else { break };
        indices.push([index]);
    }
    if palette.len() / 3 <= PALETTE {
        return encode(screen, scale, &indices, Some(palette));
    }
    let pixels: Vec<[u8; 3]> = screen.rgb.chunks_exact(3).map(|rgb| [rgb[0], rgb[1], rgb[2]]).collect();
    encode(screen, scale, &pixels, None)
}

fn encode<const BYTES: usize>(
    screen: &Screen,
    scale: u8,
    pixels: &[[u8; BYTES]],
    palette: Option<Vec<u8>>,
) -> Result<Vec<u8>, EncodingError> {
    let times = usize::from(scale);
    let mut data = Vec::with_capacity(pixels.len() * BYTES * times * times);
    for row in pixels.chunks_exact(usize::from(screen.width)) {
        let start = data.len();
        data.extend(row.iter().flat_map(|pixel| std::iter::repeat_n(pixel, times)).flatten());
        let wide = start..data.len();
        for _ in 1..times {
            data.extend_from_within(wide.clone());
        }
    }
    let mut picture = Vec::new();
    let (width, height) =
        (u32::from(screen.width) * u32::from(scale), u32::from(screen.height) * u32::from(scale));
    let mut encoder = Encoder::new(&mut picture, width, height);
    encoder.set_depth(BitDepth::Eight);
    encoder.set_color(if palette.is_some() { ColorType::Indexed } else { ColorType::Rgb });
    encoder.set_compression(Compression::Fast);
    if let Some(palette) = palette {
        encoder.set_palette(palette);
    }
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&data)?;
    writer.finish()?;
    Ok(picture)
}
