//! Who hears of what: `subscriptions/listen` (2026-07-28), `resources/subscribe` and the GET stream (before).
//!
//! A subscriber is told of something at most ten times a second and always of a resource's last change.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rmcp::model::{ResourceUpdatedNotificationParam, SubscriptionFilter};
use rmcp::service::{NotificationContext, Peer, RequestContext, SubscriptionContext, SubscriptionSink};
use rmcp::{ErrorData, RoleServer};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Face, View, resources, results};
use crate::clock;
use crate::error;
use crate::session::{Change, Changes, SessionError, SessionId};

/// Shortest time between two notifications to one subscriber. (Design 2.2: at most 10 a second.)
const AT_MOST_EVERY: Duration = Duration::from_millis(100);
/// Most resources that one subscriber follows.
const RESOURCES_MAX: usize = 256;
/// How long to wait for a database that does not answer before it is asked again.
const RETRY: Duration = Duration::from_secs(1);
/// How far the clocks of two gateways on one database may be apart.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(1);

/// What can be delivered of what was asked for: URIs that mean something, and lists that change. Whose a URI is
/// does not matter here, so that nobody can tell another's from one that does not exist.
pub(super) fn deliverable(requested: &SubscriptionFilter) -> SubscriptionFilter {
    let mut filter = requested.clone();
    filter.prompts_list_changed = None;
    if let Some(uris) = &mut filter.resource_subscriptions {
        uris.retain(|uri| resources::parse(uri).is_some());
        uris.truncate(RESOURCES_MAX);
    }
    filter
}

/// What a subscriber wants to hear of.
#[derive(Clone, Default)]
struct Wants {
    /// Each with when it was asked for.
    uris: BTreeMap<String, Timestamp>,
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

/// What a session from before 2026-07-28 is told of: nothing, until it wants something. When the last clone goes,
/// so does whoever tells it.
#[derive(Clone, Default)]
pub(super) struct Told(Arc<Mutex<Option<watch::Sender<Wants>>>>);

impl Face {
    /// Serves one `subscriptions/listen` until its client goes.
    pub(super) async fn notify(&self, view: &View, context: SubscriptionContext) -> Result<(), ErrorData> {
        let now = clock::now();
        let accepted = context.accepted().clone();
        let uris = accepted.resource_subscriptions.unwrap_or_default();
        // Held to the end: a sender that is gone ends the telling.
        let (_wants, wanted) = watch::channel(Wants {
            uris: uris.into_iter().map(|uri| (uri, now)).collect(),
            tools: accepted.tools_list_changed.into(),
            resources: accepted.resources_list_changed.into(),
        });
        let teller =
            Teller::new(self.clone(), view.clone(), wanted, Subscriber::Modern(context.sink().clone()));
        tokio::select! {
            () = teller.tell() => {}
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
        let now = clock::now();
        match self.session_behind(view, &uri).await {
            Ok(_) => {}
            Err(SessionError::NoSession) => return Err(results::no_resource(&uri)),
            Err(error) => return Err(error::rpc(&error)),
        }
        let mut wants = self.told.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wants = wants.get_or_insert_with(|| self.begin_telling(view, context.peer.clone()));
        let full = {
            let wants = wants.borrow();
            wants.uris.len() >= RESOURCES_MAX && !wants.uris.contains_key(&uri)
        };
        if full {
            let hint = format!(
                "this session follows {RESOURCES_MAX} resources, the most it may: unsubscribe from one"
            );
            return Err(ErrorData::invalid_params(hint, None));
        }
        wants.send_modify(|wants| {
            wants.uris.entry(uri).or_insert(now);
        });
        Ok(())
    }

    pub(super) fn unfollow_resource(&self, uri: &str) {
        let wants = self.told.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wants) = &*wants {
            wants.send_modify(|wants| {
                wants.uris.remove(uri);
            });
        }
    }

    /// Begins to tell a session from before 2026-07-28 of changed lists, as its capabilities promise.
    pub(super) fn follow_lists(&self, context: &NotificationContext<RoleServer>) {
        let Ok(view) = self.view(&context.extensions) else { return };
        let mut wants = self.told.0.lock().unwrap_or_else(PoisonError::into_inner);
        wants.get_or_insert_with(|| self.begin_telling(&view, context.peer.clone())).send_modify(|wants| {
            wants.tools = Wanted::Yes;
            wants.resources = Wanted::Yes;
        });
    }

    fn begin_telling(&self, view: &View, peer: Peer<RoleServer>) -> watch::Sender<Wants> {
        let (wants, wanted) = watch::channel(Wants::default());
        // A server of its own: it must not hold what ends it.
        let face = Self::new(self.gateway.clone());
        let teller = Teller::new(face, view.clone(), wanted, Subscriber::Legacy(peer));
        let closing = self.gateway.closing.clone();
        self.gateway.tasks.spawn(async move {
            tokio::select! {
                () = teller.tell() => {}
                () = closing.cancelled() => {}
            }
        });
        wants
    }

    /// The session that a URI is about, and when it was last appended to.
    async fn session_behind(&self, view: &View, uri: &str) -> Result<(SessionId, Timestamp), SessionError> {
        let target = resources::parse(uri).ok_or(SessionError::NoSession)?;
        let found = self.gateway.sessions.find(&view.principal, &target.session).await?;
        Ok((found.id, found.updated_at))
    }
}

/// Where notifications go.
enum Subscriber {
    Modern(SubscriptionSink),
    Legacy(Peer<RoleServer>),
}

/// What a subscriber is told.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Notice {
    Tools,
    Resources,
    Updated(String),
}

impl Subscriber {
    /// Whether the subscriber is still there.
    async fn hears(&self, notice: Notice) -> bool {
        match (self, notice) {
            (Self::Modern(sink), Notice::Tools) => sink.notify_tool_list_changed().await.is_ok(),
            (Self::Modern(sink), Notice::Resources) => sink.notify_resource_list_changed().await.is_ok(),
            (Self::Modern(sink), Notice::Updated(uri)) => sink.notify_resource_updated(uri).await.is_ok(),
            (Self::Legacy(peer), Notice::Tools) => peer.notify_tool_list_changed().await.is_ok(),
            (Self::Legacy(peer), Notice::Resources) => peer.notify_resource_list_changed().await.is_ok(),
            (Self::Legacy(peer), Notice::Updated(uri)) => {
                peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await.is_ok()
            }
        }
    }
}

/// Tells one subscriber. What changes while it is being told waits, once, for its turn.
struct Teller {
    face: Face,
    view: View,
    wants: watch::Receiver<Wants>,
    subscriber: Subscriber,
    changes: Changes,
    /// The sessions of the URIs, those that exist.
    sessions: HashMap<String, SessionId>,
    due: VecDeque<Notice>,
}

impl Teller {
    fn new(face: Face, view: View, wants: watch::Receiver<Wants>, subscriber: Subscriber) -> Self {
        let changes = face.gateway.sessions.changes(&view.principal);
        let (sessions, due) = (HashMap::new(), VecDeque::new());
        Self { face, view, wants, subscriber, changes, sessions, due }
    }

    /// Tells until the subscriber is gone.
    async fn tell(mut self) {
        let mut hands = self.face.gateway.registry.changes();
        hands.mark_unchanged();
        let mut free = Instant::now();
        self.resolve().await;
        loop {
            tokio::select! {
                change = self.changes.next() => match change {
                    Ok(Change::Appended(id, _) | Change::Deleted(id)) => self.changed(id),
                    Ok(Change::List) => self.list_changed().await,
                    Err(error) => {
                        tracing::warn!(error = %error, "a change could not be looked at yet");
                        tokio::time::sleep(RETRY).await;
                    }
                },
                Ok(()) = hands.changed() => if self.wants.borrow().tools == Wanted::Yes {
                    self.add(Notice::Tools);
                },
                wanted = self.wants.changed() => match wanted {
                    Ok(()) => self.resolve().await,
                    Err(_) => return,
                },
                () = tokio::time::sleep_until(free), if !self.due.is_empty() => {
                    let Some(notice) = self.due.pop_front() else { continue };
                    if !self.subscriber.hears(notice).await {
                        return;
                    }
                    free = Instant::now() + AT_MOST_EVERY;
                }
            }
        }
    }

    /// Begins to watch the sessions of URIs that are new, or whose session is. What was appended to them since
    /// they were asked for has been missed, so it is told.
    async fn resolve(&mut self) {
        let uris = self.wants.borrow_and_update().uris.clone();
        self.sessions.retain(|uri, _| uris.contains_key(uri));
        for (uri, asked) in uris {
            let Some((id, _)) = self.look(&uri).await else {
                self.sessions.remove(&uri);
                continue;
            };
            if self.sessions.get(&uri) == Some(&id) {
                continue;
            }
            self.changes.watch(id);
            self.sessions.insert(uri.clone(), id);
            // Once more: from here on every append is heard of.
            if self.look(&uri).await.is_some_and(|(_, updated)| updated + CLOCK_SKEW >= asked) {
                self.add(Notice::Updated(uri));
            }
        }
        let watched: Vec<_> = self.sessions.values().copied().collect();
        self.changes.keep(&watched);
    }

    /// The session of a URI, asked for until the database answers.
    async fn look(&self, uri: &str) -> Option<(SessionId, Timestamp)> {
        loop {
            match self.face.session_behind(&self.view, uri).await {
                Ok(found) => return Some(found),
                Err(SessionError::NoSession) => return None,
                Err(error) => tracing::warn!(error = %error, "a session could not be looked at yet"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    fn changed(&mut self, id: SessionId) {
        let of_it = |(uri, of): (&String, &SessionId)| (*of == id).then(|| Notice::Updated(uri.clone()));
        let notices: Vec<_> = self.sessions.iter().filter_map(of_it).collect();
        for notice in notices {
            self.add(notice);
        }
    }

    /// A session was made, archived or deleted: it may be one that a URI has been waiting for.
    async fn list_changed(&mut self) {
        if self.wants.borrow().resources == Wanted::Yes {
            self.add(Notice::Resources);
        }
        self.resolve().await;
    }

    fn add(&mut self, notice: Notice) {
        if !self.due.contains(&notice) {
            self.due.push_back(notice);
        }
    }
}
