//! Waiting for the end of what runs for a client: its news on the way, its questions, its cancellation.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hands::mcp::{Notice, Object, Unasked};
use rmcp::model::{CustomNotification, ProgressToken, ServerNotification};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::Face;
use super::super::service::Asked;
use super::super::wire::{About, Asker, Era};
use super::parked::Retried;
use super::{Subject, ask, capabilities};
use crate::calls::{Answer, CallError, News, Question, Ticket};

/// Longest silence on a running call that asked for progress. (Design 2.2: at least every 15 s.)
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
/// Shortest time between two pieces of output on a call.
const PROGRESS_AT_MOST_EVERY: Duration = Duration::from_millis(100);
/// Most characters of output in one piece of news: its end counts.
const PROGRESS_CHARS_MAX: usize = 4_000;
/// How much a sign of life adds to a server's own number: less than any server counts in.
const SIGN_OF_LIFE: f64 = 1e-6;

/// What a client is to be told in the end.
pub(in crate::mcp) enum Heard {
    /// It has ended.
    Answer(Arc<Answer>),
    /// It waits for answers: the result that asks for them.
    Input(Object),
}

impl Face {
    /// Goes on with what waited for this client.
    pub(in crate::mcp) async fn go_on(
        &self,
        retried: Retried,
        asked: &Asked<'_>,
        subject: &Subject,
    ) -> Result<Heard, CallError> {
        match retried {
            Retried::Answered(ticket) => self.hear(ticket, asked, subject).await,
            Retried::Again(ticket, question) => Ok(self.park(ticket, question, asked, subject)),
        }
    }

    /// Waits for the end, or for a question that the client must come back for. A client that cancels, or in the
    /// stateless era goes away, gives up its interest.
    pub(in crate::mcp) async fn hear(
        &self,
        mut ticket: Ticket,
        asked: &Asked<'_>,
        subject: &Subject,
    ) -> Result<Heard, CallError> {
        if asked.era == Era::Modern
            && let Some(question) = self.gateway.mcp.parked.joined(&asked.view.principal, &ticket)
        {
            // A re-send of a call that waits already: the first answer may have been lost.
            return Ok(self.park(ticket, question, asked, subject));
        }
        let asker = asked.asker;
        let mut reporter = Reporter::new(asker);
        let mut asking = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                () = asker.gone.cancelled() => return Err(CallError::Cancelled),
                () = tokio::time::sleep_until(reporter.due()) => reporter.report().await,
                Some((question, answers)) = asking.next(), if !asking.is_empty() => {
                    let question: Question = question;
                    question.answer(answers);
                }
                next = ticket.next() => match next {
                    News::Step(what) => reporter.said = Some(what),
                    News::Output(text) => reporter.add(&text),
                    News::Notice(notice) => reporter.notice(&notice).await,
                    News::Question(question) => {
                        match ask::incapable(&question.asked, &capabilities(asked)) {
                            Some(missing) => question.answer(Err(Unasked::Incapable(missing))),
                            None => match asker.session().filter(|_| asked.era == Era::Legacy) {
                                None => return Ok(self.park(ticket, question, asked, subject)),
                                Some(session) => asking.push(async {
                                    let answers = ask::put(session, &question.asked).await;
                                    (question, answers)
                                }),
                            },
                        }
                    }
                    News::Ended(end) => return end.map(Heard::Answer),
                },
            }
        }
    }

    /// Leaves a call waiting, and asks the client to come back with answers.
    fn park(&self, ticket: Ticket, question: Question, asked: &Asked<'_>, subject: &Subject) -> Heard {
        Heard::Input(self.gateway.mcp.parked.park(&self.gateway, asked, subject, ticket, question))
    }
}

/// Sends progress and log messages: progress strictly increasing, not too seldom, never after the result.
struct Reporter<'a> {
    asker: &'a Asker,
    token: Option<ProgressToken>,
    sent: Option<f64>,
    /// How far one sign of life goes.
    step: f64,
    last: Instant,
    /// What is being done before the call runs.
    said: Option<Arc<str>>,
    waiting: String,
}

impl<'a> Reporter<'a> {
    fn new(asker: &'a Asker) -> Self {
        let token = asker.meta.get_progress_token();
        // The first output goes out at once.
        Self { asker, token, sent: None, step: 1.0, last: Instant::now(), said: None, waiting: String::new() }
    }

    fn due(&self) -> Instant {
        let quiet = self.waiting.is_empty() && self.said.is_none();
        self.last + if quiet { PROGRESS_EVERY } else { PROGRESS_AT_MOST_EVERY }
    }

    fn add(&mut self, text: &str) {
        self.waiting.push_str(text);
        let excess = self.waiting.len().saturating_sub(PROGRESS_CHARS_MAX);
        if excess > 0 {
            let from = self.waiting.ceil_char_boundary(excess);
            self.waiting.drain(..from);
        }
    }

    async fn report(&mut self) {
        self.last = Instant::now();
        // A call that prints has begun: what was done before is over.
        let (step, text) = (self.said.take(), std::mem::take(&mut self.waiting));
        let before = self.sent.unwrap_or_default();
        let progress = (before + self.step).max(before.next_up());
        let message = match step {
            _ if !text.is_empty() => text,
            Some(step) => step.to_string(),
            None => "still running".to_owned(),
        };
        let news = [("progress".to_owned(), json!(progress)), ("message".to_owned(), message.into())];
        self.progressed(progress, Object::from_iter(news)).await;
    }

    async fn notice(&mut self, notice: &Notice) {
        match notice {
            Notice::Progress(params) => self.progress(params).await,
            Notice::Log(params) => self.tell("notifications/message", params.clone()).await,
        }
    }

    /// A server's own progress, with all that it says: its numbers are kept, unless they go back.
    async fn progress(&mut self, params: &Object) {
        self.step = SIGN_OF_LIFE;
        let Some(progress) = params.get("progress").and_then(Value::as_f64) else { return };
        if self.sent.is_none_or(|sent| progress > sent) {
            self.last = Instant::now();
            self.progressed(progress, params.clone()).await;
        }
    }

    /// Progress to this number, when the client asked for any.
    async fn progressed(&mut self, progress: f64, mut params: Object) {
        let Some(token) = &self.token else { return };
        params.insert("progressToken".to_owned(), json!(token));
        self.sent = Some(progress);
        self.tell("notifications/progress", params).await;
    }

    /// As it is, whatever rmcp knows of it, on the stream that answers the call.
    async fn tell(&self, method: &str, params: Object) {
        let mut news = CustomNotification::new(method, Some(Value::Object(params)));
        news.extensions.insert(About(self.asker.id.clone()));
        self.asker.tell(ServerNotification::CustomNotification(news)).await;
    }
}
