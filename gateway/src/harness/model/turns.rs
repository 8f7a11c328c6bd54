//! A transcript as every provider takes it, whatever is in it: a log does not change, so that what a provider refuses once
//! it would refuse for good.
//!
//! **Invariants:** turns alternate and a person's is the first; no turn is empty and no text blank; names and ids are of
//! characters that are taken, and no two calls have one id; each call has one result, which comes in the turn behind it,
//! before anything else; no thinking ends a turn.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};

use super::{Block, Message, Role, Seen, ToolResult, ToolUse, Transcript};

/// Longest name of a tool, and longest id of a call, that every provider takes.
const NAME_MAX: usize = 64;
/// The name of a tool that has none.
const UNNAMED: &str = "unknown_tool";
/// The id of a call that has none.
const NO_ID: &str = "call";
/// What stands before what a brain said before anybody asked it.
const BEGINNING: &str = "[The session begins.]";
/// The result of a call that has none.
const NO_RESULT: &str = "[no result]";

/// Neighbouring messages of one role.
pub(super) struct Turn<'a> {
    pub(super) role: Role,
    pub(super) blocks: Vec<Said<'a>>,
}

/// A block, and whether a stable beginning ends with it.
pub(super) struct Said<'a> {
    pub(super) block: Cow<'a, Block>,
    pub(super) ends_stable: bool,
}

impl Said<'_> {
    fn new(block: Block) -> Self {
        Self { block: Cow::Owned(block), ends_stable: false }
    }
}

/// The turns of a transcript.
pub(super) fn turns(transcript: &Transcript) -> Vec<Turn<'_>> {
    let mut turns = Vec::new();
    for message in &transcript.messages {
        add(Turn { role: message.role, blocks: said(message) }, &mut turns);
    }
    let mut lawful = Vec::new();
    for mut turn in turns {
        if turn.role == Role::Assistant {
            // Providers want what a thought led to.
            let thinking = |said: &Said<'_>| matches!(*said.block, Block::Thinking(_));
            while turn.blocks.pop_if(|said| thinking(said)).is_some() {}
        }
        add(turn, &mut lawful);
    }
    let mut turns = answered(lawful);
    if turns.first().is_none_or(|first| first.role == Role::Assistant) {
        turns.insert(0, Turn { role: Role::User, blocks: vec![Said::new(Block::text(BEGINNING))] });
    }
    if let Some(Turn { role: Role::Assistant, blocks }) = turns.last_mut()
        && let Some(Block::Text(text)) = blocks.last_mut().map(|said| said.block.to_mut())
    {
        text.truncate(text.trim_end().len());
    }
    turns
}

/// A turn behind the others, or as part of the last one.
fn add<'a>(turn: Turn<'a>, turns: &mut Vec<Turn<'a>>) {
    match turns.last_mut() {
        _ if turn.blocks.is_empty() => {}
        Some(last) if last.role == turn.role => last.blocks.extend(turn.blocks),
        Some(_) | None => turns.push(turn),
    }
}

/// What of a message can be told.
fn said(message: &Message) -> Vec<Said<'_>> {
    let can_be_told = |block: &&Block| match (message.role, block) {
        (_, Block::Text(text)) => !text.trim().is_empty(),
        (Role::User, Block::Image(_) | Block::ToolResult(_)) => true,
        (Role::Assistant, Block::Thinking(_) | Block::ToolUse(_)) => true,
        (Role::User, Block::Thinking(_) | Block::ToolUse(_)) => false,
        (Role::Assistant, Block::Image(_) | Block::ToolResult(_)) => false,
    };
    let told = message.blocks.iter().filter(can_be_told);
    let mut blocks: Vec<_> =
        told.map(|block| Said { block: Cow::Borrowed(block), ends_stable: false }).collect();
    if message.breakpoint.is_some() {
        // Thoughts can't end one.
        let last = blocks.iter_mut().rfind(|said| !matches!(*said.block, Block::Thinking(_)));
        if let Some(last) = last {
            last.ends_stable = true;
        }
    }
    blocks
}

/// The turns with a result for each call, and no other, in front of the turn behind it.
fn answered(turns: Vec<Turn<'_>>) -> Vec<Turn<'_>> {
    let (mut told, mut used, mut open) = (Vec::new(), HashSet::new(), Vec::new());
    for mut turn in turns {
        match turn.role {
            Role::Assistant => open = called(&mut turn, &mut used),
            Role::User => results(&mut turn, std::mem::take(&mut open)),
        }
        add(turn, &mut told);
    }
    if !open.is_empty() {
        let mut last = Turn { role: Role::User, blocks: Vec::new() };
        results(&mut last, open);
        told.push(last);
    }
    told
}

/// Gives the calls of a turn names and ids that are taken. Returns which they had and have.
fn called(turn: &mut Turn<'_>, used: &mut HashSet<String>) -> Vec<(String, String)> {
    let mut open = Vec::new();
    for said in &mut turn.blocks {
        let Block::ToolUse(call) = &*said.block else { continue };
        let name = legal(&call.name, UNNAMED);
        let id = unused(&legal(&call.id, NO_ID), used);
        open.push((call.id.clone(), id.clone()));
        if name != call.name || id != call.id {
            said.block = Cow::Owned(Block::ToolUse(ToolUse { id, name, input: call.input.clone() }));
        }
    }
    open
}

/// Puts the results of these calls in front, those that are missing behind the others. A result of no call, or a second
/// one, can't be told.
fn results(turn: &mut Turn<'_>, open: Vec<(String, String)>) {
    let (mut results, mut rest) = (Vec::new(), Vec::new());
    let mut waiting: HashMap<String, VecDeque<String>> = HashMap::new();
    for (had, has) in &open {
        waiting.entry(had.clone()).or_default().push_back(has.clone());
    }
    for mut said in std::mem::take(&mut turn.blocks) {
        let Block::ToolResult(result) = &*said.block else {
            rest.push(said);
            continue;
        };
        let Some(id) = waiting.get_mut(&result.tool_use_id).and_then(VecDeque::pop_front) else { continue };
        if id != result.tool_use_id {
            said.block = Cow::Owned(Block::ToolResult(ToolResult { tool_use_id: id, ..result.clone() }));
        }
        results.push(said);
    }
    for (had, has) in open {
        if waiting.get(&had).is_some_and(|ids| ids.contains(&has)) {
            let content = vec![Seen::Text(NO_RESULT.to_owned())];
            let result = ToolResult { tool_use_id: has, content, is_error: true };
            results.push(Said::new(Block::ToolResult(result)));
        }
    }
    turn.blocks = results.into_iter().chain(rest).collect();
}

/// A name of the characters that every provider takes.
fn legal(name: &str, empty: &str) -> String {
    let taken = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let name: String = name.chars().map(taken).take(NAME_MAX).collect();
    if name.is_empty() { empty.to_owned() } else { name }
}

/// The id, or one like it when another call has it.
fn unused(id: &str, used: &mut HashSet<String>) -> String {
    let numbered = |number: usize| {
        let tail = format!("_{number}");
        format!("{}{tail}", &id[..id.len().min(NAME_MAX - tail.len())])
    };
    // Of one more than are used, one is free.
    let others = (2..used.len() + 3).map(numbered);
    let free = std::iter::once(id.to_owned()).chain(others).find(|id| !used.contains(id));
    let id = free.unwrap_or_default();
    used.insert(id.clone());
    id
}
