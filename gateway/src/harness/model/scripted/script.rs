//! Reading a script: which step is next, and what stands in it.

use std::time::Duration;

use serde_json::{Map, Value};

use super::super::{Stop, ToolInput};

/// What begins a directive.
const SIGN: char = '@';
/// Most calls of one line.
const CALLS_MAX: usize = 1_000;
/// The longest wait.
const WAIT_MAX: Duration = Duration::from_hours(1);
/// The directives.
const WORDS: [&str; 9] = ["say", "think", "call", "wait", "nothing", "stop", "fail", "then", "loop"];

/// One thing that the scripted model does.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// It says this. Beside another one, it is the next line of it.
    Say(String),
    /// It thinks this.
    Think(String),
    /// It calls this tool.
    Call {
        /// The tool's full name.
        name: String,
        /// The arguments.
        input: ToolInput,
    },
    /// It waits.
    Wait(Duration),
    /// It fails.
    Fail(Failure),
}

/// How the scripted model fails: as the errors of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// With the time that it asks to wait.
    RateLimited(Option<Duration>),
    /// It has too much to do.
    Overloaded,
    /// By its own fault.
    Failed,
    /// Nobody is there.
    Unreachable,
    /// In the middle.
    BrokenOff,
    /// Without a word.
    Silent,
    /// It does not take the request, for this reason.
    Refused(String),
    /// There is no such model.
    NotFound,
    /// It does not take the key.
    BadKey,
    /// The transcript is too long.
    ContextTooLong,
    /// With an answer that makes no sense.
    Nonsense,
}

/// What a script can put into texts.
pub(super) struct Values {
    pub(super) results: Vec<String>,
    pub(super) tools: String,
}

/// Whether a text has directives.
pub(super) fn is_script(text: &str) -> bool {
    text.lines().any(|line| directive(line).is_some_and(|(word, _)| WORDS.contains(&bare(word))))
}

/// The acts of a step, and why it ends if it says so.
pub(super) fn step(script: &str, played: usize, values: &Values) -> (Vec<Act>, Option<Stop>) {
    let mut steps = vec![Vec::new()];
    let mut again = None;
    for (word, rest) in script.lines().filter_map(directive) {
        match word {
            "then" => steps.push(Vec::new()),
            "loop" => again = Some(steps.len() - 1),
            _ => steps[..].last_mut().into_iter().for_each(|step| step.push((word, rest))),
        }
    }
    let lines = match (steps.get(played), again) {
        (Some(lines), _) => lines,
        (None, Some(from)) => &steps[from + (played - from) % (steps.len() - from)],
        (None, None) => return (vec![Act::Say("Done.".to_owned())], None),
    };
    let (mut acts, mut stop) = (Vec::new(), None);
    for (word, rest) in lines {
        match read(word, rest, values) {
            Ok(Line::Acts(more)) => acts.extend(more),
            Ok(Line::Stop(why)) => stop = Some(why),
            Err(why) => acts.push(Act::Fail(Failure::Refused(why))),
        }
    }
    (acts, stop)
}

enum Line {
    Acts(Vec<Act>),
    Stop(Stop),
}

/// What a line means. The error is a sentence for whoever wrote it.
fn read(word: &str, rest: &str, values: &Values) -> Result<Line, String> {
    let one = |act| Ok(Line::Acts(vec![act]));
    match (word, bare(word)) {
        ("say", _) => one(Act::Say(filled(rest, values))),
        ("think", _) => one(Act::Think(filled(rest, values))),
        ("wait", _) => one(Act::Wait(time(rest)?)),
        ("nothing", _) => Ok(Line::Acts(Vec::new())),
        ("stop", _) => Ok(Line::Stop(stop(rest)?)),
        ("fail", _) => one(Act::Fail(failure(rest)?)),
        (_, "call") => call(word, rest, values),
        _ => Err(format!("the script has a line @{word}, which is none of @{}", WORDS.join(", @"))),
    }
}

fn call(word: &str, rest: &str, values: &Values) -> Result<Line, String> {
    let times = match word.split_once('*') {
        None => 1,
        Some((_, times)) => {
            times.parse().ok().filter(|times| (1..=CALLS_MAX).contains(times)).ok_or_else(|| {
                format!("the script says @{word}: write @call*N, with N from 1 to {CALLS_MAX}")
            })?
        }
    };
    let (name, arguments) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    if name.is_empty() {
        return Err("the script says @call without a tool".to_owned());
    }
    let arguments = arguments.trim();
    let input = if arguments.is_empty() {
        ToolInput::Object(Map::new())
    } else {
        match serde_json::from_str(arguments) {
            Ok(Value::Object(object)) => ToolInput::Object(
                object.into_iter().map(|(key, value)| (key, filled_in(value, values))).collect(),
            ),
            Ok(_) | Err(_) => ToolInput::Broken(arguments.to_owned()),
        }
    };
    Ok(Line::Acts(vec![Act::Call { name: name.to_owned(), input }; times]))
}

/// The word of a directive, and what stands behind it.
fn directive(line: &str) -> Option<(&str, &str)> {
    let line = line.trim().strip_prefix(SIGN)?;
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let is_word = word.starts_with(|c: char| c.is_ascii_lowercase());
    is_word.then_some((word, rest.trim()))
}

fn bare(word: &str) -> &str {
    word.split('*').next().unwrap_or(word)
}

fn filled_in(value: Value, values: &Values) -> Value {
    match value {
        Value::String(text) => filled(&text, values).into(),
        Value::Array(list) => list.into_iter().map(|value| filled_in(value, values)).collect(),
        Value::Object(object) => {
            object.into_iter().map(|(key, value)| (key, filled_in(value, values))).collect()
        }
        other => other,
    }
}

/// `text` with the values in it. What was put in is not looked at again.
fn filled(text: &str, values: &Values) -> String {
    let mut rest = text;
    let mut filled = String::new();
    while let Some((before, (name, after))) =
        rest.split_once("{{").and_then(|(before, inner)| Some((before, inner.split_once("}}")?)))
    {
        filled.push_str(before);
        let name = name.trim();
        let results = &values.results;
        match name.split_once(' ').map_or((name, ""), |(word, number)| (word, number.trim())) {
            ("tools", "") => filled.push_str(&values.tools),
            ("results", "") => filled.push_str(&results.len().to_string()),
            ("result", "") => filled.push_str(results.last().map_or("(no result)", String::as_str)),
            ("result", number) => {
                let found =
                    number.parse::<usize>().ok().and_then(|number| results.get(number.checked_sub(1)?));
                filled.push_str(found.map_or("(no result)", String::as_str));
            }
            _ => filled.push_str(&format!("{{{{{name}}}}}")),
        }
        rest = after;
    }
    filled.push_str(rest);
    filled
}

fn time(text: &str) -> Result<Duration, String> {
    let parsed = match text.strip_suffix("ms") {
        Some(number) => number.trim().parse().ok().map(Duration::from_millis),
        None => text.strip_suffix('s').and_then(|number| number.trim().parse().ok()).map(Duration::from_secs),
    };
    parsed
        .filter(|time| *time <= WAIT_MAX)
        .ok_or_else(|| format!("{text:?} in the script is no time up to an hour: write 200ms or 2s"))
}

fn stop(text: &str) -> Result<Stop, String> {
    Ok(match text {
        "end_turn" => Stop::EndTurn,
        "tool_use" => Stop::ToolUse,
        "max_tokens" => Stop::MaxTokens,
        "refusal" => Stop::Refusal,
        "pause" => Stop::Pause,
        "context_full" => Stop::ContextFull,
        other => return Err(format!("the script says @stop {other:?}, which is no reason")),
    })
}

fn failure(text: &str) -> Result<Failure, String> {
    let (kind, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let rest = rest.trim();
    Ok(match kind {
        "rate_limited" if rest.is_empty() => Failure::RateLimited(None),
        "rate_limited" => Failure::RateLimited(Some(time(rest)?)),
        "overloaded" => Failure::Overloaded,
        "failed" => Failure::Failed,
        "unreachable" => Failure::Unreachable,
        "broken_off" => Failure::BrokenOff,
        "silent" => Failure::Silent,
        "refused" => Failure::Refused("the script says so".to_owned()),
        "not_found" => Failure::NotFound,
        "bad_key" => Failure::BadKey,
        "context_too_long" => Failure::ContextTooLong,
        "nonsense" => Failure::Nonsense,
        other => return Err(format!("the script says @fail {other:?}, which is no failure")),
    })
}
