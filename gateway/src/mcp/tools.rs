//! `tools/list` and `tools/call`: every hand is tools.

use std::sync::Arc;
use std::time::Duration;

use hands::Effects;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult, MetaObject,
    ProgressNotificationParam, Resource, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::session_tools::missing;
use super::wire::Era;
use super::{Face, HandsInView, View, era_of, results, session_tools};
use crate::calls::{Answer, Ask, CallError, News, Replayed, Ticket};
use crate::error;
use crate::registry::Registered;
use crate::serve::Gateway;
use crate::session::{CallKey, SessionError};

/// `_meta` of a call: its key for as long as the log (design 2.2).
const CALL_KEY: &str = "manyhands/callKey";
/// `_meta` of a call from Claude Code: the same on a re-send.
const TOOL_USE_ID: &str = "claudecode/toolUseId";
/// Longest key, in bytes.
const KEY_MAX: usize = 256;
/// Longest silence on a running call that asked for progress. (Design 2.2: at least every 15 s.)
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
/// Shortest time between two pieces of news on a call.
const PROGRESS_AT_MOST_EVERY: Duration = Duration::from_millis(100);
/// Most characters of output in one piece of news: its end counts.
const PROGRESS_CHARS_MAX: usize = 4_000;

impl Face {
    /// All tools in view, in one page: some clients read no further.
    pub(super) fn tools(&self, view: &View, era: Era) -> Result<ListToolsResult, ErrorData> {
        let mut tools = Vec::new();
        match &view.hands {
            HandsInView::All => {
                tools.extend(session_tools::TOOLS.iter().cloned());
                for hand in self.gateway.registry.list() {
                    tools.extend(hand.tools().iter().map(|tool| shown(tool, hand.full_name(tool))));
                }
            }
            HandsInView::One(name) => {
                let hand = self.gateway.registry.get(name.as_str()).map_err(|error| error::rpc(&error))?;
                tools.extend(hand.tools().iter().map(|tool| shown(tool, tool.name.clone())));
            }
        }
        let mut list = ListToolsResult::with_all_items(tools);
        list.meta = results::meta(era);
        list.ttl_ms = results::ttl_ms(era);
        list.cache_scope = results::scope(era);
        Ok(list)
    }

    pub(super) async fn call(
        &self,
        view: &View,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        if view.hands == HandsInView::All && session_tools::get(&request.name).is_some() {
            return self.session_tool(view, &request.name, arguments, &context).await.map(Into::into);
        }
        let Some((hand, tool)) = find(&self.gateway, view, &request.name) else {
            let hint = format!("unknown tool {:?}: tools/list shows what there is", request.name);
            return Err(ErrorData::invalid_params(hint, None));
        };
        let era = era_of(&context);
        let key = key_of(view, &request.name, &arguments, &context)?;
        let by = Self::by(view, &context);
        let opened = self.gateway.sessions.open(&view.principal, &view.session, &by).await;
        let session = match opened {
            Ok(session) => session.id,
            Err(error @ SessionError::NoSession) => {
                return Ok(results::refusal(missing(error, &view.session), era).into());
            }
            Err(error) => return Ok(results::refusal(error::say(&CallError::from(error)), era).into()),
        };
        let principal = view.principal.clone();
        let ask = Ask { by, principal, session, hand, tool, arguments, key };
        let result = match self.gateway.calls.begin(ask) {
            Ok(ticket) => watch(ticket, &context).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(answer) => Ok(shape(&answer, era)?.into()),
            Err(CallError::KeyMismatch) => {
                Err(ErrorData::invalid_params(CallError::KeyMismatch.to_string(), None))
            }
            Err(error) => Ok(results::refusal(error::say(&error), era).into()),
        }
    }
}

/// The tool that `view` calls `name`, and its hand.
fn find(gateway: &Gateway, view: &View, name: &str) -> Option<(Arc<Registered>, hands::Tool)> {
    match &view.hands {
        HandsInView::All => gateway.registry.resolve(name),
        HandsInView::One(hand) => {
            let hand = gateway.registry.get(hand.as_str()).ok()?;
            let tool = hand.tool(name)?;
            Some((hand, tool))
        }
    }
}

/// The input schema of the tool that `view` calls `name`.
pub(super) fn input_schema(gateway: &Gateway, view: &View, name: &str) -> Option<Arc<Map<String, Value>>> {
    if view.hands == HandsInView::All
        && let Some(tool) = session_tools::get(name)
    {
        return Some(tool.input_schema.clone());
    }
    find(gateway, view, name).map(|(_, tool)| Arc::new(tool.input_schema))
}

/// A hand's tool as `tools/list` has it.
fn shown(tool: &hands::Tool, name: String) -> Tool {
    let annotations = match tool.effects {
        Effects::ReadOnly => ToolAnnotations::new().read_only(true),
        Effects::Additive => ToolAnnotations::new().read_only(false).destructive(false),
        Effects::Destructive => ToolAnnotations::new().read_only(false).destructive(true),
    };
    let mut meta = MetaObject::default();
    // Claude Code would otherwise show the model nothing but the names.
    meta.0.insert("anthropic/alwaysLoad".to_owned(), Value::Bool(true));
    let mut shown = Tool::new(name, tool.description.clone(), Arc::new(tool.input_schema.clone()))
        .with_annotations(annotations.open_world(false));
    shown.meta = Some(meta);
    shown
}

/// The key by which a repeat of this call is recognised, with its principal in it. In the guard against re-sends
/// are tool and arguments too: with others it is another call.
fn key_of(
    view: &View,
    tool: &str,
    arguments: &Map<String, Value>,
    context: &RequestContext<RoleServer>,
) -> Result<Option<CallKey>, ErrorData> {
    let read = |name: &str| match context.meta.0.0.get(name) {
        None => Ok(None),
        Some(Value::String(key)) if !key.is_empty() && key.len() <= KEY_MAX => {
            Ok(Some(format!("{}/{key}", view.principal)))
        }
        Some(_) => {
            let hint = format!("_meta[{name:?}] must be a string of 1 to {KEY_MAX} bytes");
            Err(ErrorData::invalid_params(hint, None))
        }
    };
    Ok(match read(CALL_KEY)? {
        Some(key) => Some(CallKey::Forever(key)),
        None => read(TOOL_USE_ID)?.map(|key| {
            // A map of ours is sorted by its keys, so equal arguments are equal texts.
            CallKey::Resend(format!("{key}/{tool}/{}", Value::Object(arguments.clone())))
        }),
    })
}

/// Waits for the end of a call, with news to a client that asked for it. A client that cancels, or in the
/// stateless era goes away, gives up its interest.
async fn watch(mut ticket: Ticket, context: &RequestContext<RoleServer>) -> Result<Arc<Answer>, CallError> {
    let mut news = Reporter::new(context);
    loop {
        tokio::select! {
            biased;
            () = context.ct.cancelled() => return Err(CallError::Cancelled),
            () = tokio::time::sleep_until(news.due()) => news.report().await,
            next = ticket.next() => match next {
                News::Output(text) => news.add(&text),
                News::Ended(end) => return end,
            },
        }
    }
}

/// Sends progress: strictly increasing, not too often, not too seldom, never after the result.
struct Reporter<'a> {
    context: &'a RequestContext<RoleServer>,
    sent: f64,
    last: Instant,
    waiting: String,
}

impl<'a> Reporter<'a> {
    fn new(context: &'a RequestContext<RoleServer>) -> Self {
        // The first output goes out at once.
        let last = Instant::now();
        Self { context, sent: 0.0, last, waiting: String::new() }
    }

    fn due(&self) -> Instant {
        self.last + if self.waiting.is_empty() { PROGRESS_EVERY } else { PROGRESS_AT_MOST_EVERY }
    }

    fn add(&mut self, text: &str) {
        self.waiting.push_str(text);
        let excess = self.waiting.len().saturating_sub(PROGRESS_CHARS_MAX);
        if excess > 0 {
            let from = self.waiting.ceil_char_boundary(excess);
            self.waiting.drain(..from);
        }
    }

    async fn report(&mut self) {
        self.last = Instant::now();
        let text = std::mem::take(&mut self.waiting);
        let Some(token) = self.context.meta.get_progress_token() else { return };
        self.sent += 1.0;
        let mut news = ProgressNotificationParam::new(token, self.sent);
        news.message = Some(if text.is_empty() { "still running".to_owned() } else { text });
        // A client that is gone is noticed by its cancellation.
        let _ = self.context.peer.notify_progress(news).await;
    }
}

/// An answer as the result of `tools/call`.
fn shape(answer: &Answer, era: Era) -> Result<CallToolResult, ErrorData> {
    let mut content = answer
        .content
        .iter()
        .map(|block| serde_json::from_value(block.clone()))
        .collect::<Result<Vec<ContentBlock>, _>>()
        .map_err(|_| ErrorData::internal_error("a stored result can't be read", None))?;
    if let (Some(uri), Some(output)) = (answer.output_uri(), &answer.output) {
        content
            .push(ContentBlock::text(format!("[All {} bytes of it: read the resource {uri}]", output.bytes)));
        content.push(ContentBlock::resource_link(
            Resource::new(uri, "output").with_description("The complete output").with_size(output.bytes),
        ));
    }
    let mut result =
        if answer.is_error() { CallToolResult::error(content) } else { CallToolResult::success(content) };
    let mut meta = results::meta(era).unwrap_or_default();
    let mut about = Map::new();
    about.insert("manyhands/session".into(), json!(format!("session://{}", answer.session)));
    about.insert("manyhands/seq".into(), json!(answer.seq.0));
    about.insert("manyhands/outcome".into(), json!(answer.outcome));
    if answer.replayed == Replayed::Yes {
        about.insert("manyhands/replayed".into(), Value::Bool(true));
    }
    meta.0.extend(about);
    result.meta = Some(meta);
    Ok(result)
}
