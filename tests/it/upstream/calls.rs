//! One call with all that surrounds it, on all four pairs of transport and era.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hands::mcp::{McpFace, Notice, RpcError, Unasked};
use hands::{CallContext, Ending, Hand};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::kit::{Era, PAIRS, Recorder, Rig, Way, call, config, error, quiet, script, soon, text};

#[tokio::test]
async fn progress_rises_before_the_result_and_logs_are_as_severe_as_wanted() {
    for (way, era) in PAIRS {
        let rig = Rig::new(way, era).await;
        let recorder = Arc::<Recorder>::default();
        let outcome = rig.try_call("progress", json!({}), recorder.context(Some("info"))).await.unwrap();
        assert_eq!(text(&outcome), "done");
        let mut steps = Vec::new();
        let mut levels = Vec::new();
        for notice in recorder.notices.lock().unwrap().iter() {
            match notice {
                Notice::Progress(params) => {
                    assert!(!params.contains_key("progressToken"));
                    steps.push(params["progress"].as_u64().unwrap());
                }
                Notice::Log(params) => levels.push(params["level"].as_str().unwrap().to_owned()),
            }
        }
        assert_eq!(steps, [1, 2, 3], "{way:?} {era:?}");
        assert_eq!(levels, ["info", "error"], "{way:?} {era:?}");
        let told = rig.got_of("logging/setLevel");
        assert_eq!(told.len(), usize::from(era == Era::Legacy));
        rig.end().await;
    }
}

#[tokio::test]
async fn a_cancelled_call_returns_and_the_server_is_told_within_a_second() {
    for (way, era) in PAIRS {
        let rig = Rig::new(way, era).await;
        let handle = rig.handle().await;
        let cancel = CancellationToken::new();
        let slow = call("slow", json!({}));
        let running = rig.hand.execute(&handle, &slow, CallContext::quiet(cancel.clone()));
        let cancelling = async {
            soon(|| !rig.got_of("tools/call").is_empty()).await;
            cancel.cancel();
            Instant::now()
        };
        let (outcome, cancelled) = tokio::join!(running, cancelling);
        assert_eq!(outcome.unwrap().ending, Ending::Cancelled);
        assert!(cancelled.elapsed() < Duration::from_secs(1), "{way:?} {era:?}: {:?}", cancelled.elapsed());
        let id = rig.got_of("tools/call")[0]["id"].clone();
        soon(|| match (way, era) {
            (Way::Http, Era::Modern) => rig.got().iter().any(|message| message["closed"] == id),
            _ => rig.got_of("notifications/cancelled").iter().any(|told| told["params"]["requestId"] == id),
        })
        .await;
        assert!(cancelled.elapsed() < Duration::from_secs(1), "{way:?} {era:?}: {:?}", cancelled.elapsed());
        assert_eq!(text(&rig.call("echo", json!({"text": "alive"})).await), "alive");
        rig.end().await;
    }
}

#[tokio::test]
async fn a_question_goes_to_the_caller_and_its_answer_to_the_server() {
    for (way, era) in PAIRS {
        let rig = Rig::new(way, era).await;
        let answer = json!({"action": "accept", "content": {"name": "Ada"}});
        let recorder = Recorder::answering(vec![Ok(answer.clone())]);
        let outcome = rig.try_call("ask", json!({"a": 1}), recorder.context(None)).await.unwrap();
        let came: serde_json::Value = serde_json::from_str(text(&outcome)).unwrap();
        let questions = recorder.questions.lock().unwrap().clone();
        assert_eq!(questions.len(), 1);
        let (key, question) = questions[0].iter().next().unwrap();
        assert_eq!(question["method"], "elicitation/create");
        assert_eq!(question["params"]["message"], "name?");
        if era == Era::Modern {
            assert_eq!(key, "who");
            assert_eq!(came, json!([{"who": answer}, "s+/="]), "the state comes back as it was");
            let rounds = rig.got_of("tools/call");
            assert_eq!(rounds.len(), 2);
            assert_ne!(rounds[0]["id"], rounds[1]["id"]);
            assert_eq!(rounds[0]["params"]["arguments"], rounds[1]["params"]["arguments"]);
        } else {
            assert_eq!(came, answer);
        }
        rig.end().await;
    }
}

#[tokio::test]
async fn a_question_that_nobody_can_answer_hangs_nothing() {
    for (way, era) in PAIRS {
        let rig = Rig::new(way, era).await;
        let outcome = rig.try_call("ask", json!({}), quiet()).await.unwrap();
        if era == Era::Modern {
            assert_eq!(outcome.ending, Ending::Error);
            assert!(error(&outcome).contains("elicitation/create"), "{outcome:?}");
        } else {
            let came: serde_json::Value = serde_json::from_str(text(&outcome)).unwrap();
            assert_eq!(came["code"], -32601);
        }
        let refusal = RpcError { code: -1, message: "no".to_owned(), data: None };
        let recorder = Recorder::answering(vec![Err(Unasked::Refused(refusal))]);
        let outcome = rig.try_call("ask", json!({}), recorder.context(None)).await.unwrap();
        match era {
            Era::Modern => assert_eq!(error(&outcome), "no"),
            Era::Legacy => assert!(text(&outcome).contains("-1")),
        }
        rig.end().await;
    }
}

#[tokio::test]
async fn a_question_that_names_no_call_is_heard_though_the_stream_for_it_opens_late() {
    let rig = Rig::new(Way::Http, Era::Legacy).await;
    *rig.web.as_ref().unwrap().opening.lock().unwrap() = Duration::from_millis(200);
    let answer = json!({"action": "decline"});
    let recorder = Recorder::answering(vec![Ok(answer.clone())]);
    let outcome = rig.try_call("ask aside", json!({}), recorder.context(None));
    let outcome = tokio::time::timeout(Duration::from_secs(20), outcome).await.unwrap().unwrap();
    assert_eq!(text(&outcome), answer.to_string());
    rig.end().await;
}

#[tokio::test]
async fn a_stream_that_never_opens_holds_up_no_call() {
    let rig = Rig::new(Way::Http, Era::Legacy).await;
    *rig.web.as_ref().unwrap().opening.lock().unwrap() = Duration::from_hours(1);
    for words in ["first", "second"] {
        assert_eq!(text(&rig.call("echo", json!({"text": words})).await), words);
    }
    rig.end().await;
}

/// As `server-filesystem` does, which keeps to the folders that it is told then.
#[tokio::test]
async fn what_a_server_asks_at_its_start_does_not_depend_on_the_first_call() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::of(config(script(&folder, &["legacy", "roots"])), folder);
    let recorder = Arc::<Recorder>::default();
    let outcome = rig.try_call("echo", json!({"text": "x"}), recorder.context(None)).await.unwrap();
    assert_eq!(text(&outcome), "x");
    assert!(recorder.questions.lock().unwrap().is_empty(), "the client was asked");
    soon(|| rig.got().iter().any(|it| it["id"] == "roots" && it["result"] == json!({"roots": []}))).await;
    rig.end().await;
}

#[tokio::test]
async fn errors_of_the_server_come_as_they_are() {
    for (way, era) in PAIRS {
        let rig = Rig::new(way, era).await;
        let outcome = rig.call("nonesuch", json!({})).await;
        assert_eq!(outcome.ending, Ending::Error);
        let Some(hands::mcp::Reply::Error(error)) = outcome.reply else { panic!() };
        assert_eq!((error.code, error.message.as_str()), (-32602, "no such tool"));
        assert_eq!(error.data, Some(json!({"tool": "nonesuch"})));
        rig.end().await;
    }
}

#[tokio::test]
async fn a_list_that_changes_is_listed_again() {
    for era in [Era::Modern, Era::Legacy] {
        let rig = Rig::new(Way::Http, era).await;
        let mut changes = rig.hand.changes();
        rig.call("echo", json!({"text": "x"})).await;
        tokio::time::timeout(Duration::from_secs(20), changes.changed()).await.unwrap().unwrap();
        let web = rig.web.as_ref().unwrap();
        *web.tools.lock().unwrap() = json!([{"name": "other", "inputSchema": {"type": "object"}}]);
        let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
        let mut said = false;
        for _ in 0..1000 {
            said = web.say(changed.clone()).await;
            if said {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(said, "nobody listens");
        tokio::time::timeout(Duration::from_secs(20), changes.changed()).await.unwrap().unwrap();
        assert_eq!(rig.hand.catalogue().tools[0]["name"], "other");
        rig.end().await;
    }
}

#[tokio::test]
async fn a_followed_resource_tells_its_followers_and_nobody_else() {
    for era in [Era::Modern, Era::Legacy] {
        let rig = Rig::new(Way::Http, era).await;
        let handle = rig.handle().await;
        let (sender, mut updates) = mpsc::channel(4);
        let (second, kept) = mpsc::channel(4);
        rig.hand.follow(&handle, "test://a".to_owned(), sender).await.unwrap();
        rig.hand.follow(&handle, "test://a".to_owned(), second).await.unwrap();
        let web = rig.web.as_ref().unwrap();
        let updated = |uri: &str| json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}});
        if era == Era::Modern {
            soon(|| {
                rig.got_of("subscriptions/listen").iter().any(|listen| {
                    listen["params"]["notifications"]["resourceSubscriptions"] == json!(["test://a"])
                })
            })
            .await;
        } else {
            assert_eq!(rig.got_of("resources/subscribe").len(), 1, "once for both");
        }
        let heard = async {
            loop {
                web.say(updated("test://b")).await;
                web.say(updated("test://a")).await;
                if let Ok(uri) = tokio::time::timeout(Duration::from_millis(50), updates.recv()).await {
                    return uri;
                }
            }
        };
        let heard = tokio::time::timeout(Duration::from_secs(20), heard).await.unwrap();
        assert_eq!(heard.as_deref(), Some("test://a"));
        drop(updates);
        drop(kept);
        if era == Era::Legacy {
            soon(|| rig.got_of("resources/unsubscribe").len() == 1).await;
        }
        rig.end().await;
    }
}

#[tokio::test]
async fn whoever_follows_is_told_when_a_change_may_have_been_missed() {
    let rig = Rig::new(Way::Http, Era::Modern).await;
    let handle = rig.handle().await;
    let (sender, mut updates) = mpsc::channel(4);
    rig.hand.follow(&handle, "test://a".to_owned(), sender).await.unwrap();
    for _ in 0..2 {
        // Once when the server listens to it, and again after it hung up.
        let told = tokio::time::timeout(Duration::from_secs(20), updates.recv()).await.unwrap();
        assert_eq!(told.as_deref(), Some("test://a"));
        rig.web.as_ref().unwrap().hang_up();
    }
    rig.end().await;
}

#[tokio::test]
async fn a_hundred_calls_at_once_get_each_its_own_answer() {
    for (way, era) in PAIRS {
        let rig = Rig::new(way, era).await;
        let handle = rig.handle().await;
        let calls = (0..100).map(|number| {
            let (hand, handle) = (Arc::clone(&rig.hand), handle.clone());
            async move {
                let words = format!("call {number}");
                let echo = call("echo", json!({"text": words}));
                let outcome = hand.execute(&handle, &echo, quiet()).await.unwrap();
                assert_eq!(text(&outcome), words);
            }
        });
        futures_util::future::join_all(calls).await;
        rig.end().await;
    }
}
