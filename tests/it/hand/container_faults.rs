//! What goes wrong around containers: each is one clear sentence with what to do, and the next call works again.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use hands::container::{Container, ContainerConfig, Image, ShellName, Workspace, inspect};
use hands::sandbox::State;
use hands::{Ending, Hand, HandError};
use tests::dockerd::busybox;

use super::container::ContainerRig;
use super::registry::Registry;
use super::rig::{News, Rig, bash, is_gone, is_lost, lease, meanwhile, run, soon};

/// Why nothing can be provisioned, and what to do about it.
async fn refusal(config: ContainerConfig) -> String {
    let folder = tempfile::tempdir().unwrap();
    let hand = Container::new(config);
    match hand.provision(&lease(folder.path(), "one"), &hands::NoProgress).await {
        Err(error @ HandError::Unavailable { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn no_daemon_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = ContainerConfig::new("tests", Image::Named("anything".into()));
    config.host = format!("unix://{}/none", folder.path().display());
    let why = refusal(config.clone()).await;
    assert!(why.starts_with("there is no Docker daemon at ") && why.contains("; start it"), "{why}");
    let findings = inspect(&config).await;
    assert_eq!((findings.len(), findings[0].state), (1, State::Missing));
    assert!(findings[0].found.starts_with("there is no Docker daemon at "));
    // A socket that nobody listens on, and something else than a daemon.
    let socket = folder.path().join("socket");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    config.host = format!("unix://{}", socket.display());
    assert!(refusal(config.clone()).await.starts_with("there is no Docker daemon at "));
    config.host = "tcp://127.0.0.1:1".into();
    let why = refusal(config).await;
    assert!(why.starts_with("no Docker daemon answers at tcp://127.0.0.1:1"), "{why}");
}

#[tokio::test]
async fn what_a_container_can_not_be_made_of_is_said() {
    let rig = ContainerRig::new().await;
    let folder = tempfile::tempdir().unwrap();
    let not_a_tar = folder.path().join("text");
    std::fs::write(&not_a_tar, "no tar at all").unwrap();
    let with = |change: &dyn Fn(&mut ContainerConfig)| {
        let mut config = rig.config();
        change(&mut config);
        config
    };
    let cases: [(ContainerConfig, &str); 5] = [
        (
            with(&|config| config.image = Image::Named("127.0.0.1:1/none".into())),
            "the image 127.0.0.1:1/none:latest is not there and can't be pulled",
        ),
        (
            with(&|config| config.image = Image::Rootfs("/nonesuch.tar".into())),
            "/nonesuch.tar, the root file system of this hand, can't be read",
        ),
        (with(&|config| config.image = Image::Rootfs(not_a_tar.clone())), "is no tar archive; make it a tar"),
        (
            with(&|config| config.image = Image::Rootfs(busybox().unwrap())),
            "the image has no bash; set the hand's shell to sh",
        ),
        (
            with(&|config| config.runtime = Some("nonesuch".into())),
            "the Docker daemon has no runtime nonesuch",
        ),
    ];
    for (config, says) in cases {
        let why = refusal(config).await;
        assert!(why.contains(says), "{says}: {why}");
    }
    assert_eq!(rig.daemon.docker(&["ps", "--all", "--quiet"]), "");
    rig.finish().await;
}

#[tokio::test]
async fn doctor_says_beforehand_what_would_fail() {
    let rig = ContainerRig::new().await;
    let said = |findings: Vec<hands::sandbox::Finding>, subject: &str| {
        let finding = findings.into_iter().find(|finding| finding.subject == subject).unwrap();
        (finding.state, finding.found)
    };
    let config = rig.config();
    assert_eq!(said(inspect(&config).await, "docker").0, State::Fine);
    assert_eq!(said(inspect(&config).await, "limits").0, State::Fine);
    assert_eq!(said(inspect(&config).await, "image").0, State::Fine);
    for text in ["", "no tar at all", &"x".repeat(2000)] {
        let tar = rig.folder.path().join("text");
        std::fs::write(&tar, text).unwrap();
        let odd = ContainerConfig { image: Image::Rootfs(tar), ..config.clone() };
        let (is, found) = said(inspect(&odd).await, "image");
        assert!(is == State::Missing && found.ends_with("is no tar archive"), "{found}");
        assert!(refusal(odd).await.contains("is no tar archive"));
    }
    // One that its registry has, one whose registry is not there, and one whose registry says nothing.
    let registry = Registry::serve(&busybox().unwrap()).await;
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let there = format!("127.0.0.1:{}/some/busybox", registry.port);
    let mute = format!("127.0.0.1:{}/some/busybox", silent.local_addr().unwrap().port());
    let begins = "is not there and can't be pulled (";
    for (image, state, says) in [
        (&there, State::Weaker, "is not there; its registry has it, and the first call pulls it"),
        (&"127.0.0.1:1/none".to_owned(), State::Missing, begins),
        (&mute, State::Missing, begins),
    ] {
        let config = ContainerConfig { image: Image::Named(image.clone()), ..config.clone() };
        let start = std::time::Instant::now();
        let (is, found) = said(inspect(&config).await, "image");
        assert!(is == state && found.starts_with(&format!("the image {image}:latest {says}")), "{found}");
        assert!(start.elapsed() < std::time::Duration::from_mins(2), "{image}");
        println!("{found}");
    }
    assert_eq!(registry.layers(), 0, "doctor pulled it");
    let runtime = ContainerConfig { runtime: Some("nonesuch".into()), ..config };
    assert_eq!(said(inspect(&runtime).await, "runtime").0, State::Missing);
    rig.finish().await;
}

#[tokio::test]
async fn a_container_that_is_paused_or_removed_is_replaced() {
    let rig = ContainerRig::new().await;
    let (hand, samples, lease) = (rig.hand(), rig.samples(), rig.lease("one"));
    let container = ContainerRig::container(&lease.instance);
    for how in [&["pause"][..], &["rm", "--force"], &["stop", "--time", "0"]] {
        let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
        assert_eq!(run(&*hand, &handle, &samples.ok.0).await.0, Ending::Ok);
        rig.daemon.docker(&[how, &[&container]].concat());
        is_lost(&*hand, &handle, &samples.ok.0).await;
    }
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    assert_eq!(run(&*hand, &handle, &samples.ok.0).await.0, Ending::Ok);
    rig.finish().await;
}

#[tokio::test]
async fn a_daemon_that_is_killed_loses_its_containers_and_leaves_nothing() {
    let mut rig = ContainerRig::new().await;
    let (hand, samples, lease) = (rig.hand(), rig.samples(), rig.lease("one"));
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    assert_eq!(run(&*hand, &handle, &samples.keep).await.0, Ending::Ok);
    let daemon = &mut rig.daemon;
    let lost = meanwhile(&*hand, &handle, &samples.endless, async |_| daemon.kill().unwrap()).await;
    assert!(matches!(lost, Err(HandError::Lost { may_have_run: true, .. })), "{lost:?}");
    let gone = hand.provision(&lease, &hands::NoProgress).await;
    let Err(HandError::Unavailable { why, .. }) = gone else { panic!("{gone:?}") };
    assert!(why.starts_with("there is no Docker daemon at "), "{why}");
    rig.daemon.restart().await.unwrap();
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    assert_eq!(run(&*hand, &handle, &samples.kept.0).await.0, Ending::Ok);
    hand.release(handle).await.unwrap();
    is_gone(&rig, &lease.instance).await;
    rig.finish().await;
}

/// Its connections end with it, whatever killed it.
#[tokio::test]
async fn a_gateway_that_is_gone_takes_its_containers_with_it() {
    let rig = ContainerRig::new().await;
    let (config, lease) = (rig.config(), rig.lease("one"));
    let (started, lease_of_it) = (std::sync::Barrier::new(2), lease.clone());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let hand = Container::new(config);
            runtime.block_on(async {
                let handle = hand.provision(&lease_of_it, &hands::NoProgress).await.unwrap();
                bash(&hand, &handle, "setsid sleep 1000 > /dev/null 2>&1 < /dev/null &").await;
            });
            started.wait();
            runtime.shutdown_background();
        });
        started.wait();
    });
    let label = format!("label=manyhands.instance={}", lease.instance);
    soon(|| rig.daemon.docker(&["ps", "--all", "--quiet", "--filter", &label]).is_empty()).await;
    rig.finish().await;
}

/// Once, however many wait for it, and with news of how far it is.
#[tokio::test]
async fn a_missing_image_is_pulled_once_and_says_how_far_it_is() {
    let registry = Registry::serve(&busybox().unwrap()).await;
    let image = format!("127.0.0.1:{}/some/busybox", registry.port);
    let rig = ContainerRig::with(|config| {
        config.image = Image::Named(image.clone());
        config.shell = ShellName::Sh;
    })
    .await;
    let hand = Container::new(rig.config());
    let leases = [rig.lease("one"), rig.lease("other")];
    let news = [News::default(), News::default()];
    let (one, other) =
        tokio::join!(hand.provision(&leases[0], &news[0]), hand.provision(&leases[1], &news[1]));
    // Both hear of it, whoever of them pulls.
    for told in news.map(|news| news.0.into_inner().unwrap()) {
        let mut lines = told.lines();
        let first = format!("Pulling image {image}:latest");
        assert!(lines.next().is_some_and(|line| line.starts_with(&first)), "{told}");
        assert!(lines.any(|line| line.ends_with(" of 2 MB")), "{told}");
    }
    assert_eq!(registry.layers(), 1);
    for handle in [one.unwrap(), other.unwrap()] {
        assert_eq!(run(&hand, &handle, &rig.samples().ok.0).await.0, Ending::Ok);
    }
    hand.shutdown().await;
    rig.finish().await;
}

/// A volume is its owner's before anybody works in it, though whoever made it was killed on the way.
#[tokio::test]
async fn a_volume_that_was_not_given_away_yet_is_before_it_is_used_and_when_it_is_reaped() {
    let rig = ContainerRig::with(|config| config.workspace = Workspace::Volume).await;
    let (hand, lease) = (rig.hand(), rig.lease("one"));
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    hand.release(handle).await.unwrap();
    let volume = rig.daemon.docker(&["volume", "ls", "--quiet"]).trim().to_owned();
    let image = rig.daemon.docker(&["images", "--quiet", "manyhands-rootfs"]).trim().to_owned();
    // What `kill -9` leaves of its making.
    let left = || {
        rig.daemon.docker(&["volume", "rm", &volume]);
        let instance = format!("--label=manyhands.instance={}", lease.instance);
        let (gives, mount) =
            (format!("--label=manyhands.gives={volume}"), format!("--volume={volume}:/workspace:nocopy"));
        let name = format!("--name={volume}-giver");
        let made = ["create", &instance, &gives, &mount, &name, "--user=0:0", "--entrypoint=chown", &image];
        let made = rig.daemon.docker(&[&made[..], &["1000:1000", "/workspace"]].concat());
        assert_eq!(made.trim().len(), 64, "{made}");
    };
    left();
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    assert_eq!(bash(&*hand, &handle, "echo kept > file; cat file").await.1, "kept\n");
    hand.release(handle).await.unwrap();
    left();
    hand.reap(std::slice::from_ref(&lease.instance)).await.unwrap();
    is_gone(&rig, &lease.instance).await;
    assert_eq!(rig.daemon.docker(&["volume", "ls", "--quiet"]).trim(), volume);
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    assert_eq!(bash(&*hand, &handle, "echo kept > file; cat file").await.1, "kept\n");
    rig.finish().await;
}
