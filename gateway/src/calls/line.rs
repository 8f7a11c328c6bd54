//! Between a running call and who asked for it: news and questions one way, answers the other.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use hands::Progress;
use hands::mcp::{Ask as AskCaller, Notice, Object, Unasked};
use tokio::sync::{broadcast, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{Answer, CallError};

/// Pieces of news that wait for a slow listener before it misses some.
const NEWS_WAITING_MAX: usize = 256;
/// Questions of one call that wait for whoever asked for it. One more is not put.
const QUESTIONS_WAITING_MAX: usize = 16;

/// What the asker of a running call hears.
pub enum News {
    /// This is being done before it can run.
    Step(Arc<str>),
    /// It printed something.
    Output(Arc<str>),
    /// An MCP server said something about it.
    Notice(Arc<Notice>),
    /// An MCP server wants to know something before it goes on. Heard by one asker.
    Question(Question),
    /// It has ended.
    Ended(Result<Arc<Answer>, CallError>),
}

/// A question of a running call. Dropped without an answer, nobody answered.
#[derive(Debug)]
pub struct Question {
    /// What is asked: key → `{method, params}` (2026-07-28, basic/patterns/mrtr). Empty: it waits for the caller alone.
    pub asked: Object,
    answer: oneshot::Sender<Result<Object, Unasked>>,
}

impl Question {
    /// Answers it: key → result. A call that has ended meanwhile does not hear it.
    pub fn answer(self, answer: Result<Object, Unasked>) {
        let _ = self.answer.send(answer);
    }

    /// Whether the call still waits for the answer.
    pub fn is_open(&self) -> bool {
        !self.answer.is_closed()
    }
}

#[derive(Clone)]
enum Said {
    Step(Arc<str>),
    Output(Arc<str>),
    Notice(Arc<Notice>),
}

/// What a running call and its askers share.
pub(super) struct Line {
    pub(super) cancel: CancellationToken,
    /// How many askers still want the outcome.
    interest: Mutex<usize>,
    said: broadcast::Sender<Said>,
    questions: Mutex<VecDeque<Question>>,
    /// Counts questions, to wake the askers.
    asked: watch::Sender<u64>,
    ended: watch::Sender<Option<Result<Arc<Answer>, CallError>>>,
}

impl Line {
    pub(super) fn new(cancel: CancellationToken) -> Self {
        Self {
            cancel,
            interest: Mutex::new(0),
            said: broadcast::Sender::new(NEWS_WAITING_MAX),
            questions: Mutex::default(),
            asked: watch::Sender::new(0),
            ended: watch::Sender::new(None),
        }
    }

    /// Tells everybody who asked, once.
    pub(super) fn tell(&self, end: Result<Answer, CallError>) {
        self.ended.send_if_modified(|told| {
            let first = told.is_none();
            told.get_or_insert_with(|| end.map(Arc::new));
            first
        });
    }

    fn interest(&self) -> MutexGuard<'_, usize> {
        self.interest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn questions(&self) -> MutexGuard<'_, VecDeque<Question>> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The hand's end of a line.
pub(super) struct HandsEnd(pub(super) Arc<Line>);

impl Progress for HandsEnd {
    fn step(&self, what: &str) {
        let _ = self.0.said.send(Said::Step(Arc::from(what)));
    }

    fn output(&self, text: &str) {
        // Nobody listening is no error.
        let _ = self.0.said.send(Said::Output(Arc::from(text)));
    }

    fn notice(&self, notice: Notice) {
        let _ = self.0.said.send(Said::Notice(Arc::new(notice)));
    }
}

#[async_trait]
impl AskCaller for HandsEnd {
    async fn ask(&self, questions: Object) -> Result<Object, Unasked> {
        let (answer, answered) = oneshot::channel();
        {
            let mut waiting = self.0.questions();
            waiting.retain(Question::is_open);
            if waiting.len() >= QUESTIONS_WAITING_MAX {
                return Err(Unasked::GivenUp);
            }
            waiting.push_back(Question { asked: questions, answer });
        }
        self.0.asked.send_modify(|count| *count += 1);
        tokio::select! {
            answered = answered => answered.unwrap_or(Err(Unasked::GivenUp)),
            () = self.0.cancel.cancelled() => Err(Unasked::GivenUp),
        }
    }
}

/// An asker's hold on a running call. When the last one is dropped before the end, the call is cancelled.
pub struct Ticket {
    line: Arc<Line>,
    said: broadcast::Receiver<Said>,
    asked: watch::Receiver<u64>,
    ended: watch::Receiver<Option<Result<Arc<Answer>, CallError>>>,
}

impl Ticket {
    pub(super) fn join(line: &Arc<Line>) -> Self {
        *line.interest() += 1;
        Self {
            line: line.clone(),
            said: line.said.subscribe(),
            asked: line.asked.subscribe(),
            ended: line.ended.subscribe(),
        }
    }

    /// Whether both are of one call.
    pub fn is_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.line, &other.line)
    }

    /// Has the call end early, whoever else waits for it. Its end is still to come.
    pub fn cancel(&self) {
        self.line.cancel.cancel();
    }

    /// Waits for the next news; the end comes last. News that a slow asker missed is skipped.
    pub async fn next(&mut self) -> News {
        loop {
            match self.said.try_recv() {
                Ok(said) => return said.into(),
                Err(broadcast::error::TryRecvError::Lagged(_)) => continue,
                Err(broadcast::error::TryRecvError::Empty | broadcast::error::TryRecvError::Closed) => {}
            }
            if let Some(end) = self.ended.borrow_and_update().clone() {
                return News::Ended(end);
            }
            let question = self.line.questions().pop_front();
            if let Some(question) = question.filter(Question::is_open) {
                return News::Question(question);
            }
            tokio::select! {
                said = self.said.recv() => match said {
                    Ok(said) => return said.into(),
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return News::Ended(Err(CallError::Closing)),
                },
                changed = self.ended.changed() => if changed.is_err() {
                    return News::Ended(Err(CallError::Closing));
                },
                _ = self.asked.changed() => {}
            }
        }
    }
}

impl From<Said> for News {
    fn from(said: Said) -> Self {
        match said {
            Said::Step(what) => Self::Step(what),
            Said::Output(text) => Self::Output(text),
            Said::Notice(notice) => Self::Notice(notice),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut interest = self.line.interest();
        *interest -= 1;
        if *interest == 0 && self.line.ended.borrow().is_none() {
            self.line.cancel.cancel();
        }
    }
}
