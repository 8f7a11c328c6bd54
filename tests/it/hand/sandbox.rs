//! The sandbox, bubblewrap on this machine, against the contract.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use hands::sandbox::Sandbox;
use hands::{Hand, InstanceId, Lease};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::rig::{Rig, Samples, lease, soon};
use crate::sandbox_kit::{config, processes_of, program};

contract!(every, SandboxRig);
contract!(posix, SandboxRig);

pub(crate) struct SandboxRig {
    hands: Mutex<Vec<Arc<Sandbox>>>,
    folder: TempDir,
}

#[async_trait]
impl Rig for SandboxRig {
    async fn new() -> Self {
        let hand = Arc::new(Sandbox::new(config()));
        Self { hands: Mutex::new(vec![hand]), folder: tempfile::tempdir().unwrap() }
    }

    fn hand(&self) -> Arc<dyn Hand> {
        Arc::clone(&self.hands.lock().unwrap()[0]) as _
    }

    async fn second(&self) -> Arc<dyn Hand> {
        let hand = Arc::new(Sandbox::new(config()));
        self.hands.lock().unwrap().push(Arc::clone(&hand));
        hand
    }

    fn lease(&self, name: &str) -> Lease {
        lease(self.folder.path(), name)
    }

    fn samples(&self) -> Samples {
        Samples::posix()
    }

    async fn count(&self, instance: &InstanceId) -> usize {
        // bwrap and PID 1, of each sandbox.
        processes_of(instance).len().div_ceil(2)
    }

    async fn remains(&self, instance: &InstanceId) -> Vec<String> {
        let processes = processes_of(instance).into_iter().map(|pid| format!("process {pid:?}"));
        processes.chain(cgroups_of(instance).into_iter().map(|path| path.display().to_string())).collect()
    }

    async fn kill(&self, instance: &InstanceId) {
        for pid in processes_of(instance) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        soon(|| processes_of(instance).is_empty()).await;
    }

    async fn finish(self) {
        let hands = std::mem::take(&mut *self.hands.lock().unwrap());
        for hand in hands {
            hand.shutdown().await;
        }
    }
}

fn cgroups_of(instance: &InstanceId) -> Vec<PathBuf> {
    let output = std::process::Command::new("find")
        .args(["/sys/fs/cgroup", "-name", &format!("*{instance}*")])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(Into::into).collect()
}

/// Beyond the contract: what other kinds leave for `reap`, a sandbox takes with it.
#[tokio::test]
async fn a_killed_gateway_takes_its_sandboxes_with_it() {
    let rig = SandboxRig::new().await;
    let lease = rig.lease("held");
    let mut gateway = tokio::process::Command::new(program())
        .args(["hold", &lease.instance.0])
        .arg(&lease.work)
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(gateway.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("started"));
    assert!(!is_quiet(&lease.work.join("beats")).await);
    gateway.kill().await.unwrap();
    soon(|| processes_of(&lease.instance).is_empty()).await;
    assert!(is_quiet(&lease.work.join("beats")).await);
    rig.hand().reap(std::slice::from_ref(&lease.instance)).await.unwrap();
    assert!(cgroups_of(&lease.instance).is_empty());
    rig.finish().await;
}

/// Whether a file that living processes write to does not grow.
async fn is_quiet(file: &Path) -> bool {
    let size = || std::fs::metadata(file).map(|file| file.len()).unwrap_or_default();
    let before = size();
    tokio::time::sleep(Duration::from_millis(400)).await;
    size() == before
}
