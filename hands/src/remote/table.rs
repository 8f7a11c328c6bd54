//! Which instances there are.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::Mutex;
use tokio_util::task::TaskTracker;

use super::Remote;
use crate::{HandError, Handle, InstanceId, Lease};

/// One instance's place: locked while it is being made, so that ten first calls make one.
type Slot = Arc<Mutex<Option<Arc<Remote>>>>;

/// The instances of a hand.
#[derive(Default)]
pub(crate) struct Table {
    slots: Mutex<HashMap<InstanceId, Slot>>,
    pub(crate) tasks: TaskTracker,
}

impl Table {
    /// The instance of a lease, made by `make` where there is no living one.
    pub(crate) async fn provision(
        &self,
        lease: &Lease,
        make: impl Future<Output = Result<Arc<Remote>, HandError>> + Send,
    ) -> Result<Handle, HandError> {
        let slot = Arc::clone(self.slots.lock().await.entry(lease.instance.clone()).or_default());
        let mut place = slot.lock().await;
        let handle = Handle { instance: lease.instance.clone() };
        if place.as_ref().is_some_and(|instance| instance.why_lost().is_none()) {
            return Ok(handle);
        }
        if let Some(old) = place.take() {
            old.end("it was lost").await;
        }
        *place = Some(make.await?);
        Ok(handle)
    }

    /// The living instance behind a handle.
    pub(crate) async fn get(&self, handle: &Handle) -> Result<Arc<Remote>, HandError> {
        let lost = |why: String| HandError::Lost { may_have_run: false, why };
        let released = || lost("its instance was released".into());
        let slot = self.slots.lock().await.get(&handle.instance).map(Arc::clone).ok_or_else(released)?;
        let instance = slot.lock().await.as_ref().map(Arc::clone).ok_or_else(released)?;
        match instance.why_lost() {
            Some(why) => Err(lost(why)),
            None => Ok(instance),
        }
    }

    pub(crate) fn alive(&self, handle: &Handle) -> bool {
        // Somebody who holds a lock here is making or ending one: it counts as there.
        let Ok(slots) = self.slots.try_lock() else { return true };
        let Some(slot) = slots.get(&handle.instance) else { return false };
        let Ok(place) = slot.try_lock() else { return true };
        place.as_ref().is_some_and(|instance| instance.why_lost().is_none())
    }

    pub(crate) async fn release(&self, handle: &Handle) {
        let slot = self.slots.lock().await.remove(&handle.instance);
        if let Some(slot) = slot
            && let Some(instance) = slot.lock().await.take()
        {
            instance.end("its instance was released").await;
        }
    }

    /// Ends every instance and waits until nothing of them runs.
    pub(crate) async fn shutdown(&self) {
        let instances: Vec<InstanceId> = self.slots.lock().await.keys().cloned().collect();
        for instance in instances {
            self.release(&Handle { instance }).await;
        }
        self.tasks.close();
        self.tasks.wait().await;
    }
}
