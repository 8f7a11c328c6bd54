//! What tests of sandboxes share.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hands::sandbox::{Limits, Network, Sandbox, SandboxConfig};
use hands::{
    Call, CallContext, Content, Ending, Hand, HandError, Handle, InstanceId, Lease, NoProgress, Outcome,
    Progress,
};
use rustix::process::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Our program as a sandbox sees it.
pub(crate) fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_sandbox-program"))
}

pub(crate) fn config() -> SandboxConfig {
    SandboxConfig {
        program: program(),
        mounts: Vec::new(),
        network: Network::None,
        limits: Limits::default(),
    }
}

/// A sandbox hand with one lease.
pub(crate) struct Rig {
    pub(crate) hand: Arc<Sandbox>,
    pub(crate) lease: Lease,
    pub(crate) folder: TempDir,
}

/// What a call gave back, for assertions.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) ending: Ending,
    pub(crate) text: String,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(config())
    }

    pub(crate) fn with(config: SandboxConfig) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let lease = lease(folder.path(), "one");
        Self { hand: Arc::new(Sandbox::new(config)), lease, folder }
    }

    pub(crate) fn handle(&self) -> Handle {
        Handle { instance: self.lease.instance.clone() }
    }

    /// Runs a tool, provisioning first.
    pub(crate) async fn try_call(
        &self,
        tool: &str,
        arguments: Value,
        context: CallContext,
    ) -> Result<Outcome, HandError> {
        let handle = self.hand.provision(&self.lease).await?;
        self.hand.execute(&handle, &call(tool, arguments), context).await
    }

    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Seen {
        seen(self.try_call(tool, arguments, context()).await.unwrap())
    }

    pub(crate) async fn bash(&self, command: &str) -> Seen {
        self.call("bash", json!({"command": command})).await
    }

    /// What a command that must succeed prints.
    pub(crate) async fn prints(&self, command: &str) -> String {
        let seen = self.bash(command).await;
        assert_eq!(seen.ending, Ending::Ok, "{command}: {}", seen.text);
        seen.text.trim_end().to_owned()
    }
}

pub(crate) fn lease(folder: &Path, name: &str) -> Lease {
    // Unique over concurrent test processes: processes are found by it.
    let instance = format!("{name}-{}-{}", std::process::id(), uuid::Uuid::new_v4().simple());
    Lease { instance: InstanceId(instance), work: folder.join("work").join(name) }
}

pub(crate) fn call(tool: &str, arguments: Value) -> Call {
    let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
    Call { tool: tool.to_owned(), arguments }
}

pub(crate) fn context() -> CallContext {
    CallContext { cancel: CancellationToken::new(), progress: Arc::new(NoProgress) }
}

pub(crate) fn seen(outcome: Outcome) -> Seen {
    let text = outcome
        .content
        .iter()
        .map(|content| match content {
            Content::Text(text) => text.clone(),
            Content::Image { data, mime } => format!("{mime} {} bytes", data.len()),
        })
        .collect();
    Seen { ending: outcome.ending, text }
}

/// Keeps all news.
#[derive(Default)]
pub(crate) struct News(pub(crate) Mutex<String>);

impl Progress for News {
    fn output(&self, text: &str) {
        self.0.lock().unwrap().push_str(text);
    }
}

/// The host's processes that hold up an instance: those with its name as an argument.
pub(crate) fn processes_of(instance: &InstanceId) -> Vec<Pid> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if line.split(|byte| *byte == 0).any(|argument| argument == instance.0.as_bytes()) {
            found.extend(Pid::from_raw(pid));
        }
    }
    found
}

/// Waits until something holds.
pub(crate) async fn soon(mut holds: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it did not happen within 30 s");
}
