//! What is said in a session while it is said. None of it is kept: the log has what counts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::broadcast;

use super::model::{Delta, Emit};
use crate::session::{Seq, SessionId};

/// Pieces that wait for a slow listener before it misses some.
const WAITING_MAX: usize = 1_024;

/// A piece of what is said, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The event that it was said after: whoever shows both shows that one first.
    pub after: Seq,
    /// What was said.
    pub said: Said,
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// Text of the model that goes on.
    Text(Arc<str>),
    /// Thinking of the model that goes on.
    Thinking(Arc<str>),
    /// What a running call prints.
    Output(Arc<str>),
}

/// Who listens, by session. A session is in it only while somebody does.
#[derive(Debug, Default)]
pub struct Voices(Mutex<HashMap<SessionId, broadcast::Sender<Piece>>>);

impl Voices {
    /// What is said in a session from now on. A slow listener misses some.
    pub fn listen(&self, id: SessionId) -> broadcast::Receiver<Piece> {
        let mut voices = self.voices();
        voices.retain(|_, voice| voice.receiver_count() > 0);
        voices.entry(id).or_insert_with(|| broadcast::Sender::new(WAITING_MAX)).subscribe()
    }

    pub(super) fn say(&self, id: SessionId, after: Seq, said: Said) {
        if let Some(voice) = self.voices().get(&id) {
            // Nobody listening is no error.
            let _ = voice.send(Piece { after, said });
        }
    }

    fn voices(&self) -> MutexGuard<'_, HashMap<SessionId, broadcast::Sender<Piece>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passes a model's pieces on, and remembers the text.
pub(super) struct Speaker<'a> {
    pub(super) voices: &'a Voices,
    pub(super) id: SessionId,
    /// Where the model was asked.
    pub(super) after: Seq,
    /// What the model has said so far.
    pub(super) text: String,
}

impl Emit for Speaker<'_> {
    fn emit(&mut self, delta: Delta<'_>) {
        match delta {
            Delta::Text(text) => {
                self.text.push_str(text);
                self.voices.say(self.id, self.after, Said::Text(text.into()));
            }
            Delta::Thinking(text) => self.voices.say(self.id, self.after, Said::Thinking(text.into())),
            // The log tells of calls, with their arguments.
            Delta::ToolUse { .. } => {}
        }
    }
}
