//! What goes wrong in one session's container is that session's tool error, or its result: every other session answers
//! as usual meanwhile.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use tests::dockerd::{Dockerd, rootfs};
use tests::gateway::{Gateway, Options};
use tokio_util::sync::CancellationToken;

use super::rig::{call, seen, text, toml};
use crate::crash::client::Client;
use crate::crash::truth;
use crate::mcp::client as plain;

/// Seconds for which a call is silent: longer than the time after which clients are told that it goes on.
const SILENCE: u64 = 20;
/// The variable that says otherwise, such as 600 for ten minutes.
const SILENCE_VARIABLE: &str = "MANYHANDS_SILENCE_S";
/// How long an answer of another session may take, while nobody's machine is quiet.
const ANSWER: Duration = Duration::from_mins(1);
/// Between two rounds of another session's calls.
const PAUSE: Duration = Duration::from_millis(100);

/// A disaster in the session `bad`, how its call ends, and what that says.
struct Disaster {
    command: &'static str,
    seconds: u64,
    outcomes: &'static [&'static str],
    says: &'static str,
}

const DISASTERS: [Disaster; 5] = [
    Disaster {
        command: "while :; do head -c 8388608 /dev/zero >> full; sleep 0.05; done",
        seconds: 300,
        outcomes: &["error"],
        says: "/workspace grew beyond its limit of 32 MiB",
    },
    Disaster {
        command: "rm -f full; bomb() { bomb | bomb & bomb | bomb & wait; }; bomb 2> /dev/null",
        seconds: 3,
        // It may be the shell that can't fork any more.
        outcomes: &["error", "timeout"],
        says: "[",
    },
    Disaster {
        command: "tail /dev/zero",
        seconds: 300,
        outcomes: &["error"],
        says: "killed by the memory limit",
    },
    Disaster {
        command: "yes 0123456789abcdef | head -c 1000000000",
        seconds: 300,
        outcomes: &["error"],
        says: "it printed more than",
    },
    Disaster {
        command: "trap '' TERM INT HUP; while :; do sleep 1000; done",
        seconds: 2,
        outcomes: &["timeout"],
        says: "timed out after 2 s; everything it started was ended",
    },
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disaster_in_one_container_is_one_tool_error_and_nobody_elses() -> Result<()> {
    let daemon = Dockerd::start().await?;
    let limits = json!({
        "kind": "container", "rootfs": rootfs()?, "host": daemon.host(), "memory_mib": 64, "processes": 200,
        "workspace_mib": 32, "output_mib": 4,
    });
    let config = toml(&json!({"sandbox": {"kind": "sandbox"}, "box": limits}))?;
    let mut gateway = Gateway::start(Options::default().config(&config)).await?;
    let (client, reader) = seen(&gateway).await?;
    text(&client, "bad", "box__bash", json!({"command": "true"})).await?;
    let stop = CancellationToken::new();
    let (answers, ended) = tokio::join!(others(&gateway, &stop), async {
        let _stop = stop.drop_guard_ref();
        disasters(&client).await
    });
    ended?;
    println!("{} answers meanwhile", answers?);
    ensure!(text(&client, "bad", "box__bash", json!({"command": "echo $((6*7))"})).await?.ends_with("42\n"));
    gateway.stop()?;
    for session in ["bad", "other"] {
        truth::check_ended(&reader.events(session).await?)?;
    }
    Ok(())
}

async fn disasters(client: &Client) -> Result<()> {
    // Beside all others.
    let silent = async {
        let seconds = silence()?;
        let command = format!("sleep {seconds}; echo late");
        let input = json!({"command": command, "timeout_s": seconds + 600});
        text(client, "silent", "box__bash", input).await
    };
    let loud = async {
        for Disaster { command, seconds, outcomes, says } in DISASTERS {
            let begun = Instant::now();
            let input = json!({"command": command, "timeout_s": seconds});
            let (ended, said) = call(client, "bad", "box__bash", input).await.context(command)?;
            let end = &said[said.floor_char_boundary(said.len().saturating_sub(300))..];
            println!("{command}: {ended} after {:?}", begun.elapsed());
            ensure!(outcomes.contains(&&*ended) && said.contains(says), "{command}: {ended}: {end}");
        }
        anyhow::Ok(())
    };
    let (silent, loud) = tokio::join!(silent, loud);
    loud?;
    ensure!(silent? == "late\n", "a silent call is an ordinary one");
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "the tests are a program of their own")]
fn silence() -> Result<u64> {
    std::env::var(SILENCE_VARIABLE).map_or(Ok(SILENCE), |seconds| Ok(seconds.parse()?))
}

/// Another session's calls in its own container and sandbox, and what lists say, again and again until it is over. How
/// many answers there were.
async fn others(gateway: &Gateway, stop: &CancellationToken) -> Result<usize> {
    let client = Client::of(gateway)?;
    let lister = plain::Client::owner(gateway, plain::Era::Modern, "other").await?;
    let mut answers = 0;
    while !stop.is_cancelled() {
        for tool in ["box__bash", "sandbox__bash"] {
            let asked = text(&client, "other", tool, json!({"command": "echo $((6*7))", "timeout_s": 300}));
            let Ok(answer) = tokio::time::timeout(ANSWER, asked).await else {
                bail!("{tool} of another session did not answer within {ANSWER:?}");
            };
            ensure!(answer? == "42\n", "{tool} of another session");
        }
        let tools: Value = lister.result("tools/list", json!({})).await?;
        ensure!(tools["tools"].as_array().is_some_and(|tools| tools.len() > 12), "{tools}");
        answers += 3;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(answers)
}
