//! Who may know of whom: the table in `ARCHITECTURE.md` is the rule.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use super::none;
use super::tree::{files, read};

/// Crates that would join `hands` to what it knows nothing of.
const STRANGERS_TO_HANDS: [&str; 6] = ["axum", "gateway", "reqwest", "rmcp", "sqlx", "tower"];

/// Rooms that speak MCP.
const SPEAKS_MCP: [&str; 2] = ["error", "mcp"];

#[test]
fn rooms_know_only_of_those_they_may() {
    let table = table();
    let mut strangers = Vec::new();
    for (path, text) in files("rs") {
        let Some(room) = room(&path) else { continue };
        let Some(known) = table.get(&room) else {
            strangers.push(format!("{}: the room `{room}` is not in ARCHITECTURE.md", path.display()));
            continue;
        };
        for other in mentioned(&text) {
            if other != room && !known.contains(&other) {
                strangers.push(format!("{}: `{room}` knows of `{other}`", path.display()));
            }
        }
        if text.contains("rmcp::") && !SPEAKS_MCP.contains(&room.as_str()) {
            strangers.push(format!("{}: `{room}` speaks MCP", path.display()));
        }
    }
    none("ARCHITECTURE.md says who may know of whom", &strangers);
}

#[test]
fn the_table_has_no_room_that_is_gone() {
    let rooms: BTreeSet<_> = files("rs").iter().filter_map(|(path, _)| room(path)).collect();
    let gone: Vec<_> = table().into_keys().filter(|name| !rooms.contains(name)).collect();
    none("in ARCHITECTURE.md and not in gateway/src", &gone);
}

#[test]
fn hands_know_nothing_of_faces_and_databases() {
    let manifest = read(Path::new("hands/Cargo.toml"));
    let strangers: Vec<_> = STRANGERS_TO_HANDS
        .iter()
        .filter(|name| manifest.lines().any(|line| line.starts_with(&format!("{name}."))))
        .map(|&name| name.to_owned())
        .collect();
    none("hands depends on", &strangers);
}

/// The rows `| room | what it is | knows of |`.
fn table() -> BTreeMap<String, BTreeSet<String>> {
    let map = read(Path::new("ARCHITECTURE.md"));
    let rows = map.lines().filter_map(|line| {
        let cells: Vec<_> = line.strip_prefix("| `")?.split('|').map(str::trim).collect();
        let [room, _, known, ""] = cells[..] else { return None };
        let known = known.split(", ").filter(|name| !name.is_empty()).map(str::to_owned);
        Some((room.trim_matches('`').to_owned(), known.collect()))
    });
    let table: BTreeMap<_, _> = rows.collect();
    assert!(table.len() > 5, "the table of rooms is not where it was");
    table
}

/// `gateway/src/session/log.rs` and `gateway/src/session.rs` are of the room `session`.
fn room(path: &Path) -> Option<String> {
    let inner = path.strip_prefix("gateway/src").ok()?;
    let Component::Normal(first) = inner.components().next()? else { return None };
    let room = first.to_string_lossy().trim_end_matches(".rs").to_owned();
    (room != "lib").then_some(room)
}

/// The rooms that a file names: `crate::room`, `crate::{room, …}`, and `gateway::room` in the binary.
fn mentioned(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for prefix in ["crate::", "gateway::"] {
        for (at, _) in text.match_indices(prefix) {
            let rest = &text[at + prefix.len()..];
            let list = match rest.strip_prefix('{') {
                Some(list) => list.split_once('}').map_or(list, |(list, _)| list),
                None => rest,
            };
            let names = list.split(',').map(|part| {
                part.trim().chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect::<String>()
            });
            let names =
                if rest.starts_with('{') { names.collect::<Vec<_>>() } else { names.take(1).collect() };
            found.extend(names.into_iter().filter(|name| !name.is_empty()));
        }
    }
    found
}
