//! What fits into one answer, and how to go on from there. Nothing is left out silently.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rmcp::model::ResourceContents;
use serde_json::{Map, Value, json};

use crate::session::{Event, Page, Slice};

/// Most characters that one answer has. (Design 2.2.)
const ANSWER_CHARS_MAX: usize = 48_000;
/// Room for what an answer says beside its events: where it stands, how to go on, and a link.
const FRAME_CHARS: usize = 1_000;
/// Most characters of the items of one answer.
const ITEMS_CHARS_MAX: usize = ANSWER_CHARS_MAX - FRAME_CHARS;
/// Most bytes of a text in one answer: at most as many characters.
pub(super) const PIECE_BYTES: u64 = ITEMS_CHARS_MAX as u64;
/// Most bytes of what is no text in one answer, where base64 makes four characters of three.
const BINARY_BYTES: usize = ITEMS_CHARS_MAX / 4 * 3;
/// How long the texts in an event may stay that is too large for an answer, in characters: the first that makes it fit.
const TEXTS_CHARS_MAX: [usize; 4] = [16_000, 4_000, 1_000, 200];

/// How many of `items`, from the first on, fit into one answer.
pub(super) fn fitting(items: &[Value]) -> usize {
    let mut room = ITEMS_CHARS_MAX;
    let fits = |item: &&Value| {
        let size = size(item);
        let fits = size <= room;
        room = room.saturating_sub(size);
        fits
    };
    items.iter().take_while(fits).count()
}

/// The page as JSON in at most [`ANSWER_CHARS_MAX`] characters: events that do not fit are left for the next.
pub(super) fn page(page: &Page, slice: &Slice) -> Value {
    let backward = slice.after.is_none();
    let mut events: Vec<Value> = page.events.iter().map(Event::to_json).map(fitted).collect();
    if backward {
        events.reverse();
    }
    let fitting = fitting(&events);
    let cut = fitting < events.len();
    events.truncate(fitting);
    if backward {
        events.reverse();
    }
    let seq = |event: Option<&Value>| event.map_or(Value::Null, |event| event["seq"].clone());
    let (first, last) = (seq(events.first()), seq(events.last()));
    let next = match (cut, backward) {
        (false, _) => page.next.map_or(Value::Null, |next| next.0.into()),
        (true, true) => first.clone(),
        (true, false) => last.clone(),
    };
    json!({"events": events, "first": first, "last": last, "has_more": cut || page.has_more, "next": next})
}

/// The event as it is when it fits into one answer, else with head and tail of its texts.
pub(super) fn fitted(event: Value) -> Value {
    if size(&event) <= ITEMS_CHARS_MAX {
        return event;
    }
    let hint = format!(
        "too large to show whole: read session://{}/events/{}?offset=0",
        event["session"].as_str().unwrap_or_default(),
        event["seq"]
    );
    for max in TEXTS_CHARS_MAX {
        let mut short = shortened(&event, max);
        short["too_large"] = hint.clone().into();
        if size(&short) <= ITEMS_CHARS_MAX {
            return short;
        }
    }
    let kept = ["id", "seq", "session", "at", "by", "type"].map(|key| (key.to_owned(), event[key].clone()));
    let mut short: Map<String, Value> = kept.into_iter().collect();
    short.insert("too_large".to_owned(), hint.into());
    Value::Object(short)
}

/// Characters of an item, with the comma behind it.
fn size(item: &Value) -> usize {
    item.to_string().chars().count() + 1
}

/// The value with head and tail of every text that has more than `max` characters.
fn shortened(value: &Value, max: usize) -> Value {
    match value {
        Value::String(text) => {
            let chars = text.chars().count();
            if chars <= max {
                return value.clone();
            }
            let tail = max / 3;
            let head: String = text.chars().take(max - tail).collect();
            let end: String = text.chars().skip(chars - tail).collect();
            format!("{head}[… {} of {chars} characters left out here …]{end}", chars - max).into()
        }
        Value::Array(items) => items.iter().map(|item| shortened(item, max)).collect(),
        Value::Object(fields) => {
            let short = fields.iter().map(|(key, item)| (key.clone(), shortened(item, max)));
            Value::Object(short.collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// A piece of something large, and where the next one is.
///
/// Laid end to end the first contents of all pieces are the whole, byte for byte; what is said about going on stands
/// in contents of its own.
pub(super) fn piece(base: &str, uri: &str, bytes: &[u8], offset: u64, total: u64) -> Vec<ResourceContents> {
    let whole = match std::str::from_utf8(bytes) {
        Ok(text) => Some(text),
        // The end of the piece fell into a character, which is left to the next.
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).ok()
        }
        Err(_) => None,
    };
    let (contents, shown) = match whole {
        Some(text) => (ResourceContents::text(text, uri).with_mime_type("text/plain"), text.len()),
        None => {
            let bytes = &bytes[..bytes.len().min(BINARY_BYTES)];
            let blob = ResourceContents::blob(BASE64_STANDARD.encode(bytes), uri);
            (blob.with_mime_type(binary_kind(bytes, offset)), bytes.len())
        }
    };
    let end = offset + shown as u64;
    let mut all = vec![contents];
    if end < total {
        let next = format!("{base}?offset={end}");
        let hint = format!("[bytes {offset} to {end} of {total}; go on with {next}]");
        all.push(ResourceContents::text(hint, next).with_mime_type("text/plain"));
    }
    all
}

fn binary_kind(bytes: &[u8], offset: u64) -> &'static str {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] if offset == 0 => "image/png",
        [0xff, 0xd8, 0xff, ..] if offset == 0 => "image/jpeg",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(text: &str) -> Value {
        json!({"id": "sevt_1", "seq": 7, "session": "sesn_1", "at": "now", "by": {}, "type": "note.x", "text": text})
    }

    #[test]
    fn an_event_that_fits_is_not_touched_and_one_that_does_not_says_so() {
        assert_eq!(fitted(event("short")), event("short"));
        let large = fitted(event(&"é".repeat(500_000)));
        assert!(
            large["text"].as_str().is_some_and(|text| text.contains("484000 of 500000 characters left out"))
        );
        assert_eq!(large["too_large"], "too large to show whole: read session://sesn_1/events/7?offset=0");
        let mut many = event("");
        many["list"] = vec!["x".repeat(100); 5_000].into();
        let many = fitted(many);
        assert!(size(&many) < 500 && many["too_large"].is_string() && many["type"] == "note.x", "{many}");
        // Every character of it is escaped.
        assert!(size(&fitted(event(&"\u{1}".repeat(200_000)))) <= ITEMS_CHARS_MAX);
    }

    #[test]
    fn a_piece_ends_between_characters_and_says_where_the_next_begins() {
        let text = "aé😀".repeat(3);
        let bytes = text.as_bytes();
        let pieces = piece("session://x/outputs/1", "u", &bytes[..9], 0, bytes.len() as u64);
        let shown = serde_json::to_value(&pieces).unwrap();
        assert_eq!(shown[0]["text"], "aé😀a");
        assert_eq!(shown[1]["uri"], "session://x/outputs/1?offset=8");
        // Whoever begins inside a character gets the bytes.
        let inside = serde_json::to_value(piece("b", "u", &bytes[2..], 2, bytes.len() as u64)).unwrap();
        assert!(inside[0]["blob"].is_string() && inside[1].is_null(), "{inside}");
        let past = serde_json::to_value(piece("b", "u", &[], 99, 21)).unwrap();
        assert_eq!((past[0]["text"].as_str(), past.as_array().map(Vec::len)), (Some(""), Some(1)));
    }
}
