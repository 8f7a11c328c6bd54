//! The brain that is set up, and those that sessions ask for.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::model::{self, Settings};
use super::{Brain, Chooser, NoBrain};
use crate::brain::{BrainSetting, Provider, Reach};
use crate::hand::Variables;

/// Models that are kept made, with their connections.
const KEPT_MAX: usize = 64;

/// Finds brains as `setting` says. Each is made once, so that its connections last.
pub fn chooser(setting: BrainSetting, variables: Variables) -> Chooser {
    let kept: Mutex<HashMap<Option<String>, Brain>> = Mutex::default();
    Box::new(move |wanted| {
        let wanted = wanted.map(str::to_owned);
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(brain) = kept.get(&wanted) {
            return Ok(brain.clone());
        }
        let brain = make(&setting, wanted.as_deref(), variables)?;
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(wanted, brain.clone());
        Ok(brain)
    })
}

fn make(setting: &BrainSetting, wanted: Option<&str>, variables: Variables) -> Result<Brain, NoBrain> {
    let no_brain = |error: &dyn std::error::Error| NoBrain(error.to_string());
    let setting = match wanted {
        Some(model) => setting.with_model(model).map_err(|error| no_brain(&error))?,
        None => setting.clone(),
    };
    let brain = setting.resolve().map_err(|error| no_brain(&error))?;
    let provider = match &brain.reach {
        Reach::Anthropic(_) => Provider::Anthropic,
        Reach::OpenAi(..) => Provider::OpenAi,
        Reach::Scripted(..) => Provider::Scripted,
    };
    let name = format!("{provider}/{}", brain.model);
    let model = model::of(&setting, variables).map_err(|error| no_brain(&error))?;
    let settings =
        Settings { model: brain.model, max_output_tokens: brain.max_tokens, thinking: brain.thinking };
    Ok(Brain { name, model, settings })
}
