//! Whether a call may run: what its hand permits, and a person's word where it asks for one.
//!
//! **Invariant:** a call that needs a yes touches its hand only after that yes is in the log, and no two calls use one
//! yes. No tool and no resource gives it. With `ask-owner` the command line of this machine alone does; with `ask` a client
//! may, too, which is believed that it has asked somebody.

use std::sync::Arc;

use hands::mcp::{Ask as _, Object};
use serde_json::{Value, json};

use super::line::HandsEnd;
use super::{Ask, CallError, Inner, Running, Shown, shown};
use crate::access::Principal;
use crate::hand::Permission;
use crate::registry::Registered;
use crate::session::{
    self, At, Confirmation, EventId, Giver, Likeness, LogError, NewEvent, SessionError, Word, Yes,
};

/// What the only question of a call is called.
const QUESTION: &str = "permission";

/// Whether a call may go on.
pub(super) enum Cleared {
    /// It may. What let it, when that is a person's yes.
    Yes(Option<Yes>),
    /// It may not, and the brain is told why.
    No(String),
}

impl Inner {
    /// Whether a call may run that stands in the log. Waits for a person where one can be asked.
    pub(super) async fn cleared(
        &self,
        running: &Running,
        call: EventId,
        permission: Permission,
    ) -> Result<Cleared, CallError> {
        let ask = &running.ask;
        match permission {
            Permission::Allow => return Ok(Cleared::Yes(None)),
            Permission::Deny => return Ok(Cleared::No(denied(running))),
            Permission::Ask | Permission::AskOwner => {}
        }
        let giver = if permission == Permission::Ask { Giver::Anybody } else { Giver::Owner };
        let like = Likeness::of(ask.hand.name.as_str(), &ask.tool.name, &ask.arguments);
        if let Some(yes) = self.sessions.unused_yes(ask.session, &like, giver).await? {
            return Ok(Cleared::Yes(Some(yes)));
        }
        if giver == Giver::Owner {
            return Ok(Cleared::No(unasked(ask, call, giver)));
        }
        // On the command line, or through the client: whichever comes first.
        tokio::select! {
            word = self.word_of(running, call) => Ok(cleared(word?)),
            said = self.put_to_client(running, call, like) => said,
        }
    }

    /// Waits until the log has a person's word.
    async fn word_of(&self, running: &Running, call: EventId) -> Result<Word, CallError> {
        let session = running.ask.session;
        let mut changes = self.sessions.changes(&running.ask.principal);
        changes.watch(session);
        loop {
            if let Some(word) = self.sessions.word(session, call).await? {
                return Ok(word);
            }
            changes.next().await?;
        }
    }

    /// Asks whoever sits behind the client.
    async fn put_to_client(
        &self,
        running: &Running,
        call: EventId,
        like: Likeness,
    ) -> Result<Cleared, CallError> {
        let answer = HandsEnd(Arc::clone(&running.line)).ask(question(running, call)).await;
        let action = answer.ok().and_then(|mut answers| answers.remove(QUESTION));
        let action = action.as_ref().and_then(|answer| answer.get("action")).and_then(Value::as_str);
        let result = match action {
            Some("accept") => Confirmation::Allow,
            Some("decline") => Confirmation::Deny,
            // Nobody was asked, or nobody answered.
            _ => return Ok(Cleared::No(unasked(&running.ask, call, Giver::Anybody))),
        };
        Ok(cleared(self.confirm(running, call, like, result).await?))
    }

    /// Writes a person's word, unless there is one.
    async fn confirm(
        &self,
        running: &Running,
        call: EventId,
        like: Likeness,
        result: Confirmation,
    ) -> Result<Word, CallError> {
        let ask = &running.ask;
        let word = NewEvent::confirmation(ask.by.clone(), call, Some(like), result, None);
        match self.log.append(ask.session, At::End, &[word]).await {
            // Said elsewhere in the same moment: that counts.
            Ok(_) | Err(LogError::Settled) => {}
            Err(error) => return Err(error.into()),
        }
        self.sessions.word(ask.session, call).await?.ok_or_else(|| SessionError::NoSession.into())
    }
}

/// What the hand permits of the call.
pub(super) fn permitted(running: &Running) -> Permission {
    running.ask.hand.config.permissions().of(&running.ask.tool.name)
}

/// What the hand permits of a tool, as the log has it: nothing is said of what runs by itself.
pub fn evaluated(hand: &Registered, tool: &str) -> Option<session::Permission> {
    match hand.config.permissions().of(tool) {
        Permission::Allow => None,
        Permission::Ask => Some(session::Permission::Ask),
        Permission::AskOwner => Some(session::Permission::AskOwner),
        Permission::Deny => Some(session::Permission::Deny),
    }
}

fn cleared(word: Word) -> Cleared {
    match word {
        Word::Yes(yes) => Cleared::Yes(Some(yes)),
        Word::No(why) => Cleared::No(refused(why.as_deref())),
    }
}

/// The question, as MCP puts it (2025-11-25 and 2026-07-28, client/elicitation): a yes or no needs no field.
fn question(running: &Running, call: EventId) -> Object {
    let ask = &running.ask;
    let Shown { lines, whole } = shown(&ask.arguments);
    let mut message = format!("May {} run with these arguments?\n{lines}", ask.hand.full_name(&ask.tool));
    if !whole {
        message.push_str(&format!("\n`{} --whole` shows all of it.", confirm_command(ask, call)));
    }
    let asked = json!({
        "method": "elicitation/create",
        "params": {"message": message, "requestedSchema": {"type": "object", "properties": {}}},
    });
    Object::from_iter([(QUESTION.to_owned(), asked)])
}

pub(super) fn denied(running: &Running) -> String {
    format!(
        "The permission of the hand {} denies {}. The call did not run.",
        running.ask.hand.name, running.ask.tool.name
    )
}

fn refused(why: Option<&str>) -> String {
    match why {
        Some(why) => format!("A person said no: {why}. The call did not run."),
        None => "A person said no. The call did not run.".to_owned(),
    }
}

/// Nobody was asked: what to do.
fn unasked(ask: &Ask, call: EventId, giver: Giver) -> String {
    let lacks = match giver {
        Giver::Anybody => "This call needs a person's yes, and nobody gave one",
        Giver::Owner => "This call needs a yes given on the gateway's own machine, which no client can give",
    };
    format!(
        "{lacks}. The call did not run. Tell the user to allow it with `{}`, and then make the same call again: the yes is \
         good for one.",
        confirm_command(ask, call)
    )
}

/// What the machine's owner types to answer. Sessions of others are found with their principal.
fn confirm_command(ask: &Ask, call: EventId) -> String {
    let command = format!("manyhands confirm {} {call}", ask.session);
    if ask.principal == Principal::owner() {
        return command;
    }
    format!("{command} --principal {}", ask.principal)
}

/// Another call took the yes in the same moment.
pub(super) const USED_UP: &str = "The yes for this call was used by another one like it in the same moment. The call did not run: make it again.";
