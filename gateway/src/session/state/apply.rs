//! What each event changes.

use jiff::SignedDuration;
use serde_json::Value;

use super::{AskedCall, CallStart, Failures, OpenRequest, OthersCall, Spent, State, Status, Told, What};
use crate::session::{Body, Event, EventId, ModelStop, ModelUsage, Private, Purpose, RetryStatus, Seq, Via};

impl State {
    pub(super) fn apply(&mut self, event: &Event) {
        // What this version does not know changes nothing that it does.
        let Some(body) = event.known() else { return };
        let seq = event.seq;
        match body {
            Body::SessionUpdated { model: Some(model), .. } => {
                if self.model.as_ref() != Some(&model) {
                    // What one provider asks to wait is nothing to another.
                    self.failures = Failures::default();
                }
                self.model = Some(model);
            }
            Body::UserMessage { content } => {
                self.news = seq;
                self.person_spoke(event);
                self.later.push(Told { seq, what: What::Said { content } });
            }
            Body::UserInterrupt {} => self.interrupted = seq,
            Body::ToolConfirmation { tool_use_id, result, deny_message } => {
                self.said = seq;
                // The first word counts.
                let waiting = self.calls.iter_mut().find(|call| call.id == tool_use_id);
                if let Some(call) = waiting.filter(|call| call.confirmation.is_none()) {
                    (call.confirmation, call.deny_message) = (Some(result), deny_message);
                }
            }
            Body::AgentThinking { content } => {
                self.brain_spoke(event, What::Thought { content, private: private(event) });
            }
            Body::AgentMessage { content } => self.brain_spoke(event, What::Answered { content }),
            Body::ToolUse { name, input, evaluated_permission: permission, .. } => {
                self.asked(
                    event,
                    AskedCall {
                        id: event.id,
                        name,
                        input,
                        permission,
                        confirmation: None,
                        deny_message: None,
                        started: None,
                    },
                );
            }
            Body::CallStarted { tool_use_id, node, waker, .. } => {
                if let Some(call) = self.calls.iter_mut().find(|call| call.id == tool_use_id) {
                    call.started = Some(CallStart { node, waker });
                }
            }
            Body::ToolResult { tool_use_id, content, output, rest, is_error, .. } => {
                let structured = rest.structured.filter(|_| content.is_empty());
                let what = What::Result { id: tool_use_id, content, structured, output, is_error };
                self.ended(tool_use_id, Told { seq, what });
            }
            other => self.apply_of_loop(event, other),
        }
        self.tell_later();
    }

    /// What the loop says of itself.
    fn apply_of_loop(&mut self, event: &Event, body: Body) {
        let seq = event.seq;
        match body {
            Body::ContextCompacted { through, summary } => self.compact(seq, through, summary),
            Body::ModelRequestStart { through, purpose, .. } => {
                // One before it that never ended keeps nothing back any more.
                self.request = None;
                self.tell_later();
                self.request = Some(OpenRequest { id: event.id, through, purpose });
                self.spent.requests += 1;
            }
            Body::ModelRequestEnd { model_request_start_id, model_usage, is_error, stop, .. } => {
                // An answer that does not say why it ended has ended.
                let stop = if is_error { None } else { stop.or(Some(ModelStop::EndTurn)) };
                self.request_ended(model_request_start_id, model_usage, stop);
            }
            Body::SessionError { error, retry_status } => {
                self.too_long |= error.kind == TOO_LONG;
                self.error = Some(error.message);
                match retry_status {
                    RetryStatus::Retrying { after_ms } => self.retry(event, after_ms, self.error.clone()),
                    RetryStatus::Exhausted | RetryStatus::Terminal => self.gave_up = seq,
                }
            }
            Body::StatusRunning {} => self.now_is(seq, Status::Running),
            Body::StatusRescheduled {} => {
                if event.by.via == Via::Cli {
                    self.person_spoke(event);
                    self.failures = Failures::default();
                }
                self.now_is(seq, Status::Rescheduled);
            }
            Body::StatusIdle { stop_reason } => {
                self.request = None;
                self.rested = seq;
                self.now_is(seq, Status::Idle { stop_reason });
            }
            Body::StatusTerminated {} => self.now_is(seq, Status::Terminated),
            // The others change nothing here.
            _ => {}
        }
    }

    fn now_is(&mut self, seq: Seq, status: Status) {
        if self.status != Status::Terminated {
            (self.status, self.status_at) = (status, seq);
        }
    }

    fn retry(&mut self, event: &Event, after_ms: u64, why: Option<String>) {
        let pause = SignedDuration::from_millis(i64::try_from(after_ms).unwrap_or(i64::MAX));
        let again_at = event.at.saturating_add(pause).ok();
        self.failures = Failures { count: self.failures.count + 1, again_at, why };
    }

    /// What was spent and what failed is measured from here on. What a provider asked to wait it asks still.
    fn person_spoke(&mut self, event: &Event) {
        self.said = event.seq;
        self.spent = Spent { since: Some(event.at), ..Spent::default() };
        self.failures.count = 0;
        self.error = None;
    }

    /// What the loop's own model says belongs to its request; what another brain says waits like a person's word.
    fn brain_spoke(&mut self, event: &Event, what: What) {
        let told = Told { seq: event.seq, what };
        if event.by.via == Via::Loop { self.told.push(told) } else { self.later.push(told) }
    }

    fn asked(&mut self, event: &Event, call: AskedCall) {
        if event.by.via == Via::Loop {
            let (id, name, input) = (call.id, call.name.clone(), call.input.clone());
            let what = What::Called { id, name, input, private: private(event) };
            self.told.push(Told { seq: event.seq, what });
            self.calls.push(call);
        } else {
            self.others.push(OthersCall { id: call.id, name: call.name, input: call.input });
        }
    }

    /// A call of another brain is told with its result, so that none is ever told without one.
    fn ended(&mut self, id: EventId, result: Told) {
        if let Some(place) = self.calls.iter().position(|call| call.id == id) {
            self.calls.remove(place);
            // A refused answer rests, whatever it asked for.
            if self.stop != Some(ModelStop::Refusal) {
                self.news = result.seq;
            }
            self.told.push(result);
        } else if let Some(place) = self.others.iter().position(|call| call.id == id) {
            let OthersCall { id, name, input } = self.others.remove(place);
            let what = What::Called { id, name, input, private: None };
            self.later.extend([Told { seq: result.seq, what }, result]);
        }
    }

    /// Without a reason to stop, it failed.
    fn request_ended(&mut self, id: EventId, usage: ModelUsage, stop: Option<ModelStop>) {
        self.spent.usage.add(usage);
        self.usage.add(usage);
        let Some(request) = self.request.take_if(|request| request.id == id) else { return };
        if stop.is_none() {
            return;
        }
        self.failures = Failures::default();
        if request.purpose != Some(Purpose::Compaction) {
            self.answered = request.through;
            self.stop = stop;
            self.too_long = stop == Some(ModelStop::ContextFull);
            self.context_tokens = usage.context() + usage.output_tokens;
            if stop == Some(ModelStop::Pause) {
                self.told.push(Told { seq: self.seq, what: What::Paused });
            }
        }
    }

    fn compact(&mut self, seq: Seq, through: Seq, text: String) {
        let open: Vec<EventId> = self.calls.iter().map(|call| call.id).collect();
        self.told.retain(|told| {
            told.seq > through || matches!(&told.what, What::Called { id, .. } if open.contains(id))
        });
        self.told.insert(0, Told { seq, what: What::Summary { text, through } });
        (self.too_long, self.context_tokens) = (false, 0);
    }

    /// What waited is told as soon as no model is answering and no call of the loop is open.
    fn tell_later(&mut self) {
        let answering = self.request.as_ref().is_some_and(|request| request.purpose.is_none());
        if self.calls.is_empty() && !answering {
            self.told.append(&mut self.later);
        }
    }
}

/// The word for a transcript that does not fit into the model's context window.
pub const TOO_LONG: &str = "context_too_long";

fn private(event: &Event) -> Option<Value> {
    event.private.as_ref().map(|Private(value)| value.clone())
}
