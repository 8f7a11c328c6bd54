//! Who hears of what: `subscriptions/listen` (2026-07-28), `resources/subscribe` and the GET stream (before).
//!
//! A subscriber hears of a resource at most ten times a second and always of its last change.

use std::collections::BTreeSet;
use std::sync::PoisonError;
use std::time::Duration;

use rmcp::model::{ResourceUpdatedNotificationParam, SubscriptionFilter};
use rmcp::service::{NotificationContext, Peer, RequestContext, SubscriptionContext, SubscriptionSink};
use rmcp::{ErrorData, RoleServer};
use tokio_util::sync::CancellationToken;

use super::{Face, HandsInView, View, resources, results};
use crate::session::{Change, SessionId};

/// Shortest time between two rounds of notifications to one subscriber.
const AT_MOST_EVERY: Duration = Duration::from_millis(100);
/// Most resources that one stream follows.
const RESOURCES_MAX: usize = 256;

/// What can be delivered of what was asked for: URIs that mean something, and lists that change.
pub(super) fn deliverable(requested: &SubscriptionFilter) -> SubscriptionFilter {
    let mut filter = requested.clone();
    filter.prompts_list_changed = None;
    if let Some(uris) = &mut filter.resource_subscriptions {
        uris.retain(|uri| resources::parse(uri).is_some());
        uris.truncate(RESOURCES_MAX);
    }
    filter
}

/// Where notifications go.
enum Subscriber {
    Modern(SubscriptionSink),
    Legacy(Peer<RoleServer>),
}

impl Subscriber {
    /// Whether the subscriber is still there.
    async fn updated(&self, uri: &str) -> bool {
        match self {
            Self::Modern(sink) => sink.notify_resource_updated(uri).await.is_ok(),
            Self::Legacy(peer) => {
                peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await.is_ok()
            }
        }
    }

    async fn tools_changed(&self) -> bool {
        match self {
            Self::Modern(sink) => sink.notify_tool_list_changed().await.is_ok(),
            Self::Legacy(peer) => peer.notify_tool_list_changed().await.is_ok(),
        }
    }

    async fn resources_changed(&self) -> bool {
        match self {
            Self::Modern(sink) => sink.notify_resource_list_changed().await.is_ok(),
            Self::Legacy(peer) => peer.notify_resource_list_changed().await.is_ok(),
        }
    }
}

/// What a subscriber wants to hear of.
struct Wants {
    /// URIs, each with the session that it is about.
    resources: Vec<(String, SessionId)>,
    lists: Lists,
}

/// Which lists a subscriber wants to hear of.
#[derive(Clone, Copy, Default)]
struct Lists {
    tools: Wanted,
    resources: Wanted,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Wanted {
    #[default]
    No,
    Yes,
}

impl From<Option<bool>> for Wanted {
    fn from(asked: Option<bool>) -> Self {
        if asked == Some(true) { Self::Yes } else { Self::No }
    }
}

impl Face {
    /// Serves one `subscriptions/listen` until its client goes.
    pub(super) async fn notify(&self, view: &View, context: SubscriptionContext) -> Result<(), ErrorData> {
        let accepted = context.accepted().clone();
        let mut wants = Wants {
            resources: Vec::new(),
            lists: Lists {
                tools: accepted.tools_list_changed.into(),
                resources: accepted.resources_list_changed.into(),
            },
        };
        for uri in accepted.resource_subscriptions.unwrap_or_default() {
            if let Some(id) = self.session_behind(view, &uri).await {
                wants.resources.push((uri, id));
            }
        }
        let subscriber = Subscriber::Modern(context.sink().clone());
        tokio::select! {
            () = self.deliver(view, wants, subscriber) => {}
            () = context.cancelled() => {}
            () = self.gateway.closing.cancelled() => {}
        }
        Ok(())
    }

    /// Begins to tell a session from before 2026-07-28 of one resource.
    pub(super) async fn follow_resource(
        &self,
        view: &View,
        uri: String,
        context: &RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let id = self.session_behind(view, &uri).await.ok_or_else(|| results::no_resource(&uri))?;
        let ended = CancellationToken::new();
        {
            let mut subscribed = self.subscribed.lock().unwrap_or_else(PoisonError::into_inner);
            if subscribed.len() >= RESOURCES_MAX && !subscribed.contains_key(&uri) {
                let hint = format!(
                    "this session follows {RESOURCES_MAX} resources, the most it may: unsubscribe from one"
                );
                return Err(ErrorData::invalid_params(hint, None));
            }
            subscribed.insert(uri.clone(), ended.clone().drop_guard());
        }
        let wants = Wants { resources: vec![(uri, id)], lists: Lists::default() };
        self.deliver_until(view, wants, Subscriber::Legacy(context.peer.clone()), ended);
        Ok(())
    }

    pub(super) fn unfollow_resource(&self, uri: &str) {
        self.subscribed.lock().unwrap_or_else(PoisonError::into_inner).remove(uri);
    }

    /// Begins to tell a session from before 2026-07-28 of changed lists, as its capabilities promise.
    pub(super) fn follow_lists(&self, context: &NotificationContext<RoleServer>) {
        let Ok(view) = self.view(&context.extensions) else { return };
        let ended = CancellationToken::new();
        *self.listening.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended.clone().drop_guard());
        let wants =
            Wants { resources: Vec::new(), lists: Lists { tools: Wanted::Yes, resources: Wanted::Yes } };
        self.deliver_until(&view, wants, Subscriber::Legacy(context.peer.clone()), ended);
    }

    fn deliver_until(&self, view: &View, wants: Wants, subscriber: Subscriber, ended: CancellationToken) {
        // Holds no clone of `self`, or the guards in it would never drop.
        let gateway = self.gateway.clone();
        let (view, closing) = (view.clone(), gateway.closing.clone());
        let face = Self::new(gateway.clone());
        gateway.tasks.spawn(async move {
            tokio::select! {
                () = face.deliver(&view, wants, subscriber) => {}
                () = ended.cancelled() => {}
                () = closing.cancelled() => {}
            }
        });
    }

    async fn session_behind(&self, view: &View, uri: &str) -> Option<SessionId> {
        if view.hands != HandsInView::All {
            return None;
        }
        let target = resources::parse(uri)?;
        let found = self.gateway.sessions.find(&view.principal, &target.session).await;
        found.ok().map(|info| info.id)
    }

    /// Delivers until the subscriber is gone. What changes while a round is on its way, or within the pause
    /// after it, is told once in the next.
    async fn deliver(&self, view: &View, wants: Wants, subscriber: Subscriber) {
        let mut changes = self.gateway.sessions.changes(&view.principal);
        for (_, id) in &wants.resources {
            changes.watch(*id);
        }
        let mut hands = self.gateway.registry.changes();
        hands.mark_unchanged();
        loop {
            let mut changed = BTreeSet::new();
            let mut lists = Lists::default();
            tokio::select! {
                change = changes.next() => match change {
                    Ok(Change::Appended(id, _) | Change::Deleted(id)) => {
                        changed.insert(id);
                    }
                    Ok(Change::List) => lists.resources = wants.lists.resources,
                    // The database is away: whoever reads learns of it.
                    Err(error) => tracing::warn!(error = %error, "a change could not be looked at"),
                },
                Ok(()) = hands.changed(), if wants.lists.tools == Wanted::Yes => lists.tools = Wanted::Yes,
            }
            if !self.round(&wants, &subscriber, &changed, lists).await {
                return;
            }
            tokio::time::sleep(AT_MOST_EVERY).await;
        }
    }

    async fn round(
        &self,
        wants: &Wants,
        subscriber: &Subscriber,
        changed: &BTreeSet<SessionId>,
        lists: Lists,
    ) -> bool {
        for (uri, _) in wants.resources.iter().filter(|(_, id)| changed.contains(id)) {
            if !subscriber.updated(uri).await {
                return false;
            }
        }
        (lists.tools == Wanted::No || subscriber.tools_changed().await)
            && (lists.resources == Wanted::No || subscriber.resources_changed().await)
    }
}
