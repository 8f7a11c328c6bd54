//! `manyhands stdio`: as the owner, and as a relay to it.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{ChildStdin, ChildStdout, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};
use tests::gateway::{Gateway, Options};

use super::{Home, Process, Said, until};

/// An MCP client of its own process.
struct Client {
    process: Process,
    to: Option<ChildStdin>,
    from: Lines<BufReader<ChildStdout>>,
}

impl Client {
    fn start(home: &Home, session: &str) -> Self {
        let mut command = home.command(&["stdio", "--session", session]);
        command
            .env("MANYHANDS_LOG", "off")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (to, from) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()).lines());
        let mut client = Self { process: Process(Some(child)), to, from };
        let hello = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
        });
        client.send(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}));
        assert_eq!(client.answer(0).unwrap()["result"]["serverInfo"]["name"], "manyhands");
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.to.as_mut().unwrap(), "{message}").unwrap();
    }

    fn begin(&mut self, id: u32, command: &str) {
        let params = json!({"name": "sandbox__bash", "arguments": {"command": command}});
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}));
    }

    fn answer(&mut self, id: u32) -> Option<Value> {
        let answers = self.from.by_ref().map_while(Result::ok);
        let mut answers = answers.map(|line| serde_json::from_str::<Value>(&line).unwrap());
        answers.find(|answer| answer["id"] == id)
    }

    fn echo(&mut self, id: u32, word: &str) {
        self.begin(id, &format!("echo {word}"));
        let answer = self.answer(id).unwrap();
        let text = answer["result"]["content"].as_array().unwrap().last().unwrap()["text"].as_str();
        assert_eq!(text, Some(format!("{word}\n").as_str()), "{answer}");
    }

    /// Closes its end, and waits for the process's.
    fn close(mut self) -> Said {
        self.to = None;
        self.process.end()
    }
}

fn started(home: &Home, session: &str) {
    until("the call has started", || {
        home.run(&["session", "events", session]).out.contains("hand.call_started")
    });
}

/// The first owns the data and answers the second, and commands.
#[test]
fn two_clients_without_a_gateway_share_one_owner() {
    let home = Home::new();
    let mut first = Client::start(&home, "one");
    let mut second = Client::start(&home, "two");
    first.echo(1, "first");
    second.echo(1, "second");
    assert_eq!(home.json(&["session", "list"]).as_array().unwrap().len(), 2);
    let said = second.close();
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{said:?}");
    let said = first.close();
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{said:?}");
    assert_eq!(home.types("two").last().unwrap(), "hand.released");
}

/// A relay never hangs: it says what to do, and its call is settled.
#[test]
fn a_relay_whose_owner_dies_during_a_call_says_so() {
    for signal in [Signal::KILL, Signal::TERM] {
        let home = Home::new();
        let mut gateway =
            Gateway::start_blocking(&Options::default().data(&home.data()).env("MANYHANDS_DRAIN_S", "0"))
                .unwrap();
        let mut client = Client::start(&home, "one");
        client.begin(1, "sleep 600");
        started(&home, "one");
        gateway.signal(signal).unwrap();
        // The owner that is told to end still answers, one that is killed can't.
        assert_eq!(client.answer(1).is_some(), signal == Signal::TERM);
        client.process.end().refuses(1, &["the manyhands that owns the data has ended", "start this again"]);
        gateway.wait(super::PATIENCE).unwrap();
        let mut again = Client::start(&home, "one");
        again.echo(2, "again");
        assert_eq!(again.close().code, Some(0));
        let results = home.types("one").iter().filter(|kind| *kind == "agent.tool_result").count();
        assert_eq!(results, 2);
    }
}

/// As clients end their servers: end of input, then SIGTERM.
#[test]
fn it_ends_when_it_is_told_to() {
    let home = Home::new();
    for owned in [false, true] {
        let _gateway =
            owned.then(|| Gateway::start_blocking(&Options::default().data(&home.data())).unwrap());
        let session = if owned { "relayed" } else { "own" };
        let mut client = Client::start(&home, session);
        client.begin(1, "sleep 600");
        started(&home, session);
        client.process.signal(Signal::TERM);
        assert_eq!(client.process.end().code, Some(0));
        until("the call is cancelled", || {
            home.run(&["session", "events", session, "--json"]).out.contains(r#""outcome":"cancelled""#)
        });
    }
}
