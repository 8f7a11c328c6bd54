//! Which instances a hand has, and how each comes and goes.
//!
//! **Invariants:** an instance is made by one provision at a time, and the others wait for it; one that was lost has
//! ended before the next of its name begins. What is released is nobody's any more: nothing is made in its place but by
//! a later provision. To tell whether one is alive never waits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as BlockingMutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures_util::future::join_all;
use tokio::sync::Mutex;
use tokio_util::task::TaskTracker;

use crate::{HandError, Handle, InstanceId, Lease};

/// Something that is made for a lease, can die, and ends.
#[async_trait]
pub(crate) trait Living: Send + Sync + 'static {
    /// Why no call can run in it any more, if so.
    fn why_lost(&self) -> Option<String>;

    /// Lets no further call start, ends everything of it and waits for that. Idempotent.
    async fn end(&self, why: &str) -> Result<(), HandError>;
}

/// One instance's place: locked while it is being made or ended.
type Slot<T> = Arc<Mutex<Option<Arc<T>>>>;

/// The instances of a hand.
pub(crate) struct Instances<T> {
    /// What an instance is called in sentences.
    what: &'static str,
    slots: BlockingMutex<HashMap<InstanceId, Slot<T>>>,
    /// What goes on for them beside calls. A shutdown waits for it.
    pub(crate) tasks: TaskTracker,
}

impl<T: Living> Instances<T> {
    /// None yet. `what` says what each of them is: "its container".
    pub(crate) fn new(what: &'static str) -> Self {
        Self { what, slots: BlockingMutex::default(), tasks: TaskTracker::new() }
    }

    /// The living instance of a lease, made by `make` when there is none.
    pub(crate) async fn provision(
        &self,
        lease: &Lease,
        make: impl Future<Output = Result<Arc<T>, HandError>> + Send,
    ) -> Result<Handle, HandError> {
        let id = &lease.instance;
        loop {
            let slot = Arc::clone(self.slots().entry(id.clone()).or_default());
            let mut place = slot.lock().await;
            // It may have been released while this waited: what were made in it, nobody would find.
            if !self.is_place(id, &slot) {
                continue;
            }
            if place.as_ref().is_none_or(|instance| instance.why_lost().is_some()) {
                if let Some(old) = place.as_ref() {
                    old.end("it was lost").await?;
                }
                *place = None;
                *place = Some(make.await?);
            }
            return Ok(Handle { instance: id.clone() });
        }
    }

    /// The living instance behind a handle.
    pub(crate) async fn get(&self, handle: &Handle) -> Result<Arc<T>, HandError> {
        let lost = |why: String| HandError::Lost { may_have_run: false, why };
        let released = || lost(self.released());
        let slot = self.slots().get(&handle.instance).map(Arc::clone).ok_or_else(released)?;
        let instance = slot.lock().await.as_ref().map(Arc::clone).ok_or_else(released)?;
        match instance.why_lost() {
            Some(why) => Err(lost(why)),
            None => Ok(instance),
        }
    }

    /// Whether it is there, without waiting.
    pub(crate) fn alive(&self, handle: &Handle) -> bool {
        let Some(slot) = self.slots().get(&handle.instance).map(Arc::clone) else { return false };
        // Somebody who holds the lock is making or ending it: it counts as there.
        let Ok(place) = slot.try_lock() else { return true };
        place.as_ref().is_some_and(|instance| instance.why_lost().is_none())
    }

    /// Ends an instance. Idempotent: one that is not there has ended.
    pub(crate) async fn release(&self, handle: &Handle) -> Result<(), HandError> {
        let Some(slot) = self.slots().get(&handle.instance).map(Arc::clone) else { return Ok(()) };
        let mut place = slot.lock().await;
        let ended = match place.as_ref() {
            Some(instance) => instance.end(&self.released()).await,
            None => Ok(()),
        };
        *place = None;
        // Before the lock is free: who waits for it looks for another place.
        if self.is_place(&handle.instance, &slot) {
            self.slots().remove(&handle.instance);
        }
        ended
    }

    /// Ends every instance and waits until nothing of them runs.
    pub(crate) async fn shutdown(&self) {
        let instances: Vec<InstanceId> = self.slots().keys().cloned().collect();
        join_all(instances.into_iter().map(|instance| async move {
            if let Err(error) = self.release(&Handle { instance: instance.clone() }).await {
                tracing::warn!(%instance, %error, "an instance could not be ended");
            }
        }))
        .await;
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn released(&self) -> String {
        format!("{} was released", self.what)
    }

    fn is_place(&self, id: &InstanceId, slot: &Slot<T>) -> bool {
        self.slots().get(id).is_some_and(|current| Arc::ptr_eq(current, slot))
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<InstanceId, Slot<T>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::sync::Notify;
    use tokio::time::timeout;

    use super::*;
    use crate::Owner;

    /// Counts those that live, and says why it is lost.
    struct Thing {
        living: Arc<AtomicUsize>,
        why: BlockingMutex<Option<String>>,
    }

    #[async_trait]
    impl Living for Thing {
        fn why_lost(&self) -> Option<String> {
            self.why.lock().unwrap().clone()
        }

        async fn end(&self, why: &str) -> Result<(), HandError> {
            tokio::task::yield_now().await;
            let mut said = self.why.lock().unwrap();
            if said.as_deref() != Some("ended") {
                self.living.fetch_sub(1, Ordering::SeqCst);
            }
            *said = Some("ended".into());
            assert!(!why.is_empty());
            Ok(())
        }
    }

    #[derive(Default)]
    struct World {
        living: Arc<AtomicUsize>,
        made: AtomicUsize,
    }

    impl World {
        /// Never is there a second one.
        async fn make(&self) -> Result<Arc<Thing>, HandError> {
            assert_eq!(self.living.fetch_add(1, Ordering::SeqCst), 0, "two of one name at once");
            self.made.fetch_add(1, Ordering::SeqCst);
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            Ok(Arc::new(Thing { living: Arc::clone(&self.living), why: BlockingMutex::default() }))
        }
    }

    fn lease() -> Lease {
        Lease { instance: InstanceId("one".into()), work: PathBuf::new(), owner: Owner(String::new()) }
    }

    fn handle() -> Handle {
        Handle { instance: lease().instance }
    }

    #[tokio::test]
    async fn ten_provisions_make_one_and_a_lost_one_ends_before_the_next() {
        let (instances, world, lease) = (Instances::new("its thing"), World::default(), lease());
        assert!(!instances.alive(&handle()));
        let all = join_all((0..10).map(|_| instances.provision(&lease, world.make()))).await;
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(world.made.load(Ordering::SeqCst), 1);
        assert!(instances.alive(&handle()));
        *instances.get(&handle()).await.unwrap().why.lock().unwrap() = Some("it fell".into());
        assert!(!instances.alive(&handle()));
        let lost = instances.get(&handle()).await.map(drop).unwrap_err().to_string();
        assert_eq!(lost, "the hand was lost: it fell");
        join_all((0..10).map(|_| instances.provision(&lease, world.make()))).await;
        assert_eq!(world.made.load(Ordering::SeqCst), 2);
        assert!(instances.alive(&handle()));
    }

    #[tokio::test]
    async fn what_is_released_is_gone_and_may_be_released_again() {
        let (instances, world, lease) = (Instances::new("its thing"), World::default(), lease());
        instances.release(&handle()).await.unwrap();
        instances.provision(&lease, world.make()).await.unwrap();
        instances.release(&handle()).await.unwrap();
        instances.release(&handle()).await.unwrap();
        assert_eq!(world.living.load(Ordering::SeqCst), 0);
        let lost = instances.get(&handle()).await.map(drop).unwrap_err().to_string();
        assert_eq!(lost, "the hand was lost: its thing was released");
        assert!(instances.slots().is_empty());
    }

    #[tokio::test]
    async fn a_release_and_a_provision_that_race_leave_one_that_is_found_or_none() {
        let (instances, world, lease) = (Instances::new("its thing"), World::default(), lease());
        for _ in 0..100 {
            let one = handle();
            let (_, released, provisioned) = tokio::join!(
                instances.provision(&lease, world.make()),
                instances.release(&one),
                instances.provision(&lease, world.make()),
            );
            released.unwrap();
            provisioned.unwrap();
            assert_eq!(usize::from(instances.alive(&handle())), world.living.load(Ordering::SeqCst));
            instances.release(&handle()).await.unwrap();
            assert_eq!(world.living.load(Ordering::SeqCst), 0, "one that nobody finds");
        }
    }

    #[tokio::test]
    async fn alive_does_not_wait_for_one_that_is_being_made() {
        let (instances, world, lease, go) =
            (Instances::new("its thing"), World::default(), lease(), Notify::new());
        let slow = async {
            go.notified().await;
            world.make().await
        };
        let (made, ()) = tokio::join!(instances.provision(&lease, slow), async {
            tokio::task::yield_now().await;
            assert!(instances.alive(&handle()));
            go.notify_one();
        });
        made.unwrap();
    }

    #[tokio::test]
    async fn a_provision_that_fails_or_is_given_up_holds_up_nobody() {
        let (instances, world, lease) = (Instances::new("its thing"), World::default(), lease());
        let failing = async { Err(HandError::UnknownTool("none".into())) };
        instances.provision(&lease, failing).await.unwrap_err();
        let never = std::future::pending();
        assert!(timeout(Duration::from_millis(1), instances.provision(&lease, never)).await.is_err());
        assert!(!instances.alive(&handle()));
        instances.provision(&lease, world.make()).await.unwrap();
        assert!(instances.alive(&handle()));
    }

    #[tokio::test]
    async fn a_shutdown_ends_all_and_waits_for_their_tasks() {
        let (instances, world) = (Instances::new("its thing"), World::default());
        instances.provision(&lease(), world.make()).await.unwrap();
        let done = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&done);
        instances.tasks.spawn(async move {
            tokio::task::yield_now().await;
            counted.fetch_add(1, Ordering::SeqCst);
        });
        instances.shutdown().await;
        assert_eq!((world.living.load(Ordering::SeqCst), done.load(Ordering::SeqCst)), (0, 1));
    }
}
