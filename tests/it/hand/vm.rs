//! The virtual machine: QEMU with a guest made on the spot, against the contract.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::collections::HashSet;
use std::io::Cursor;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use hands::sandbox::{State, pack};
use hands::vm::{Accel, Vm, VmConfig, inspect};
use hands::{Ending, Hand, HandError, InstanceId, Lease};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;
use tests::guest::guest;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio_util::sync::CancellationToken;

use super::rig::{Rig, Samples, bash, call, lease, run, soon};
use crate::sandbox_kit::{processes_of, unpack};

contract!(every, VmRig);
contract!(posix, VmRig);

fn program() -> PathBuf {
    env!("CARGO_BIN_EXE_hand-program").into()
}

/// Emulated: the same on every machine.
fn config() -> VmConfig {
    let guest = guest().unwrap();
    VmConfig { accel: Accel::Tcg, ..VmConfig::new(program(), guest.kernel, guest.initrd, guest.cache) }
}

struct VmRig {
    hands: Mutex<Vec<Arc<Vm>>>,
    folder: TempDir,
}

impl VmRig {
    fn make(&self, config: VmConfig) -> Arc<Vm> {
        let hand = Arc::new(Vm::new(config));
        self.hands.lock().unwrap().push(Arc::clone(&hand));
        hand
    }
}

/// QEMU of an instance.
fn machines_of(instance: &InstanceId) -> Vec<Pid> {
    processes_of(&InstanceId(format!("manyhands-{instance}")))
}

fn sockets_below(folder: &Path) -> Vec<String> {
    let found = std::process::Command::new("find").arg(folder).args(["-type", "s"]).output().unwrap();
    String::from_utf8(found.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[async_trait]
impl Rig for VmRig {
    async fn new() -> Self {
        let rig = Self { hands: Mutex::default(), folder: tempfile::tempdir().unwrap() };
        rig.make(config());
        rig
    }

    fn hand(&self) -> Arc<dyn Hand> {
        Arc::clone(&self.hands.lock().unwrap()[0]) as _
    }

    async fn second(&self) -> Arc<dyn Hand> {
        self.make(config())
    }

    fn lease(&self, name: &str) -> Lease {
        lease(self.folder.path(), name)
    }

    fn samples(&self) -> Samples {
        Samples::posix()
    }

    async fn count(&self, instance: &InstanceId) -> usize {
        machines_of(instance).len()
    }

    async fn remains(&self, instance: &InstanceId) -> Vec<String> {
        let processes = processes_of(instance).into_iter().chain(machines_of(instance));
        let processes = processes.map(|pid| format!("process {pid:?}"));
        // The work folder is named after the lease, and so is the instance.
        let name = instance.0.split('-').next().unwrap();
        processes.chain(sockets_below(&self.folder.path().join("work").join(name))).collect()
    }

    async fn kill(&self, instance: &InstanceId) {
        for pid in machines_of(instance) {
            let _ = kill_process(pid, Signal::KILL);
        }
        soon(|| machines_of(instance).is_empty()).await;
    }

    async fn finish(self) {
        let hands = std::mem::take(&mut *self.hands.lock().unwrap());
        for hand in hands {
            hand.shutdown().await;
        }
    }
}

impl Drop for VmRig {
    /// A machine of a failed test goes with its hand, whose keepers see the end of this process.
    fn drop(&mut self) {
        self.hands.lock().unwrap().clear();
    }
}

#[tokio::test]
async fn a_killed_gateway_takes_its_machines_with_it() {
    let rig = VmRig::new().await;
    let (lease, guest) = (rig.lease("held"), guest().unwrap());
    let mut gateway = tokio::process::Command::new(program())
        .args(["hold", "vm", &lease.instance.0])
        .args([&lease.work, &guest.kernel, &guest.initrd, &guest.cache])
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(gateway.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("started"));
    assert_eq!(machines_of(&lease.instance).len(), 1);
    gateway.kill().await.unwrap();
    soon(|| machines_of(&lease.instance).is_empty() && processes_of(&lease.instance).is_empty()).await;
    assert_eq!(sockets_below(rig.folder.path()), Vec::<String>::new());
    rig.finish().await;
}

#[tokio::test]
async fn a_killed_keeper_takes_its_machine_with_it() {
    let rig = VmRig::new().await;
    let (hand, lease) = (rig.hand(), rig.lease("one"));
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    for keeper in processes_of(&lease.instance) {
        kill_process(keeper, Signal::KILL).unwrap();
    }
    soon(|| machines_of(&lease.instance).is_empty() && !hand.alive(&handle)).await;
    rig.finish().await;
}

#[tokio::test]
async fn bytes_pass_as_they_are_and_memory_is_part_of_a_checkpoint() {
    let rig = VmRig::new().await;
    let (hand, lease) = (rig.hand(), rig.lease("one"));
    let handle = hand.provision(&lease, &hands::NoProgress).await.unwrap();
    let text: String =
        (1..0x250).filter_map(char::from_u32).chain("二\r\n🦀\u{4}\u{11}\u{13}".chars()).collect();
    let text = text.repeat(200);
    let echo = call("bash", json!({"command": "cat; md5sum < /dev/null >&2", "stdin": text}));
    let (ending, shown) = run(&*hand, &handle, &echo).await;
    assert_eq!(ending, Ending::Ok);
    assert!(shown.strip_suffix("d41d8cd98f00b204e9800998ecf8427e  -\n") == Some(&text[..]), "bytes changed");
    // A process of the background counts in memory alone.
    let count = "i=0; while :; do i=$((i+1)); echo $i > /tmp/count; sleep 0.1; done > /dev/null 2>&1 &";
    bash(&*hand, &handle, count).await;
    let checkpoints = hand.checkpoints().unwrap();
    checkpoints.checkpoint(&handle, "then").await.unwrap();
    bash(&*hand, &handle, "kill $!; rm -rf /tmp/count; sleep 1; echo gone > /tmp/count").await;
    checkpoints.restore(&handle, "then").await.unwrap();
    let (_, counted) =
        bash(&*hand, &handle, "a=$(cat /tmp/count); sleep 1; b=$(cat /tmp/count); echo $((b > a))").await;
    assert_eq!(counted, "1\n");
    // Its clock is right, though its memory is older.
    let seconds = |text: &str| text.trim().parse::<u64>().unwrap();
    let inside = seconds(&bash(&*hand, &handle, "date +%s").await.1);
    let outside = std::process::Command::new("date").arg("+%s").output().unwrap();
    let outside = seconds(&String::from_utf8(outside.stdout).unwrap());
    assert!(outside.abs_diff(inside) < 20, "{inside} {outside}");
    for name in ["", "-x", "a b", "../x", &"x".repeat(33)] {
        let said = checkpoints.checkpoint(&handle, name).await.unwrap_err().to_string();
        assert!(said.contains("1 to 32 small letters"), "{said}");
    }
    rig.finish().await;
}

/// They begin where one machine stood, and so would their random numbers.
#[tokio::test]
async fn what_two_machines_of_a_kind_or_two_restores_draw_at_random_differs() {
    let rig = VmRig::new().await;
    let hand = rig.hand();
    let draw = "head -c 32 /dev/urandom | md5sum; cat /proc/sys/kernel/random/uuid";
    let mut drawn = Vec::new();
    let one = hand.provision(&rig.lease("one"), &hands::NoProgress).await.unwrap();
    let two = hand.provision(&rig.lease("two"), &hands::NoProgress).await.unwrap();
    for handle in [&one, &two] {
        drawn.extend(bash(&*hand, handle, draw).await.1.lines().map(str::to_owned));
    }
    let checkpoints = hand.checkpoints().unwrap();
    checkpoints.checkpoint(&one, "then").await.unwrap();
    for _ in 0..2 {
        checkpoints.restore(&one, "then").await.unwrap();
        drawn.extend(bash(&*hand, &one, draw).await.1.lines().map(str::to_owned));
    }
    assert_eq!(drawn.len(), 8, "{drawn:?}");
    let different: HashSet<_> = drawn.iter().collect();
    assert_eq!(different.len(), 8, "{drawn:?}");
    rig.finish().await;
}

#[tokio::test]
async fn a_large_file_goes_in_and_out_and_a_copy_that_is_given_up_harms_nothing() {
    let rig = VmRig::new().await;
    let hand = rig.hand();
    let handle = hand.provision(&rig.lease("one"), &hands::NoProgress).await.unwrap();
    let (files, cancel) = (hand.files().unwrap(), CancellationToken::new());
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    // 16 MiB in which no piece is like another.
    let bytes: Vec<u8> = (0..4_u32 << 20).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    std::fs::write(&source, &bytes).unwrap();
    let mut archive = Vec::new();
    pack(&source, &mut archive).unwrap();
    let begun = std::time::Instant::now();
    files.copy_in(&handle, "large", Box::new(Cursor::new(archive.clone())), &cancel).await.unwrap();
    let into = begun.elapsed();
    let mut out = Vec::new();
    files.copy_out(&handle, "large", &mut out, &|_| {}, &cancel).await.unwrap();
    println!("16 MiB: in {into:?}, out {:?}", begun.elapsed().saturating_sub(into));
    let target = folder.path().join("target");
    unpack(&out, &target).unwrap();
    assert!(std::fs::read(target).unwrap() == bytes, "the bytes changed");
    // One whose giver stops in the middle and then gives up.
    let (mut ours, theirs) = tokio::io::duplex(1 << 20);
    let (copied, ()) = tokio::join!(files.copy_in(&handle, "half", Box::new(theirs), &cancel), async {
        ours.write_all(&archive[..4 << 20]).await.unwrap();
        cancel.cancel();
    });
    assert!(copied.unwrap_err().to_string().contains("cancelled"));
    let (_, listed) = bash(&*hand, &handle, "ls -A").await;
    assert!(listed.contains("large") && !listed.contains("half") && !listed.contains("copy"), "{listed}");
    // One that the guest ends, while there is still much to give.
    let refused = files
        .copy_in(&handle, "large", Box::new(Cursor::new(archive)), &CancellationToken::new())
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("large exists already"), "{refused}");
    assert_eq!(bash(&*hand, &handle, "echo still here").await.1, "still here\n");
    rig.finish().await;
}

#[tokio::test]
async fn where_kvm_does_not_work_machines_are_emulated_from_then_on() {
    let rig = VmRig::new().await;
    let cache = rig.folder.path().join("cache");
    // A QEMU whose guests say nothing under KVM, and a KVM that can be opened.
    let (qemu, kvm) = (rig.folder.path().join("qemu"), rig.folder.path().join("kvm"));
    std::fs::write(&kvm, "").unwrap();
    let script = r#"#!/bin/sh
for argument; do
  shift
  case $argument in
    pc,accel=kvm) argument=pc,accel=tcg silent=-S ;;
    host) argument=max ;;
  esac
  set -- "$@" "$argument"
done
exec qemu-system-x86_64 "$@" $silent
"#;
    std::fs::write(&qemu, script).unwrap();
    std::fs::set_permissions(&qemu, std::fs::Permissions::from_mode(0o755)).unwrap();
    let settings = VmConfig {
        accel: Accel::Auto,
        qemu,
        kvm,
        silence: Duration::from_secs(3),
        cache: cache.clone(),
        ..config()
    };
    let strict = rig.make(VmConfig { accel: Accel::Kvm, ..settings.clone() });
    let said = strict.provision(&rig.lease("strict"), &hands::NoProgress).await.unwrap_err().to_string();
    assert!(said.starts_with("the guest said nothing for 3 s; set accel to tcg"), "{said}");
    let hand = rig.make(settings.clone());
    let handle = hand.provision(&rig.lease("one"), &hands::NoProgress).await.unwrap();
    assert_eq!(bash(&*hand, &handle, "echo here").await.1, "here\n");
    let why = std::fs::read_to_string(cache.join("kvm-does-not-work")).unwrap();
    assert!(why.contains("the guest said nothing for 3 s"), "{why}");
    // Remembered: the next is there long before the silence would be over.
    let findings = inspect(&settings).await;
    let found = findings.iter().find(|finding| finding.subject == "acceleration").unwrap();
    assert_eq!(found.state, State::Weaker);
    let next = rig.make(VmConfig { silence: Duration::from_mins(10), ..settings });
    let handle = next.provision(&rig.lease("two"), &hands::NoProgress).await.unwrap();
    assert_eq!(bash(&*next, &handle, "echo here").await.1, "here\n");
    rig.finish().await;
}

#[tokio::test]
async fn an_image_is_a_system_of_its_own_that_no_instance_changes() {
    let rig = VmRig::new().await;
    let image = rig.folder.path().join("image.qcow2");
    tests::guest::image(&image, rig.folder.path()).unwrap();
    let before = std::fs::read(&image).unwrap();
    let hand = rig.make(VmConfig { image: Some(image.clone()), ..config() });
    let one = rig.lease("one");
    let handle = hand.provision(&one, &hands::NoProgress).await.unwrap();
    assert_eq!(
        bash(&*hand, &handle, "cat /etc/whose; pwd; echo mine >> /etc/whose").await.1,
        "the image\n/workspace\n"
    );
    bash(&*hand, &handle, "echo kept > file").await;
    hand.release(handle).await.unwrap();
    let handle = hand.provision(&one, &hands::NoProgress).await.unwrap();
    assert_eq!(bash(&*hand, &handle, "cat /etc/whose file").await.1, "the image\nmine\nkept\n");
    let other = hand.provision(&rig.lease("other"), &hands::NoProgress).await.unwrap();
    assert_eq!(bash(&*hand, &other, "cat /etc/whose; ls").await.1, "the image\n");
    assert!(std::fs::read(&image).unwrap() == before, "the image was written to");
    rig.finish().await;
}

#[tokio::test]
async fn what_is_missing_is_said_in_one_sentence_and_beforehand() {
    let rig = VmRig::new().await;
    let nowhere = rig.folder.path().join("nowhere");
    let fresh = || VmConfig { cache: rig.folder.path().join("cache"), ..config() };
    for (settings, subject, hint) in [
        (
            VmConfig { accel: Accel::Kvm, kvm: nowhere.clone(), ..fresh() },
            "acceleration",
            "has no KVM for the gateway",
        ),
        (VmConfig { kernel: nowhere.clone(), ..fresh() }, "kernel", "can't be read (No such file"),
        (VmConfig { initrd: nowhere.clone(), ..fresh() }, "initrd", "can't be read (No such file"),
        (VmConfig { qemu_img: nowhere.clone(), ..fresh() }, "qemu-img", "can't be run (No such file"),
        (VmConfig { qemu: nowhere.clone(), ..fresh() }, "qemu", "No such file"),
    ] {
        let hand = rig.make(settings.clone());
        let error = hand.provision(&rig.lease("none"), &hands::NoProgress).await.unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, HandError::Unavailable { .. }) && said.contains(hint), "{said}");
        let findings = inspect(&settings).await;
        let found = findings.iter().find(|finding| finding.subject == subject).unwrap();
        assert!(found.state == State::Missing && found.found.contains(hint), "{found:?}");
    }
    let findings = inspect(&config()).await;
    assert!(findings.iter().all(|finding| finding.state != State::Missing), "{findings:?}");
    rig.finish().await;
}

/// A distribution's kernel without its modules boots, and finds neither disk nor ports.
#[tokio::test]
async fn a_guest_without_drivers_says_so_when_it_boots() {
    let rig = VmRig::new().await;
    let folder = rig.folder.path();
    std::fs::create_dir_all(folder.join("root/etc")).unwrap();
    let boot = folder.join("root/etc/manyhands-boot");
    std::fs::write(&boot, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&boot, std::fs::Permissions::from_mode(0o755)).unwrap();
    // Of two archives the later one counts.
    let pack = "cp \"$1\" initrd && cd root && find . | busybox cpio -o -H newc >> ../initrd";
    let mut packing = std::process::Command::new("sh");
    packing.args(["-c", pack, "sh"]).arg(config().initrd).current_dir(folder);
    assert!(packing.status().unwrap().success());
    let settings = VmConfig { initrd: folder.join("initrd"), cache: folder.join("cache"), ..config() };
    let error = rig.make(settings).provision(&rig.lease("none"), &hands::NoProgress).await.unwrap_err();
    let said = error.to_string();
    assert!(said.contains("the guest lacks: virtio (load virtio_pci"), "{said}");
    rig.finish().await;
}
