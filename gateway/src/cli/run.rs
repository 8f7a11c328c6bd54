//! `manyhands run` and `manyhands wake`: one turn of the built-in loop, as it happens.

use std::cell::Cell;
use std::io::{self, Read as _};

use anyhow::bail;
use axum::body::Body;
use clap::Args;
use http::{Method, Response};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::connect::folder_name;
use super::control::{Owner, Stay, encoded, refusal, with_owner_or};
use super::terminal::{Stream, json as say_json, note, say, say_lines};
use super::{Output, Setting};

/// Whose sessions are meant unless somebody else is named.
const OWNER: &str = "local:owner";
/// Characters of a call's arguments or result that are shown.
const SHOWN: usize = 400;

#[derive(Args)]
pub(super) struct Options {
    /// What is to be done; `-` reads it from standard input
    prompt: String,
    /// In which session, which is made when it is not there [default: the current folder's name]
    #[arg(long, value_name = "NAME")]
    session: Option<String>,
    /// With which model from here on, such as anthropic/claude-sonnet-4-5 [default: the session's, else that of [brain]]
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Whose session a name means
    #[arg(long, value_name = "PRINCIPAL", default_value = OWNER)]
    principal: String,
}

#[derive(Args)]
pub(super) struct Wake {
    /// Its name or id
    session: String,
    /// Whose session a name means
    #[arg(long, value_name = "PRINCIPAL", default_value = OWNER)]
    principal: String,
}

pub(super) async fn run(setting: &Setting, options: Options) -> anyhow::Result<()> {
    let session = options.session.unwrap_or_else(folder_name);
    let prompt = match options.prompt.as_str() {
        "-" => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text)?;
            text
        }
        _ => options.prompt,
    };
    let body = json!({"prompt": prompt, "model": options.model});
    turn(setting, &Turn { session, principal: options.principal }, "run", Some(body)).await
}

pub(super) async fn wake(setting: &Setting, options: Wake) -> anyhow::Result<()> {
    turn(setting, &Turn { session: options.session, principal: options.principal }, "wake", None).await
}

/// In which session a turn is.
struct Turn {
    session: String,
    principal: String,
}

impl Turn {
    /// A command about it.
    fn command(&self, words: &str) -> String {
        let Self { session, principal } = self;
        match principal.as_str() {
            OWNER => format!("`manyhands {words} {session}`"),
            _ => format!("`manyhands {words} {session} --principal {principal}`"),
        }
    }

    /// Says what becomes of it when this command ends before it.
    fn interrupted(&self, owner: &Owner) {
        let (wake, interrupt) = (self.command("wake"), self.command("interrupt"));
        match owner {
            Owner::Here(_) => note(format_args!(
                "manyhands: interrupted, and the turn is not over: {wake} goes on with it, and so does a gateway once one \
                 runs; {interrupt} ends it"
            )),
            Owner::There { .. } => note(format_args!(
                "manyhands: interrupted, and the turn goes on without this command: {} shows it, {interrupt} ends it",
                self.command("session events --follow")
            )),
        }
    }
}

/// Has the loop begin, or go on with, a turn, and shows it.
async fn turn(setting: &Setting, turn: &Turn, how: &str, body: Option<Value>) -> anyhow::Result<()> {
    let path = format!("/sessions/{}/{how}?principal={}", encoded(&turn.session), encoded(&turn.principal));
    let begun = Cell::new(false);
    let interrupted = |owner: &Owner| {
        if begun.get() {
            turn.interrupted(owner);
        }
    };
    let work = async |owner: &mut Owner| hear(owner, setting, &path, body, &begun).await;
    with_owner_or(setting, Stay::Long, interrupted, work).await
}

async fn hear(
    owner: &mut Owner,
    setting: &Setting,
    path: &str,
    body: Option<Value>,
    begun: &Cell<bool>,
) -> anyhow::Result<()> {
    let response: Response<Body> = owner.send(Method::POST, path, body).await?;
    let status = response.status();
    let mut body = response.into_body();
    if !status.is_success() {
        bail!("{}", refusal(&body.collect().await?.to_bytes()));
    }
    begun.set(true);
    let (mut waiting, mut shown) = (Vec::new(), Shown::default());
    loop {
        let data = match body.frame().await {
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            Some(Err(_)) | None => break,
        };
        waiting.extend_from_slice(&data);
        while let Some(end) = waiting.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = waiting.drain(..=end).collect();
            let line: Value = serde_json::from_slice(&line)?;
            if let Some(error) = line["error"].as_str() {
                bail!("{error}");
            }
            match setting.output {
                Output::Json if line["event"].is_object() => say_json(&line["event"])?,
                Output::Json => {}
                Output::Text => shown.line(&line)?,
            }
            shown.note(&line["event"]);
        }
    }
    shown.end()
}

/// What a person sees of a turn.
#[derive(Default)]
struct Shown {
    /// Text came piece by piece, and its line is not ended.
    open: Open,
    stream: Stream,
    /// What was shown of the message that is coming.
    streamed: String,
    /// Why the loop rests.
    rests: Option<Value>,
    /// What came of asking.
    answer: Answer,
    /// Why the last answer ended.
    stop: String,
    kept: Kept,
    /// The last error.
    error: Option<String>,
    /// The session's id.
    session: String,
}

/// Whether a line is begun and not ended.
#[derive(Clone, Copy, Default, PartialEq)]
enum Open {
    #[default]
    No,
    Text,
    Output,
}

impl Shown {
    fn line(&mut self, line: &Value) -> io::Result<()> {
        if let Some(text) = line["text"].as_str() {
            self.streamed.push_str(text);
            return self.piece(text, Open::Text);
        }
        if let Some(text) = line["output"].as_str() {
            return self.piece(text, Open::Output);
        }
        let waits = &line["waits"];
        if let (Some(until), Some(why)) = (waits["until"].as_str(), waits["why"].as_str()) {
            return self.whole(&format!(
                "! {why}: the model is asked again at {until}; `manyhands wake` asks at once, and so does another --model"
            ));
        }
        let event = &line["event"];
        match event["type"].as_str().unwrap_or_default() {
            "agent.message" => {
                let text = text_of(&event["content"]);
                let streamed = !std::mem::take(&mut self.streamed).is_empty();
                self.close()?;
                if streamed { Ok(()) } else { say_lines(text) }
            }
            "agent.tool_use" => {
                let arguments = shortened(&event["input"].to_string());
                self.whole(&format!("→ {} {arguments}", event["name"].as_str().unwrap_or_default()))
            }
            "agent.tool_result" => {
                let outcome = event["outcome"].as_str().unwrap_or_default();
                self.whole(&format!("← {outcome}: {}", shortened(text_of(&event["content"]).trim_end())))
            }
            "agent.thread_context_compacted" => self.whole("(what came before is summarized)"),
            "session.error" => {
                self.streamed.clear();
                let message = event["error"]["message"].as_str().unwrap_or_default();
                self.whole(&match event["retry_status"]["after_ms"].as_u64() {
                    Some(ms) => format!("! {message}: trying again in {:.1} s", Ms(ms).seconds()),
                    None => format!("! {message}"),
                })
            }
            _ => Ok(()),
        }
    }

    fn piece(&mut self, text: &str, kind: Open) -> io::Result<()> {
        if self.open != kind {
            self.close()?;
            self.open = kind;
        }
        self.stream.piece(text)?;
        if text.ends_with('\n') {
            self.open = Open::No;
        }
        Ok(())
    }

    fn whole(&mut self, line: &str) -> io::Result<()> {
        self.close()?;
        say(line)
    }

    fn close(&mut self) -> io::Result<()> {
        self.stream.end()?;
        if std::mem::take(&mut self.open) == Open::No { Ok(()) } else { say("") }
    }

    fn note(&mut self, event: &Value) {
        if let Some(session) = event["session"].as_str() {
            session.clone_into(&mut self.session);
        }
        match event["type"].as_str().unwrap_or_default() {
            "session.status_idle" => self.rests = Some(event["stop_reason"].clone()),
            "session.updated" if event["status"] == "archived" => self.kept = Kept::Archived,
            "span.model_request_start" if event["purpose"].is_null() => self.answer = Answer::Nothing,
            "span.model_request_end" => event["stop"].as_str().unwrap_or_default().clone_into(&mut self.stop),
            "agent.message" => self.answer = Answer::Something,
            "session.error" => self.error = event["error"]["message"].as_str().map(str::to_owned),
            _ => {}
        }
    }

    /// On the error output, so that who reads the answer reads an empty one.
    fn said_nothing(&self) {
        match self.answer {
            Answer::Something => {}
            Answer::Nothing => note("manyhands: the model said nothing"),
            Answer::NotAsked => {
                note("manyhands: there is nothing to go on with: all that was said is answered");
            }
        }
    }

    fn end(mut self) -> anyhow::Result<()> {
        self.close()?;
        let Some(reason) = self.rests.take() else {
            if self.kept == Kept::Archived {
                bail!("the session was archived: nothing goes on in it")
            }
            bail!("the gateway ended before the turn did: `manyhands wake` goes on with it")
        };
        match reason["type"].as_str().unwrap_or_default() {
            "end_turn" => {
                self.said_nothing();
                Ok(())
            }
            "requires_action" => {
                for call in reason["event_ids"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    let session = &self.session;
                    note(format_args!(
                        "manyhands: a call waits for your word: `manyhands confirm {session} {call}`"
                    ));
                }
                Ok(())
            }
            "interrupted" => bail!("somebody stopped it"),
            "max_tokens" if self.stop == "context_full" => bail!(
                "the answer was cut short, for the model's context window is full: what came before is summarized once you \
                 say something"
            ),
            "max_tokens" => bail!("the answer was cut short at its largest size (brain.max_tokens)"),
            "refusal" => bail!("the model will not answer this"),
            "budget_exhausted" => {
                let budget = reason["budget"].as_str().unwrap_or_default();
                bail!("the budget loop.{budget} is used up: `manyhands wake` begins a new one")
            }
            _ => bail!("the model could not be had: {}", self.error.unwrap_or_default()),
        }
    }
}

/// What the model that was asked last has said.
#[derive(Clone, Copy, Default, PartialEq)]
enum Answer {
    #[default]
    NotAsked,
    Nothing,
    Something,
}

/// Whether the session can still be written to.
#[derive(Clone, Copy, Default, PartialEq)]
enum Kept {
    #[default]
    Active,
    Archived,
}

struct Ms(u64);

impl Ms {
    #[expect(clippy::cast_precision_loss, reason = "shown with one digit behind the point")]
    fn seconds(&self) -> f64 {
        self.0 as f64 / 1_000.0
    }
}

fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let text = |block: &Value| match block["text"].as_str() {
                Some(text) => text.to_owned(),
                None => format!("[{}]", block["type"].as_str().unwrap_or("?")),
            };
            blocks.iter().map(text).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

fn shortened(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN).collect();
    if shown.len() < text.len() {
        shown.push_str(" …");
    }
    shown
}
