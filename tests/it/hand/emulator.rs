//! The emulator: a Game Boy with a game of our own.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

mod rig;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hands::emulator::{Emulator, EmulatorConfig, inspect};
use hands::sandbox::State;
use hands::{CallContext, Checkpoints, Content, Ending, Hand, HandError, Handle, Lease, Outcome, Progress};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::game;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio_util::sync::CancellationToken;

use crate::sandbox_kit::{News, call, context, lease, processes_of, seen, soon};

struct Rig {
    hand: Arc<Emulator>,
    lease: Lease,
    folder: TempDir,
}

fn program() -> PathBuf {
    env!("CARGO_BIN_EXE_hand-program").into()
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let rom = folder.path().join("game.gb");
        std::fs::write(&rom, game::game()).unwrap();
        let hand = Arc::new(Emulator::new(EmulatorConfig::new(program(), rom)));
        Self { hand, lease: lease(folder.path(), "emulator"), folder }
    }

    fn rom(&self) -> PathBuf {
        self.folder.path().join("game.gb")
    }

    fn latest(&self) -> PathBuf {
        let mut folders = std::fs::read_dir(&self.lease.work).unwrap();
        folders.next().unwrap().unwrap().path().join("latest")
    }

    /// Another gateway, which knows nothing of the first.
    fn restarted(self) -> Self {
        let hand = Arc::new(Emulator::new(EmulatorConfig::new(program(), self.rom())));
        Self { hand, lease: lease(self.folder.path(), "emulator"), folder: self.folder }
    }

    async fn try_call(&self, tool: &str, arguments: Value) -> Result<Outcome, HandError> {
        let handle = self.hand.provision(&self.lease, &hands::NoProgress).await?;
        self.hand.execute(&handle, &call(tool, arguments), context()).await
    }

    /// What a call that must succeed says, and its picture.
    async fn call(&self, tool: &str, arguments: Value) -> (String, Vec<u8>) {
        let outcome = self.try_call(tool, arguments).await.unwrap();
        let picture = picture(&outcome);
        let seen = seen(outcome);
        assert_eq!(seen.ending, Ending::Ok, "{tool}: {}", seen.text);
        (seen.text, picture)
    }

    /// What a call that must fail says.
    async fn refused(&self, tool: &str, arguments: Value) -> String {
        let seen = seen(self.try_call(tool, arguments).await.unwrap());
        assert_eq!(seen.ending, Ending::Error, "{tool}: {}", seen.text);
        seen.text
    }

    async fn byte(&self, address: &str) -> u8 {
        let (text, _) = self.call("read_memory", json!({"address": address})).await;
        u8::from_str_radix(text.trim().rsplit(' ').next().unwrap(), 16).unwrap()
    }

    fn handle(&self) -> Handle {
        Handle { instance: self.lease.instance.clone() }
    }

    fn signal(&self, signal: Signal) {
        let [worker] = processes_of(&self.lease.instance)[..] else { panic!("one worker") };
        kill_process(worker, signal).unwrap();
    }
}

fn picture(outcome: &Outcome) -> Vec<u8> {
    let images = outcome.content.iter().filter_map(|content| match content {
        Content::Image { data, mime } => {
            assert_eq!(*mime, "image/png");
            Some(data.to_vec())
        }
        Content::Text(_) | Content::Long(_) => None,
    });
    images.take(1).flatten().collect()
}

/// The pixels of a PNG, as shades of its palette.
fn pixels(png: &[u8]) -> (u32, u32, Vec<[u8; 3]>) {
    let mut decoder = png::Decoder::new(std::io::Cursor::new(png));
    decoder.set_transformations(png::Transformations::EXPAND);
    let mut reader = decoder.read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let frame = reader.next_frame(&mut bytes).unwrap();
    let pixels = bytes[..frame.buffer_size()].chunks_exact(3).map(|rgb| [rgb[0], rgb[1], rgb[2]]).collect();
    (frame.width, frame.height, pixels)
}

/// A call with news of it, started and not waited for yet.
fn watched() -> (CallContext, Arc<News>, CancellationToken) {
    let news = Arc::new(News::default());
    let cancel = CancellationToken::new();
    let progress = Arc::clone(&news) as Arc<dyn Progress>;
    (CallContext { progress, ..CallContext::quiet(cancel.clone()) }, news, cancel)
}

async fn has_begun(news: &News) {
    soon(|| news.0.lock().unwrap().contains(" of 3600 frames")).await;
}

#[tokio::test]
async fn listing_tools_starts_nothing_and_ten_first_calls_start_one_worker() {
    let rig = Rig::new();
    let tools = rig.hand.tools().await.unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["press", "wait", "screenshot", "read_memory", "save", "load", "reset"]);
    for tool in &tools {
        assert!(tool.description.len() < 2048);
        assert_eq!(tool.input_schema["additionalProperties"], false);
    }
    assert!(rig.hand.about().is_object());
    assert!(!rig.lease.work.exists() && processes_of(&rig.lease.instance).is_empty());
    let first = (0..10).map(|_| rig.call("screenshot", json!({})));
    futures_util::future::join_all(first).await;
    assert_eq!(processes_of(&rig.lease.instance).len(), 1);
    assert!(rig.hand.alive(&rig.handle()));
    rig.hand.release(rig.handle()).await.unwrap();
    rig.hand.release(rig.handle()).await.unwrap();
    assert!(!rig.hand.alive(&rig.handle()));
    assert!(processes_of(&rig.lease.instance).is_empty());
    let late = rig.hand.execute(&rig.handle(), &call("screenshot", json!({})), context()).await;
    assert!(matches!(late, Err(HandError::Lost { may_have_run: false, .. })), "{late:?}");
}

#[tokio::test]
async fn a_button_changes_the_screen() {
    let rig = Rig::new();
    let (text, before) = rig.call("wait", json!({"frames": 20})).await;
    assert!(text.starts_with("Waited for 20 frames."), "{text}");
    let (text, after) = rig.call("press", json!({"buttons": ["a", "up"], "frames": 5})).await;
    assert!(text.starts_with("Held a and up for 5 frames."), "{text}");
    let (width, height, white) = pixels(&before);
    assert_eq!((width, height), (320, 288));
    assert!(white.iter().all(|pixel| *pixel == [0xff; 3]));
    let (_, _, corner) = pixels(&after);
    for (at, pixel) in corner.iter().enumerate() {
        let black = at % 320 < 16 && at / 320 < 16;
        assert_eq!(*pixel, if black { [0; 3] } else { [0xff; 3] }, "{at}");
    }
    // Time stands still between calls, and the memory says how much has passed.
    assert_eq!(rig.call("screenshot", json!({})).await.1, after);
    let (presses, frames) = (rig.byte("0xc001").await, rig.byte("0xc000").await);
    assert!((4..=6).contains(&presses) && (24..=26).contains(&frames), "{presses} {frames}");
    assert_eq!(rig.byte("49152").await, frames);
    let (text, _) = rig.call("read_memory", json!({"address": 0x0134, "length": 20})).await;
    assert!(text.starts_with("0134: 4d 41 4e 59 48 41 4e 44 53 00 "), "{text}");
    assert!(text.contains("\n0144: 00 00 00 03\n"), "{text}");
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn the_game_goes_on_after_release_and_restart_as_if_nothing_had_been() {
    let rig = Rig::new();
    rig.call("press", json!({"buttons": ["a"], "frames": 3})).await;
    let (_, before) = rig.call("wait", json!({"frames": 17})).await;
    let frames = rig.byte("0xc000").await;
    rig.call("save", json!({"name": "here"})).await;
    let (_, uninterrupted) = rig.call("wait", json!({"frames": 30})).await;
    let later = rig.call("read_memory", json!({"address": 0x8000, "length": 4096})).await;
    let registers = rig.call("read_memory", json!({"address": 0xff00, "length": 256})).await;
    rig.call("load", json!({"name": "here"})).await;
    rig.hand.shutdown().await;

    let rig = rig.restarted();
    assert_eq!(rig.call("screenshot", json!({})).await.1, before);
    assert_eq!(rig.byte("0xc000").await, frames);
    assert_eq!(rig.call("wait", json!({"frames": 30})).await.1, uninterrupted);
    assert_eq!(rig.call("read_memory", json!({"address": 0x8000, "length": 4096})).await, later);
    assert_eq!(rig.call("read_memory", json!({"address": 0xff00, "length": 256})).await, registers);
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn a_killed_worker_is_lost_and_the_next_goes_on_from_the_last_call() {
    let rig = Rig::new();
    let (_, before) = rig.call("press", json!({"buttons": ["a"]})).await;
    let frames = rig.byte("0xc000").await;
    let (context, news, _) = watched();
    let handle = rig.handle();
    let call = call("wait", json!({"frames": 3600}));
    let (lost, ()) = tokio::join!(rig.hand.execute(&handle, &call, context), async {
        has_begun(&news).await;
        rig.signal(Signal::KILL);
    });
    let Err(HandError::Lost { may_have_run: true, why }) = lost else { panic!("{lost:?}") };
    assert!(why.contains("SIGKILL"), "{why}");
    assert!(!rig.hand.alive(&handle));
    let late = rig.hand.execute(&handle, &call, self::context()).await;
    assert!(matches!(late, Err(HandError::Lost { may_have_run: false, .. })), "{late:?}");
    assert_eq!(rig.call("screenshot", json!({})).await.1, before);
    assert_eq!(rig.byte("0xc000").await, frames);
    rig.hand.shutdown().await;
    assert!(processes_of(&rig.lease.instance).is_empty());
}

#[tokio::test]
async fn a_game_that_crashes_its_console_is_lost_and_can_go_on() {
    let rig = Rig::new();
    let (_, before) = rig.call("wait", json!({"frames": 10})).await;
    let lost = rig.try_call("press", json!({"buttons": ["b"]})).await;
    let Err(HandError::Lost { may_have_run: true, why }) = lost else { panic!("{lost:?}") };
    assert_eq!(why, "the emulator crashed (Illegal instruction, exit code 101)");
    assert_eq!(rig.call("screenshot", json!({})).await.1, before);
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn a_cancelled_call_stops_where_it_is() {
    let rig = Rig::new();
    rig.call("screenshot", json!({})).await;
    let (context, news, cancel) = watched();
    let handle = rig.handle();
    let call = call("wait", json!({"frames": 3600}));
    let waiting = call.clone();
    let queued = CallContext::quiet(cancel.clone());
    let (outcome, behind, ()) = tokio::join!(
        rig.hand.execute(&handle, &call, context),
        rig.hand.execute(&handle, &waiting, queued),
        async {
            has_begun(&news).await;
            cancel.cancel();
        }
    );
    let outcome = seen(outcome.unwrap());
    assert_eq!(outcome.ending, Ending::Cancelled);
    assert!(outcome.text.contains(" of 3600 frames; then it was cancelled."), "{}", outcome.text);
    let behind = seen(behind.unwrap());
    assert_eq!((behind.ending, behind.text.as_str()), (Ending::Cancelled, "Cancelled before it began."));
    assert!(rig.hand.alive(&handle));
    rig.call("wait", json!({"frames": 1})).await;
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn a_worker_that_does_not_stop_is_ended() {
    let rig = Rig::new();
    let (_, before) = rig.call("press", json!({"buttons": ["a"]})).await;
    rig.signal(Signal::STOP);
    let (context, _, cancel) = watched();
    cancel.cancel();
    let handle = rig.handle();
    // Cancelled before it was asked: nothing happens to the worker.
    let outcome = rig.hand.execute(&handle, &call("wait", json!({})), context).await.unwrap();
    assert_eq!(seen(outcome).text, "Cancelled before it began.");
    let (context, _, cancel) = watched();
    let call = call("wait", json!({}));
    let (outcome, ()) = tokio::join!(rig.hand.execute(&handle, &call, context), async {
        tokio::task::yield_now().await;
        cancel.cancel();
    });
    let outcome = seen(outcome.unwrap());
    assert_eq!(outcome.ending, Ending::Cancelled);
    assert!(outcome.text.contains("the game stands where it did before this call"), "{}", outcome.text);
    assert_eq!(rig.call("screenshot", json!({})).await.1, before);
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn states_are_saved_by_name_and_a_battery_outlives_a_reset() {
    let rig = Rig::new();
    rig.call("press", json!({"buttons": ["a"], "frames": 4})).await;
    let (pressed, kept) = (rig.byte("0xc001").await, rig.byte("0xa000").await);
    assert!(pressed > 0 && pressed == kept);
    assert_eq!(rig.call("save", json!({})).await.0, "Saved as quick.");
    let (_, black) = rig.call("screenshot", json!({})).await;
    rig.call("reset", json!({})).await;
    let (_, white) = rig.call("wait", json!({"frames": 10})).await;
    assert_ne!(white, black);
    assert_eq!((rig.byte("0xc001").await, rig.byte("0xa000").await), (0, kept));
    let why = rig.refused("load", json!({"name": "nonesuch"})).await;
    assert_eq!(why, "Can't load: nothing is saved as nonesuch; there is quick.");
    assert!(rig.refused("save", json!({"name": "../x"})).await.contains("small letters"));
    assert_eq!(rig.call("load", json!({})).await.1, black);
    assert_eq!(rig.byte("0xc001").await, pressed);

    // The same by the gateway's own hand.
    let checkpoints: &dyn Checkpoints = rig.hand.checkpoints().unwrap();
    rig.call("reset", json!({})).await;
    checkpoints.restore(&rig.handle(), "quick").await.unwrap();
    checkpoints.checkpoint(&rig.handle(), "mine").await.unwrap();
    assert_eq!(rig.byte("0xc001").await, pressed);
    let missing = checkpoints.restore(&rig.handle(), "not-there").await.unwrap_err().to_string();
    assert!(missing.contains("nothing is saved as not-there; there is mine, quick"), "{missing}");
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn a_switched_off_screen_stops_no_call() {
    let rig = Rig::new();
    rig.call("press", json!({"buttons": ["select"], "frames": 10})).await;
    rig.call("wait", json!({"frames": 10})).await;
    let frames = rig.byte("0xc000").await;
    rig.call("wait", json!({"frames": 10})).await;
    assert_eq!(rig.byte("0xc000").await, frames);
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn what_is_no_game_is_refused_in_one_sentence_and_beforehand() {
    let rig = Rig::new();
    let write = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut rom = game::game();
        change(&mut rom);
        let path = rig.folder.path().join(name);
        std::fs::write(&path, rom).unwrap();
        path
    };
    let sealed = |rom: &mut Vec<u8>, at: usize, value: u8| {
        rom[at] = value;
        game::seal(rom);
    };
    for (path, hint) in [
        (rig.folder.path().join("nowhere.gb"), "can't be read (No such file"),
        (rig.folder.path().to_owned(), "can't be read (Is a directory"),
        (write("short.gb", &|rom| rom.truncate(100)), "it has 100 bytes, and a game is a multiple of 16 KiB"),
        (write("noise.gb", &|rom| rom[0x134..0x150].fill(0x5a)), "the checksum of its header is wrong"),
        (write("large.gb", &|rom| rom.resize(9 << 20, 0)), "it is larger than 8 MiB"),
        (write("color.gb", &|rom| sealed(rom, 0x143, 0xc0)), "it needs a Game Boy Color"),
        (write("camera.gb", &|rom| sealed(rom, 0x147, 0xfc)), "No MBC controller available"),
    ] {
        let config = EmulatorConfig::new(program(), path);
        let hand = Emulator::new(config.clone());
        let error = hand.provision(&rig.lease, &hands::NoProgress).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, HandError::Unavailable { .. }) && text.contains(hint), "{text}");
        assert!(text.contains("; give ") && !text.contains(". "), "{text}");
        let findings = inspect(&config).await;
        // What only the console itself can say is said when it starts.
        if !hint.contains("MBC") {
            assert_eq!(findings[0].state, State::Missing);
            assert!(findings[0].found.contains(hint), "{findings:?}");
        }
        hand.shutdown().await;
    }
    let findings = inspect(&EmulatorConfig::new(program(), rig.rom())).await;
    assert_eq!(findings[0].state, State::Fine);
    assert!(findings[0].found.starts_with("MANYHANDS, in "), "{findings:?}");
}

#[tokio::test]
async fn a_damaged_state_begins_anew_and_says_so() {
    let rig = Rig::new();
    for damage in [|state: &mut Vec<u8>| state.truncate(1000), |state: &mut Vec<u8>| state[500] ^= 1] {
        rig.call("press", json!({"buttons": ["a"]})).await;
        rig.hand.release(rig.handle()).await.unwrap();
        let mut state = std::fs::read(rig.latest()).unwrap();
        damage(&mut state);
        std::fs::write(rig.latest(), state).unwrap();
        let (text, _) = rig.call("read_memory", json!({"address": 0xc001})).await;
        assert!(text.starts_with("c001: 00\n[the game starts anew, because"), "{text}");
        assert!(rig.latest().with_file_name("unusable").exists());
    }
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn a_wrong_argument_is_answered_with_what_is_right() {
    let rig = Rig::new();
    for (tool, arguments, hint) in [
        ("press", json!({}), "missing field `buttons`"),
        ("press", json!({"buttons": []}), "use wait"),
        ("press", json!({"buttons": ["x"]}), "unknown variant `x`"),
        ("press", json!({"buttons": ["a"], "frames": 0}), "between 1 and 3600"),
        ("wait", json!({"frames": 3601}), "between 1 and 3600"),
        ("wait", json!({"seconds": 1}), "unknown field `seconds`"),
        ("screenshot", json!({"format": "jpeg"}), "unknown field `format`"),
        ("read_memory", json!({"address": 65536}), "from 0 to 65535"),
        ("read_memory", json!({"address": "0xfffff"}), "from 0 to 65535"),
        ("read_memory", json!({"address": "here"}), "from 0 to 65535"),
        ("read_memory", json!({"address": 0, "length": 4097}), "between 1 and 4096"),
        ("save", json!({"name": ""}), "small letters"),
        ("load", json!({}), "nothing is saved yet"),
    ] {
        let text = rig.refused(tool, arguments.clone()).await;
        assert!(text.contains(hint), "{tool} {arguments}: {text}");
    }
    let unknown = rig.try_call("nonesuch", json!({})).await;
    assert!(matches!(unknown, Err(HandError::UnknownTool(name)) if name == "nonesuch"));
    // At the end of memory there is less to read.
    assert_eq!(rig.call("read_memory", json!({"address": 65535, "length": 16})).await.0, "ffff: 00\n");
    rig.hand.shutdown().await;
}

#[tokio::test]
async fn a_killed_gateway_takes_its_workers_with_it_and_reaping_ends_no_other() {
    let rig = Rig::new();
    let mut gateway = tokio::process::Command::new(program())
        .args(["hold", "emulator", &rig.lease.instance.0])
        .args([&rig.lease.work, &rig.rom()])
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(gateway.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("started"));
    assert_eq!(processes_of(&rig.lease.instance).len(), 2, "the gateway and the worker");
    gateway.kill().await.unwrap();
    soon(|| processes_of(&rig.lease.instance).is_empty()).await;

    // One that hangs does not see its gateway's end: the next gateway ends it.
    let mine = Emulator::new(EmulatorConfig::new(program(), rig.rom()));
    let other = lease(rig.folder.path(), "other");
    mine.provision(&rig.lease, &hands::NoProgress).await.unwrap();
    mine.provision(&other, &hands::NoProgress).await.unwrap();
    rig.signal(Signal::STOP);
    rig.hand.reap(&[hands::InstanceId("never-existed".into()), rig.lease.instance.clone()]).await.unwrap();
    assert!(processes_of(&rig.lease.instance).is_empty());
    let living = Handle { instance: other.instance.clone() };
    assert!(mine.alive(&living));
    soon(|| !mine.alive(&rig.handle())).await;
    mine.shutdown().await;
    assert!(processes_of(&other.instance).is_empty());
    assert!(!leftovers(rig.folder.path()), "half a state is left");
}

/// Whether a state was left half-written.
fn leftovers(folder: &Path) -> bool {
    let found = std::process::Command::new("find").arg(folder).args(["-name", "new"]).output().unwrap();
    !found.stdout.is_empty()
}

#[tokio::test]
async fn a_call_that_is_given_up_ends_its_worker_and_no_more() {
    let rig = Rig::new();
    let (_, before) = rig.call("press", json!({"buttons": ["a"]})).await;
    let (context, news, _) = watched();
    let (handle, call) = (rig.handle(), call("wait", json!({"frames": 3600})));
    tokio::select! {
        _ = rig.hand.execute(&handle, &call, context) => panic!("it was faster than its news"),
        () = has_begun(&news) => {}
    }
    tokio::time::timeout(Duration::from_secs(30), async {
        let lost = rig.hand.execute(&handle, &call, self::context()).await;
        assert!(matches!(lost, Err(HandError::Lost { .. })), "{lost:?}");
    })
    .await
    .unwrap();
    assert_eq!(rig.call("screenshot", json!({})).await.1, before);
    rig.hand.shutdown().await;
}
