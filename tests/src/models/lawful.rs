//! What all APIs refuse in names, ids and pictures.

use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// Longest name of a tool and id of a call.
const NAME_MAX: usize = 64;
/// Largest picture, as it is sent.
const PICTURE_BYTES_MAX: usize = 5 << 20;

/// The names and ids of calls.
pub(super) fn calls<'a>(calls: impl Iterator<Item = (&'a Value, &'a Value)>) -> Result<(), String> {
    let mut ids = HashSet::new();
    for (name, id) in calls {
        for text in [name, id] {
            let text = text.as_str().unwrap_or_default();
            let legal = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
            if text.is_empty() || text.len() > NAME_MAX || !text.chars().all(legal) {
                return Err(format!("{text:?}: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"));
            }
        }
        if !ids.insert(id) {
            return Err(format!("`tool_use` ids must be unique: {id}"));
        }
    }
    Ok(())
}

/// A picture, by its first bytes.
pub(super) fn picture(media_type: &str, data: &str) -> Result<(), String> {
    let bytes = STANDARD.decode(data).map_err(|error| format!("invalid base64 data: {error}"))?;
    let begins: &[u8] = match media_type {
        "image/png" => b"\x89PNG\r\n\x1a\n",
        "image/jpeg" => b"\xff\xd8\xff",
        "image/gif" => b"GIF8",
        "image/webp" => b"RIFF",
        other => return Err(format!("media_type: Input should be 'image/jpeg', …, not '{other}'")),
    };
    if data.len() > PICTURE_BYTES_MAX {
        return Err("image exceeds 5 MB maximum".to_owned());
    }
    if bytes.starts_with(begins) { Ok(()) } else { Err("Could not process image".to_owned()) }
}

/// A picture as a `data:` URL.
pub(super) fn url(url: &Value) -> Result<(), String> {
    let url = url.as_str().unwrap_or_default();
    let parts = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    let (media_type, data) = parts.ok_or("the URL of a picture is no data: URL")?;
    picture(media_type, data)
}
