//! Servers that are slow, dead or lie.

use std::time::{Duration, Instant};

use hands::mcp::McpFace;
use hands::upstream::{Limits, Reach, Trust, Upstream};
use hands::{Ending, Hand, HandError};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::kit::{Era, PAIRS, Recorder, Rig, Way, call, config, error, quiet, script, text};

#[tokio::test]
async fn an_answer_to_another_id_is_dropped() {
    for (way, era) in PAIRS {
        let rig = Rig::new(way, era).await;
        assert_eq!(text(&rig.call("wrong", json!({})).await), "mine", "{way:?} {era:?}");
        rig.end().await;
    }
}

#[tokio::test]
async fn an_answer_beyond_the_limit_is_refused_and_the_server_goes_on() {
    for (way, era) in PAIRS {
        let rig = Rig::new(way, era).await;
        let outcome = rig.call("big", json!({"bytes": 100 << 20})).await;
        assert_eq!(outcome.ending, Ending::Error);
        assert!(error(&outcome).contains("64 MiB"), "{outcome:?}");
        let outcome = rig.call("big", json!({"bytes": 10 << 20})).await;
        assert_eq!(text(&outcome).len(), 10 << 20);
        rig.end().await;
    }
}

#[tokio::test]
async fn a_flood_of_events_drowns_nobody() {
    for (way, era) in PAIRS {
        let rig = Rig::new(way, era).await;
        let handle = rig.handle().await;
        let recorder = std::sync::Arc::<Recorder>::default();
        let flood = call("flood", json!({"count": 20_000}));
        let flooded = rig.hand.execute(&handle, &flood, recorder.context(Some("debug")));
        let beside = async {
            for _ in 0..10 {
                let echo = call("echo", json!({"text": "dry"}));
                let outcome = rig.hand.execute(&handle, &echo, quiet()).await.unwrap();
                assert_eq!(text(&outcome), "dry");
            }
        };
        let (outcome, ()) = tokio::join!(flooded, beside);
        assert_eq!(text(&outcome.unwrap()), "after the flood", "{way:?} {era:?}");
        rig.end().await;
    }
}

#[tokio::test]
async fn characters_survive_every_cut() {
    let words = "日本語 한국어 👩‍👩‍👧‍👦 é 𝔘𝔫𝔦";
    for (way, era) in PAIRS {
        let rig = Rig::new(way, era).await;
        assert_eq!(text(&rig.call("pieces", json!({"text": words})).await), words);
        assert_eq!(text(&rig.call("echo", json!({"text": words})).await), words);
        rig.end().await;
    }
}

#[tokio::test]
async fn a_server_that_breaks_off_may_have_run() {
    for (way, era) in PAIRS {
        let rig = Rig::new(way, era).await;
        let handle = rig.handle().await;
        let lost = rig.hand.execute(&handle, &call("exit", json!({})), quiet()).await.unwrap_err();
        let HandError::Lost { may_have_run: true, why } = &lost else { panic!("{lost:?}") };
        assert!(why.contains("scripted"), "{why}");
        if way == Way::Stdio {
            assert!(why.contains("code 3") && why.contains("about to exit"), "{why}");
            assert!(!rig.hand.alive(&handle));
            let gone = rig.hand.execute(&handle, &call("echo", json!({"text": "x"})), quiet()).await;
            assert!(matches!(gone, Err(HandError::Lost { may_have_run: false, .. })), "{gone:?}");
            rig.hand.release(handle).await.unwrap();
        }
        assert_eq!(text(&rig.call("echo", json!({"text": "back"})).await), "back");
        rig.end().await;
    }
}

#[tokio::test]
async fn a_killed_server_is_lost_and_the_next_provision_works() {
    let rig = Rig::new(Way::Stdio, Era::Legacy).await;
    let handle = rig.handle().await;
    let pid: i32 = text(&rig.call("pid", json!({})).await).parse().unwrap();
    let slow = call("slow", json!({}));
    let running = rig.hand.execute(&handle, &slow, quiet());
    let killing = async {
        super::kit::soon(|| rig.got_of("tools/call").len() == 2).await;
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    };
    let (lost, ()) = tokio::join!(running, killing);
    assert!(matches!(lost, Err(HandError::Lost { may_have_run: true, .. })), "{lost:?}");
    rig.hand.release(handle).await.unwrap();
    assert_eq!(text(&rig.call("echo", json!({"text": "back"})).await), "back");
    rig.end().await;
}

#[tokio::test]
async fn a_stopped_server_times_out_and_can_be_ended() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(script(&folder, &["modern"]));
    config.call_max = Duration::from_millis(500);
    let rig = Rig::of(config, folder);
    let pid: i32 = text(&rig.call("pid", json!({})).await).parse().unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::STOP).unwrap();
    let outcome = rig.call("echo", json!({"text": "x"})).await;
    assert_eq!(outcome.ending, Ending::Timeout);
    rig.hand.release(rig.handle().await).await.unwrap();
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    rig.end().await;
}

#[tokio::test]
async fn a_server_that_does_not_begin_delays_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let limits =
        Limits { connect: Duration::from_secs(3), probe: Duration::from_millis(300), ..Limits::default() };
    let silent = Rig::limited(config(script(&folder, &["legacy", "silent"])), folder, limits);
    let other = Rig::new(Way::Http, Era::Modern).await;
    let begun = Instant::now();
    let beside = async {
        for _ in 0..20 {
            other.call("echo", json!({"text": "quick"})).await;
        }
        begun.elapsed()
    };
    let (refused, took) = tokio::join!(silent.try_call("echo", json!({"text": "x"}), quiet()), beside);
    let refused = refused.unwrap_err();
    assert!(matches!(refused, HandError::Unavailable { .. }), "{refused:?}");
    assert!(refused.to_string().contains("within 3 s"), "{refused}");
    assert!(took < Duration::from_secs(2), "{took:?}");
    let down = silent.hand.catalogue().down.clone().unwrap();
    assert!(silent.hand.about()["down"]["why"].as_str().unwrap().contains(&down.why));
    silent.end().await;
    other.end().await;
}

#[tokio::test]
async fn a_url_where_nobody_listens_says_so_without_its_secrets() {
    let reach = Reach::Http {
        url: "http://user:pw@127.0.0.1:1/mcp?key=secret".to_owned(),
        headers: Vec::new(),
        trust: Trust::Machine,
    };
    let rig = Rig::of(config(reach), tempfile::tempdir().unwrap());
    let refused = rig.try_call("echo", json!({}), quiet()).await.unwrap_err();
    let HandError::Unavailable { why, .. } = &refused else { panic!("{refused:?}") };
    assert!(why.contains("scripted") && why.contains("127.0.0.1:1") && why.contains("refused"), "{why}");
    assert!(!format!("{why}{}", rig.hand.about()).contains("secret"));
    assert!(rig.hand.catalogue().down.is_some());
    rig.end().await;
}

#[tokio::test]
async fn a_dead_server_keeps_its_tools_and_says_since_when() {
    let rig = Rig::new(Way::Http, Era::Modern).await;
    rig.hand.refresh().await.unwrap();
    let known = (*rig.hand.catalogue()).clone();
    rig.end().await;
    let reach =
        Reach::Http { url: "http://127.0.0.1:1/mcp".to_owned(), headers: Vec::new(), trust: Trust::Machine };
    let dead = Upstream::new(config(reach), known.clone());
    let mut changes = dead.changes();
    dead.refresh().await.unwrap_err();
    assert!(changes.has_changed().unwrap(), "it is down");
    changes.mark_unchanged();
    let catalogue = dead.catalogue();
    assert_eq!(catalogue.tools, known.tools);
    let since = catalogue.down.clone().unwrap().since;
    let refused = dead.refresh().await.unwrap_err().to_string();
    assert!(refused.contains(&format!("down since {since}")), "{refused}");
    assert!(!changes.has_changed().unwrap(), "it was down before");
    dead.shutdown().await;
}

#[tokio::test]
async fn going_down_and_coming_back_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let Reach::Stdio { mut command, directory, environment } = script(&folder, &["modern"]) else { panic!() };
    let (place, away) = (folder.path().join("server.py"), folder.path().join("away"));
    std::fs::copy(&command[1], &place).unwrap();
    command[1] = place.to_str().unwrap().to_owned();
    let rig = Rig::of(config(Reach::Stdio { command, directory, environment }), folder);
    rig.hand.refresh().await.unwrap();
    let mut changes = rig.hand.changes();
    rig.hand.refresh().await.unwrap();
    assert!(!changes.has_changed().unwrap());
    std::fs::rename(&place, &away).unwrap();
    rig.hand.refresh().await.unwrap_err();
    assert!(changes.has_changed().unwrap() && rig.hand.catalogue().down.is_some());
    changes.mark_unchanged();
    std::fs::rename(&away, &place).unwrap();
    rig.hand.refresh().await.unwrap();
    assert!(changes.has_changed().unwrap() && rig.hand.catalogue().down.is_none());
    rig.end().await;
}

#[tokio::test]
async fn redirects_are_not_followed_and_refusals_are_shown() {
    let rig = Rig::new(Way::Http, Era::Modern).await;
    rig.call("echo", json!({"text": "x"})).await;
    let web = rig.web.as_ref().unwrap();
    web.script("tools/call", json!({"status": 307, "location": "http://127.0.0.1:1/steal"}));
    let refused = rig.try_call("echo", json!({"text": "x"}), quiet()).await.unwrap_err();
    assert!(refused.to_string().contains("not followed"), "{refused}");
    web.script("tools/call", json!({"status": 401, "body": "who are you"}));
    let refused = rig.try_call("echo", json!({"text": "x"}), quiet()).await.unwrap_err();
    assert!(refused.to_string().contains("401") && refused.to_string().contains("who are you"), "{refused}");
    web.script("tools/call", json!({"status": 502, "body": ""}));
    let lost = rig.try_call("echo", json!({"text": "x"}), quiet()).await.unwrap_err();
    assert!(matches!(lost, HandError::Lost { may_have_run: true, .. }), "{lost:?}");
    rig.end().await;
}

#[tokio::test]
async fn endless_lists_end() {
    let rig = Rig::new(Way::Http, Era::Modern).await;
    let web = rig.web.as_ref().unwrap();
    for name in ["a", "b"] {
        let tool = json!({"name": name, "description": name, "inputSchema": {"type": "object"}});
        web.script("tools/list", json!({"tools": [tool], "nextCursor": "again"}));
    }
    rig.hand.refresh().await.unwrap();
    let catalogue = rig.hand.catalogue();
    assert_eq!(catalogue.tools.len(), 2);
    assert!(catalogue.problems.iter().any(|problem| problem.contains("same cursor")), "{catalogue:?}");
    for page in 0..300 {
        web.script("tools/list", json!({"tools": [], "nextCursor": format!("page {page}")}));
    }
    rig.hand.refresh().await.unwrap();
    assert!(rig.hand.catalogue().problems.iter().any(|problem| problem.contains("200 pages")));
    rig.end().await;
}
