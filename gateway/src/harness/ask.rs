//! Asking the model, and writing what it said or why it said nothing.

use jiff::SignedDuration;
use serde_json::Value;

use super::context::{self, wants_compaction};
use super::model::{Again, Block, ModelError, Request, Stop, Thought, ToolInput, ToolUse, Usage};
use super::route::{Route, is_no_room};
use super::voice::Speaker;
use super::waker::{LOOK_EVERY, Waker, result, text_block};
use super::{Brain, NoBrain, WakeError};
use crate::clock;
use crate::session::{
    Body, CallOutcome, EVENT_BYTES_MAX, ErrorSaid, EventId, ModelStop, ModelUsage, NewEvent, Private,
    Purpose, RetryStatus, Seq, Status, StopReason, TOO_LONG,
};

/// Most calls of one answer that are made. Of more, the model is told that they were not.
const CALLS_MADE_MAX: usize = 32;
/// Most calls of one answer that are written at all.
const CALLS_WRITTEN_MAX: usize = 256;
/// Largest text or arguments in one event, in bytes.
const SAID_BYTES_MAX: usize = EVENT_BYTES_MAX / 2;
/// What stands before everything that a model is told.
const SYSTEM: &str = "You work in a session of Manyhands. Everything that is said and done is kept in the session's log, and \
     you may be interrupted and continued at any point of it. Your tools are called HAND__TOOL: each hand is a machine, a \
     device or a service of its own, and keeps its files from one call to the next. When the outcome of a call is \
     unknown, look what it did before you repeat it. What you no longer see of this conversation, session_events reads.";

/// What came of asking.
enum Heard {
    Thought(Box<Thought>),
    Failed(ModelError),
    /// A person said stop.
    Stopped,
}

impl Waker<'_> {
    /// One answer of the model, or one failure, in the log.
    pub(super) async fn think(&self) -> Result<(), WakeError> {
        if let Some(budget) = self.harness.manner.budget.used_up(&self.state.spent, clock::now()) {
            return self.rest(StopReason::BudgetExhausted { budget: budget.to_owned() }).await;
        }
        if !self.waited_for_its_turn().await? {
            return Ok(());
        }
        if let Err(error) = self.harness.sessions.check_room(&self.session.principal).await {
            if !is_no_room(&error) {
                return Err(error.into());
            }
            self.append(&[self.error("no_room", error.to_string(), RetryStatus::Terminal)]).await?;
            return Ok(());
        }
        let brain = match self.harness.brain(self.state.model.as_deref()) {
            Ok(brain) => brain,
            Err(NoBrain(why)) => {
                self.append(&[self.error("no_brain", why, RetryStatus::Terminal)]).await?;
                return Ok(());
            }
        };
        if wants_compaction(&self.state, self.harness.manner.policy) {
            return self.compact(&brain).await;
        }
        let transcript = context::transcript(&self.state, self.harness.manner.policy, SYSTEM.to_owned());
        let tools = self.harness.definitions();
        let Some((start, after)) = self.begin(&brain, None).await? else { return Ok(()) };
        let request = Request { transcript: &transcript, tools: &tools, settings: &brain.settings };
        let (voices, id) = (&self.harness.voices, self.session.id);
        let mut speaker = Speaker { voices, id, after, text: String::new() };
        let heard = tokio::select! {
            thought = brain.model.think(&request, &mut speaker) => match thought {
                Ok(thought) => Heard::Thought(Box::new(thought)),
                Err(error) => Heard::Failed(error),
            },
            stopped = self.stopped() => stopped.map(|()| Heard::Stopped)?,
            // Nothing is lost: whoever comes next asks again.
            () = self.cancel.cancelled() => return Ok(()),
        };
        let events = match heard {
            Heard::Thought(thought) => self.thought(start, *thought),
            Heard::Failed(error) => self.failure(start, &error),
            Heard::Stopped => self.broken_off(start, &speaker.text),
        };
        self.append(&events).await?;
        Ok(())
    }

    /// Waits as long as the last failure asks for. False: look again, something may have happened meanwhile that ends the
    /// wait, such as another model's being wanted.
    async fn waited_for_its_turn(&self) -> Result<bool, WakeError> {
        let Some(again_at) = self.state.failures.again_at else { return Ok(true) };
        let pause = again_at.duration_since(clock::now());
        if pause <= SignedDuration::ZERO {
            return Ok(true);
        }
        self.changed(pause.unsigned_abs().min(LOOK_EVERY)).await?;
        Ok(false)
    }

    /// Says that a model is asked, and where that stands. None: the log has moved on, and the model would not be told of it.
    pub(super) async fn begin(
        &self,
        brain: &Brain,
        purpose: Option<Purpose>,
    ) -> Result<Option<(EventId, Seq)>, WakeError> {
        let (through, model) = (self.state.seq, Some(brain.name.clone()));
        let start = self.event(&Body::ModelRequestStart { through, model, purpose });
        let id = start.id;
        let running = (self.state.status != Status::Running).then(|| self.event(&Body::StatusRunning {}));
        let events: Vec<NewEvent> = running.into_iter().chain([start]).collect();
        Ok(self.append_here(&events).await?.map(|last| (id, last)))
    }

    /// What the model said, its calls, and the outcome of those that can't be made.
    fn thought(&self, start: EventId, thought: Thought) -> Vec<NewEvent> {
        let (mut events, mut refused) = (Vec::new(), Vec::new());
        let (stop, usage, ttft) = (thought.stop, thought.usage, thought.ttft);
        let mut calls = 0;
        for block in thought.blocks {
            match block {
                Block::Text(text) if text.is_empty() => {}
                Block::Text(text) => {
                    let content = Value::Array(vec![text_block(&cut(text))]);
                    events.push(self.event(&Body::AgentMessage { content }));
                }
                Block::Thinking(thinking) => {
                    // It proves the whole text only.
                    let opaque = thinking.opaque.filter(|_| thinking.text.len() <= SAID_BYTES_MAX);
                    let shown = (!thinking.text.is_empty()).then(|| vec![text_block(&cut(thinking.text))]);
                    let mut event = self.event(&Body::AgentThinking { content: shown.map(Value::Array) });
                    let private = opaque.and_then(|opaque| serde_json::to_value(opaque).ok());
                    event.private = private.map(Private);
                    events.push(event);
                }
                Block::ToolUse(tool_use) => {
                    calls += 1;
                    if calls <= CALLS_WRITTEN_MAX {
                        let (event, refusal) = self.tool_use(tool_use, calls);
                        refused.extend(refusal.map(|why| result(event.id, CallOutcome::Error, &why)));
                        events.push(event);
                    }
                }
                // No model of today says these.
                Block::Image(_) | Block::ToolResult(_) => {}
            }
        }
        events.push(self.event(&Body::ModelRequestEnd {
            model_request_start_id: start,
            model_usage: model_usage(usage),
            ttft_ms: u64::try_from(ttft.as_millis()).ok(),
            is_error: false,
            stop: Some(model_stop(stop)),
        }));
        events.extend(refused.iter().map(|body| self.event(body)));
        events
    }

    /// A call that the model asks for, and why it is not made when it is not.
    fn tool_use(&self, tool_use: ToolUse, number: usize) -> (NewEvent, Option<String>) {
        let ToolUse { name, input, .. } = tool_use;
        let mut object = input.to_object();
        let size = serde_json::to_string(&object).map_or(0, |text| text.len());
        let route = self.harness.route(&name);
        let refusal = match (&input, &route) {
            _ if size > SAID_BYTES_MAX => {
                object.clear();
                Some(format!("The arguments are {size} bytes, more than a call may have. The call did not run."))
            }
            (ToolInput::Broken(_), _) => Some(
                "The arguments are no JSON object. The call did not run: ask again, with arguments as the tool's schema \
                 has them."
                    .to_owned(),
            ),
            (_, Route::Nowhere) => {
                Some(format!("There is no tool called {name:?}. The call did not run: use one of those you were given."))
            }
            _ if number > CALLS_MADE_MAX => Some(format!(
                "You asked for more than {CALLS_MADE_MAX} calls at once. This one did not run: ask again for what you \
                 still need."
            )),
            _ => None,
        };
        let name: String = name.chars().take(NAME_CHARS_MAX).collect();
        let (hand, tool) = route.named(&name);
        let body = Body::ToolUse {
            name,
            input: object,
            hand,
            tool,
            call_key: None,
            evaluated_permission: route.permission(),
        };
        (self.event(&body), refusal)
    }

    /// Why the model said nothing, and what becomes of that.
    pub(super) fn failure(&self, start: EventId, error: &ModelError) -> Vec<NewEvent> {
        let end = self.unanswered(start);
        let failures = self.state.failures.count + 1;
        let pause = match error.again() {
            Again::Helps(asked) => self.harness.manner.backoff.pause(failures, asked),
            // Once: it is compacted first.
            Again::Shorter if !self.state.too_long => Some(std::time::Duration::ZERO),
            Again::Shorter | Again::Pointless => None,
        };
        let status = match (pause, error.again()) {
            (Some(pause), _) => {
                RetryStatus::Retrying { after_ms: u64::try_from(pause.as_millis()).unwrap_or(u64::MAX) }
            }
            (None, Again::Helps(_)) => RetryStatus::Exhausted,
            (None, _) => RetryStatus::Terminal,
        };
        tracing::warn!(session.id = %self.session.id, failures, error = %error, "a model did not answer");
        let mut events = vec![end, self.error(word(error), error.to_string(), status)];
        if let RetryStatus::Retrying { .. } = status {
            events.push(self.event(&Body::StatusRescheduled {}));
        }
        events
    }

    /// What was said until a person said stop.
    fn broken_off(&self, start: EventId, text: &str) -> Vec<NewEvent> {
        let said = (!text.trim().is_empty()).then(|| {
            let content = Value::Array(vec![text_block(&cut(text.to_owned()))]);
            self.event(&Body::AgentMessage { content })
        });
        said.into_iter().chain([self.unanswered(start)]).collect()
    }

    /// The end of a request that came to nothing.
    pub(super) fn unanswered(&self, model_request_start_id: EventId) -> NewEvent {
        let model_usage = ModelUsage::default();
        let end = Body::ModelRequestEnd {
            model_request_start_id,
            model_usage,
            ttft_ms: None,
            is_error: true,
            stop: None,
        };
        self.event(&end)
    }

    pub(super) fn error(&self, kind: &str, message: String, retry_status: RetryStatus) -> NewEvent {
        let error = ErrorSaid { kind: kind.to_owned(), message: cut(message) };
        self.event(&Body::SessionError { error, retry_status })
    }
}

/// Longest name of a tool that is written, in characters.
const NAME_CHARS_MAX: usize = 128;

/// The beginning of a text that is too long for an event.
fn cut(mut text: String) -> String {
    if text.len() > SAID_BYTES_MAX {
        text.truncate(text.floor_char_boundary(SAID_BYTES_MAX));
        text.push_str("\n[… the rest is too long for the log …]");
    }
    text
}

pub(super) fn model_usage(usage: Usage) -> ModelUsage {
    ModelUsage {
        input_tokens: usage.input,
        output_tokens: usage.output,
        cache_read_input_tokens: usage.cache_read,
        cache_creation_input_tokens: usage.cache_written,
    }
}

pub(super) fn model_stop(stop: Stop) -> ModelStop {
    match stop {
        Stop::EndTurn => ModelStop::EndTurn,
        Stop::ToolUse => ModelStop::ToolUse,
        Stop::MaxTokens => ModelStop::MaxTokens,
        Stop::Refusal => ModelStop::Refusal,
        Stop::Pause => ModelStop::Pause,
        Stop::ContextFull => ModelStop::ContextFull,
    }
}

/// A model's failure in a word.
fn word(error: &ModelError) -> &'static str {
    match error {
        ModelError::RateLimited { .. } => "rate_limited",
        ModelError::Overloaded { .. } => "overloaded",
        ModelError::Failed { .. } => "provider_failed",
        ModelError::Unreachable { .. } => "unreachable",
        ModelError::BrokenOff { .. } => "broken_off",
        ModelError::Silent { .. } => "silent",
        ModelError::Refused { .. } => "refused",
        ModelError::NotFound { .. } => "not_found",
        ModelError::BadKey { .. } => "bad_key",
        ModelError::NoKey { .. } => "no_key",
        ModelError::ContextTooLong { .. } => TOO_LONG,
        ModelError::Nonsense { .. } => "nonsense",
        ModelError::TooLarge { .. } => "too_large",
    }
}
