//! The tools of an emulator.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::core::{Button, CoreKind};
use super::instance::{Answer, Asker, Instance, blocking};
use super::states;
use super::wire::{Reply, Request};
use crate::{Call, CallContext, Content, Effects, Ending, HandError, Outcome, Tool};

/// Most frames of one call: a minute of play.
pub(super) const MOST_FRAMES: u32 = 3600;
/// How long they may take on a machine under heavy load.
pub(super) const LIMIT: Duration = Duration::from_mins(5);
/// Frames that a button is held when nobody says otherwise: games look once a frame, some only every few.
const PRESS: u32 = 8;
/// Frames that are waited when nobody says otherwise: a second.
const WAIT: u32 = 60;
/// Most bytes of memory that are read at once.
const MOST_MEMORY: u32 = 4096;
/// What a state is called when nobody says otherwise.
const QUICK: &str = "quick";

/// What they are called and take, for a game of this name.
pub(super) fn tools(core: CoreKind, game: &str) -> Vec<Tool> {
    let console = core.name();
    let frames = |usual: u32, why: &str| json!({"type": "integer", "minimum": 1, "maximum": MOST_FRAMES, "default": usual, "description": why});
    let name = json!({"type": "string", "pattern": "^[a-z0-9][a-z0-9-]{0,31}$", "default": QUICK,
        "description": "What the state is called"});
    let buttons = json!({"type": "array", "items": {"enum": Button::ALL}, "minItems": 1, "maxItems": 8,
        "uniqueItems": true, "description": "The buttons, all at once"});
    let last = core.last_address();
    vec![
        tool(
            "press",
            format!(
                "Holds buttons of a {console} with the game {game} for some frames (60 a second), lets go and shows \
                 the screen. Time stands still between calls, so there is no hurry; use wait to see what comes of it."
            ),
            Effects::Additive,
            &["buttons"],
            json!({"buttons": buttons, "frames": frames(PRESS, "How many frames they are held")}),
        ),
        tool(
            "wait",
            "Lets the game run for some frames (60 a second) with no button held and shows the screen.".into(),
            Effects::Additive,
            &[],
            json!({"frames": frames(WAIT, "How many frames")}),
        ),
        tool("screenshot", "Shows the screen. No time passes.".into(), Effects::ReadOnly, &[], json!({})),
        tool(
            "read_memory",
            format!("Shows memory as the {console}'s processor sees it, in hexadecimal. No time passes."),
            Effects::ReadOnly,
            &["address"],
            json!({
                "address": {"type": ["integer", "string"],
                    "description": format!("The first address, 0 to {last}, or in hexadecimal such as \"0xc000\"")},
                "length": {"type": "integer", "minimum": 1, "maximum": MOST_MEMORY, "default": 1,
                    "description": "How many bytes"},
            }),
        ),
        tool(
            "save",
            "Saves where the game stands. It outlives this session's hand. An earlier state of the name is replaced."
                .into(),
            Effects::Additive,
            &[],
            json!({"name": name}),
        ),
        tool(
            "load",
            "Goes back to where the game stood when it was saved, and shows the screen. What came after is lost unless \
             it was saved by another name."
                .into(),
            Effects::Destructive,
            &[],
            json!({"name": name}),
        ),
        tool(
            "reset",
            format!("Switches the {console} off and on. What is not saved is lost, but for what the cartridge keeps."),
            Effects::Destructive,
            &[],
            json!({}),
        ),
    ]
}

fn tool(name: &str, description: String, effects: Effects, required: &[&str], properties: Value) -> Tool {
    let schema = [
        ("type".to_owned(), "object".into()),
        ("properties".to_owned(), properties),
        ("required".to_owned(), required.into()),
        ("additionalProperties".to_owned(), false.into()),
    ];
    let input_schema = Arc::new(Map::from_iter(schema));
    Tool { name: name.to_owned(), description, input_schema, effects, definition: None }
}

/// Why a tool has no outcome of its own.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// It was asked for something it can't do, as the sentence says.
    #[error("{0}")]
    Refused(String),
    /// It was cancelled or took too long.
    #[error("ended")]
    Ended(Outcome),
    /// Its console failed.
    #[error(transparent)]
    Hand(#[from] HandError),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Press {
    buttons: Vec<Button>,
    #[serde(default = "usual_press")]
    frames: u32,
}

fn usual_press() -> u32 {
    PRESS
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wait {
    #[serde(default = "usual_wait")]
    frames: u32,
}

fn usual_wait() -> u32 {
    WAIT
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Memory {
    address: Address,
    #[serde(default = "one")]
    length: u32,
}

fn one() -> u32 {
    1
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Address {
    Number(u32),
    Text(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    #[serde(default = "quick")]
    name: String,
}

fn quick() -> String {
    QUICK.to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// Executes one call.
pub(super) async fn execute(
    instance: &Instance,
    core: CoreKind,
    call: &Call,
    context: &CallContext,
) -> Result<Outcome, HandError> {
    let arguments = &call.arguments;
    let done = match call.tool.as_str() {
        "press" => press(instance, arguments, context).await,
        "wait" => wait(instance, arguments, context).await,
        "screenshot" => screenshot(instance, arguments, context).await,
        "read_memory" => read_memory(instance, core, arguments, context).await,
        "save" => save(instance, arguments, context).await,
        "load" => load(instance, arguments, context).await,
        "reset" => reset(instance, arguments, context).await,
        other => return Err(HandError::UnknownTool(other.to_owned())),
    };
    let mut outcome = match done {
        Err(Failure::Refused(sentence)) => Outcome::error(sentence),
        Ok(outcome) | Err(Failure::Ended(outcome)) => outcome,
        Err(Failure::Hand(error)) => return Err(error),
    };
    let notices = instance.notices().into_iter().map(|notice| Content::Text(format!("[{notice}]")));
    outcome.content.extend(notices);
    Ok(outcome)
}

fn decode<T: DeserializeOwned>(tool: &str, arguments: &Map<String, Value>) -> Result<T, Failure> {
    serde_json::from_value(Value::Object(arguments.clone())).map_err(|error| {
        Failure::Refused(format!(
            "The arguments of {tool} are wrong: {error}. Call it again as its schema says."
        ))
    })
}

async fn press(
    instance: &Instance,
    arguments: &Map<String, Value>,
    context: &CallContext,
) -> Result<Outcome, Failure> {
    let Press { buttons, frames } = decode("press", arguments)?;
    if buttons.is_empty() {
        return Err(Failure::Refused("buttons is empty; name one, or use wait to press none.".into()));
    }
    let names: Vec<_> = buttons.iter().map(|button| button.name()).collect();
    run(instance, buttons, frames, &format!("Held {}", names.join(" and ")), context).await
}

async fn wait(
    instance: &Instance,
    arguments: &Map<String, Value>,
    context: &CallContext,
) -> Result<Outcome, Failure> {
    let Wait { frames } = decode("wait", arguments)?;
    run(instance, Vec::new(), frames, "Waited", context).await
}

async fn run(
    instance: &Instance,
    held: Vec<Button>,
    frames: u32,
    did: &str,
    context: &CallContext,
) -> Result<Outcome, Failure> {
    if !(1..=MOST_FRAMES).contains(&frames) {
        return Err(Failure::Refused(format!("frames must be between 1 and {MOST_FRAMES}.")));
    }
    let (reply, bytes, stopped) = ask(instance, Request::Run { held, frames }, &[], context, frames).await?;
    let stands = stands(instance, &reply, bytes).await?;
    let ran = stands.frames;
    let (ending, text) = match stopped.filter(|_| ran < frames) {
        None => (Ending::Ok, format!("{did} for {ran} frames.")),
        Some(Ending::Timeout) => {
            (Ending::Timeout, format!("{did} for {ran} of {frames} frames; it took too long. Ask for fewer."))
        }
        Some(ending) => (ending, format!("{did} for {ran} of {frames} frames; then it was cancelled.")),
    };
    Ok(stands.shown(ending, text))
}

async fn screenshot(
    instance: &Instance,
    arguments: &Map<String, Value>,
    context: &CallContext,
) -> Result<Outcome, Failure> {
    let Nothing {} = decode("screenshot", arguments)?;
    let (_, picture, _) = ask(instance, Request::Show, &[], context, 0).await?;
    Ok(Outcome { ending: Ending::Ok, content: vec![image(picture)], reply: None })
}

async fn read_memory(
    instance: &Instance,
    core: CoreKind,
    arguments: &Map<String, Value>,
    context: &CallContext,
) -> Result<Outcome, Failure> {
    let Memory { address, length } = decode("read_memory", arguments)?;
    let last = core.last_address();
    let address = match address {
        Address::Number(number) => Some(number),
        Address::Text(text) => match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        },
    };
    let Some(address) = address.filter(|address| *address <= last) else {
        return Err(Failure::Refused(format!(
            "address must be a number from 0 to {last}, or such as \"0xc000\"."
        )));
    };
    if !(1..=MOST_MEMORY).contains(&length) {
        return Err(Failure::Refused(format!("length must be between 1 and {MOST_MEMORY} bytes.")));
    }
    let length = length.min(last - address + 1);
    let (_, bytes, _) = ask(instance, Request::Read { address, length }, &[], context, 0).await?;
    Ok(Outcome::ok(dump(address, &bytes)))
}

/// Sixteen bytes a line, behind their address.
fn dump(address: u32, bytes: &[u8]) -> String {
    let mut text = String::new();
    for (line, bytes) in (address..).step_by(16).zip(bytes.chunks(16)) {
        let hex: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        text.push_str(&format!("{line:04x}: {}\n", hex.join(" ")));
    }
    text
}

async fn save(
    instance: &Instance,
    arguments: &Map<String, Value>,
    context: &CallContext,
) -> Result<Outcome, Failure> {
    let Named { name } = decode("save", arguments)?;
    save_as(instance, name.clone(), context).await?;
    Ok(Outcome::ok(format!("Saved as {name}.")))
}

async fn load(
    instance: &Instance,
    arguments: &Map<String, Value>,
    context: &CallContext,
) -> Result<Outcome, Failure> {
    let Named { name } = decode("load", arguments)?;
    let stands = go_back_to(instance, name.clone(), context).await?;
    Ok(stands.shown(Ending::Ok, format!("The game stands as it was saved as {name}.")))
}

async fn reset(
    instance: &Instance,
    arguments: &Map<String, Value>,
    context: &CallContext,
) -> Result<Outcome, Failure> {
    let Nothing {} = decode("reset", arguments)?;
    let (reply, bytes, _) = ask(instance, Request::Reset, &[], context, 0).await?;
    Ok(stands(instance, &reply, bytes).await?.shown(Ending::Ok, "Switched off and on.".into()))
}

/// Keeps where the game stands by a name.
pub(super) async fn checkpoint(instance: &Instance, name: &str) -> Result<(), HandError> {
    told(save_as(instance, name.to_owned(), &CallContext::quiet(CancellationToken::new())).await)
}

/// Goes back to where the game stood.
pub(super) async fn restore(instance: &Instance, name: &str) -> Result<(), HandError> {
    told(go_back_to(instance, name.to_owned(), &CallContext::quiet(CancellationToken::new())).await).map(drop)
}

fn told<T>(done: Result<T, Failure>) -> Result<T, HandError> {
    let refused = |why: String| HandError::Unavailable { why, remedy: "try again with what it says".into() };
    done.map_err(|failure| match failure {
        Failure::Hand(error) => error,
        Failure::Refused(why) => refused(why.trim_end_matches('.').to_owned()),
        Failure::Ended(_) => refused("it took too long".into()),
    })
}

async fn save_as(instance: &Instance, name: String, context: &CallContext) -> Result<(), Failure> {
    let can_not = |error: &dyn std::fmt::Display| Failure::Refused(format!("Can't save: {error}."));
    states::check(&name).map_err(|error| can_not(&error))?;
    let (reply, bytes, _) =
        ask(instance, Request::Run { held: Vec::new(), frames: 0 }, &[], context, 0).await?;
    let Stands { state, .. } = Stands::of(&reply, bytes)?;
    let states = instance.states.clone();
    blocking(move || states.save(&name, &state)).await?.map_err(|error| can_not(&error))
}

async fn go_back_to(instance: &Instance, name: String, context: &CallContext) -> Result<Stands, Failure> {
    let states = instance.states.clone();
    let state = blocking(move || states.named(&name))
        .await?
        .map_err(|error| Failure::Refused(format!("Can't load: {error}.")))?;
    ask(instance, Request::Restore, &state, context, 0).await?;
    let (reply, bytes, _) =
        ask(instance, Request::Run { held: Vec::new(), frames: 0 }, &[], context, 0).await?;
    stands(instance, &reply, bytes).await
}

/// Asks the worker; what it refuses is a tool's failure.
async fn ask(
    instance: &Instance,
    request: Request,
    bytes: &[u8],
    context: &CallContext,
    frames: u32,
) -> Result<(Reply, Vec<u8>, Option<Ending>), Failure> {
    let asker = Asker { cancel: &context.cancel, progress: Some((&*context.progress, frames)), limit: LIMIT };
    let ended = |ending, text: &str| Err(Failure::Ended(Outcome::ended(ending, text)));
    match instance.ask(request, bytes, &asker).await? {
        Answer::Given { reply: Reply::Refused { why }, .. } => {
            Err(Failure::Refused(format!("It can't: {why}.")))
        }
        Answer::Given { reply, bytes, stopped } => Ok((reply, bytes, stopped)),
        Answer::NotAsked => ended(Ending::Cancelled, "Cancelled before it began."),
        Answer::Killed(ending) => {
            let how = if ending == Ending::Timeout { "It took too long" } else { "Cancelled" };
            let rest =
                "the emulator did not stop, so it was ended; the game stands where it did before this call";
            ended(ending, &format!("{how}; {rest}."))
        }
    }
}

/// Where a game stands.
struct Stands {
    frames: u32,
    picture: Vec<u8>,
    state: Vec<u8>,
    note: Option<String>,
}

impl Stands {
    fn of(reply: &Reply, mut bytes: Vec<u8>) -> Result<Self, Failure> {
        match *reply {
            Reply::Stands { frames, picture } if picture as usize <= bytes.len() => {
                let state = bytes.split_off(picture as usize);
                Ok(Self { frames, picture: bytes, state, note: None })
            }
            _ => Err(Failure::Refused("The emulator gives no sensible answer.".into())),
        }
    }

    fn shown(self, ending: Ending, text: String) -> Outcome {
        let note = self.note.map(|note| Content::Text(format!("[{note}]")));
        let content = [Content::Text(text), image(self.picture)].into_iter().chain(note).collect();
        Outcome { ending, content, reply: None }
    }
}

/// Keeps where the game stands, so that the next instance goes on from there.
async fn stands(instance: &Instance, reply: &Reply, bytes: Vec<u8>) -> Result<Stands, Failure> {
    let mut stands = Stands::of(reply, bytes)?;
    if let Err(error) = instance.keep(std::mem::take(&mut stands.state)).await {
        stands.note =
            Some(format!("where the game stands can't be kept, and is lost with this hand: {error}"));
    }
    Ok(stands)
}

fn image(png: Vec<u8>) -> Content {
    Content::Image { data: Bytes::from(png), mime: "image/png" }
}
