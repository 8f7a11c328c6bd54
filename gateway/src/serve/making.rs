//! Which kind of hand a configuration makes, and of what.

use std::path::Path;
use std::sync::Arc;

use hands::Hand;
use hands::android::Android;
use hands::container::Container;
use hands::emulator::Emulator;
use hands::sandbox::Sandbox;
use hands::ssh::Ssh;
use hands::upstream::Upstream;
use hands::vm::Vm;

use super::guard;
use crate::config::{Config, variable};
use crate::hand::{Ground, HandConfig};
use crate::registry::{Maker, Making};

/// What hands are made of beside their settings.
pub fn ground(config: &Config) -> Ground {
    Ground {
        // As it runs, not what lies at its path by now: that may be a folder that a brain writes to.
        program: "/proc/self/exe".into(),
        data: config.data.clone(),
        hidden: config.file.in_use().map(Path::to_owned).into_iter().chain([config.data.clone()]).collect(),
        variables: variable,
    }
}

/// Builds hands by their configuration.
pub(super) fn maker(config: &Config) -> Maker {
    let (ground, free_disk, guarded) = (ground(config), config.limits.free_disk(), guard::places(config));
    Box::new(move |making: &Making<'_>| {
        let hand: Arc<dyn Hand> = match making.config {
            HandConfig::Sandbox(settings) => {
                let mut config = settings.resolve(&ground)?;
                config.limits.free_disk = free_disk;
                Arc::new(Sandbox::new(config))
            }
            HandConfig::Mcp(settings) => {
                let config = settings.resolve(making.name, variable)?;
                Arc::new(Upstream::new(config, making.known.clone()))
            }
            HandConfig::Container(settings) => Arc::new(Container::new(settings.resolve(&ground)?)),
            HandConfig::Ssh(settings) => Arc::new(Ssh::new(settings.resolve(&ground)?)),
            HandConfig::Android(settings) => Arc::new(Android::new(settings.resolve()?)),
            HandConfig::Emulator(settings) => Arc::new(Emulator::new(settings.resolve(&ground)?)),
            HandConfig::Vm(settings) => Arc::new(Vm::new(settings.resolve(&ground)?)),
        };
        guarded.check(making.config)?;
        Ok(hand)
    })
}
