//! What tests of sandboxes share.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hands::sandbox::{CopyError, Landing, Sandbox, SandboxConfig};
use hands::{
    Call, CallContext, Content, Ending, Hand, HandError, InstanceId, Lease, Outcome, Owner, Progress,
};
use rustix::process::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Our program as a sandbox sees it: beside a copy of the tests, or where Cargo built it.
pub(crate) fn program() -> PathBuf {
    beside("sandbox-program", env!("CARGO_BIN_EXE_sandbox-program"))
}

/// What plays a runner that was taken over.
pub(crate) fn impostor() -> PathBuf {
    beside("sandbox-impostor", env!("CARGO_BIN_EXE_sandbox-impostor"))
}

fn beside(name: &str, built: &str) -> PathBuf {
    let beside = std::env::current_exe().unwrap().with_file_name(name);
    if beside.exists() { beside } else { PathBuf::from(built) }
}

pub(crate) fn config() -> SandboxConfig {
    SandboxConfig::new(program())
}

/// A sandbox hand with one lease.
pub(crate) struct Rig {
    pub(crate) hand: Arc<Sandbox>,
    pub(crate) lease: Lease,
    pub(crate) folder: TempDir,
}

impl Drop for Rig {
    /// Leaves no process of a failed test; one that passes shuts its hand down.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let (hand, instance) = (Arc::clone(&self.hand), self.lease.instance.clone());
        let reaping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let _ = runtime.block_on(hand.reap(&[instance]));
        });
        let _ = reaping.join();
    }
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

    /// Runs a tool, provisioning first.
    pub(crate) async fn try_call(
        &self,
        tool: &str,
        arguments: Value,
        context: CallContext,
    ) -> Result<Outcome, HandError> {
        let handle = self.hand.provision(&self.lease, &hands::NoProgress).await?;
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
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let instance = format!("{name}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    Lease {
        instance: InstanceId(instance),
        work: folder.join("work").join(name),
        owner: Owner("local:owner".into()),
    }
}

pub(crate) fn call(tool: &str, arguments: Value) -> Call {
    let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
    Call { tool: tool.to_owned(), arguments }
}

pub(crate) fn context() -> CallContext {
    CallContext::quiet(CancellationToken::new())
}

pub(crate) fn seen(Outcome { ending, content, .. }: Outcome) -> Seen {
    let text = content
        .into_iter()
        .map(|content| match content {
            Content::Text(text) => text,
            Content::Long(text) => {
                String::from_utf8(text.read_blocking(0, usize::MAX).unwrap().to_vec()).unwrap()
            }
            Content::Image { data, mime } => format!("{mime} {} bytes", data.len()),
        })
        .collect();
    Seen { ending, text }
}

/// Keeps all news.
#[derive(Default)]
pub(crate) struct News(pub(crate) Mutex<String>);

impl Progress for News {
    fn step(&self, what: &str) {
        self.output(&format!("{what}\n"));
    }

    fn output(&self, text: &str) {
        self.0.lock().unwrap().push_str(text);
    }

    fn notice(&self, _: hands::mcp::Notice) {}
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

/// Makes `to` of a copy out of a hand.
pub(crate) fn unpack(archive: &[u8], to: &Path) -> Result<(), CopyError> {
    let mut landing = Landing::beside(to)?;
    landing.unpack(archive)?;
    landing.keep()
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
