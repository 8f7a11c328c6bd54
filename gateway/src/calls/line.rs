//! Between a running call and who asked for it: news and questions one way, answers the other.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use hands::Progress;
use hands::mcp::{Ask as AskCaller, Notice, Object, Unasked};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::{Answer, CallError};

/// Pieces of news that wait for a slow listener before it misses some.
const NEWS_WAITING_MAX: usize = 256;
/// Most bytes of what a call printed that wait for a slow listener, beside the latest piece.
const OUTPUT_WAITING_MAX: usize = 256 << 10;
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

impl Said {
    /// How much of it was printed, in bytes.
    fn printed(&self) -> usize {
        match self {
            Self::Output(text) => text.len(),
            Self::Step(_) | Self::Notice(_) => 0,
        }
    }
}

/// What a running call and its askers share.
pub(super) struct Line {
    pub(super) cancel: CancellationToken,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// How many still want the outcome.
    askers: usize,
    /// News that somebody among them has not heard.
    said: VecDeque<Piece>,
    /// The number of the first of these, from the beginning of the call.
    first: u64,
    /// Bytes of what was printed, in `said`.
    printed: usize,
    questions: VecDeque<Question>,
    ended: Option<Result<Arc<Answer>, CallError>>,
}

struct Piece {
    said: Said,
    /// Askers that have not heard it.
    unheard: usize,
}

impl Line {
    pub(super) fn new(cancel: CancellationToken) -> Self {
        Self { cancel, state: Mutex::default(), changed: Notify::new() }
    }

    /// Tells everybody who asked, once.
    pub(super) fn tell(&self, end: Result<Answer, CallError>) {
        self.state().ended.get_or_insert_with(|| end.map(Arc::new));
        self.changed.notify_waiters();
    }

    fn say(&self, said: Said) {
        let mut state = self.state();
        let unheard = state.askers;
        state.printed += said.printed();
        state.said.push_back(Piece { said, unheard });
        while state.said.len() > NEWS_WAITING_MAX
            || (state.printed > OUTPUT_WAITING_MAX && state.said.len() > 1)
        {
            state.forget_first();
        }
        state.forget_heard();
        drop(state);
        self.changed.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What an asker hears next, if there is anything; `next` is the number of the news that it has not heard.
    fn hear(&mut self, next: &mut u64) -> Option<News> {
        // What it missed is skipped.
        let at = next.saturating_sub(self.first);
        if let Some(piece) = usize::try_from(at).ok().and_then(|at| self.said.get_mut(at)) {
            let said = piece.said.clone();
            piece.unheard = piece.unheard.saturating_sub(1);
            *next = self.first + at + 1;
            self.forget_heard();
            return Some(said.into());
        }
        if let Some(end) = &self.ended {
            return Some(News::Ended(end.clone()));
        }
        while let Some(question) = self.questions.pop_front() {
            if question.is_open() {
                return Some(News::Question(question));
            }
        }
        None
    }

    fn forget_heard(&mut self) {
        while self.said.front().is_some_and(|piece| piece.unheard == 0) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some(piece) = self.said.pop_front() {
            self.printed -= piece.said.printed();
            self.first += 1;
        }
    }

    /// The number of the news that comes next.
    fn end(&self) -> u64 {
        self.first + self.said.len() as u64
    }
}

/// The hand's end of a line.
pub(super) struct HandsEnd(pub(super) Arc<Line>);

impl Progress for HandsEnd {
    fn step(&self, what: &str) {
        self.0.say(Said::Step(Arc::from(what)));
    }

    fn output(&self, text: &str) {
        self.0.say(Said::Output(Arc::from(text)));
    }

    fn notice(&self, notice: Notice) {
        self.0.say(Said::Notice(Arc::new(notice)));
    }
}

#[async_trait]
impl AskCaller for HandsEnd {
    async fn ask(&self, questions: Object) -> Result<Object, Unasked> {
        let (answer, answered) = oneshot::channel();
        {
            let waiting = &mut self.0.state().questions;
            waiting.retain(Question::is_open);
            if waiting.len() >= QUESTIONS_WAITING_MAX {
                return Err(Unasked::GivenUp);
            }
            waiting.push_back(Question { asked: questions, answer });
        }
        self.0.changed.notify_waiters();
        tokio::select! {
            answered = answered => answered.unwrap_or(Err(Unasked::GivenUp)),
            () = self.0.cancel.cancelled() => Err(Unasked::GivenUp),
        }
    }
}

/// An asker's hold on a running call. When the last one is dropped before the end, the call is cancelled.
pub struct Ticket {
    line: Arc<Line>,
    /// The number of the news that it has not heard.
    next: u64,
}

impl Ticket {
    pub(super) fn join(line: &Arc<Line>) -> Self {
        let mut state = line.state();
        state.askers += 1;
        let next = state.end();
        drop(state);
        Self { line: line.clone(), next }
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
        let Self { line, next } = self;
        loop {
            let mut changed = pin!(line.changed.notified());
            // Before the look, so that nothing is missed between the two.
            changed.as_mut().enable();
            if let Some(news) = line.state().hear(next) {
                return news;
            }
            changed.await;
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
        let mut state = self.line.state();
        state.askers -= 1;
        let unheard = usize::try_from(self.next.saturating_sub(state.first)).unwrap_or(usize::MAX);
        for piece in state.said.iter_mut().skip(unheard) {
            piece.unheard = piece.unheard.saturating_sub(1);
        }
        state.forget_heard();
        let given_up = state.askers == 0 && state.ended.is_none();
        drop(state);
        if given_up {
            self.line.cancel.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(news: News) -> String {
        match news {
            News::Output(text) => text.to_string(),
            News::Ended(_) => "the end".to_owned(),
            _ => panic!("neither output nor the end"),
        }
    }

    fn line() -> Arc<Line> {
        Arc::new(Line::new(CancellationToken::new()))
    }

    #[tokio::test]
    async fn each_asker_hears_what_was_said_since_it_joined_and_then_the_end() {
        let line = line();
        let hand = HandsEnd(line.clone());
        let mut first = Ticket::join(&line);
        hand.output("1");
        let mut second = Ticket::join(&line);
        hand.output("2");
        line.tell(Err(CallError::Closing));
        for (ticket, heard) in [(&mut first, &["1", "2", "the end"][..]), (&mut second, &["2", "the end"])] {
            for expected in heard {
                assert_eq!(output(ticket.next().await), *expected);
            }
        }
        assert!(line.state().said.is_empty(), "what everybody heard is kept");
    }

    #[tokio::test]
    async fn a_slow_asker_misses_the_oldest_and_what_nobody_waits_for_is_forgotten() {
        let line = line();
        let hand = HandsEnd(line.clone());
        let (mut slow, gone) = (Ticket::join(&line), Ticket::join(&line));
        for number in 0..NEWS_WAITING_MAX + 10 {
            hand.output(&number.to_string());
        }
        assert_eq!(line.state().said.len(), NEWS_WAITING_MAX);
        drop(gone);
        assert_eq!(output(slow.next().await), "10");
        assert_eq!(line.state().said.len(), NEWS_WAITING_MAX - 1);
        assert!(!line.cancel.is_cancelled());
        drop(slow);
        assert!(line.state().said.is_empty() && line.cancel.is_cancelled());
        hand.output("to nobody");
        assert!(line.state().said.is_empty());
    }

    #[tokio::test]
    async fn what_waits_for_a_slow_asker_has_a_size() {
        let line = line();
        let hand = HandsEnd(line.clone());
        let mut slow = Ticket::join(&line);
        for _ in 0..20 {
            hand.output(&"x".repeat(64 << 10));
        }
        assert!(line.state().printed <= OUTPUT_WAITING_MAX, "{} bytes wait", line.state().printed);
        hand.output(&"y".repeat(1 << 20));
        assert!(output(slow.next().await).starts_with('y'), "the latest is heard");
        assert_eq!(line.state().printed, 0);
    }

    #[tokio::test]
    async fn an_asker_that_waits_is_woken() {
        let line = line();
        let mut ticket = Ticket::join(&line);
        let hand = HandsEnd(line.clone());
        let (heard, ()) = tokio::join!(ticket.next(), async {
            tokio::task::yield_now().await;
            hand.output("at last");
        });
        assert_eq!(output(heard), "at last");
    }
}
