//! What session tools do to live hands: release, move, keep and bring back their state.

use std::sync::Arc;

use rmcp::model::Tool;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Answered, Face, Reads, View, decode, said, tool};
use crate::calls::RunningCalls;
use crate::leases::{Keeping, LeaseError, Move};
use crate::registry::Registered;
use crate::session::By;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Release {
    hand: String,
    session: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MoveTo {
    hand: String,
    to_session: String,
    session: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keep {
    hand: String,
    name: String,
    session: Option<String>,
}

/// The tools for live hands. `session` is the schema of that argument.
pub(super) fn tools(session: &Value) -> Vec<Tool> {
    let state = json!({"type": "string", "description": "[a-z0-9][a-z0-9-]{0,31}. One that exists is replaced by a checkpoint."});
    vec![
        tool(
            "hand_release",
            "Ends the live instance of a hand in a session: its processes end, /workspace stays. The next call gets a fresh one.",
            Reads::No,
            &json!({"hand": {"type": "string", "description": "The hand's name, such as sandbox."}, "session": session}),
            &["hand"],
        ),
        tool(
            "hand_move",
            "Gives the live instance of a hand, with its state and its work, to another of your sessions. Not while a call runs in it. This session's next call gets a fresh instance without that work. Earlier work of the other session's own stays out of sight there until the hand moves on. MCP servers can't be moved.",
            Reads::No,
            &json!({
                "hand": {"type": "string", "description": "The hand's name."},
                "to_session": {"type": "string", "description": "The name or id of the session that gets it; it must exist."},
                "session": session,
            }),
            &["hand", "to_session"],
        ),
        tool(
            "hand_checkpoint",
            "Keeps the state of a hand by a name, to be brought back with hand_restore. hand_list says which hands can (capabilities.checkpoints).",
            Reads::No,
            &json!({"hand": {"type": "string"}, "name": state, "session": session}),
            &["hand", "name"],
        ),
        tool(
            "hand_restore",
            "Brings back the state of a hand that hand_checkpoint kept. What the hand did since then is lost.",
            Reads::Destroys,
            &json!({"hand": {"type": "string"}, "name": state, "session": session}),
            &["hand", "name"],
        ),
    ]
}

impl Face {
    pub(super) async fn release(
        &self,
        view: &View,
        arguments: Map<String, Value>,
    ) -> Result<Answered, String> {
        let wanted: Release = decode(arguments)?;
        let info = self.session_of(view, wanted.session).await?;
        let hand = self.hand(&wanted.hand)?;
        let released = self.gateway.leases.release(info.id, &hand.name).await.map_err(said)?;
        Ok((json!({"hand": hand.name, "released": released}), Some(info.id)))
    }

    pub(super) async fn move_hand(
        &self,
        view: &View,
        arguments: Map<String, Value>,
        by: By,
    ) -> Result<Answered, String> {
        let wanted: MoveTo = decode(arguments)?;
        let from = self.session_of(view, wanted.session).await?;
        let to = self.session_of(view, Some(wanted.to_session)).await?;
        let hand = self.hand(&wanted.hand)?;
        let (calls, name, target) = (self.gateway.calls.clone(), hand.name.clone(), to.id);
        let moving = Move { from, to, hand, by };
        // On a task of its own: what is half moved would be nobody's.
        let moved =
            self.gateway.tasks.spawn(async move { calls.move_hand(&moving, RunningCalls::Stay).await });
        let moved = moved.await.unwrap_or(Err(LeaseError::Panicked)).map_err(said)?;
        let moved = json!({
            "hand": name,
            "moved": true,
            "to": target.to_string(),
            "instance": moved.instance,
            "kept_aside": moved.kept_aside.is_some(),
        });
        Ok((moved, Some(target)))
    }

    pub(super) async fn keep(
        &self,
        view: &View,
        arguments: Map<String, Value>,
        by: By,
        keeping: Keeping,
    ) -> Result<Answered, String> {
        let wanted: Keep = decode(arguments)?;
        let info = self.session_of(view, wanted.session).await?;
        let hand = self.hand(&wanted.hand)?;
        let (leases, id) = (self.gateway.leases.clone(), info.id);
        let did = match keeping {
            Keeping::Checkpoint => "checkpointed",
            Keeping::Restore => "restored",
        };
        let answer = json!({"hand": hand.name, "name": wanted.name, did: true});
        let name = wanted.name;
        let kept =
            self.gateway.tasks.spawn(async move { leases.keep(&info, &hand, &name, &by, keeping).await });
        kept.await.unwrap_or(Err(LeaseError::Panicked)).map_err(said)?;
        Ok((answer, Some(id)))
    }

    fn hand(&self, name: &str) -> Result<Arc<Registered>, String> {
        let hand = self.gateway.registry.get(name);
        hand.map_err(|_| format!("there is no hand {name:?}: hand_list shows them"))
    }
}
