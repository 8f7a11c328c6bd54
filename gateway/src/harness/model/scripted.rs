//! A provider without a model: what it says stands in the prompt. For tests and demonstrations.
//!
//! # Writing a script
//!
//! A script is a text with lines that begin with `@`; all other lines are prose, and mean nothing. It is the last message
//! of the user's that has such lines, else the system text. With each thought, the model plays one step of it; steps are
//! told apart by `@then`.
//!
//! ```text
//! List the files, please.
//! @say I will look.
//! @call sandbox__bash {"command": "ls"}
//! @then
//! @say There is: {{result}}
//! ```
//!
//! | line | what the model does |
//! |---|---|
//! | `@say TEXT` | says it; the next `@say` of the same step is the next line of it |
//! | `@think TEXT` | thinks it |
//! | `@call TOOL {…}` | calls the tool; several in one step are called at once. What is no JSON object is sent as it stands: broken arguments |
//! | `@call*100 TOOL {…}` | calls it 100 times at once |
//! | `@wait 200ms` | waits, here 200 milliseconds; `2s` are seconds |
//! | `@nothing` | says nothing |
//! | `@stop REASON` | ends the thought for this reason: `end_turn`, `tool_use`, `max_tokens`, `refusal`, `pause`, `context_full` |
//! | `@fail KIND` | fails, after what stands before it was told: `rate_limited` (with a time, `2s`, it asks to wait), `overloaded`, `failed`, `unreachable`, `broken_off`, `silent`, `refused`, `not_found`, `bad_key`, `context_too_long`, `nonsense` |
//! | `@then` | ends the step |
//! | `@loop` | when the last step was played, it goes on with the step in which this stands, for ever |
//!
//! In texts and arguments, `{{result}}` is the text of the last result, `{{result 2}}` that of the second one since the
//! script began, `{{results}}` their number, and `{{tools}}` the names of the tools that the model was given.
//!
//! After the last step it says `Done.`. When there is no script, or the user has said something else since, it says what
//! it was told.
//!
//! **Invariant:** what it does is a pure function of the request. Which step is next is the number of thoughts, that is of
//! messages of the assistant, behind the script. So a failure stays until the script is another.

mod script;

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::draft::Draft;
use super::{Block, Emit, Model, ModelError, Opaque, Request, Role, Seen, Stop, Thought, ToolInput, Usage};

pub use script::{Act, Failure};

/// Characters that count as a token.
const TOKEN: usize = 4;
/// Most characters of what it was told that it repeats.
const ECHO_MAX: usize = 500;
/// The longest silence that it can be asked for.
const SILENCE: Duration = Duration::from_mins(5);

/// What it does with one request.
#[derive(Clone, Debug, PartialEq)]
pub struct Play {
    /// One after the other. A failure is the last.
    pub acts: Vec<Act>,
    /// Why the thought ends.
    pub stop: Stop,
    /// What it costs. Nothing is cached here.
    pub usage: Usage,
    /// The number of the first call, for its id.
    pub first_call: usize,
}

/// What the scripted model does with a request. Pure.
pub fn play(request: &Request<'_>) -> Play {
    let (mut acts, stop) = acts(request);
    if let Some(failure) = acts.iter().position(|act| matches!(act, Act::Fail(_))) {
        acts.truncate(failure + 1);
    }
    let calls = acts.iter().any(|act| matches!(act, Act::Call { .. }));
    let stop = stop.unwrap_or(if calls { Stop::ToolUse } else { Stop::EndTurn });
    let usage = Usage { input: read(request), output: acts.iter().map(written).sum(), ..Usage::default() };
    Play { acts, stop, usage, first_call: first_call(request) }
}

/// The scripted model, which takes as much time as a real one if it is told to.
pub(super) struct Scripted {
    /// Before the first token.
    pub(super) first_token: Duration,
    /// For each token.
    pub(super) token: Duration,
}

#[async_trait]
impl Model for Scripted {
    async fn think(&self, request: &Request<'_>, out: &mut dyn Emit) -> Result<Thought, ModelError> {
        let play = play(request);
        let mut draft = Draft::new(out);
        draft.usage = play.usage;
        sleep(self.first_token).await;
        let (mut call, mut part) = (play.first_call, 0);
        let mut before: Option<&Act> = None;
        for act in &play.acts {
            let goes_on = matches!((before, act), (Some(Act::Say(_)), Act::Say(_)));
            if !goes_on {
                part += 1;
            }
            match act {
                Act::Wait(time) => sleep(*time).await,
                Act::Fail(failure) => return Err(failure.error()),
                Act::Say(text) => {
                    draft.text(part, if goes_on { "\n" } else { "" });
                    for token in text.split_inclusive(' ') {
                        sleep(self.token).await;
                        draft.text(part, token);
                    }
                }
                Act::Think(text) => {
                    for token in text.split_inclusive(' ') {
                        sleep(self.token).await;
                        draft.thinking(part, token);
                    }
                    let value = json!({"signature": "only-for-the-scripted-provider"});
                    draft.opaque(part, Opaque { provider: "scripted".to_owned(), value });
                }
                Act::Call { name, input } => {
                    draft.tool(part, Some(&call_id(call)), name);
                    call += 1;
                    sleep(self.token).await;
                    match input {
                        ToolInput::Object(object) => draft.arguments(part, &Value::Object(object.clone())),
                        ToolInput::Broken(text) => draft.arguments(part, &text.as_str().into()),
                    }
                }
            }
            before = Some(act);
        }
        Ok(draft.finish(play.stop))
    }
}

/// The id of a call: unique within a transcript, and the same whenever the transcript is.
pub fn call_id(number: usize) -> String {
    format!("scripted_{number}")
}

/// One more than there are calls, and than the last one's own number.
fn first_call(request: &Request<'_>) -> usize {
    let blocks = request.transcript.messages.iter().flat_map(|message| &message.blocks);
    let uses = blocks.filter_map(|block| match block {
        Block::ToolUse(tool_use) => Some(tool_use.id.as_str()),
        Block::Text(_) | Block::Image(_) | Block::Thinking(_) | Block::ToolResult(_) => None,
    });
    let number =
        |id: &str| id.strip_prefix("scripted_")?.parse::<u32>().ok().and_then(|n| usize::try_from(n).ok());
    let (count, last) = uses.fold((0, 0), |(count, last), id| (count + 1, last.max(number(id).unwrap_or(0))));
    count.max(last) + 1
}

/// The acts of the step that is next, and why it ends if it says so.
fn acts(request: &Request<'_>) -> (Vec<Act>, Option<Stop>) {
    let messages = &request.transcript.messages;
    let found = messages
        .iter()
        .rposition(|message| message.role == Role::User && texts(&message.blocks).any(script::is_script));
    let (script, since) = match found {
        Some(at) => (texts(&messages[at].blocks).collect::<Vec<_>>().join("\n"), &messages[at + 1..]),
        None => (request.transcript.system.clone(), &messages[..]),
    };
    // Beside results, words of the user's are a note. Alone, they are a new prompt.
    let other = since.iter().rev().find(|message| {
        message.role == Role::User
            && texts(&message.blocks).next().is_some()
            && !message.blocks.iter().any(|block| matches!(block, Block::ToolResult(_)))
    });
    let over = found.is_some() && other.is_some() || found.is_none() && !script::is_script(&script);
    if over {
        let told: String =
            other.iter().flat_map(|message| texts(&message.blocks)).collect::<Vec<_>>().join("\n");
        let told: String = told.chars().take(ECHO_MAX).collect();
        let text = if told.is_empty() { "Nothing was said.".to_owned() } else { format!("You said: {told}") };
        return (vec![Act::Say(text)], None);
    }
    let played = since.iter().filter(|message| message.role == Role::Assistant).count();
    let values = script::Values { results: results(since), tools: names(request) };
    script::step(&script, played, &values)
}

fn texts(blocks: &[Block]) -> impl Iterator<Item = &str> {
    blocks.iter().filter_map(|block| match block {
        Block::Text(text) if !text.trim().is_empty() => Some(text.as_str()),
        Block::Text(_) | Block::Image(_) | Block::Thinking(_) | Block::ToolUse(_) | Block::ToolResult(_) => {
            None
        }
    })
}

fn results(messages: &[super::Message]) -> Vec<String> {
    let results = messages.iter().flat_map(|message| &message.blocks).filter_map(|block| match block {
        Block::ToolResult(result) => Some(seen(&result.content)),
        Block::Text(_) | Block::Image(_) | Block::Thinking(_) | Block::ToolUse(_) => None,
    });
    results.collect()
}

fn seen(content: &[Seen]) -> String {
    let texts = content.iter().map(|seen| match seen {
        Seen::Text(text) => text.as_str(),
        Seen::Image(_) => "(an image)",
    });
    texts.collect::<Vec<_>>().join("\n")
}

fn names(request: &Request<'_>) -> String {
    request.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// About as many tokens as a real model would read.
fn read(request: &Request<'_>) -> u64 {
    let Request { transcript, tools, .. } = request;
    let tools = tools.iter().map(|tool| {
        tool.name.len() + tool.description.len() + Value::Object(tool.input_schema.clone()).to_string().len()
    });
    let said = transcript.messages.iter().flat_map(|message| &message.blocks).map(|block| match block {
        Block::Text(text) => text.len(),
        // Images cost by their size in pixels, which is not known here.
        Block::Image(_) => 1_000 * TOKEN,
        Block::Thinking(thinking) => thinking.text.len(),
        Block::ToolUse(tool_use) => {
            tool_use.name.len() + Value::Object(tool_use.input.to_object()).to_string().len()
        }
        Block::ToolResult(result) => seen(&result.content).len(),
    });
    tokens(transcript.system.len() + tools.sum::<usize>() + said.sum::<usize>())
}

fn written(act: &Act) -> u64 {
    match act {
        Act::Say(text) | Act::Think(text) => tokens(text.len()),
        Act::Call { name, input } => tokens(name.len() + Value::Object(input.to_object()).to_string().len()),
        Act::Wait(_) | Act::Fail(_) => 0,
    }
}

fn tokens(bytes: usize) -> u64 {
    bytes.div_ceil(TOKEN) as u64
}

impl Failure {
    /// What a caller sees of it.
    pub fn error(&self) -> ModelError {
        let why = || "the script says so".to_owned();
        match self {
            Self::RateLimited(retry_after) => ModelError::RateLimited { retry_after: *retry_after },
            Self::Overloaded => ModelError::Overloaded { retry_after: None },
            Self::Failed => ModelError::Failed { why: why() },
            Self::Unreachable => ModelError::Unreachable { why: why() },
            Self::BrokenOff => ModelError::BrokenOff { why: why() },
            Self::Silent => ModelError::Silent { silence: SILENCE },
            Self::Refused(why) => ModelError::Refused { why: why.clone() },
            Self::NotFound => ModelError::NotFound { why: why() },
            Self::BadKey => ModelError::BadKey { status: 401, place: why() },
            Self::ContextTooLong => ModelError::ContextTooLong { why: why() },
            Self::Nonsense => ModelError::Nonsense { why: why() },
        }
    }
}
