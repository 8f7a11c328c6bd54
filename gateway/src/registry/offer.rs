//! What clients see of a hand's tools and prompts, and the names by which they find them.
//!
//! **Invariant:** a name belongs to one tool and to one prompt. Names of two hands never meet: each begins with its
//! hand's, which holds no `_`, and `__`. Two of one hand may, when they were shortened or the server lists one twice: the
//! first in order of their own names has it, the other is not offered, and `hand show` says so.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use hands::mcp::{Catalogue, Object};
use hands::{Effects, Tool};
use serde_json::{Value, json};

use super::names;
use crate::hand::HandName;

/// What a hand offers, as of one catalogue.
#[derive(Default)]
pub(super) struct Offer {
    of: Option<Arc<Catalogue>>,
    pub(super) tools: Arc<Vec<Arc<Tool>>>,
    pub(super) prompts: Arc<Vec<Arc<Object>>>,
    /// What could not be offered, a sentence each.
    pub(super) refused: Vec<String>,
    by_own: HashMap<String, usize>,
    by_full: HashMap<String, usize>,
    prompts_by_full: HashMap<String, String>,
}

impl Offer {
    /// The tools of a hand that is no MCP server.
    pub(super) fn of_tools(hand: &HandName, tools: Vec<Tool>) -> Self {
        let mut offer = Self::default();
        offer.take_tools(hand, tools);
        offer
    }

    /// What a server offers.
    pub(super) fn of_catalogue(hand: &HandName, catalogue: Arc<Catalogue>) -> Self {
        let mut offer = Self::default();
        offer.take_tools(hand, catalogue.tools.iter().filter_map(tool).collect());
        offer.take_prompts(hand, &catalogue.prompts);
        offer.of = Some(catalogue);
        offer
    }

    /// Whether this is what that very catalogue makes.
    pub(super) fn is_of(&self, catalogue: &Arc<Catalogue>) -> bool {
        self.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, catalogue))
    }

    /// The tool of that own name.
    pub(super) fn tool(&self, own: &str) -> Option<&Arc<Tool>> {
        self.tools.get(*self.by_own.get(own)?)
    }

    /// The tool that clients of the whole gateway call so.
    pub(super) fn named(&self, full: &str) -> Option<&Arc<Tool>> {
        self.tools.get(*self.by_full.get(full)?)
    }

    /// The own name of the prompt that clients of the whole gateway call so.
    pub(super) fn prompt_named(&self, full: &str) -> Option<&str> {
        self.prompts_by_full.get(full).map(String::as_str)
    }

    fn take_tools(&mut self, hand: &HandName, mut tools: Vec<Tool>) {
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        let mut kept = Vec::<Arc<Tool>>::with_capacity(tools.len());
        for tool in tools {
            match self.by_full.entry(names::full(hand, &tool.name)) {
                Entry::Occupied(taken) => {
                    let first = kept.get(*taken.get()).map_or("", |first| first.name.as_str());
                    self.refused.push(collision(hand, "tool", &tool.name, first, taken.key()));
                }
                Entry::Vacant(free) => {
                    free.insert(kept.len());
                    self.by_own.insert(tool.name.clone(), kept.len());
                    kept.push(Arc::new(tool));
                }
            }
        }
        self.tools = Arc::new(kept);
    }

    fn take_prompts(&mut self, hand: &HandName, prompts: &[Arc<Object>]) {
        let named = prompts.iter().filter_map(|prompt| Some((prompt.get("name")?.as_str()?, prompt)));
        let mut named: Vec<_> = named.collect();
        named.sort_by_key(|(name, _)| *name);
        let mut kept = Vec::with_capacity(named.len());
        for (own, prompt) in named {
            match self.prompts_by_full.entry(names::full(hand, own)) {
                Entry::Occupied(first) => {
                    self.refused.push(collision(hand, "prompt", own, first.get(), first.key()));
                }
                Entry::Vacant(free) => {
                    free.insert(own.to_owned());
                    kept.push(prompt.clone());
                }
            }
        }
        self.prompts = Arc::new(kept);
    }
}

fn collision(hand: &HandName, what: &str, own: &str, first: &str, full: &str) -> String {
    if own == first {
        return format!("{hand} lists the {what} {own:?} twice: the second one is not offered");
    }
    format!(
        "the {what} {own:?} of {hand} is not offered: clients would call it {full}, which is the {what} {first:?} of {hand}"
    )
}

/// A tool of its definition. What an MCP server does not say of its effects is the worst, as the protocol has it
/// (2026-07-28, schema: `ToolAnnotations`).
fn tool(definition: &Arc<Object>) -> Option<Tool> {
    let text = |key: &str| definition.get(key).and_then(Value::as_str);
    let hint = |key: &str| definition.get("annotations").and_then(|hints| hints.get(key)?.as_bool());
    let effects = match (hint("readOnlyHint"), hint("destructiveHint")) {
        (Some(true), _) => Effects::ReadOnly,
        (_, Some(false)) => Effects::Additive,
        _ => Effects::Destructive,
    };
    let schema = definition.get("inputSchema").and_then(Value::as_object).cloned();
    Some(Tool {
        name: text("name")?.to_owned(),
        description: text("description").unwrap_or_default().to_owned(),
        input_schema: Arc::new(
            schema.unwrap_or_else(|| Object::from_iter([("type".to_owned(), json!("object"))])),
        ),
        effects,
        definition: Some(definition.clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalogue(tools: &[&str], prompts: &[&str]) -> Arc<Catalogue> {
        let items = |names: &[&str]| -> Vec<Arc<Object>> {
            let item = |name: &&str| Arc::new(Object::from_iter([("name".to_owned(), json!(name))]));
            names.iter().map(item).collect()
        };
        Arc::new(Catalogue { tools: items(tools), prompts: items(prompts), ..Catalogue::default() })
    }

    #[test]
    fn a_name_finds_its_tool_and_its_prompt() {
        let hand = "db".parse().unwrap();
        let offer = Offer::of_catalogue(&hand, catalogue(&["b", "a.b"], &["p q"]));
        let odd = names::full(&hand, "a.b");
        assert_eq!(offer.named("db__b").unwrap().name, "b");
        assert_eq!(offer.named(&odd).unwrap().name, "a.b");
        assert_eq!(offer.prompt_named(&names::full(&hand, "p q")), Some("p q"));
        assert!(offer.named("db__a.b").is_none() && offer.tool("c").is_none());
        assert!(offer.refused.is_empty(), "{:?}", offer.refused);
    }

    /// Whatever order the server lists them in.
    #[test]
    fn two_with_one_name_are_one_and_a_line_that_names_both() {
        let hand = "db".parse().unwrap();
        // What `x.y` is shortened to is a good name, too.
        let taken = names::full(&hand, "x.y");
        let own = taken.strip_prefix("db__").unwrap();
        for tools in [["x.y", own], [own, "x.y"]] {
            let offer = Offer::of_catalogue(&hand, catalogue(&tools, &tools));
            assert_eq!(offer.named(&taken).unwrap().name, "x.y");
            assert_eq!(offer.tools.len(), 1);
            assert_eq!(offer.prompts.len(), 1);
            let line = format!(
                "the tool {own:?} of db is not offered: clients would call it {taken}, which is the tool \"x.y\" of db"
            );
            assert_eq!(offer.refused[0], line);
        }
        let offer = Offer::of_catalogue(&hand, catalogue(&["a", "a"], &[]));
        assert_eq!(offer.refused, ["db lists the tool \"a\" twice: the second one is not offered"]);
    }
}
