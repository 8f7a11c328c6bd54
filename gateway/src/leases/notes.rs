//! What a brain is told with the first result of an instance that came after another one.

use crate::hand::{HandConfig, Share};
use crate::registry::Registered;

const SANDBOX_REPLACED: &str = "[The hand had died since your last call: this is a fresh instance with the same /workspace. \
     Background processes and files outside /workspace are gone.]";
const SANDBOX_RENEWED: &str = "[The hand had been released since your last call: this is a fresh instance with the same \
     /workspace. Background processes and files outside /workspace are gone.]";
const SANDBOX_MOVED: &str = "[The hand was last on another machine, and its /workspace is out of reach: this is a fresh instance. \
     Look at what is in /workspace before you rely on it.]";
const SERVER_ANEW: &str =
    "[The server was started anew since your last call: what it kept in memory is gone.]";
const SERVER_MOVED: &str = "[The server was last on another machine, and was started anew on this one: what it kept in memory, \
     and its files there, are out of reach.]";
/// The first version of the protocol whose servers keep nothing for a connection.
const STATELESS_SINCE: &str = "2026-07-28";
const SESSION_ANEW: &str = "[The connection to the server was begun anew since your last call: what the server kept for the \
     earlier one is gone.]";

/// What became of the instance before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It died.
    Lost,
    /// It was released, after some time without a call or because somebody asked.
    Released,
    /// It is on another machine.
    Elsewhere,
    /// It was moved to another session, with its work.
    Moved,
}

const CONTAINER_REPLACED: &str = "[The container had ended since your last call: this is a fresh one with the same /workspace. \
     Background processes and files outside /workspace are gone.]";
const REMOTE_REPLACED: &str = "[The connection was made anew since your last call. Files are as they were; background processes of \
     earlier calls have ended.]";
const GAME_REPLACED: &str = "[The console was started anew since your last call, and goes on from where your last finished call left \
     the game.]";
const GAME_ELSEWHERE: &str =
    "[The console was last on another machine, and where the game stood is out of reach: it begins anew.]";
const MACHINE_REPLACED: &str = "[The machine was started anew since your last call, with the same /workspace. Processes and files \
     outside /workspace are gone.]";
const WORK_ELSEWHERE: &str = "[The hand was last on another machine, and its /workspace is out of reach: this is a fresh instance. \
     Look at what is in /workspace before you rely on it.]";
const MOVED: &str = "[The hand was moved to another session, with all that it had, since your last call here: this is a fresh \
     instance. Look at what is there before you rely on it.]";

/// The note for a hand that keeps work.
fn of_work(config: &HandConfig, fate: Fate) -> &'static str {
    match (config, fate) {
        (_, Fate::Moved) => MOVED,
        (HandConfig::Sandbox(_), Fate::Lost) => SANDBOX_REPLACED,
        (HandConfig::Sandbox(_), Fate::Released) => SANDBOX_RENEWED,
        (HandConfig::Sandbox(_), Fate::Elsewhere) => SANDBOX_MOVED,
        (HandConfig::Ssh(_) | HandConfig::Android(_), _) => REMOTE_REPLACED,
        (HandConfig::Emulator(_), Fate::Elsewhere) => GAME_ELSEWHERE,
        (HandConfig::Emulator(_), _) => GAME_REPLACED,
        (_, Fate::Elsewhere) => WORK_ELSEWHERE,
        (HandConfig::Vm(_), _) => MACHINE_REPLACED,
        (_, _) => CONTAINER_REPLACED,
    }
}

/// The note for it, when anything is gone that a brain could rely on.
pub(super) fn note(hand: &Registered, fate: Fate) -> Option<&'static str> {
    let settings = match &hand.config {
        HandConfig::Mcp(settings) => settings,
        config => return Some(of_work(config, fate)),
    };
    // A shared server outlives an instance that is released: another session may have it.
    if fate == Fate::Released && settings.share() != Share::Session {
        return None;
    }
    if settings.url.is_none() {
        return Some(if fate == Fate::Elsewhere { SERVER_MOVED } else { SERVER_ANEW });
    }
    // Versions are dates.
    let stateless = hand.catalogue().is_some_and(|catalogue| catalogue.version.as_str() >= STATELESS_SINCE);
    (!stateless).then_some(SESSION_ANEW)
}
