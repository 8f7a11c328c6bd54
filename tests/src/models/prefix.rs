//! What of a request a cache has: prefixes up to the places that earlier requests marked with `cache_control`.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use gateway::harness::model::Usage;
use serde_json::Value;

/// Blocks before a mark in which a cached prefix is looked for, as the real cache does.
const LOOK_BACK: usize = 20;
/// Bytes that count as a token.
const TOKEN: u64 = 4;

/// The prefixes that were written.
#[derive(Default)]
pub(super) struct Prefixes(HashSet<u64>);

impl Prefixes {
    /// What of a request comes from where. None when nothing in it is marked.
    pub(super) fn read(&mut self, body: &Value) -> Option<Usage> {
        let mut hasher = DefaultHasher::new();
        let (mut size, mut ends, mut marks) = (0_u64, Vec::new(), Vec::new());
        for (place, block) in blocks(body) {
            let mut bare = block.clone();
            let marked = bare.as_object_mut().is_some_and(|object| object.remove("cache_control").is_some());
            let text = bare.to_string();
            (&place, &text).hash(&mut hasher);
            size += text.len() as u64;
            ends.push((hasher.finish(), size));
            if marked {
                marks.push(ends.len() - 1);
            }
        }
        let last = *marks.last()?;
        let near = marks.iter().flat_map(|mark| mark.saturating_sub(LOOK_BACK)..=*mark);
        let found = near.filter(|at| self.0.contains(&ends[*at].0)).max();
        self.0.extend(marks.iter().map(|mark| ends[*mark].0));
        let read = found.map_or(0, |at| ends[at].1);
        let tokens = |bytes: u64| bytes.div_ceil(TOKEN);
        Some(Usage {
            input: tokens(size - ends[last].1),
            output: 0,
            cache_read: tokens(read),
            cache_written: tokens(ends[last].1.saturating_sub(read)),
        })
    }
}

/// Everything that is read, in the order in which it is.
fn blocks(body: &Value) -> Vec<(String, Value)> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let tools = list(&body["tools"]).into_iter().map(|tool| ("tools".to_owned(), tool));
    let system = list(&body["system"]).into_iter().map(|block| ("system".to_owned(), block));
    let said = list(&body["messages"]).into_iter().enumerate().flat_map(|(number, message)| {
        let place = format!("{number} {}", message["role"]);
        list(&message["content"]).into_iter().map(move |block| (place.clone(), block))
    });
    tools.chain(system).chain(said).collect()
}
