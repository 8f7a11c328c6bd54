//! What a device has beyond the six tools: its screen, its input, its apps and its log.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::posix::{self, Command, Ended, Flow, Input, Program, Shell, Sink, Stop, Stream, Streams};
use crate::remote::Remote;
use crate::{Call, CallContext, Content, Effects, Ending, HandError, Outcome, Tool};

/// How long a touch or a look may take.
const QUICK: Duration = Duration::from_mins(1);
/// How long installing may take.
const INSTALL: Duration = Duration::from_mins(10);
/// Most bytes of a screenshot.
const MOST_IMAGE: usize = 20 << 20;
/// Most bytes of text that a tool answers with.
const MOST_TEXT: usize = 4 << 20;
/// Longest swipe, in milliseconds.
const MOST_SWIPE: u32 = 60_000;
/// Most lines of the log.
const MOST_LINES: u32 = 10_000;
/// Most characters of a text to type: each is an event or two.
const MOST_TYPED: usize = 2000;

/// Prints what is on the screen as XML. `uiautomator` succeeds even when it does not.
const UI_TREE: &str = r#"
file=$WORKSPACE/.manyhands-ui-$$.xml
said=$(uiautomator dump "$file" 2>&1)
[ -s "$file" ] || { printf '%s' "$said" >&2; exit 1; }
cat "$file"
rm -f "$file"
"#;

pub(super) fn list() -> Vec<Tool> {
    touches().into_iter().chain(apps()).collect()
}

fn number(what: &str) -> Value {
    json!({"type": "integer", "minimum": 0, "description": what})
}

fn string(what: &str) -> Value {
    json!({"type": "string", "description": what})
}

fn tool(name: &str, what: &str, effects: Effects, required: &[&str], properties: Value) -> Tool {
    posix::tool(name, what.to_owned(), effects, required, properties)
}

/// Those of the screen and what is before it.
fn touches() -> Vec<Tool> {
    let (read, change) = (Effects::ReadOnly, Effects::Destructive);
    let place = json!({"x": number("From the left"), "y": number("From the top")});
    let way = json!({
        "x1": number("From here, from the left"), "y1": number("From here, from the top"),
        "x2": number("To there, from the left"), "y2": number("To there, from the top"),
        "duration_ms": {"type": "integer", "minimum": 1, "maximum": MOST_SWIPE, "default": 300},
    });
    let text = json!({"text": string("What to type")});
    let key =
        json!({"key": string("Its name as in Android's KeyEvent, with or without KEYCODE_, or its number")});
    let tree = "Shows what is on the device's screen as XML: texts, classes, and bounds `[left,top][right,bottom]` in \
                pixels, to know where to tap.";
    let tap = "Taps the screen at a place, in pixels from the upper left corner.";
    let swipe =
        "Swipes over the screen from one place to another. From a place to itself, it is a long press.";
    let typed = "Types a text into what has the focus. Printable ASCII on one line; for Enter use key.";
    let pressed = "Presses a key such as HOME, BACK, ENTER, APP_SWITCH, POWER or VOLUME_UP.";
    vec![
        tool("screenshot", "Shows the device's screen as an image.", read, &[], json!({})),
        tool("ui_tree", tree, read, &[], json!({})),
        tool("tap", tap, change, &["x", "y"], place),
        tool("swipe", swipe, change, &["x1", "y1", "x2", "y2"], way),
        tool("text", typed, change, &["text"], text),
        tool("key", pressed, change, &["key"], key),
    ]
}

/// Those of apps and the log.
fn apps() -> Vec<Tool> {
    let app = json!({
        "package": string("Such as com.android.settings"),
        "activity": string("One of its activities; the one of the home screen when there is none"),
    });
    let file = json!({"path": string("The file, absolute or below the workspace")});
    let lines = json!({
        "lines": {"type": "integer", "minimum": 1, "maximum": MOST_LINES, "default": 200},
        "filter": string("As logcat takes it, such as `*:E` or `ActivityManager:I *:S`"),
    });
    let launch = "Starts an app. `pm list packages` in bash lists what is installed.";
    let install = "Installs an app, or a newer version of it, from an APK file on the device.";
    vec![
        tool("launch", launch, Effects::Destructive, &["package"], app),
        tool("install", install, Effects::Destructive, &["path"], file),
        tool("logcat", "Shows the last lines of the device's log.", Effects::ReadOnly, &[], lines),
    ]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tap {
    x: u32,
    y: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Swipe {
    x1: u32,
    y1: u32,
    x2: u32,
    y2: u32,
    duration_ms: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    text: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Key {
    key: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Launch {
    package: String,
    activity: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Install {
    path: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Logcat {
    lines: Option<u32>,
    filter: Option<String>,
}

/// What a tool does on the device.
struct Deed {
    argv: Vec<String>,
    timeout: Duration,
    most: usize,
    shows: Shows,
}

/// What there is to see of a tool that did what it should.
enum Shows {
    Image,
    Output,
    /// This sentence, when no sign of failure was printed: most of Android's commands succeed whatever happens.
    Sentence(String),
}

/// Executes a tool of these; `None` when it is none.
pub(super) async fn execute(
    instance: &Remote,
    call: &Call,
    context: &CallContext,
) -> Option<Result<Outcome, HandError>> {
    let deed = match call.tool.as_str() {
        "screenshot" => decode::<Nothing>(call).map(|Nothing {}| Deed {
            argv: words("screencap -p"),
            timeout: QUICK,
            most: MOST_IMAGE,
            shows: Shows::Image,
        }),
        "ui_tree" => decode::<Nothing>(call).map(|Nothing {}| Deed {
            argv: ["sh", "-c", UI_TREE].map(str::to_owned).to_vec(),
            timeout: QUICK,
            most: MOST_TEXT,
            shows: Shows::Output,
        }),
        "tap" => {
            decode(call).map(|Tap { x, y }| quick(&format!("input tap {x} {y}"), format!("Tapped {x}, {y}.")))
        }
        "swipe" => decode(call).and_then(swipe),
        "text" => decode(call).and_then(|Text { text }| typed(&text)),
        "key" => decode(call).and_then(|Key { key }| press(&key)),
        "launch" => decode(call).and_then(launch),
        "install" => decode(call).and_then(|Install { path }| install(instance, &path)),
        "logcat" => decode(call).and_then(logcat),
        _ => return None,
    };
    Some(match deed {
        Ok(deed) => run(instance, deed, context).await,
        Err(sentence) => Ok(Outcome::error(sentence)),
    })
}

fn decode<T: DeserializeOwned>(call: &Call) -> Result<T, String> {
    serde_json::from_value(Value::Object(call.arguments.clone())).map_err(|error| {
        format!("The arguments of {} are wrong: {error}. Call it again as its schema says.", call.tool)
    })
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

fn quick(line: &str, sentence: String) -> Deed {
    Deed { argv: words(line), timeout: QUICK, most: MOST_TEXT, shows: Shows::Sentence(sentence) }
}

fn swipe(Swipe { x1, y1, x2, y2, duration_ms }: Swipe) -> Result<Deed, String> {
    let duration = duration_ms.unwrap_or(300);
    if !(1..=MOST_SWIPE).contains(&duration) {
        return Err(format!("duration_ms must be between 1 and {MOST_SWIPE}."));
    }
    let line = format!("input swipe {x1} {y1} {x2} {y2} {duration}");
    Ok(quick(&line, format!("Swiped from {x1}, {y1} to {x2}, {y2}.")))
}

/// `input text` takes `%s` for a space, so a `%` before an `s` is typed by itself.
fn typed(text: &str) -> Result<Deed, String> {
    if text.is_empty() || text.len() > MOST_TYPED || !text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Err(format!(
            "text must be 1 to {MOST_TYPED} printable ASCII characters on one line; for Enter use key."
        ));
    }
    let parts: Vec<String> =
        text.replace("%s", "%\ns").split('\n').map(|part| part.replace(' ', "%s")).collect();
    let script = r#"for part do input text "$part" || exit; done"#;
    let argv = ["sh", "-c", script, "sh"].map(str::to_owned).into_iter().chain(parts).collect();
    let sentence = format!("Typed {} characters.", text.len());
    Ok(Deed { argv, timeout: QUICK, most: MOST_TEXT, shows: Shows::Sentence(sentence) })
}

fn press(key: &str) -> Result<Deed, String> {
    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return Err("key must be a name of Android's KeyEvent, such as HOME, or a number.".into());
    }
    let key = key.to_ascii_uppercase();
    Ok(quick(&format!("input keyevent {key}"), format!("Pressed {key}.")))
}

fn launch(Launch { package, activity }: Launch) -> Result<Deed, String> {
    let is_name = |name: &str| {
        !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'$'))
    };
    if !is_name(&package) || !activity.as_deref().is_none_or(is_name) {
        return Err("package and activity are names such as com.android.settings and .Settings.".into());
    }
    let argv = match activity {
        Some(activity) => ["am", "start", "-n", &format!("{package}/{activity}")].map(str::to_owned).to_vec(),
        None => words(&format!("monkey -p {package} -c android.intent.category.LAUNCHER 1")),
    };
    let sentence = format!("Started {package}.");
    Ok(Deed { argv, timeout: QUICK, most: MOST_TEXT, shows: Shows::Sentence(sentence) })
}

fn install(instance: &Remote, path: &str) -> Result<Deed, String> {
    if path.is_empty() || path.contains('\0') {
        return Err("path must name an APK file on the device.".into());
    }
    let file = instance.place(path);
    let argv = ["pm", "install", "-r", &file].map(str::to_owned).to_vec();
    Ok(Deed { argv, timeout: INSTALL, most: MOST_TEXT, shows: Shows::Sentence(format!("Installed {file}.")) })
}

fn logcat(Logcat { lines, filter }: Logcat) -> Result<Deed, String> {
    let lines = lines.unwrap_or(200);
    if !(1..=MOST_LINES).contains(&lines) {
        return Err(format!("lines must be between 1 and {MOST_LINES}."));
    }
    let filter = filter.unwrap_or_default();
    let filters: Vec<String> = filter.split_whitespace().map(str::to_owned).collect();
    if filters.iter().any(|filter| filter.starts_with('-')) {
        return Err("filter is made of `TAG:PRIORITY`, such as `*:E`; for logcat's options use bash.".into());
    }
    let argv = words(&format!("logcat -d -t {lines}")).into_iter().chain(filters).collect();
    Ok(Deed { argv, timeout: QUICK, most: MOST_TEXT, shows: Shows::Output })
}

async fn run(instance: &Remote, deed: Deed, context: &CallContext) -> Result<Outcome, HandError> {
    let mut kept = Kept { output: Vec::new(), error: Vec::new(), most: deed.most };
    let program = deed.argv.first().cloned().unwrap_or_default();
    let command = Command {
        program: Program::Argv(deed.argv),
        cwd: None,
        input: Input::Bytes(Bytes::new()),
        streams: Streams::Separate,
        timeout: deed.timeout,
    };
    let report = instance.run(command, &context.cancel, &mut kept).await?;
    let printed = String::from_utf8_lossy(&kept.output).trim().to_owned();
    let error = String::from_utf8_lossy(&kept.error).trim().to_owned();
    let said = if error.is_empty() { printed.clone() } else { error };
    match report.ended {
        Ended::Exit(0) => {}
        Ended::Exit(127) => return Ok(Outcome::error(format!("The device has no `{program}`: {said}"))),
        Ended::Exit(code) => {
            return Ok(Outcome::error(format!("{said}\n[exit code {code}]").trim().to_owned()));
        }
        Ended::Signal(signal) => return Ok(Outcome::error(format!("{said}\n[ended by signal {signal}]"))),
        Ended::NotStarted { doing, error } => return Ok(Outcome::error(format!("Can't {doing}: {error}."))),
        Ended::Stopped(Stop::Timeout) => {
            let text = format!("It timed out after {} s.", deed.timeout.as_secs());
            return Ok(Outcome::ended(Ending::Timeout, text));
        }
        Ended::Stopped(Stop::Cancelled) => return Ok(Outcome::ended(Ending::Cancelled, "Cancelled.")),
        Ended::Stopped(Stop::Limit(why)) => return Ok(Outcome::error(format!("Ended: {why}."))),
        Ended::Stopped(Stop::Enough) if matches!(deed.shows, Shows::Image) => {
            return Ok(Outcome::error("The screenshot is larger than can be shown."));
        }
        Ended::Stopped(Stop::Enough) => {}
    }
    Ok(match deed.shows {
        Shows::Image if kept.output.starts_with(b"\x89PNG") => {
            let content = Content::Image { data: kept.output.into(), mime: "image/png" };
            Outcome { ending: Ending::Ok, content: vec![content], reply: None }
        }
        Shows::Image => Outcome::error(format!("The device gave no image: {said}")),
        Shows::Output => Outcome::ok(printed),
        Shows::Sentence(_) if failed(&printed) || failed(&said) => Outcome::error(said),
        Shows::Sentence(sentence) => Outcome::ok(sentence),
    })
}

/// Whether what one of Android's commands printed says that it did nothing, though it succeeded.
fn failed(text: &str) -> bool {
    text.contains("monkey aborted")
        || text.lines().any(|line| {
            let line = line.trim_start();
            ["Error", "Failure", "Exception", "java.lang."].iter().any(|sign| line.starts_with(sign))
        })
}

struct Kept {
    output: Vec<u8>,
    error: Vec<u8>,
    most: usize,
}

#[async_trait]
impl Sink for Kept {
    async fn take(&mut self, stream: Stream, bytes: &[u8]) -> Flow {
        let (kept, most) = match stream {
            Stream::Output => (&mut self.output, self.most),
            Stream::Error => (&mut self.error, self.most.min(64 * 1024)),
        };
        let room = most - kept.len();
        kept.extend_from_slice(&bytes[..room.min(bytes.len())]);
        if stream == Stream::Output && bytes.len() > room { Flow::Stop(Stop::Enough) } else { Flow::Continue }
    }
}
