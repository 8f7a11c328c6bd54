//! `manyhands session events --follow`.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};

use rustix::process::Signal;
use serde_json::Value;
use tests::gateway::{Gateway, Options};

use super::{Home, PATIENCE, Process};

struct Follower {
    process: Process,
    lines: Receiver<Value>,
}

impl Follower {
    fn start(home: &Home, args: &[&str]) -> Self {
        let all = [&["session", "events", "demo", "--follow", "--json"], args].concat();
        let mut command = home.command(&all);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (send, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                send.send(serde_json::from_str(&line).unwrap()).ok();
            }
        });
        Self { process: Process(Some(child)), lines }
    }

    fn next(&self) -> i64 {
        self.lines.recv_timeout(PATIENCE).unwrap()["seq"].as_i64().unwrap()
    }
}

fn call(home: &Home, command: &str) {
    let arguments = serde_json::json!({"command": command}).to_string();
    let said = home.run(&["hand", "call", "sandbox", "bash", &arguments, "--session", "demo"]);
    assert_eq!(said.code, Some(0), "{said:?}");
}

/// From an owner elsewhere: a slice, then what is appended, without a gap and without a duplicate.
#[test]
fn what_is_appended_is_printed_at_once() {
    let home = Home::new();
    let mut gateway = Gateway::start_blocking(&Options::default().data(&home.data())).unwrap();
    call(&home, "true");
    let mut last_two = Follower::start(&home, &["--limit", "2"]);
    let mut all = Follower::start(&home, &["--after", "0"]);
    let mut results = Follower::start(&home, &["--after", "0", "--type", "agent.tool_result"]);
    assert_eq!([last_two.next(), last_two.next()], [4, 5]);
    assert_eq!([(); 5].map(|()| all.next()), [1, 2, 3, 4, 5]);
    assert_eq!(results.next(), 5);
    call(&home, "true");
    for follower in [&last_two, &all] {
        assert_eq!([(); 3].map(|()| follower.next()), [6, 7, 8]);
    }
    assert_eq!(results.next(), 8);
    for follower in [&mut last_two, &mut all] {
        follower.process.signal(Signal::INT);
    }
    for follower in [last_two, all] {
        let said = follower.process.end();
        assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{said:?}");
    }
    gateway.stop().unwrap();
    results.process.child().stdout = None;
    results.process.end().refuses(1, &["the gateway has ended", "--after"]);
}

/// Without an owner it becomes one, and others reach it.
#[test]
fn following_owns_the_data_when_nobody_does() {
    let home = Home::new();
    home.json(&["session", "new", "demo"]);
    let mut follower = Follower::start(&home, &[]);
    assert_eq!(follower.next(), 1);
    call(&home, "true");
    assert_eq!([(); 4].map(|()| follower.next()), [2, 3, 4, 5]);
    follower.process.signal(Signal::INT);
    assert_eq!(follower.process.end().code, Some(0));
}
