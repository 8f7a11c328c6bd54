//! What a kind of hand brings to the contract suite, and what the suite's tests share.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hands::{Call, CallContext, Ending, Hand, HandError, Handle, InstanceId, Lease, Outcome};
use serde_json::json;
use tokio_util::sync::CancellationToken;

pub(crate) use crate::sandbox_kit::{News, call, context, lease, seen, soon};

/// One kind of hand, made ready for one test: the real thing, with whatever server it needs.
///
/// Dropping it ends all that it started, after a failed test too.
#[async_trait]
pub(crate) trait Rig: Send + Sync + Sized + 'static {
    /// Starts what the kind needs, and makes the hand.
    async fn new() -> Self;

    /// The hand. Always the same object.
    fn hand(&self) -> Arc<dyn Hand>;

    /// A hand of the same settings that knows nothing of the first: that of another start of the gateway.
    async fn second(&self) -> Arc<dyn Hand>;

    /// A new lease. Its work folder is in a folder that goes with the rig.
    fn lease(&self, name: &str) -> Lease;

    /// Calls to try.
    fn samples(&self) -> Samples;

    /// How many instances of this name there are, seen from outside of the hand: containers, processes,
    /// connections.
    async fn count(&self, instance: &InstanceId) -> usize;

    /// What there is of an instance outside of its work folder, to be read in a failed assertion: processes, cgroups,
    /// volumes, sockets, overlays. Nothing is to be left after its release or reaping.
    async fn remains(&self, instance: &InstanceId) -> Vec<String>;

    /// Kills what holds an instance up as hard as can be, from outside.
    async fn kill(&self, instance: &InstanceId);

    /// Makes whole what `kill` broke beyond the instance, such as a server, so that the next can be provisioned.
    async fn mend(&self) {}

    /// Ends the hands and all that they made. The test is over.
    async fn finish(self);
}

/// Calls that show what a kind promises, and what they give.
pub(crate) struct Samples {
    /// One that succeeds, and a piece of its text.
    pub(crate) ok: (Call, &'static str),
    /// One that runs and fails, and a piece of its text.
    pub(crate) error: (Call, &'static str),
    /// One that goes on until it is ended, and what it tells as progress once it runs.
    pub(crate) endless: (Call, &'static str),
    /// One that changes the state of the instance's work, for later instances as well.
    pub(crate) keep: Call,
    /// One that changes it to something else.
    pub(crate) change: Call,
    /// One that shows it, and a piece of what it shows after `keep` and only then.
    pub(crate) kept: (Call, &'static str),
}

impl Samples {
    /// Those of a kind with the six tools.
    pub(crate) fn posix() -> Self {
        let bash = |command: &str| call("bash", json!({"command": command}));
        Self {
            ok: (bash("echo $((6*7))"), "42\n"),
            error: (bash("echo before; exit 3"), "before\n[exit code 3]"),
            endless: (bash("echo running; sleep 1000"), "running"),
            keep: bash("echo kept > file"),
            change: bash("echo changed > file"),
            kept: (bash("cat file"), "kept"),
        }
    }
}

/// Executes a call whose instance must not fail: its ending and text.
pub(crate) async fn run(hand: &dyn Hand, handle: &Handle, call: &Call) -> (Ending, String) {
    let seen = seen(hand.execute(handle, call, context()).await.unwrap());
    (seen.ending, seen.text)
}

/// Runs a command: its ending and what it printed.
pub(crate) async fn bash(hand: &dyn Hand, handle: &Handle, command: &str) -> (Ending, String) {
    run(hand, handle, &call("bash", json!({"command": command, "timeout_s": 100}))).await
}

/// Executes a call, and once its progress tells of `started`, does something else until the call ends.
pub(crate) async fn meanwhile(
    hand: &dyn Hand,
    handle: &Handle,
    (call, started): &(Call, &str),
    then: impl AsyncFnOnce(&CancellationToken),
) -> Result<Outcome, HandError> {
    let news = Arc::new(News::default());
    let cancel = CancellationToken::new();
    let context = CallContext { progress: Arc::clone(&news) as _, ..CallContext::quiet(cancel.clone()) };
    let (outcome, ()) = tokio::join!(hand.execute(handle, call, context), async {
        soon(|| news.0.lock().unwrap().contains(started)).await;
        then(&cancel).await;
    });
    outcome
}

/// Asserts that an instance can't be used any more, and that nothing ran.
pub(crate) async fn is_lost(hand: &dyn Hand, handle: &Handle, call: &Call) {
    let lost = hand.execute(handle, call, context()).await;
    assert!(matches!(lost, Err(HandError::Lost { may_have_run: false, .. })), "{lost:?}");
}

/// Waits until there is one of an instance: what an abandoned provision began may be just ending.
pub(crate) async fn is_one(rig: &impl Rig, instance: &InstanceId) {
    for _ in 0..300 {
        if rig.count(instance).await == 1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("there are {} of {instance}, 30 s later", rig.count(instance).await);
}

/// Asserts that nothing is there of an instance.
pub(crate) async fn is_gone(rig: &impl Rig, instance: &InstanceId) {
    assert_eq!(rig.remains(instance).await, Vec::<String>::new());
    assert_eq!(rig.count(instance).await, 0);
}
