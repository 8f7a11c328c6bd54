//! A hand that is registered and refused: it would give an agent what decides over the gateway. Listings show it with the
//! reason, and no call reaches it.

use std::path::PathBuf;

use async_trait::async_trait;
use hands::{Call, CallContext, Hand, HandError, Handle, InstanceId, Lease, Outcome, Progress, Tool};
use serde_json::{Value, json};

use super::Registry;
use crate::hand::{BadHand, BadMount, Guard, Guarded, HandConfig, HandName};

impl Registry {
    /// Refuses a hand that may write to what another one relies on, or relies on what another one may write to.
    pub(super) fn check_others(&self, name: &HandName, config: &HandConfig) -> Result<(), BadHand> {
        let named = |files: Vec<PathBuf>| Guarded::new(files.into_iter().map(|file| (Guard::Named, file)));
        for other in self.list().iter().filter(|other| other.name != *name && other.refused.is_none()) {
            named(other.config.relies_on()).check(config)?;
            if let Err(BadMount::Guarded { place: file, .. }) = named(config.relies_on()).check(&other.config)
            {
                return Err(BadHand::Reachable { file, hand: other.name.clone() });
            }
        }
        Ok(())
    }
}

/// A hand that does nothing but say why.
pub(super) struct Refused {
    /// Why, and what to do: a sentence.
    pub(super) why: String,
}

impl Refused {
    fn error(&self) -> HandError {
        let remedy = "then start the gateway again, or have its configuration read again".to_owned();
        HandError::Unavailable { why: self.why.clone(), remedy }
    }
}

#[async_trait]
impl Hand for Refused {
    async fn tools(&self) -> Result<Vec<Tool>, HandError> {
        Ok(Vec::new())
    }

    async fn provision(&self, _: &Lease, _: &dyn Progress) -> Result<Handle, HandError> {
        Err(self.error())
    }

    async fn execute(&self, _: &Handle, _: &Call, _: CallContext) -> Result<Outcome, HandError> {
        Err(self.error())
    }

    fn alive(&self, _: &Handle) -> bool {
        false
    }

    async fn release(&self, _: Handle) -> Result<(), HandError> {
        Ok(())
    }

    async fn reap(&self, _: &[InstanceId]) -> Result<(), HandError> {
        Err(self.error())
    }

    fn about(&self) -> Value {
        json!({"refused": self.why})
    }
}
