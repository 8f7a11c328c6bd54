//! One hand of one session: at most one live instance in this process, and how it comes and goes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use hands::mcp::Notice;
use hands::{Handle, InstanceId, Lease, Owner, Progress};
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;

use super::notes::{Fate, note};
use super::take::{delete_row_of_gone, left_elsewhere, take};
use super::{LeaseError, Leases};
use crate::access::Principal;
use crate::clock;
use crate::leases::node::NodeId;
use crate::registry::Registered;
use crate::session::{At, Body, By, Held, LogError, NewEvent, SessionId, Slice, Via, Work};

/// How far back the log is searched for what became of the last instance, in events of hands.
const HISTORY: u32 = 256;

/// A live instance, as calls use it.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    /// What the hand calls it.
    pub handle: Handle,
    /// The claim that fences what is written about it.
    pub held: Held,
    /// The process that holds it.
    pub node: NodeId,
}

/// Where an instance of one hand of one session lives, or will.
pub(super) struct Slot {
    pub(super) session: SessionId,
    pub(super) principal: Principal,
    pub(super) hand: Arc<Registered>,
    /// Locked while an instance comes or goes, so that racing first calls provision once.
    pub(super) state: Mutex<Option<Instance>>,
    pub(super) live: AtomicBool,
    pub(super) running: AtomicUsize,
    used: std::sync::Mutex<Instant>,
    /// What the brain has not been told yet about how its instance came to be.
    owed: std::sync::Mutex<Option<&'static str>>,
    /// What is being done for the instance that is being made.
    steps: watch::Sender<Option<Arc<str>>>,
}

/// Where a hand says what it does for an instance.
struct Steps(watch::Sender<Option<Arc<str>>>);

impl Progress for Steps {
    fn step(&self, what: &str) {
        self.0.send_replace(Some(what.into()));
    }

    fn output(&self, _: &str) {}

    fn notice(&self, _: Notice) {}
}

/// A live instance that is not released while this is held.
pub struct InUse {
    /// The instance.
    pub instance: Instance,
    pub(super) slot: Arc<Slot>,
}

impl InUse {
    fn new(slot: &Arc<Slot>, instance: &Instance) -> Self {
        slot.running.fetch_add(1, Ordering::SeqCst);
        Self { instance: instance.clone(), slot: slot.clone() }
    }
}

impl InUse {
    /// A second hold on the same instance.
    #[must_use]
    pub fn again(&self) -> Self {
        Self::new(&self.slot, &self.instance)
    }

    /// What the brain is to be told with the result of this call: once, by whichever call asks first.
    pub fn note(&self) -> Option<&'static str> {
        self.slot.owed().take()
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.slot.touch();
        self.slot.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Slot {
    pub(super) fn new(session: SessionId, principal: Principal, hand: Arc<Registered>) -> Self {
        Self {
            session,
            principal,
            hand,
            state: Mutex::new(None),
            live: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            used: std::sync::Mutex::new(Instant::now()),
            owed: std::sync::Mutex::default(),
            steps: watch::Sender::new(None),
        }
    }

    pub(super) fn is_live(&self) -> bool {
        self.live.load(Ordering::SeqCst)
    }

    /// The instance, if it is there and nobody is just making or ending it.
    pub(super) fn warm(self: &Arc<Self>) -> Option<InUse> {
        let state = self.state.try_lock().ok()?;
        let instance = state.as_ref().filter(|instance| self.hand.hand.alive(&instance.handle))?;
        Some(InUse::new(self, instance))
    }

    /// The same as [`Self::acquire`], with what is done for it meanwhile told to `progress`.
    pub(super) async fn acquire_and_tell(
        self: &Arc<Self>,
        leases: &Leases,
        useless: &CancellationToken,
        progress: &dyn Progress,
    ) -> Result<InUse, LeaseError> {
        let mut steps = self.steps.subscribe();
        steps.mark_changed();
        let mut acquiring = std::pin::pin!(self.acquire(leases, useless));
        loop {
            tokio::select! {
                biased;
                acquired = &mut acquiring => return acquired,
                Ok(()) = steps.changed() => {
                    let step = steps.borrow_and_update().clone();
                    if let Some(step) = step {
                        progress.step(&step);
                    }
                }
            }
        }
    }

    /// The instance, made when there is none, unless `useless` fires.
    async fn acquire(
        self: &Arc<Self>,
        leases: &Leases,
        useless: &CancellationToken,
    ) -> Result<InUse, LeaseError> {
        let mut state = tokio::select! {
            biased;
            () = useless.cancelled() => return Err(LeaseError::GivenUp),
            state = self.state.lock() => state,
        };
        if let Some(instance) = &*state {
            if self.hand.hand.alive(&instance.handle) {
                return Ok(InUse::new(self, instance));
            }
            self.bury(leases, &mut state).await?;
        }
        let instance = self.provision(leases, useless).await?;
        let in_use = InUse::new(self, &instance);
        *state = Some(instance);
        self.live.store(true, Ordering::SeqCst);
        Ok(in_use)
    }

    /// Writes that the instance died while no call noticed, and clears what it left.
    async fn bury(&self, leases: &Leases, state: &mut Option<Instance>) -> Result<(), LeaseError> {
        let Some(dead) = state.clone() else { return Ok(()) };
        let _ = self.hand.hand.release(dead.handle.clone()).await;
        written_once(self.append(leases, &dead, &self.lost(&dead.handle.instance, Work::Kept)).await)?;
        self.clear(leases, state).await;
        Ok(())
    }

    /// The row is written before the instance is made, so that a later start finds what a crash leaves.
    async fn provision(&self, leases: &Leases, useless: &CancellationToken) -> Result<Instance, LeaseError> {
        let handle = Handle { instance: InstanceId(format!("inst_{}", clock::id().simple())) };
        let node = leases.me();
        let held = take(leases, self, &handle.instance, &node).await?;
        let instance = Instance { handle, held, node };
        let made = self.make(leases, &instance, useless).await;
        self.steps.send_replace(None);
        match made {
            Ok(()) => Ok(instance),
            Err(error) => {
                let _ = self.hand.hand.release(instance.handle.clone()).await;
                delete_row_or_say(leases, &instance.handle.instance).await;
                Err(error)
            }
        }
    }

    async fn make(
        &self,
        leases: &Leases,
        instance: &Instance,
        useless: &CancellationToken,
    ) -> Result<(), LeaseError> {
        let note = self.history(leases, instance).await?;
        let folder = leases.folder(self.session, &self.hand.name).await?;
        if self.hand.hand.far_work().is_some() {
            leases.note_far_work(self.session, &self.hand.name, &folder).await?;
        }
        let lease = Lease {
            instance: instance.handle.instance.clone(),
            work: leases.work.join(folder),
            owner: Owner(self.principal.to_string()),
        };
        let limit = self.hand.config.provision_max();
        let steps = Steps(self.steps.clone());
        let making = tokio::time::timeout(limit, self.hand.hand.provision(&lease, &steps));
        let made = tokio::select! {
            biased;
            () = useless.cancelled() => return Err(LeaseError::GivenUp),
            made = making => made,
        };
        let limit_s = limit.as_secs();
        made.map_err(|_| LeaseError::Slow { hand: self.hand.name.clone(), limit_s })??;
        let provisioned = Body::HandProvisioned {
            hand: self.hand.name.to_string(),
            instance: lease.instance.to_string(),
            node: instance.node.to_string(),
        };
        self.append(leases, instance, &provisioned).await?;
        *self.owed() = note;
        Ok(())
    }

    /// What the brain should know about the instance before this one. When that was another gateway's, the log is
    /// told that its work is out of reach: it can do nothing more, for the lease is ours.
    async fn history(
        &self,
        leases: &Leases,
        instance: &Instance,
    ) -> Result<Option<&'static str>, LeaseError> {
        for left in left_elsewhere(leases, self).await? {
            written_once(self.append(leases, instance, &self.lost(&left, Work::Gone)).await)?;
        }
        let types =
            ["hand.provisioned", "hand.lost", "hand.released", "hand.moved"].map(str::to_owned).to_vec();
        let slice = Slice { limit: Some(HISTORY), types, ..Slice::default() };
        let events = leases.log.read(self.session, slice).await?;
        let (mut fate, mine, session) = (None, self.hand.name.as_str(), self.session.to_string());
        for body in events.into_iter().rev().filter_map(|event| event.known()) {
            match body {
                Body::HandLost { hand, .. } if hand == mine => fate = fate.or(Some(Fate::Lost)),
                Body::HandReleased { hand, .. } if hand == mine => fate = fate.or(Some(Fate::Released)),
                Body::HandMoved { hand, from, .. } if hand == mine && from == session => {
                    return Ok(note(&self.hand, fate.unwrap_or(Fate::Moved)));
                }
                Body::HandProvisioned { hand, node, instance: before }
                | Body::HandMoved { hand, node, instance: before, .. }
                    if hand == mine =>
                {
                    let here = leases.nodes.is_of_this_home(&node);
                    if fate.is_none() {
                        // It was made, and the answer to its append was lost: nobody has said yet that it is gone.
                        let work = if here { Work::Kept } else { Work::Gone };
                        let before = InstanceId(before);
                        written_once(self.append(leases, instance, &self.lost(&before, work)).await)?;
                        delete_row_or_say(leases, &before).await;
                    }
                    let fate = if here { fate.unwrap_or(Fate::Lost) } else { Fate::Elsewhere };
                    return Ok(note(&self.hand, fate));
                }
                _ => {}
            }
        }
        Ok(fate.and_then(|fate| note(&self.hand, fate)))
    }

    /// Releases the instance unless a call runs in it or it was used within `idle`. Says whether there was one.
    pub(super) async fn release(&self, leases: &Leases, idle: Duration) -> Result<bool, LeaseError> {
        let Ok(mut state) = self.state.try_lock() else {
            return Err(LeaseError::Busy(self.hand.name.clone()));
        };
        if self.idle_for() < idle {
            return Ok(false);
        }
        if self.running.load(Ordering::SeqCst) > 0 {
            return Err(LeaseError::Busy(self.hand.name.clone()));
        }
        self.end(leases, &mut state).await
    }

    /// Releases the instance whatever runs in it.
    pub(super) async fn release_now(&self, leases: &Leases) -> Result<bool, LeaseError> {
        let mut state = self.state.lock().await;
        self.end(leases, &mut state).await
    }

    async fn end(&self, leases: &Leases, state: &mut Option<Instance>) -> Result<bool, LeaseError> {
        let Some(instance) = state.clone() else { return Ok(false) };
        let died = !self.hand.hand.alive(&instance.handle);
        self.hand.hand.release(instance.handle.clone()).await?;
        let (hand, id) = (self.hand.name.to_string(), instance.handle.instance.to_string());
        let end = if died {
            self.lost(&instance.handle.instance, Work::Kept)
        } else {
            Body::HandReleased { hand, instance: id }
        };
        let written = written_once(self.append(leases, &instance, &end).await);
        self.clear(leases, state).await;
        written.map(|()| true)
    }

    /// Forgets `instance` after it died under a call or was taken over. The caller writes what happened.
    pub(super) async fn forget(&self, leases: &Leases, instance: &Instance) {
        let mut state = self.state.lock().await;
        if state.as_ref() == Some(instance) {
            let _ = self.hand.hand.release(instance.handle.clone()).await;
            self.clear(leases, &mut state).await;
        }
    }

    /// Ends the instance without a word to the database.
    pub(super) async fn abandon(&self) {
        let instance = self.state.lock().await.take();
        self.live.store(false, Ordering::SeqCst);
        if let Some(instance) = instance {
            let _ = self.hand.hand.release(instance.handle).await;
        }
    }

    async fn clear(&self, leases: &Leases, state: &mut Option<Instance>) {
        self.live.store(false, Ordering::SeqCst);
        if let Some(instance) = state.take() {
            delete_row_or_say(leases, &instance.handle.instance).await;
        }
    }

    async fn append(&self, leases: &Leases, instance: &Instance, body: &Body) -> Result<(), LeaseError> {
        let event = NewEvent::of(self.by(), body);
        leases.log.append(self.session, At::Held(vec![instance.held.clone()]), &[event]).await?;
        Ok(())
    }

    fn lost(&self, instance: &InstanceId, work: Work) -> Body {
        Body::HandLost { hand: self.hand.name.to_string(), instance: instance.to_string(), work }
    }

    fn by(&self) -> By {
        By { principal: self.principal.to_string(), client: None, via: Via::Gateway }
    }

    fn owed(&self) -> std::sync::MutexGuard<'_, Option<&'static str>> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// How long no call has used it. None while one does, or when there is no instance.
    pub(super) fn idle(&self) -> Option<Duration> {
        let idle = self.is_live() && self.running.load(Ordering::SeqCst) == 0;
        idle.then(|| self.idle_for())
    }

    fn idle_for(&self) -> Duration {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

/// What the log has already, or can't take any more, needs no second try.
fn written_once(written: Result<(), LeaseError>) -> Result<(), LeaseError> {
    match written {
        Err(LeaseError::Log(
            LogError::InstanceGone | LogError::Fenced(_) | LogError::NoSession | LogError::Archived,
        )) => Ok(()),
        other => other,
    }
}

/// A row that stays harms nobody: the log says that the instance is gone, and a later start removes it.
async fn delete_row_or_say(leases: &Leases, id: &InstanceId) {
    if let Err(error) = delete_row_of_gone(leases, id).await {
        tracing::warn!(instance = %id, error = %error, "the row of an instance that is gone stays for now");
    }
}
