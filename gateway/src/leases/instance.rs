//! One hand of one session: at most one live instance in this process, and how it comes and goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hands::{Handle, InstanceId, Lease};
use sqlx::Row as _;
use tokio::sync::Mutex;

use super::{LeaseError, Leases, subject};
use crate::access::Principal;
use crate::clock;
use crate::database::DatabaseError;
use crate::leases::node::NodeId;
use crate::registry::Registered;
use crate::session::{At, Body, By, Held, NewEvent, SessionId, Slice, Via, Work};

/// Said to the brain with the first result of an instance that replaced one.
const REPLACED: &str = "[The hand had died since your last call: this is a fresh instance with the same /workspace. \
     Background processes and files outside /workspace are gone.]";
/// The same after an idle or asked-for release.
const RENEWED: &str = "[The hand had been released since your last call: this is a fresh instance with the same \
     /workspace. Background processes and files outside /workspace are gone.]";
/// The same when the work stayed behind on another machine.
const MOVED: &str = "[The hand was on another machine that holds it no more: this is a fresh instance, and the \
     /workspace of the earlier one is gone.]";
/// How far back the log is searched for what became of the last instance, in events of hands.
const HISTORY: u32 = 32;

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
    state: Mutex<Option<Instance>>,
    live: AtomicBool,
    running: AtomicUsize,
    used: std::sync::Mutex<Instant>,
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
        }
    }

    pub(super) fn is_live(&self) -> bool {
        self.live.load(Ordering::SeqCst)
    }

    /// The instance, if it is there and nobody is just making or ending it.
    pub(super) async fn warm(self: &Arc<Self>) -> Option<InUse> {
        let state = self.state.try_lock().ok()?;
        let instance = state.as_ref().filter(|instance| self.hand.hand.alive(&instance.handle))?;
        Some(InUse::new(self, instance))
    }

    pub(super) async fn acquire(
        self: &Arc<Self>,
        leases: &Leases,
    ) -> Result<(InUse, Option<&'static str>), LeaseError> {
        let mut state = self.state.lock().await;
        if let Some(instance) = &*state {
            if self.hand.hand.alive(&instance.handle) {
                return Ok((InUse::new(self, instance), None));
            }
            let dead = instance.clone();
            let _ = self.hand.hand.release(dead.handle.clone()).await;
            self.append(leases, &dead, &self.lost(&dead.handle.instance, Work::Kept)).await?;
            self.clear(leases, &mut state).await?;
        }
        let elsewhere = self.left_elsewhere(leases).await?;
        let note = if elsewhere { Some(MOVED) } else { self.history(leases).await? };
        let instance = self.provision(leases).await?;
        let in_use = InUse::new(self, &instance);
        *state = Some(instance);
        self.live.store(true, Ordering::SeqCst);
        Ok((in_use, note))
    }

    /// The row is written before the instance is made, so that a later start finds what a crash leaves.
    async fn provision(&self, leases: &Leases) -> Result<Instance, LeaseError> {
        let id = InstanceId(format!("inst_{}", clock::id().simple()));
        let node = leases.me();
        let held = self.take(leases, &id, &node).await?;
        let lease = Lease {
            instance: id.clone(),
            work: leases.work.join(self.session.to_string()).join(self.hand.name.as_str()),
        };
        let instance = match self.hand.hand.provision(&lease).await {
            Ok(handle) => Instance { handle, held, node },
            Err(error) => {
                delete_row(leases, &id).await?;
                return Err(error.into());
            }
        };
        let provisioned = Body::HandProvisioned {
            hand: self.hand.name.to_string(),
            instance: id.to_string(),
            node: instance.node.to_string(),
        };
        if let Err(error) = self.append(leases, &instance, &provisioned).await {
            let _ = self.hand.hand.release(instance.handle).await;
            delete_row(leases, &id).await?;
            return Err(error);
        }
        Ok(instance)
    }

    async fn take(&self, leases: &Leases, id: &InstanceId, node: &NodeId) -> Result<Held, LeaseError> {
        let subject = subject(self.session, &self.hand.name);
        let (key, id, node) = (subject.clone(), id.to_string(), node.to_string());
        let (session, hand) = (self.session.to_string(), self.hand.name.to_string());
        let kind = self.hand.config.kind();
        let epoch = leases
            .database
            .write(move |connection| {
                Box::pin(async move {
                    let row = sqlx::query(
                        "insert into lease (subject, node, epoch) values ($1, $2, 1)
                         on conflict (subject) do update set node = excluded.node, epoch = lease.epoch + 1
                         returning epoch",
                    )
                    .bind(key)
                    .bind(node.clone())
                    .fetch_one(&mut *connection)
                    .await?;
                    sqlx::query(
                        "insert into instance (id, session, hand, kind, node, created_at)
                         values ($1, $2, $3, $4, $5, $6)",
                    )
                    .bind(id)
                    .bind(session)
                    .bind(hand)
                    .bind(kind)
                    .bind(node)
                    .bind(clock::now().to_string())
                    .execute(&mut *connection)
                    .await?;
                    Ok::<i64, DatabaseError>(row.try_get("epoch")?)
                })
            })
            .await?;
        Ok(Held { subject, epoch })
    }

    /// Whether another data directory's process had this hand; the log is told that its work is out of reach.
    async fn left_elsewhere(&self, leases: &Leases) -> Result<bool, LeaseError> {
        let (session, hand) = (self.session.to_string(), self.hand.name.to_string());
        let home = leases.nodes.home().to_owned();
        let left: Vec<String> = leases
            .database
            .write(move |connection| {
                Box::pin(async move {
                    let rows = sqlx::query(
                        "update instance set lost = 1 where session = $1 and hand = $2 and lost = 0
                         and node not in (select id from node where home = $3) returning id",
                    )
                    .bind(session)
                    .bind(hand)
                    .bind(home)
                    .fetch_all(&mut *connection)
                    .await?;
                    rows.iter().map(|row| Ok::<_, DatabaseError>(row.try_get("id")?)).collect()
                })
            })
            .await?;
        for id in &left {
            let event = NewEvent::of(self.by(), &self.lost(&InstanceId(id.clone()), Work::Gone));
            leases.log.append(self.session, At::End, &[event]).await?;
        }
        Ok(!left.is_empty())
    }

    /// What the brain should know about the instance before this one.
    async fn history(&self, leases: &Leases) -> Result<Option<&'static str>, LeaseError> {
        let types = ["hand.lost", "hand.released", "hand.provisioned"].map(str::to_owned).to_vec();
        let slice = Slice { limit: Some(HISTORY), types, ..Slice::default() };
        let events = leases.log.read(self.session, slice).await?;
        let last = events.into_iter().rev().filter_map(|event| event.known()).find_map(|body| match body {
            Body::HandLost { hand, work, .. } if hand == self.hand.name.as_str() => Some(Some(work)),
            Body::HandReleased { hand, .. } if hand == self.hand.name.as_str() => Some(None),
            _ => None,
        });
        Ok(last.map(|lost| match lost {
            Some(Work::Kept) => REPLACED,
            Some(Work::Gone) => MOVED,
            None => RENEWED,
        }))
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
        self.hand.hand.release(instance.handle.clone()).await?;
        let released = Body::HandReleased {
            hand: self.hand.name.to_string(),
            instance: instance.handle.instance.to_string(),
        };
        let written = self.append(leases, &instance, &released).await;
        self.clear(leases, state).await?;
        written.map(|()| true)
    }

    /// Forgets `instance` after it died under a call or was taken over. The caller writes what happened.
    pub(super) async fn forget(&self, leases: &Leases, instance: &Instance) -> Result<(), LeaseError> {
        let mut state = self.state.lock().await;
        if state.as_ref() == Some(instance) {
            let _ = self.hand.hand.release(instance.handle.clone()).await;
            self.clear(leases, &mut state).await?;
        }
        Ok(())
    }

    /// Ends the instance without a word to the database.
    pub(super) async fn abandon(&self) {
        let instance = self.state.lock().await.take();
        self.live.store(false, Ordering::SeqCst);
        if let Some(instance) = instance {
            let _ = self.hand.hand.release(instance.handle).await;
        }
    }

    async fn clear(&self, leases: &Leases, state: &mut Option<Instance>) -> Result<(), LeaseError> {
        self.live.store(false, Ordering::SeqCst);
        match state.take() {
            Some(instance) => delete_row(leases, &instance.handle.instance).await,
            None => Ok(()),
        }
    }

    async fn append(&self, leases: &Leases, instance: &Instance, body: &Body) -> Result<(), LeaseError> {
        let event = NewEvent::of(self.by(), body);
        leases.log.append(self.session, At::Held(vec![instance.held.clone()]), &[event]).await?;
        Ok(())
    }

    pub(super) fn lost(&self, instance: &InstanceId, work: Work) -> Body {
        Body::HandLost { hand: self.hand.name.to_string(), instance: instance.to_string(), work }
    }

    fn by(&self) -> By {
        By { principal: self.principal.to_string(), client: None, via: Via::Gateway }
    }

    fn touch(&self) {
        *self.used.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Instant::now();
    }

    fn idle_for(&self) -> Duration {
        self.used.lock().unwrap_or_else(std::sync::PoisonError::into_inner).elapsed()
    }
}

pub(super) async fn delete_row(leases: &Leases, id: &InstanceId) -> Result<(), LeaseError> {
    let id = id.to_string();
    leases
        .database
        .write(move |connection| {
            Box::pin(async move {
                sqlx::query("delete from instance where id = $1").bind(id).execute(&mut *connection).await?;
                Ok::<_, DatabaseError>(())
            })
        })
        .await?;
    Ok(())
}
