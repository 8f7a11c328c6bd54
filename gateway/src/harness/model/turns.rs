//! A transcript as providers want it: turns that alternate, results of calls before anything else in a turn.

use super::{Block, Message, Role, Transcript};

/// Neighbouring messages of one role.
pub(super) struct Turn<'a> {
    pub(super) role: Role,
    pub(super) blocks: Vec<Said<'a>>,
}

/// A block, and whether a stable beginning ends with it.
pub(super) struct Said<'a> {
    pub(super) block: &'a Block,
    pub(super) ends_stable: bool,
}

/// The turns of a transcript. Empty texts are left out: no provider takes them.
pub(super) fn turns(transcript: &Transcript) -> Vec<Turn<'_>> {
    let mut turns: Vec<Turn<'_>> = Vec::new();
    for message in &transcript.messages {
        let blocks = said(message);
        match turns.last_mut() {
            _ if blocks.is_empty() => {}
            Some(last) if last.role == message.role => last.blocks.extend(blocks),
            Some(_) | None => turns.push(Turn { role: message.role, blocks }),
        }
    }
    for turn in &mut turns {
        // Stable: results stay in the order of their calls.
        turn.blocks.sort_by_key(|said| !matches!(said.block, Block::ToolResult(_)));
    }
    turns
}

fn said(message: &Message) -> Vec<Said<'_>> {
    let full =
        message.blocks.iter().filter(|block| !matches!(block, Block::Text(text) if text.trim().is_empty()));
    let mut blocks: Vec<_> = full.map(|block| Said { block, ends_stable: false }).collect();
    if message.breakpoint.is_some() {
        // Thoughts can't end one.
        let last = blocks.iter_mut().rfind(|said| !matches!(said.block, Block::Thinking(_)));
        if let Some(last) = last {
            last.ends_stable = true;
        }
    }
    blocks
}
