//! The end that was asked for: calls get their time, outcomes are written, nothing is left, and it does not take for ever.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gateway::session::Event;
use rustix::process::Signal;
use tests::gateway::{Gateway, Options};

use super::client::Client;
use super::truth::{self, Reader, field, of};

fn started(calls: usize) -> impl Fn(&[Event]) -> bool {
    move |events| of(events, "hand.call_started").len() >= calls
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_calls_have_their_time_and_then_an_outcome() -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let data = scratch.path().join("data");
    let options = Options::default().data(&data).env("MANYHANDS_DRAIN_S", "4");
    let mut gateway = Gateway::start(options).await?;
    let client = Client::of(&gateway)?;
    let short = client.begin("end", "sleep 2; echo through");
    let long = client.begin("end", "trap '' TERM; sleep 100; echo never");
    let reader = Reader::directory(&data).await?;
    reader.until("end", started(2)).await?;
    let begun = Instant::now();
    gateway.stop()?;
    println!("ended {:?} after SIGTERM", begun.elapsed());
    ensure!(begun.elapsed() >= Duration::from_secs(4), "the long call had no time");
    let short = short.await??;
    ensure!(short.outcome == "ok" && short.text.contains("through"), "{short:?}");
    let long = long.await??;
    ensure!(long.outcome == "cancelled", "{long:?}");
    let events = reader.events("end").await?;
    truth::check_ended(&events)?;
    ensure!(of(&events, "hand.released").len() == 1 && of(&events, "hand.lost").is_empty());
    ensure!(reader.nodes("stopped").await?.len() == 1 && reader.nodes("alive").await?.is_empty());
    ensure!(reader.rows("open_call").await? == 0 && reader.rows("instance").await? == 0);
    truth::check_no_orphans(&events, &data)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_ends_its_request_keeps_nobody() -> Result<()> {
    use tokio::io::AsyncWriteExt as _;
    let mut gateway = Gateway::start(Options::default().env("MANYHANDS_DRAIN_S", "0")).await?;
    let address = gateway.url().trim_start_matches("http://").to_owned();
    let mut stream = tokio::net::TcpStream::connect(&address).await?;
    let head = format!("POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Length: 1000\r\n\r\n{{");
    stream.write_all(head.as_bytes()).await?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    gateway.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_interrupt_ends_at_once_and_the_next_start_settles() -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let data = scratch.path().join("data");
    let options = Options::default().data(&data).env("MANYHANDS_DRAIN_S", "300");
    let mut gateway = Gateway::start(options.clone()).await?;
    let client = Client::of(&gateway)?;
    let call = client.begin("end", "sleep 200");
    let reader = Reader::directory(&data).await?;
    reader.until("end", started(1)).await?;
    let begun = Instant::now();
    gateway.signal(Signal::INT)?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    gateway.signal(Signal::INT)?;
    let code = gateway.wait(Duration::from_secs(20))?;
    ensure!(code == Some(130), "{code:?}");
    println!("ended {:?} after the first SIGINT", begun.elapsed());
    ensure!(call.await?.is_err());
    let mut gateway = Gateway::start(options).await?;
    let events = reader.events("end").await?;
    truth::check_no_orphans(&events, &data)?;
    let results = of(&events, "agent.tool_result");
    ensure!(results.len() == 1 && field(results[0], "outcome") == "unknown", "{results:?}");
    gateway.stop()?;
    truth::check_ended(&reader.events("end").await?)
}
