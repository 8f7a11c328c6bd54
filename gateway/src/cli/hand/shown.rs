//! How a hand is shown to a person.

use std::io;

use serde_json::Value;

use super::super::terminal::{say, say_lines};
use super::add::words;

/// One line of `hand list`.
pub(super) fn line(hand: &Value) -> io::Result<()> {
    let tools = hand["tools"].as_array().map_or(0, Vec::len);
    say(format_args!(
        "{:<24} {:<8} {:<6} {:<10} {}",
        text(&hand["name"]),
        text(&hand["kind"]),
        text(&hand["origin"]),
        counted(tools, "tool"),
        state(hand)
    ))
}

/// All that there is to know. A sandbox is shown as it is stored.
pub(super) fn print(hand: &Value) -> io::Result<()> {
    if hand["kind"] != "mcp" {
        return say_lines(format_args!("{hand:#}"));
    }
    let config = &hand["config"];
    let reach = match config["url"].as_str() {
        Some(url) => ("url", url.to_owned()),
        None => ("command", words(&config["command"])),
    };
    let length = |what: &str| hand[what].as_array().map_or(0, Vec::len);
    let many = |what: &str| hand[what].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    let mut rows = vec![
        ("name", text(&hand["name"])),
        ("state", state(hand)),
        reach,
        ("directory", text(&config["directory"])),
        ("env", sources(&config["env"])),
        ("headers", sources(&config["headers"])),
        ("server", server(&hand["server"])),
        (
            "offers",
            [
                counted(length("tools"), "tool"),
                counted(length("prompts"), "prompt"),
                counted(many("resources"), "resource"),
                counted(many("templates"), "template"),
            ]
            .join(", "),
        ),
        ("share", share(&config["share"]).to_owned()),
        ("limits", format!("{} s a call; released after {} s idle", config["call_max_s"], config["idle_s"])),
        ("permission", permission(&config["permission"])),
        ("origin", if hand["origin"] == "file" { "manyhands.toml" } else { "hand add" }.to_owned()),
        ("note", text(&hand["note"])),
    ];
    rows.retain(|(_, value)| !value.is_empty() && value != "-");
    for (what, value) in rows {
        say(format_args!("{what:<10} {value}"))?;
    }
    for what in ["tools", "prompts", "problems", "changes"] {
        for (n, one) in hand[what].as_array().into_iter().flatten().enumerate() {
            let head = if n == 0 { what } else { "" };
            say(format_args!("{head:<10} {}", text(one)))?;
        }
    }
    Ok(())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

fn counted(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

fn state(hand: &Value) -> String {
    match hand["state"].as_str() {
        Some("down") => {
            format!("down since {}: {}", text(&hand["down"]["since"]), text(&hand["down"]["why"]))
        }
        Some("refused") => format!("refused: {}", text(&hand["why"])),
        Some("unseen") => "not seen yet".to_owned(),
        _ => "ok".to_owned(),
    }
}

fn server(server: &Value) -> String {
    if server["protocol"].as_str().is_none_or(str::is_empty) {
        return String::new();
    }
    let info = &server["info"];
    let known = [&info["name"], &info["version"]].map(text).join(" ");
    format!("{known}, MCP {}, seen {}", text(&server["protocol"]), text(&server["seen_at"]))
}

fn permission(permission: &Value) -> String {
    match permission {
        Value::Object(named) => {
            let one = |(tool, permission): (&String, &Value)| format!("{tool} {}", text(permission));
            named.iter().map(one).collect::<Vec<_>>().join(", ")
        }
        one => text(one),
    }
}

fn share(share: &Value) -> &'static str {
    match share.as_str() {
        Some("session") => "each session has its own",
        Some("principal") => "all sessions of a principal have one",
        _ => "everybody has the same",
    }
}

/// Names, and where their values come from.
fn sources(sources: &Value) -> String {
    let one = |(name, source): (&String, &Value)| match (&source["env"], &source["file"]) {
        (Value::String(variable), _) => format!("{name} from the variable {variable}"),
        (_, Value::String(file)) => format!("{name} from {file}"),
        _ => name.clone(),
    };
    sources.as_object().into_iter().flatten().map(one).collect::<Vec<_>>().join(", ")
}
