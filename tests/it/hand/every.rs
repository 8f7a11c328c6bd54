//! What every kind of hand promises.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::sync::Arc;
use std::time::Duration;

use hands::{Ending, Hand, HandError, InstanceId};
use serde_json::json;

use super::rig::{Rig, bash, call, context, is_gone, is_lost, is_one, meanwhile, run};

pub(super) async fn listing_tools_provisions_nothing(rig: impl Rig) {
    let (hand, lease) = (rig.hand(), rig.lease("one"));
    let tools = hand.tools().await.unwrap();
    assert!(!tools.is_empty());
    for tool in tools {
        assert!(tool.description.len() < 2048, "{}", tool.name);
        assert_eq!(tool.input_schema["type"], "object", "{}", tool.name);
        assert_eq!(tool.input_schema["additionalProperties"], false, "{}", tool.name);
    }
    assert!(hand.about().is_object());
    assert!(!lease.work.exists(), "provisioned before it was asked for");
    is_gone(&rig, &lease.instance).await;
    rig.finish().await;
}

pub(super) async fn an_instance_is_made_once_however_many_ask_for_it(rig: impl Rig) {
    let (hand, lease) = (rig.hand(), rig.lease("one"));
    let first = (0..10).map(|_| {
        let (hand, lease) = (Arc::clone(&hand), lease.clone());
        async move { hand.provision(&lease, &hands::NoProgress).await.unwrap() }
    });
    let handles = futures_util::future::join_all(first).await;
    assert!(handles.iter().all(|handle| handle.instance == lease.instance));
    assert_eq!(rig.count(&lease.instance).await, 1);
    assert!(hand.alive(&handles[0]));
    hand.release(handles[0].clone()).await.unwrap();
    rig.finish().await;
}

pub(super) async fn a_call_succeeds_fails_or_is_refused(rig: impl Rig) {
    let (hand, samples) = (rig.hand(), rig.samples());
    let handle = hand.provision(&rig.lease("one"), &hands::NoProgress).await.unwrap();
    let (ending, text) = run(&*hand, &handle, &samples.ok.0).await;
    assert!(ending == Ending::Ok && text.contains(samples.ok.1), "{ending:?} {text}");
    let (ending, text) = run(&*hand, &handle, &samples.error.0).await;
    assert!(ending == Ending::Error && text.contains(samples.error.1), "{ending:?} {text}");
    let unknown = hand.execute(&handle, &call("nonesuch", json!({})), context()).await;
    assert!(matches!(&unknown, Err(HandError::UnknownTool(name)) if name == "nonesuch"), "{unknown:?}");
    let mut wrong = samples.ok.0.clone();
    wrong.arguments.insert("nonesuch".into(), 1.into());
    let (ending, text) = run(&*hand, &handle, &wrong).await;
    assert!(ending == Ending::Error && text.contains("unknown field `nonesuch`"), "{ending:?} {text}");
    rig.finish().await;
}

pub(super) async fn a_cancelled_call_ends_and_its_instance_goes_on(rig: impl Rig) {
    let (hand, samples) = (rig.hand(), rig.samples());
    let handle = hand.provision(&rig.lease("one"), &hands::NoProgress).await.unwrap();
    let ended = meanwhile(&*hand, &handle, &samples.endless, async |cancel| cancel.cancel()).await;
    assert_eq!(ended.unwrap().ending, Ending::Cancelled);
    assert!(hand.alive(&handle));
    assert_eq!(run(&*hand, &handle, &samples.ok.0).await.0, Ending::Ok);
    // One that is cancelled before it begins ends as well.
    let early = context();
    early.cancel.cancel();
    let ended = hand.execute(&handle, &samples.endless.0, early).await;
    assert_eq!(ended.unwrap().ending, Ending::Cancelled);
    rig.finish().await;
}

pub(super) async fn an_instance_killed_during_a_call_is_lost_and_the_next_has_the_same_work(rig: impl Rig) {
    let (hand, samples, lease) = (rig.hand(), rig.samples(), rig.lease("one"));
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    assert_eq!(run(&*hand, &handle, &samples.keep).await.0, Ending::Ok);
    let lost = meanwhile(&*hand, &handle, &samples.endless, async |_| rig.kill(&lease.instance).await).await;
    assert!(matches!(lost, Err(HandError::Lost { may_have_run: true, .. })), "{lost:?}");
    is_lost(&*hand, &handle, &samples.ok.0).await;
    assert!(!hand.alive(&handle));
    rig.mend().await;
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    let (ending, text) = run(&*hand, &handle, &samples.kept.0).await;
    assert!(ending == Ending::Ok && text.contains(samples.kept.1), "{ending:?} {text}");
    hand.release(handle).await.unwrap();
    is_gone(&rig, &lease.instance).await;
    rig.finish().await;
}

pub(super) async fn an_instance_killed_between_calls_is_noticed_and_replaced(rig: impl Rig) {
    let (hand, samples, lease) = (rig.hand(), rig.samples(), rig.lease("one"));
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    assert_eq!(run(&*hand, &handle, &samples.ok.0).await.0, Ending::Ok);
    rig.kill(&lease.instance).await;
    // Its death may be noticed a moment after the call went out: then nobody can say that it did not run.
    let lost = hand.execute(&handle, &samples.ok.0, context()).await;
    assert!(matches!(lost, Err(HandError::Lost { .. })), "{lost:?}");
    is_lost(&*hand, &handle, &samples.ok.0).await;
    assert!(!hand.alive(&handle));
    rig.mend().await;
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    assert!(hand.alive(&handle));
    assert_eq!(run(&*hand, &handle, &samples.ok.0).await.0, Ending::Ok);
    assert_eq!(rig.count(&lease.instance).await, 1);
    rig.finish().await;
}

pub(super) async fn release_leaves_nothing_and_is_idempotent(rig: impl Rig) {
    let (hand, samples, lease) = (rig.hand(), rig.samples(), rig.lease("one"));
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    assert_eq!(run(&*hand, &handle, &samples.keep).await.0, Ending::Ok);
    hand.release(handle.clone()).await.unwrap();
    is_gone(&rig, &lease.instance).await;
    hand.release(handle.clone()).await.unwrap();
    assert!(!hand.alive(&handle));
    is_lost(&*hand, &handle, &samples.ok.0).await;
    // The work is there for the next.
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    let (ending, text) = run(&*hand, &handle, &samples.kept.0).await;
    assert!(ending == Ending::Ok && text.contains(samples.kept.1), "{ending:?} {text}");
    rig.finish().await;
}

/// Whoever asked may stop waiting at any moment: what was made by then belongs to a lease that is reaped.
pub(super) async fn a_provision_that_nobody_waits_for_leaves_nothing_once_reaped(rig: impl Rig) {
    let (hand, samples, lease) = (rig.hand(), rig.samples(), rig.lease("one"));
    for wait in [0, 5, 30, 100, 300] {
        let abandoned =
            tokio::time::timeout(Duration::from_millis(wait), hand.provision(&lease, &hands::NoProgress))
                .await;
        drop(abandoned);
    }
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    assert_eq!(run(&*hand, &handle, &samples.ok.0).await.0, Ending::Ok);
    is_one(&rig, &lease.instance).await;
    hand.release(handle).await.unwrap();
    hand.reap(std::slice::from_ref(&lease.instance)).await.unwrap();
    is_gone(&rig, &lease.instance).await;
    rig.finish().await;
}

pub(super) async fn reaping_ends_what_a_dead_gateway_left_and_nothing_else(rig: impl Rig) {
    let (dead, living) = (rig.lease("dead"), rig.lease("living"));
    let samples = rig.samples();
    // Made by a hand that is forgotten, as far as the one that reaps knows.
    let other = rig.second().await;
    let orphan = other.provision(&dead, &hands::NoProgress).await.unwrap();
    assert_eq!(run(&*other, &orphan, &samples.ok.0).await.0, Ending::Ok);
    if has_bash(&*other).await {
        bash(&*other, &orphan, "setsid sleep 1000 > /dev/null 2>&1 &").await;
    }
    let handle = other.provision(&living, &hands::NoProgress).await.unwrap();
    let hand = rig.hand();
    hand.reap(&[InstanceId("never-existed".into()), dead.instance.clone()]).await.unwrap();
    is_gone(&rig, &dead.instance).await;
    assert_eq!(run(&*other, &handle, &samples.ok.0).await.0, Ending::Ok);
    hand.reap(&[dead.instance]).await.unwrap();
    hand.reap(std::slice::from_ref(&living.instance)).await.unwrap();
    is_gone(&rig, &living.instance).await;
    rig.finish().await;
}

async fn has_bash(hand: &dyn Hand) -> bool {
    hand.tools().await.unwrap().iter().any(|tool| tool.name == "bash")
}

/// For kinds that can.
pub(super) async fn a_checkpoint_brings_back_what_was(rig: impl Rig) {
    let (hand, samples, lease) = (rig.hand(), rig.samples(), rig.lease("one"));
    if let Some(checkpoints) = hand.checkpoints() {
        let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
        assert_eq!(run(&*hand, &handle, &samples.keep).await.0, Ending::Ok);
        checkpoints.checkpoint(&handle, "one").await.unwrap();
        assert_eq!(run(&*hand, &handle, &samples.change).await.0, Ending::Ok);
        checkpoints.checkpoint(&handle, "two").await.unwrap();
        assert!(!run(&*hand, &handle, &samples.kept.0).await.1.contains(samples.kept.1));
        checkpoints.restore(&handle, "one").await.unwrap();
        let (_, text) = run(&*hand, &handle, &samples.kept.0).await;
        assert!(text.contains(samples.kept.1), "{text}");
        assert!(checkpoints.restore(&handle, "nonesuch").await.is_err());
        assert_eq!(run(&*hand, &handle, &samples.ok.0).await.0, Ending::Ok);
        // They outlive the instance, and another gateway finds them.
        hand.release(handle).await.unwrap();
        let second = rig.second().await;
        let handle = second.provision(&lease, &hands::NoProgress).await.unwrap();
        second.checkpoints().unwrap().restore(&handle, "two").await.unwrap();
        assert!(!run(&*second, &handle, &samples.kept.0).await.1.contains(samples.kept.1));
        second.release(handle).await.unwrap();
    }
    rig.finish().await;
}

/// For kinds that can, and have files: whatever there is of such folders before and after, and more than once.
pub(super) async fn a_checkpoint_brings_back_folders_that_may_not_be_written_to(rig: impl Rig) {
    let hand = rig.hand();
    if let (Some(checkpoints), true) = (hand.checkpoints(), has_bash(&*hand).await) {
        let handle = hand.provision(&rig.lease("one"), &hands::NoProgress).await.unwrap();
        let make = "mkdir -p top/ro/deep shut plain; echo r > top/ro/r; echo d > top/ro/deep/d; \
                    echo s > shut/s; ln -s top/ro link; chmod 555 top/ro/deep top/ro top; chmod 000 shut";
        assert_eq!(bash(&*hand, &handle, make).await.0, Ending::Ok);
        let show = "stat -c '%n %a' top top/ro top/ro/deep shut plain; cat link/r link/deep/d; ls";
        let (ending, before) = bash(&*hand, &handle, show).await;
        assert_eq!(ending, Ending::Ok, "{before}");
        checkpoints.checkpoint(&handle, "one").await.unwrap();
        let change = "chmod -R u+rwx top; rm -r plain top/ro/deep; echo new > top/ro/r; mkdir -p other/ro; \
                      echo o > other/ro/o; chmod 555 other/ro other; chmod 000 top/ro";
        for _ in 0..2 {
            let (ending, text) = bash(&*hand, &handle, change).await;
            assert_eq!(ending, Ending::Ok, "{text}");
            checkpoints.restore(&handle, "one").await.unwrap();
            assert_eq!(bash(&*hand, &handle, show).await, (Ending::Ok, before.clone()));
        }
        let shut = bash(&*hand, &handle, "chmod 700 shut; cat shut/s").await;
        assert_eq!(shut, (Ending::Ok, "s\n".into()));
    }
    rig.finish().await;
}

/// For kinds whose work lies elsewhere than in the lease's folder.
pub(super) async fn work_that_lies_elsewhere_can_be_removed(rig: impl Rig) {
    let (hand, samples) = (rig.hand(), rig.samples());
    if let Some(far) = hand.far_work() {
        let (lease, other) = (rig.lease("one"), rig.lease("other"));
        for lease in [&lease, &other] {
            let handle = hand.provision(lease, &hands::NoProgress).await.unwrap();
            assert_eq!(run(&*hand, &handle, &samples.keep).await.0, Ending::Ok);
            hand.release(handle).await.unwrap();
        }
        // By a hand that knows nothing of it, as after a start; and again.
        let second = rig.second().await;
        second.far_work().unwrap().remove(&lease.work).await.unwrap();
        far.remove(&lease.work).await.unwrap();
        for (lease, is_kept) in [(&lease, false), (&other, true)] {
            let handle = hand.provision(lease, &hands::NoProgress).await.unwrap();
            let (_, text) = run(&*hand, &handle, &samples.kept.0).await;
            assert_eq!(text.contains(samples.kept.1), is_kept, "{text}");
        }
    }
    rig.finish().await;
}
