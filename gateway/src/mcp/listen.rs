//! Who hears of what: `subscriptions/listen` (2026-07-28), `resources/subscribe` and the GET stream (before).
//!
//! A subscriber is told of something at most ten times a second and always of a resource's last change.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hands::Tool;
use hands::mcp::{Catalogue, Object};
use jiff::{SignedDuration, Timestamp};
use rmcp::model::{ResourceUpdatedNotificationParam, SubscriptionFilter};
use rmcp::service::{NotificationContext, Peer, RequestContext, SubscriptionContext, SubscriptionSink};
use rmcp::{ErrorData, RoleServer};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::bridge::follow::Followed;
use super::{Face, View, resources, results};
use crate::clock;
use crate::error;
use crate::hand::HandName;
use crate::registry::Registered;
use crate::session::{Change, Changes, SessionError, SessionId};

/// Shortest time between two notifications to one subscriber. (Design 2.2: at most 10 a second.)
const AT_MOST_EVERY: Duration = Duration::from_millis(100);
/// Most resources that one subscriber follows.
const RESOURCES_MAX: usize = 256;
/// How long to wait for a database that does not answer before it is asked again.
const RETRY: Duration = Duration::from_secs(1);
/// How long a client waits for a server that it wants to be told by.
const FOLLOWED: Duration = Duration::from_secs(5);
/// How far the clocks of two gateways on one database may be apart.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(1);

/// What a subscriber wants to hear of.
#[derive(Clone, Default)]
struct Wants {
    /// Each with when it was asked for.
    uris: BTreeMap<String, Timestamp>,
    tools: Wanted,
    prompts: Wanted,
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
pub(super) struct Told {
    wants: Arc<Mutex<Option<watch::Sender<Wants>>>>,
    /// The resources of hands that are being followed.
    holding: Arc<watch::Sender<HashSet<String>>>,
}

impl Face {
    /// What can be delivered of what was asked for: URIs that mean something, and lists that change. Whose a URI is
    /// does not matter here, so that nobody can tell another's from one that does not exist.
    pub(super) fn deliverable(&self, requested: &SubscriptionFilter) -> SubscriptionFilter {
        let mut filter = requested.clone();
        if let Some(uris) = &mut filter.resource_subscriptions {
            uris.retain(|uri| resources::parse(uri).is_some() || self.can_follow(uri));
            uris.truncate(RESOURCES_MAX);
        }
        filter
    }

    /// Whether it is a resource of a hand whose server tells of updates.
    fn can_follow(&self, uri: &str) -> bool {
        let found = self.fixed.as_ref().and_then(|view| self.resource(view, uri).ok().flatten());
        found.is_some_and(|(hand, _)| tells_of_updates(&hand))
    }

    /// Serves one `subscriptions/listen` until its client goes.
    pub(super) async fn notify(&self, view: &View, context: SubscriptionContext) -> Result<(), ErrorData> {
        let now = clock::now();
        let accepted = context.accepted().clone();
        let uris = accepted.resource_subscriptions.unwrap_or_default();
        // Held to the end: a sender that is gone ends the telling.
        let (_wants, wanted) = watch::channel(Wants {
            uris: uris.into_iter().map(|uri| (uri, now)).collect(),
            tools: accepted.tools_list_changed.into(),
            prompts: accepted.prompts_list_changed.into(),
            resources: accepted.resources_list_changed.into(),
        });
        let subscriber = Subscriber::Modern(context.sink().clone());
        let teller = Teller::new(self.clone(), view.clone(), wanted, subscriber, Arc::default());
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
        let of_hand = self.resource(view, &uri)?;
        match &of_hand {
            Some((hand, _)) if tells_of_updates(hand) => {}
            Some((hand, _)) => {
                let hint = format!("the server of {} does not tell of updates", hand.name);
                return Err(ErrorData::invalid_params(hint, None));
            }
            None => match self.session_behind(view, &uri).await {
                Ok(_) => {}
                Err(SessionError::NoSession) => return Err(results::no_resource(&uri)),
                Err(error) => return Err(error::rpc(&error)),
            },
        }
        self.want(view, uri.clone(), context)?;
        if of_hand.is_some() {
            // From the answer on the client is told, unless the server takes its time.
            let mut holding = self.told.holding.subscribe();
            let _ = tokio::time::timeout(FOLLOWED, holding.wait_for(|holding| holding.contains(&uri))).await;
        }
        Ok(())
    }

    fn want(&self, view: &View, uri: String, context: &RequestContext<RoleServer>) -> Result<(), ErrorData> {
        let now = clock::now();
        let mut wants = self.told.wants.lock().unwrap_or_else(PoisonError::into_inner);
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
        let wants = self.told.wants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wants) = &*wants {
            wants.send_modify(|wants| {
                wants.uris.remove(uri);
            });
        }
    }

    /// Begins to tell a session from before 2026-07-28 of changed lists, as its capabilities promise.
    pub(super) fn follow_lists(&self, context: &NotificationContext<RoleServer>) {
        let Ok(view) = self.view(&context.extensions) else { return };
        let mut wants = self.told.wants.lock().unwrap_or_else(PoisonError::into_inner);
        wants.get_or_insert_with(|| self.begin_telling(&view, context.peer.clone())).send_modify(|wants| {
            wants.tools = Wanted::Yes;
            wants.prompts = Wanted::Yes;
            wants.resources = Wanted::Yes;
        });
    }

    fn begin_telling(&self, view: &View, peer: Peer<RoleServer>) -> watch::Sender<Wants> {
        let (wants, wanted) = watch::channel(Wants::default());
        // A server of its own: it must not hold what ends it.
        let face = Self::new(self.gateway.clone());
        let (subscriber, holding) = (Subscriber::Legacy(peer), self.told.holding.clone());
        let teller = Teller::new(face, view.clone(), wanted, subscriber, holding);
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

/// Whether a hand's server says when a resource was updated.
fn tells_of_updates(hand: &Registered) -> bool {
    let declared = hand.catalogue().and_then(|catalogue| catalogue.capabilities.get("resources").cloned());
    declared.is_some_and(|resources| resources.get("subscribe").is_some_and(|it| it == true))
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
    Prompts,
    Resources,
    Updated(String),
}

impl Subscriber {
    /// Whether the subscriber is still there.
    async fn hears(&self, notice: Notice) -> bool {
        match (self, notice) {
            (Self::Modern(sink), Notice::Tools) => sink.notify_tool_list_changed().await.is_ok(),
            (Self::Modern(sink), Notice::Prompts) => sink.notify_prompt_list_changed().await.is_ok(),
            (Self::Modern(sink), Notice::Resources) => sink.notify_resource_list_changed().await.is_ok(),
            (Self::Modern(sink), Notice::Updated(uri)) => sink.notify_resource_updated(uri).await.is_ok(),
            (Self::Legacy(peer), Notice::Tools) => peer.notify_tool_list_changed().await.is_ok(),
            (Self::Legacy(peer), Notice::Prompts) => peer.notify_prompt_list_changed().await.is_ok(),
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
    /// The resources of hands, with who follows them.
    followed: HashMap<String, AbortHandle>,
    following: JoinSet<()>,
    holding: Arc<watch::Sender<HashSet<String>>>,
    updates: (mpsc::Sender<String>, mpsc::Receiver<String>),
    offered: Vec<Offered>,
    due: VecDeque<Notice>,
}

/// What a hand offers, as lists show it.
struct Offered {
    hand: HandName,
    tools: Arc<Vec<Arc<Tool>>>,
    prompts: Arc<Vec<Arc<Object>>>,
    catalogue: Option<Arc<Catalogue>>,
}

/// One list of all hands, without those that have nothing on it.
fn on_list<T: PartialEq>(all: &[Offered], list: impl Fn(&Offered) -> Vec<T>) -> Vec<(&HandName, Vec<T>)> {
    let lists = all.iter().map(|offered| (&offered.hand, list(offered)));
    lists.filter(|(_, list)| !list.is_empty()).collect()
}

impl Teller {
    fn new(
        face: Face,
        view: View,
        wants: watch::Receiver<Wants>,
        subscriber: Subscriber,
        holding: Arc<watch::Sender<HashSet<String>>>,
    ) -> Self {
        let changes = face.gateway.sessions.changes(&view.principal);
        Self {
            face,
            view,
            wants,
            subscriber,
            changes,
            sessions: HashMap::new(),
            followed: HashMap::new(),
            following: JoinSet::new(),
            holding,
            updates: mpsc::channel(RESOURCES_MAX),
            offered: Vec::new(),
            due: VecDeque::new(),
        }
    }

    /// Tells until the subscriber is gone.
    async fn tell(mut self) {
        let mut hands = self.face.gateway.registry.changes();
        hands.mark_unchanged();
        self.offered = self.offers();
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
                Ok(()) = hands.changed() => self.hands_changed().await,
                Some(uri) = self.updates.1.recv() => if self.followed.contains_key(&uri) {
                    self.add(Notice::Updated(uri));
                },
                // A hand that is gone; another one of its name may be there.
                Some(_) = self.following.join_next() => self.resolve().await,
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
        let over: Vec<_> = self.followed.keys().filter(|uri| !uris.contains_key(*uri)).cloned().collect();
        for uri in over {
            self.unfollow(&uri);
        }
        for (uri, asked) in uris {
            match self.face.resource(&self.view, &uri) {
                Ok(None) => {}
                Ok(Some((hand, own))) => {
                    self.follow(uri, hand, own);
                    continue;
                }
                // A hand that is not there; it may come.
                Err(_) => {
                    self.unfollow(&uri);
                    continue;
                }
            }
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

    fn follow(&mut self, uri: String, hand: Arc<Registered>, own: String) {
        if self.followed.get(&uri).is_some_and(|following| !following.is_finished()) {
            return;
        }
        let followed = Followed {
            gateway: self.face.gateway.clone(),
            view: self.view.clone(),
            hand,
            own,
            uri: uri.clone(),
            updates: self.updates.0.clone(),
            holding: self.holding.clone(),
        };
        self.followed.insert(uri, self.following.spawn(followed.follow()));
    }

    fn unfollow(&mut self, uri: &str) {
        if let Some(following) = self.followed.remove(uri) {
            following.abort();
            self.holding.send_if_modified(|holding| holding.remove(uri));
        }
    }

    /// What the hands in view offer now.
    fn offers(&self) -> Vec<Offered> {
        let hands = self.face.in_view(&self.view).unwrap_or_default();
        let offered = hands.iter().map(|hand| Offered {
            hand: hand.name.clone(),
            tools: hand.tools(),
            prompts: hand.prompts(),
            catalogue: hand.catalogue(),
        });
        offered.collect()
    }

    /// Hands came or went, or offer something else. Told is of the lists that are different, where they are wanted.
    async fn hands_changed(&mut self) {
        let now = self.offers();
        let before = std::mem::replace(&mut self.offered, now);
        let now = &self.offered;
        let same = |list: fn(&Offered) -> Vec<Arc<Object>>| on_list(&before, list) == on_list(now, list);
        let tools = on_list(&before, |it| it.tools.to_vec()) == on_list(now, |it| it.tools.to_vec());
        let prompts = same(|it| it.prompts.to_vec());
        let resources = same(|it| {
            let catalogue = it.catalogue.iter();
            catalogue.flat_map(|it| it.resources.iter().chain(&it.templates).cloned()).collect()
        });
        let wants = self.wants.borrow().clone();
        for (same, wanted, notice) in [
            (tools, wants.tools, Notice::Tools),
            (prompts, wants.prompts, Notice::Prompts),
            (resources, wants.resources, Notice::Resources),
        ] {
            if !same && wanted == Wanted::Yes {
                self.add(notice);
            }
        }
        self.resolve().await;
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
