//! Compaction: a summary takes the place of what a model was told. The log keeps what it stands for.

use super::model::{Block, EmitNothing, Message, ModelError, Request, Thought, Transcript};
use super::waker::Waker;
use super::{Brain, WakeError, ask, context};
use crate::session::{Body, ModelStop, NewEvent, Purpose, RetryStatus, Seq, State, TOO_LONG, What};

/// Most characters of a conversation that is to be summarized. Of a longer one, beginning and end.
const CHARS_MAX: usize = 400_000;
/// The same, when the model has said that it was told too much.
const CHARS_MAX_TOO_LONG: usize = 100_000;
/// What the model is asked for.
const SYSTEM: &str = "You summarize a conversation between a person and an agent that works with tools, so that the agent \
     can go on without the conversation. Answer with the summary alone.";
const ASK: &str = "Summarize the conversation above for the agent that goes on with it: what the person wants, what was \
     done and found out, which files and places matter, what is still to be done, and what must not be done again. Keep \
     names, paths, numbers and decisions as they are.";

impl Waker<'_> {
    /// One summary, or one failure, in the log.
    pub(super) async fn compact(&self, brain: &Brain) -> Result<(), WakeError> {
        let through = through(&self.state);
        let chars = if self.state.too_long { CHARS_MAX_TOO_LONG } else { CHARS_MAX };
        let Some(text) = context::text(&self.state, through, chars) else {
            let message =
                "the model was told too much, and there is nothing that a summary could replace".to_owned();
            let error = self.error(TOO_LONG, message, RetryStatus::Terminal);
            self.append(&[error]).await?;
            return Ok(());
        };
        let question = format!("{text}\n\n{ASK}");
        let messages = vec![Message::user(vec![Block::Text(question)])];
        let transcript = Transcript { system: SYSTEM.to_owned(), messages };
        let Some((start, _)) = self.begin(brain, Some(Purpose::Compaction)).await? else { return Ok(()) };
        let request = Request { transcript: &transcript, tools: &[], settings: &brain.settings };
        let mut nobody = EmitNothing;
        let answer = tokio::select! {
            thought = brain.model.think(&request, &mut nobody) => thought,
            stopped = self.stopped() => {
                stopped?;
                self.append(&[self.unanswered(start)]).await?;
                return Ok(());
            }
            () = self.cancel.cancelled() => return Ok(()),
        };
        let answer = answer.and_then(|thought| match summary(&thought) {
            Some(summary) => Ok((thought, summary)),
            None => Err(ModelError::Nonsense { why: "it was asked for a summary and wrote none".to_owned() }),
        });
        let events: Vec<NewEvent> = match answer {
            Ok((thought, summary)) => vec![
                self.event(&Body::ContextCompacted { through, summary }),
                self.event(&Body::ModelRequestEnd {
                    model_request_start_id: start,
                    model_usage: ask::model_usage(thought.usage),
                    ttft_ms: u64::try_from(thought.ttft.as_millis()).ok(),
                    is_error: false,
                    stop: Some(ask::model_stop(thought.stop)),
                }),
            ],
            Err(error) => self.failure(start, &error),
        };
        self.append(&events).await?;
        Ok(())
    }
}

/// The last event that a summary is to stand for: what a person has just said stays as it is, unless the model is in the
/// middle of its work on it.
fn through(state: &State) -> Seq {
    let fresh = || state.told_to_model().filter(|told| told.seq > state.answered);
    if fresh().any(|told| matches!(told.what, What::Result { .. })) {
        return state.seq;
    }
    let said = fresh().find(|told| matches!(told.what, What::Said { .. }));
    said.map_or(state.seq, |said| Seq(said.seq.0 - 1))
}

/// What the model wrote, when it is a summary.
fn summary(thought: &Thought) -> Option<String> {
    if ask::model_stop(thought.stop) == ModelStop::Refusal {
        return None;
    }
    let text = thought.blocks.iter().filter_map(|block| match block {
        Block::Text(text) => Some(text.as_str()),
        _ => None,
    });
    let text: String = text.collect();
    (!text.trim().is_empty()).then_some(text)
}
