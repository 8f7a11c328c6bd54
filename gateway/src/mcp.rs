//! What an MCP client sees: every hand as tools, every session as resources, in both protocol eras.
//!
//! The only rmcp server. [`wire`] stands before it and rejects what is malformed or not allowed; this room
//! answers what is left. Whose request it is comes with the request ([`View`]), never from what a client says
//! of itself.

mod bridge;
mod listen;
mod lists;
mod pieces;
mod resources;
mod results;
mod resume;
mod service;
mod session_tools;
mod tools;
pub mod uris;
pub mod wire;

use std::borrow::Cow;
use std::sync::{Arc, Mutex};

use rmcp::model::{
    CustomRequest, CustomResult, DiscoverResult, Implementation, InitializeRequestParams, InitializeResult,
    ProtocolVersion, ServerCapabilities, ServerConfig, SubscribeRequestParams, SubscriptionFilter,
    UnsubscribeRequestParams,
};
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Map, Value};

pub use self::bridge::Bridge;
pub use self::service::RAW_METHODS;
use self::wire::{Asker, Era, RawHandler};
use crate::access::Principal;
use crate::hand::HandName;
use crate::serve::Gateway;
use crate::session::{By, SessionRef, Via};

/// What a server is called on the wire.
const NAME: &str = "manyhands";
/// What the model is told of the server, once. Under 2 KB.
const INSTRUCTIONS: &str = "Manyhands gives you hands (tools named hand__tool, such as sandbox__bash) and a durable \
session: every call and its result is written to an append-only log that outlives this conversation. \
The sandbox keeps its files in /workspace between calls, days apart too; shell state does not survive a call. \
session_events rereads what happened; session_emit notes something for later; \
outputs too long to show are kept as session://…/outputs/N, and resources can be read by their URI.";

/// Extensions of the protocol that are carried between clients and servers.
const EXTENSIONS: [&str; 2] = ["io.modelcontextprotocol/tasks", "io.modelcontextprotocol/ui"];

/// Whose request it is, and which part of the gateway it is addressed to. Put into the request by `serve`.
#[derive(Clone, Debug)]
pub struct View {
    /// On whose behalf.
    pub principal: Principal,
    /// Where calls are logged that name no session.
    pub session: SessionRef,
    /// Which hands are in view.
    pub hands: HandsInView,
}

/// Which hands an endpoint shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandsInView {
    /// All of them, each tool with its hand's name in front, and the session tools.
    All,
    /// One, its tools under their own names, and nothing else.
    One(HandName),
}

/// An MCP server for one connection, or for one request of the stateless era.
#[derive(Clone)]
pub struct Face {
    gateway: Arc<Gateway>,
    /// Whose connection it is where a request does not say, as on stdio.
    fixed: Option<View>,
    /// What a session from before 2026-07-28 is told of.
    told: listen::Told,
    /// The least severe log messages that such a session wants, once it has said.
    level: Arc<Mutex<Option<String>>>,
}

impl Face {
    /// A server for requests that carry their own [`View`].
    pub fn new(gateway: Arc<Gateway>) -> Self {
        Self { gateway, fixed: None, told: listen::Told::default(), level: Arc::default() }
    }

    /// A server for one connection that belongs to `view`.
    pub fn of(gateway: Arc<Gateway>, view: View) -> Self {
        Self { fixed: Some(view), ..Self::new(gateway) }
    }

    /// Fails closed: a request that nobody vouched for is answered as a fault of ours.
    fn view(&self, extensions: &rmcp::model::Extensions) -> Result<View, ErrorData> {
        let carried =
            extensions.get::<http::request::Parts>().and_then(|parts| parts.extensions.get::<View>());
        carried
            .or(self.fixed.as_ref())
            .cloned()
            .ok_or_else(|| ErrorData::internal_error("the request came without a principal", None))
    }

    /// What the gateway can, and what any of its hands needs of it.
    fn capabilities(&self) -> ServerCapabilities {
        let mut capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_prompts()
            .enable_resources()
            .enable_resources_list_changed()
            .enable_resources_subscribe()
            .build();
        for catalogue in self.gateway.registry.list().iter().filter_map(|hand| hand.catalogue()) {
            capabilities.prompts.get_or_insert_default().list_changed = Some(true);
            capabilities.logging.get_or_insert_default();
            capabilities.completions.get_or_insert_default();
            if let Some(Value::Object(extensions)) = catalogue.capabilities.get("extensions") {
                let known = extensions.iter().filter(|(id, _)| EXTENSIONS.contains(&id.as_str()));
                let settings = |(id, it): (&String, &Value)| Some((id.clone(), it.as_object()?.clone()));
                capabilities.extensions.get_or_insert_default().extend(known.filter_map(settings));
            }
        }
        capabilities
    }

    /// At the endpoint of one MCP server, its own capabilities and instructions; still under our name.
    fn introduce(&self, view: &View, info: &mut ServerConfig) {
        let HandsInView::One(name) = &view.hands else { return };
        let hand = self.gateway.registry.get(name.as_str()).ok();
        let Some(catalogue) = hand.and_then(|hand| hand.catalogue()) else { return };
        let declared = Value::Object(catalogue.capabilities.clone());
        let Ok(mut declared) = serde_json::from_value::<ServerCapabilities>(declared) else { return };
        declared.tools.get_or_insert_default().list_changed = Some(true);
        if let Some(prompts) = &mut declared.prompts {
            prompts.list_changed = Some(true);
        }
        if let Some(resources) = &mut declared.resources {
            resources.list_changed = Some(true);
        }
        if let Some(extensions) = &mut declared.extensions {
            extensions.retain(|id, _| EXTENSIONS.contains(&id.as_str()));
        }
        info.capabilities = declared;
        info.instructions.clone_from(&catalogue.instructions);
    }

    fn by(view: &View, asker: &Asker) -> By {
        By { principal: view.principal.to_string(), client: client_name(asker), via: Via::Mcp }
    }
}

/// The input schema of a tool as `view` shows it, for the headers that repeat its arguments.
pub fn input_schema(gateway: &Gateway, view: &View, tool: &str) -> Option<Arc<Map<String, Value>>> {
    tools::input_schema(gateway, view, tool)
}

/// `name/version` as the client calls itself, in at most [`CLIENT_NAME_MAX`] characters.
fn client_name(asker: &Asker) -> Option<String> {
    let info = asker.client.as_ref()?;
    let name = format!("{}/{}", info.name, info.version);
    Some(name.chars().filter(|c| !c.is_control()).take(CLIENT_NAME_MAX).collect())
}

/// Longest client name that is kept, in characters.
const CLIENT_NAME_MAX: usize = 128;

/// The era of a request that was accepted.
fn era_of(asker: &Asker) -> Era {
    let modern = asker.protocol_version().is_some_and(|version| !version.has_initialize());
    if modern { Era::Modern } else { Era::Legacy }
}

impl ServerHandler for Face {
    fn get_info(&self) -> ServerConfig {
        let capabilities = self.capabilities();
        ServerConfig::new(capabilities).with_server_info(about()).with_instructions(INSTRUCTIONS)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS)
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        let view = self.view(&context.extensions)?;
        let mut result = self.negotiate_initialize(&request)?;
        context.peer.set_peer_info(request);
        self.introduce(&view, &mut result);
        Ok(result)
    }

    async fn discover(&self, context: RequestContext<RoleServer>) -> Result<DiscoverResult, ErrorData> {
        let view = self.view(&context.extensions)?;
        let mut info = self.get_info();
        self.introduce(&view, &mut info);
        let versions = ServerHandler::supported_protocol_versions(self).into_owned();
        Ok(DiscoverResult::from_server_info(versions, info))
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.follow_lists(&context);
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        self.answer(request, &context.into()).await
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(self.deliverable(requested))
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let view = self.view(&context.request_context().extensions)?;
        self.notify(&view, context).await
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let view = self.view(&context.extensions)?;
        self.follow_resource(&view, request.uri, &context).await
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.view(&context.extensions)?;
        self.unfollow_resource(&request.uri);
        Ok(())
    }
}

impl RawHandler for Face {
    async fn answer_raw(&self, request: CustomRequest, asker: Asker) -> Result<CustomResult, ErrorData> {
        self.answer(request, &asker).await
    }
}

/// How this server names itself.
fn about() -> Implementation {
    Implementation::new(NAME, env!("CARGO_PKG_VERSION"))
        .with_title("Manyhands")
        .with_description("Sandboxes and durable sessions for agents")
}
