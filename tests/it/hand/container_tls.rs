//! Containers of a real Docker daemon that is reached over the network, and lets in only who has a certificate.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::path::PathBuf;

use hands::container::{Container, ContainerConfig, Image, Tls, Workspace, inspect};
use hands::sandbox::{State, pack};
use hands::{Ending, Hand, HandError};
use serde_json::json;
use tests::dockerd::{Dockerd, rootfs};
use tests::gateway::{Gateway, Options};
use tokio_util::sync::CancellationToken;

use super::rig::{Samples, bash, call, is_lost, lease, meanwhile, run, seen};
use crate::sandbox_kit::unpack;

fn config(daemon: &Dockerd) -> ContainerConfig {
    let mut config = ContainerConfig::new("tests", Image::Rootfs(rootfs().unwrap()));
    config.host = daemon.tls_host().unwrap();
    config.workspace = Workspace::Volume;
    config.tls =
        Some(Tls { ca: daemon.pem("ca"), certificate: daemon.pem("client"), key: daemon.pem("client-key") });
    config
}

#[tokio::test]
async fn all_that_a_container_does_goes_over_tls() {
    let daemon = Dockerd::start_with_tls().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let hand = Container::new(config(&daemon));
    let (samples, lease) = (Samples::posix(), lease(folder.path(), "one"));
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    assert_eq!(run(&hand, &handle, &samples.ok.0).await, (Ending::Ok, samples.ok.1.into()));
    assert_eq!(run(&hand, &handle, &samples.error.0).await.0, Ending::Error);
    // What is sent to a call has an end, though its connection has none yet.
    let text = "x".repeat(1 << 20);
    let written = run(&hand, &handle, &call("write", json!({"path": "large", "content": text}))).await;
    assert_eq!(written.0, Ending::Ok, "{}", written.1);
    assert_eq!(bash(&hand, &handle, "wc -c < large").await, (Ending::Ok, "1048576\n".into()));
    let ended = meanwhile(&hand, &handle, &samples.endless, async |cancel| cancel.cancel()).await;
    assert_eq!(seen(ended.unwrap()).ending, Ending::Cancelled);
    assert_eq!(bash(&hand, &handle, "ps -e -o comm= | grep -c sleep").await.1.lines().next(), Some("0"));

    let checkpoints = hand.checkpoints().unwrap();
    assert_eq!(run(&hand, &handle, &samples.keep).await.0, Ending::Ok);
    checkpoints.checkpoint(&handle, "one").await.unwrap();
    assert_eq!(run(&hand, &handle, &samples.change).await.0, Ending::Ok);
    checkpoints.restore(&handle, "one").await.unwrap();
    assert!(run(&hand, &handle, &samples.kept.0).await.1.contains(samples.kept.1));
    let source = folder.path().join("source");
    std::fs::write(&source, vec![7; 3_000_000]).unwrap();
    let (mut archive, mut out) = (Vec::new(), Vec::new());
    pack(&source, &mut archive).unwrap();
    let (files, never) = (hand.files().unwrap(), CancellationToken::new());
    files.copy_in(&handle, "/tmp/copy", Box::new(std::io::Cursor::new(archive)), &never).await.unwrap();
    files.copy_out(&handle, "/tmp/copy", &mut out, &|_| {}, &never).await.unwrap();
    unpack(&out, &folder.path().join("back")).unwrap();
    assert!(std::fs::read(folder.path().join("back")).unwrap() == vec![7; 3_000_000]);

    let kill = async |_: &CancellationToken| {
        daemon.docker(&["kill", &format!("manyhands-{}", lease.instance)]);
    };
    let lost = meanwhile(&hand, &handle, &samples.endless, kill).await;
    assert!(matches!(lost, Err(HandError::Lost { may_have_run: true, .. })), "{lost:?}");
    is_lost(&hand, &handle, &samples.ok.0).await;
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    assert!(run(&hand, &handle, &samples.kept.0).await.1.contains(samples.kept.1));
    hand.release(handle).await.unwrap();
    hand.far_work().unwrap().remove(&lease.work).await.unwrap();
    hand.shutdown().await;
    assert_eq!(daemon.docker(&["ps", "--all", "--quiet"]), "");
    assert_eq!(daemon.docker(&["volume", "ls", "--quiet"]), "");
}

/// One sentence each, with what to do, from the first call and from doctor.
#[tokio::test]
async fn what_is_wrong_with_certificates_is_said() {
    let daemon = Dockerd::start_with_tls().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    std::fs::write(&text, "no certificate").unwrap();
    let with = |ca: PathBuf, certificate: PathBuf, key: PathBuf| ContainerConfig {
        tls: Some(Tls { ca, certificate, key }),
        ..config(&daemon)
    };
    let pem = |name: &str| daemon.pem(name);
    let plain = hyper_plain().await;
    let cases = [
        (
            with(pem("other-ca"), pem("client"), pem("client-key")),
            "can't be trusted (invalid peer certificate",
        ),
        (with(pem("ca"), pem("other"), pem("other-key")), "does not trust this hand (received fatal alert"),
        (
            with(pem("ca"), pem("none"), pem("client-key")),
            "none.pem (tls.certificate) can't be read: No such file",
        ),
        (with(text.clone(), pem("client"), pem("client-key")), "text (tls.ca) holds no certificate"),
        (with(pem("ca"), pem("client"), text.clone()), "text (tls.key) holds no key"),
        (with(pem("ca"), pem("client"), pem("other-key")), "do not fit"),
        (ContainerConfig { tls: None, ..config(&daemon) }, "speaks TLS only"),
        (ContainerConfig { host: plain, ..config(&daemon) }, "does not speak TLS"),
    ];
    for (config, says) in cases {
        let hand = Container::new(config.clone());
        let refused = hand.provision(&lease(folder.path(), "one"), &hands::NoProgress).await;
        let Err(HandError::Unavailable { why, remedy }) = refused else { panic!("{says}: {refused:?}") };
        println!("{why}; {remedy}");
        assert!(why.contains(says), "{says}: {why}");
        let findings = inspect(&config).await;
        assert_eq!((findings.len(), findings[0].state), (1, State::Missing), "{says}");
        assert_eq!((&findings[0].found, findings[0].remedy.as_ref()), (&why, Some(&remedy)));
    }
}

/// Something that speaks HTTP in the clear.
#[expect(clippy::disallowed_methods, reason = "ended with the test")]
async fn hyper_plain() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, axum::Router::new()).await.unwrap() });
    format!("tcp://127.0.0.1:{port}")
}

/// As it is set up by a person: the address from the environment, the rest in the file.
#[tokio::test]
async fn a_gateway_uses_the_daemon_that_docker_host_names() {
    let daemon = Dockerd::start_with_tls().await.unwrap();
    let config = format!(
        "[hands.box]\nkind = \"container\"\nrootfs = \"{}\"\nworkspace = \"volume\"\n\
         tls = {{ ca = \"{}\", certificate = \"{}\", key = \"{}\" }}\n",
        rootfs().unwrap().display(),
        daemon.pem("ca").display(),
        daemon.pem("client").display(),
        daemon.pem("client-key").display(),
    );
    let options = Options::default().config(&config).env("DOCKER_HOST", &daemon.tls_host().unwrap());
    let mut gateway = Gateway::start(options).await.unwrap();
    let called = gateway.cli(&["hand", "call", "box", "bash", r#"{"command": "id -u; pwd"}"#]).unwrap();
    assert!(called.status.success() && called.stdout.ends_with(b"/workspace\n"), "{called:?}");
    gateway.stop().unwrap();
}
