//! A game console: pressing its buttons and seeing its screen.
//!
//! ```text
//! gateway ── one socket ──> manyhands emulator-worker: a console that stands still between calls
//!    └── work folder: where the game stands, after every call that changed it
//! ```
//!
//! **Invariant:** the game and the console run in a worker process, which may crash without harm: its end is a lost
//! instance, and the next goes on from where the last finished call left the game. A worker lives no longer than the
//! gateway's end of its socket. What it says is checked for length and form, and is shown and kept, never run.

mod core;
mod game_boy;
mod instance;
mod picture;
mod rom;
mod states;
mod tools;
mod wire;
mod worker;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use async_trait::async_trait;
use serde_json::{Value, json};

pub use self::core::CoreKind;

use self::instance::Instance;
use crate::instances::Instances;
use crate::sandbox::{Finding, State};
use crate::{
    Call, CallContext, Checkpoints, Hand, HandError, Handle, InstanceId, Lease, Outcome, Progress, Tool,
    orphans,
};

/// The hidden command that our own program answers with [`worker_main`]. The instance's name follows it.
const WORKER: &str = "emulator-worker";

/// What a console is made of.
#[derive(Clone, Debug)]
pub struct EmulatorConfig {
    /// Our own program: it must answer to the hidden command of [`worker_main`].
    pub program: PathBuf,
    /// Which console.
    pub core: CoreKind,
    /// The game, a file.
    pub rom: PathBuf,
    /// How many pixels of a picture are one of the screen, each way: 1 to 4.
    pub scale: u8,
}

impl EmulatorConfig {
    /// Pictures twice as large as a Game Boy's screen, so that people and models can read them.
    pub fn new(program: PathBuf, rom: PathBuf) -> Self {
        Self { program, core: CoreKind::GameBoy, rom, scale: 2 }
    }

    /// The game's file, as people call it.
    fn game(&self) -> String {
        self.rom
            .file_stem()
            .map_or_else(String::new, |name| name.to_string_lossy().chars().take(64).collect())
    }
}

/// A kind of hand that gives each lease a console.
pub struct Emulator {
    config: EmulatorConfig,
    instances: Instances<Instance>,
}

impl Emulator {
    /// A hand that has made nothing yet.
    pub fn new(mut config: EmulatorConfig) -> Self {
        config.scale = config.scale.clamp(1, 4);
        Self { config, instances: Instances::new("its emulator") }
    }
}

#[async_trait]
impl Hand for Emulator {
    async fn tools(&self) -> Result<Vec<Tool>, HandError> {
        Ok(tools::tools(self.config.core, &self.config.game()))
    }

    async fn provision(&self, lease: &Lease, _: &dyn Progress) -> Result<Handle, HandError> {
        let make = Instance::start(&self.config, lease, &self.instances.tasks);
        self.instances.provision(lease, make).await
    }

    async fn execute(
        &self,
        handle: &Handle,
        call: &Call,
        context: CallContext,
    ) -> Result<Outcome, HandError> {
        let instance = self.instances.get(handle).await?;
        tools::execute(&instance, self.config.core, call, &context).await
    }

    fn alive(&self, handle: &Handle) -> bool {
        self.instances.alive(handle)
    }

    async fn release(&self, handle: Handle) -> Result<(), HandError> {
        self.instances.release(&handle).await
    }

    async fn reap(&self, instances: &[InstanceId]) -> Result<(), HandError> {
        orphans::end(WORKER, "", instances).await
    }

    async fn shutdown(&self) {
        self.instances.shutdown().await;
    }

    fn checkpoints(&self) -> Option<&dyn Checkpoints> {
        Some(self)
    }

    fn about(&self) -> Value {
        json!({
            "kind": "emulator",
            "core": self.config.core,
            "game": self.config.rom,
            "isolation": "a process of its own with the gateway's user, no files to write and no network use",
            "network": "none",
            "checkpoints": "after every call, and by name",
            "limits": {
                "frames_per_call": tools::MOST_FRAMES,
                "seconds_per_call": tools::LIMIT.as_secs(),
                "memory_bytes": worker::MEMORY,
            },
        })
    }
}

#[async_trait]
impl Checkpoints for Emulator {
    async fn checkpoint(&self, handle: &Handle, name: &str) -> Result<(), HandError> {
        tools::checkpoint(&*self.instances.get(handle).await?, name).await
    }

    async fn restore(&self, handle: &Handle, name: &str) -> Result<(), HandError> {
        tools::restore(&*self.instances.get(handle).await?, name).await
    }
}

/// Looks at everything that a console needs.
pub async fn inspect(config: &EmulatorConfig) -> Vec<Finding> {
    let (path, core) = (config.rom.clone(), config.core);
    let finding = |state, found, remedy| vec![Finding { subject: "game", state, found, remedy }];
    match instance::blocking(move || rom::read(&path, core)).await.flatten() {
        Ok(rom) if rom.title.is_empty() => {
            finding(State::Fine, format!("{} is one", config.rom.display()), None)
        }
        Ok(rom) => finding(State::Fine, format!("{}, in {}", rom.title, config.rom.display()), None),
        Err(HandError::Unavailable { why, remedy }) => finding(State::Missing, why, Some(remedy)),
        Err(error) => finding(State::Missing, error.to_string(), None),
    }
}

/// Answers the hidden command by which our own program is a console, and `None` to any other. To be called in `main`
/// before any thread is started.
///
/// `arguments` are those after the program's name: `emulator-worker INSTANCE`.
pub fn worker_main(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter();
    (arguments.next()? == WORKER && arguments.next().is_some() && arguments.next().is_none())
        .then(worker::main)
}
