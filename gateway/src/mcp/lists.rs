//! What there is: tools, prompts, resources and templates, of the gateway and of its hands.
//!
//! Never waits for a hand: an MCP server's lists are as last seen. The order is that of the hands' names.

use std::sync::Arc;

use hands::Effects;
use hands::mcp::Object;
use jiff::SignedDuration;
use rmcp::ErrorData;
use rmcp::model::{MetaObject, Tool, ToolAnnotations};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::results::{Cached, bad_cursor, finish, object};
use super::service::Asked;
use super::wire::Era;
use super::{Face, HandsInView, View, resources, resume, session_tools, uris};
use crate::clock;
use crate::error;
use crate::registry::Registered;
use crate::seal::Purpose;
use crate::session::{Listing, SessionId};

/// Sessions in one page of `resources/list`; each is two resources.
const PAGE_SESSIONS: u32 = 100;
/// Resources of hands in one page.
const PAGE_RESOURCES: usize = 200;
/// How long a cursor can be used.
const CURSOR_HOLDS: SignedDuration = SignedDuration::from_hours(24);

/// Where a list of resources goes on.
#[derive(Debug, Serialize, Deserialize)]
enum Place {
    /// Behind this session.
    Sessions(String),
    /// With the hand of this name or the next one, behind so many of its resources.
    Hands(String, usize),
}

impl Face {
    /// All tools in view, in one page: some clients read no further.
    pub(super) fn tools(&self, asked: &Asked<'_>) -> Result<Object, ErrorData> {
        no_cursor(asked)?;
        let mut tools = Vec::new();
        if asked.view.hands == HandsInView::All {
            tools.extend(session_tools::TOOLS.iter().map(|tool| Value::Object(object(tool))));
        }
        for hand in self.in_view(&asked.view)? {
            let named = |tool: &Arc<hands::Tool>| match asked.view.hands {
                HandsInView::All => shown(&hand, tool, hand.full_name(tool), Uris::Shown, asked.era),
                HandsInView::One(_) => shown(&hand, tool, tool.name.clone(), Uris::Own, asked.era),
            };
            tools.extend(hand.tools().iter().map(named).map(Value::Object));
        }
        Ok(list(asked, "tools", tools, None))
    }

    /// All prompts in view, in one page.
    pub(super) fn prompts(&self, asked: &Asked<'_>) -> Result<Object, ErrorData> {
        no_cursor(asked)?;
        let mut prompts = Vec::new();
        if asked.view.hands == HandsInView::All {
            prompts.push(resume::definition());
        }
        for hand in self.in_view(&asked.view)? {
            prompts.extend(hand.prompts().iter().map(|prompt| {
                let mut prompt = defined(asked, &hand, prompt);
                if let (HandsInView::All, Some(own)) =
                    (&asked.view.hands, prompt.get("name").and_then(Value::as_str))
                {
                    let full = hand.full_prompt_name(own);
                    prompt.insert("name".to_owned(), full.into());
                }
                Value::Object(prompt)
            }));
        }
        Ok(list(asked, "prompts", prompts, None))
    }

    /// All templates in view, in one page.
    pub(super) fn templates(&self, asked: &Asked<'_>) -> Result<Object, ErrorData> {
        no_cursor(asked)?;
        let mut templates = match asked.view.hands {
            HandsInView::All => resources::templates().iter().map(object).map(Value::Object).collect(),
            HandsInView::One(_) => Vec::new(),
        };
        for hand in self.in_view(&asked.view)? {
            let Some(catalogue) = hand.catalogue() else { continue };
            let own = catalogue.templates.iter();
            templates.extend(own.map(|template| Value::Object(defined(asked, &hand, template))));
        }
        Ok(list(asked, "resourceTemplates", templates, None))
    }

    /// A page of resources: sessions, newest first, then what the hands have.
    pub(super) async fn resources(&self, asked: &Asked<'_>) -> Result<Object, ErrorData> {
        let place = match asked.params.get("cursor").and_then(Value::as_str) {
            Some(cursor) => Some(self.place(&asked.view, cursor)?),
            None => None,
        };
        let mut page = Vec::new();
        let (hand, from) = match (place, &asked.view.hands) {
            (Some(Place::Hands(hand, from)), _) => (hand, from),
            (None, HandsInView::One(_)) => (String::new(), 0),
            (place, _) => {
                let before = match place {
                    Some(Place::Sessions(id)) => Some(id.parse().map_err(|_| bad_cursor())?),
                    _ => None,
                };
                if let Some(next) = self.sessions(asked, before, &mut page).await? {
                    return Ok(list(asked, "resources", page, Some(self.cursor(&asked.view, &next))));
                }
                (String::new(), 0)
            }
        };
        let next = self.of_hands(asked, &hand, from, &mut page)?;
        Ok(list(asked, "resources", page, next.map(|next| self.cursor(&asked.view, &next))))
    }

    /// Adds a page of sessions, and says where the next one is.
    async fn sessions(
        &self,
        asked: &Asked<'_>,
        before: Option<SessionId>,
        page: &mut Vec<Value>,
    ) -> Result<Option<Place>, ErrorData> {
        let listing = Listing { before, limit: Some(PAGE_SESSIONS), status: None };
        let listed = self.gateway.sessions.list(&asked.view.principal, &listing).await;
        let (sessions, more) = listed.map_err(|error| error::rpc(&error))?;
        page.extend(sessions.iter().flat_map(resources::listed).map(|it| Value::Object(object(&it))));
        Ok(sessions.last().filter(|_| more).map(|last| Place::Sessions(last.id.to_string())))
    }

    /// Adds what the hands from `hand` on have, and says where the next page is.
    fn of_hands(
        &self,
        asked: &Asked<'_>,
        hand: &str,
        mut from: usize,
        page: &mut Vec<Value>,
    ) -> Result<Option<Place>, ErrorData> {
        let mut room = PAGE_RESOURCES;
        for registered in self.in_view(&asked.view)? {
            if registered.name.as_str() < hand {
                continue;
            }
            if registered.name.as_str() != hand {
                from = 0;
            }
            let Some(catalogue) = registered.catalogue() else { continue };
            let behind = catalogue.resources.get(from..).unwrap_or_default();
            let taken = &behind[..behind.len().min(room)];
            page.extend(taken.iter().map(|it| Value::Object(defined(asked, &registered, it))));
            room -= taken.len();
            if taken.len() < behind.len() {
                return Ok(Some(Place::Hands(registered.name.to_string(), from + taken.len())));
            }
        }
        Ok(None)
    }

    fn cursor(&self, view: &View, place: &Place) -> String {
        let body = serde_json::to_vec(&(place, view.hands == HandsInView::All)).unwrap_or_default();
        let until = clock::now() + CURSOR_HOLDS;
        self.gateway.sealer.seal(Purpose::Cursor, &view.principal, until, &body)
    }

    fn place(&self, view: &View, cursor: &str) -> Result<Place, ErrorData> {
        let body = self.gateway.sealer.open(Purpose::Cursor, &view.principal, cursor);
        let body = body.map_err(|_| bad_cursor())?;
        let (place, whole): (Place, bool) = serde_json::from_slice(&body).map_err(|_| bad_cursor())?;
        if whole == (view.hands == HandsInView::All) { Ok(place) } else { Err(bad_cursor()) }
    }

    /// The hands in view, by name.
    pub(super) fn in_view(&self, view: &View) -> Result<Vec<Arc<Registered>>, ErrorData> {
        match &view.hands {
            HandsInView::All => Ok(self.gateway.registry.list()),
            HandsInView::One(name) => {
                let hand = self.gateway.registry.get(name.as_str()).map_err(|error| error::rpc(&error))?;
                Ok(vec![hand])
            }
        }
    }
}

/// A list that comes in one page has no cursors, so every cursor is a bad one.
fn no_cursor(asked: &Asked<'_>) -> Result<(), ErrorData> {
    match asked.params.get("cursor") {
        None | Some(Value::Null) => Ok(()),
        Some(_) => Err(bad_cursor()),
    }
}

fn list(asked: &Asked<'_>, of: &str, items: Vec<Value>, next: Option<String>) -> Object {
    let mut list = Object::new();
    list.insert(of.to_owned(), items.into());
    if let Some(next) = next {
        list.insert("nextCursor".to_owned(), next.into());
    }
    finish(list, asked.era, Cached::Yes)
}

/// Whether URIs are as clients of the whole gateway see them.
#[derive(Clone, Copy)]
enum Uris {
    Shown,
    Own,
}

/// A hand's tool as `tools/list` has it.
fn shown(hand: &Registered, tool: &hands::Tool, name: String, uris: Uris, era: Era) -> Object {
    if let Some(definition) = &tool.definition {
        let mut shown = (**definition).clone();
        shown.insert("name".to_owned(), name.into());
        if let Uris::Shown = uris {
            uris::rewrite_definition(&hand.name, &mut shown);
        }
        // Before 2026-07-28 structured content is an object, and so is what is said of it.
        if era == Era::Legacy
            && shown
                .get("outputSchema")
                .is_some_and(|schema| schema.get("type").is_none_or(|it| it != "object"))
        {
            shown.remove("outputSchema");
        }
        return shown;
    }
    let annotations = match tool.effects {
        Effects::ReadOnly => ToolAnnotations::new().read_only(true),
        Effects::Additive => ToolAnnotations::new().read_only(false).destructive(false),
        Effects::Destructive => ToolAnnotations::new().read_only(false).destructive(true),
    };
    let mut shown = Tool::new(name, tool.description.clone(), tool.input_schema.clone())
        .with_annotations(annotations.open_world(false));
    // Claude Code would otherwise show the model nothing but the names.
    let always = json!({"anthropic/alwaysLoad": true});
    shown.meta = serde_json::from_value::<MetaObject>(always).ok();
    object(&shown)
}

/// A definition of a hand's server as the view shows it.
fn defined(asked: &Asked<'_>, hand: &Registered, definition: &Object) -> Object {
    let mut shown = definition.clone();
    if asked.view.hands == HandsInView::All {
        uris::rewrite_definition(&hand.name, &mut shown);
    }
    shown
}
