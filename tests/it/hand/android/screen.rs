//! What a device has beyond the six tools, and how its absence is said.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::fs;
use std::net::{SocketAddr, TcpListener};

use hands::android::{Android, AndroidConfig, Device, inspect};
use hands::sandbox::State;
use hands::{Content, Ending, Hand, HandError};
use serde_json::json;
use tests::device::Bench;

use crate::hand::rig::{call, context, lease, run};

#[tokio::test]
async fn the_screen_is_seen_and_touched() {
    let bench = Bench::start().await.unwrap();
    let hand = Android::new(bench.config());
    let handle = hand.provision(&lease(bench.folder.path(), "one"), &hands::NoProgress).await.unwrap();
    let shot = hand.execute(&handle, &call("screenshot", json!({})), context()).await.unwrap();
    let Some(Content::Image { data, mime: "image/png" }) = shot.content.first() else { panic!("{shot:?}") };
    assert_eq!(data.as_ref(), fs::read(bench.home().join("screen.png")).unwrap());
    for (tool, arguments, says, told) in [
        ("tap", json!({"x": 3, "y": 4}), "Tapped 3, 4.", "input tap 3 4"),
        ("swipe", json!({"x1": 1, "y1": 2, "x2": 3, "y2": 4}), "Swiped", "input swipe 1 2 3 4 300"),
        ("text", json!({"text": "a b; $(id) 'q' \"100%sure\""}), "Typed 25", "input text sure\""),
        ("key", json!({"key": "home"}), "Pressed HOME.", "input keyevent HOME"),
        ("ui_tree", json!({}), "a b; $(id) 'q' \"100%sure\"", "uiautomator dump"),
        (
            "launch",
            json!({"package": "com.example.app"}),
            "Started",
            "monkey -p com.example.app -c android.intent.category.LAUNCHER 1",
        ),
        (
            "launch",
            json!({"package": "com.example.app", "activity": ".Main"}),
            "Started",
            "am start -n com.example.app/.Main",
        ),
        ("write", json!({"path": "an app.apk", "content": "x"}), "Wrote", ""),
        ("install", json!({"path": "an app.apk"}), "Installed", "pm install -r"),
        ("install", json!({"path": "/workspace/an app.apk"}), "Installed", "workspace/an app.apk"),
        ("logcat", json!({"lines": 3, "filter": "*:E"}), "1\n2\n3", "logcat -d -t 3 *:E"),
    ] {
        let (ending, text) = run(&hand, &handle, &call(tool, arguments.clone())).await;
        assert!(ending == Ending::Ok && text.contains(says), "{tool} {arguments}: {text}");
        let log = fs::read_to_string(bench.home().join("log")).unwrap();
        assert!(log.contains(told), "{tool} {arguments}: {log}");
    }
    fs::write(bench.home().join("restless"), "").unwrap();
    fs::write(bench.home().join("screen.png"), "no image").unwrap();
    for (tool, arguments, says) in [
        ("ui_tree", json!({}), "could not get idle state"),
        ("screenshot", json!({}), "gave no image"),
        ("launch", json!({"package": "com.missing"}), "No activities found"),
        ("launch", json!({"package": "com.example", "activity": ".Missing"}), "does not exist"),
        ("launch", json!({"package": "a; id"}), "are names such as"),
        ("install", json!({"path": "none.apk"}), "no such file"),
        ("text", json!({"text": "zwei\nZeilen"}), "printable ASCII"),
        ("text", json!({"text": "ü"}), "printable ASCII"),
        ("key", json!({"key": "HOME; id"}), "must be a name"),
        ("tap", json!({"x": -1, "y": 4}), "arguments of tap are wrong"),
        ("swipe", json!({"x1": 1, "y1": 2, "x2": 3, "y2": 4, "duration_ms": 60001}), "between 1 and 60000"),
        ("logcat", json!({"filter": "-c"}), "use bash"),
        ("screenshot", json!({"x": 1}), "unknown field"),
    ] {
        let (ending, text) = run(&hand, &handle, &call(tool, arguments.clone())).await;
        assert!(ending == Ending::Error && text.contains(says), "{tool} {arguments}: {text}");
    }
    hand.shutdown().await;
}

/// What is said of a hand that can't be provisioned, and whether doctor finds a lack.
async fn refusal(config: AndroidConfig) -> String {
    let folder = tempfile::tempdir().unwrap();
    let hand = Android::new(config.clone());
    let error = hand.provision(&lease(folder.path(), "one"), &hands::NoProgress).await.unwrap_err();
    let HandError::Unavailable { why, remedy } = &error else { panic!("{error:?}") };
    assert!(!why.contains('\n') && !remedy.is_empty() && !remedy.contains('\n'), "{error}");
    let findings = inspect(&config).await;
    let lack = findings.iter().find(|finding| finding.state == State::Missing).unwrap();
    assert_eq!((&lack.found, lack.remedy.as_ref()), (why, Some(remedy)));
    error.to_string()
}

#[tokio::test]
async fn a_device_that_is_not_there_is_said_in_a_sentence() {
    let bench = Bench::start().await.unwrap();
    let config = bench.config();
    let findings = inspect(&config).await;
    assert!(
        findings.len() == 2 && findings.iter().all(|finding| finding.state == State::Fine),
        "{findings:?}"
    );
    let serial = AndroidConfig { device: Device::Serial("nonesuch".into()), ..config.clone() };
    assert!(refusal(serial).await.contains("no device nonesuch is connected"));
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nowhere = AndroidConfig { device: Device::Address(free.to_string()), ..config.clone() };
    assert!(refusal(nowhere).await.contains("can't connect to"));
    let no_server =
        AndroidConfig { server: SocketAddr::from(([127, 0, 0, 1], free.port())), ..config.clone() };
    assert!(refusal(no_server).await.contains("start-server"));
    // By serial, once it is connected.
    let hand = Android::new(config.clone());
    hand.provision(&lease(bench.folder.path(), "one"), &hands::NoProgress).await.unwrap();
    let Device::Address(address) = config.device.clone() else { panic!() };
    let by_serial = Android::new(AndroidConfig { device: Device::Serial(address), ..config });
    let handle = by_serial.provision(&lease(bench.folder.path(), "two"), &hands::NoProgress).await.unwrap();
    let echo = call("bash", json!({"command": "echo by serial; echo aside >&2; exit 7"}));
    let (ending, text) = run(&by_serial, &handle, &echo).await;
    assert_eq!((ending, text.as_str()), (Ending::Error, "by serial\naside\n[exit code 7]"));
    by_serial.shutdown().await;
    hand.shutdown().await;
}
