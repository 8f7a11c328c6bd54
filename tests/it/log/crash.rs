//! What was acknowledged is there after `kill -9`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gateway::database::{Database, DatabaseConfig};
use gateway::session::{At, EventLog, SessionId, Slice};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::task::JoinSet;

use super::{said, sessions};
use tests::postgres;

/// Set for the process that appends until it is killed: the database's directory or URL, and the session.
const DATABASE: &str = "MANYHANDS_TEST_APPENDER_DATABASE";
const SESSION: &str = "MANYHANDS_TEST_APPENDER_SESSION";
const WRITERS: usize = 16;
const KILLS: u64 = 8;

#[expect(clippy::disallowed_methods, reason = "how the test tells its own child what to do")]
fn told(variable: &str) -> Option<String> {
    std::env::var(variable).ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_appends_survive_a_kill_on_sqlite() -> Result<()> {
    if let (Some(database), Some(session)) = (told(DATABASE), told(SESSION)) {
        return append_for_ever(DatabaseConfig::Directory(PathBuf::from(database)), session.parse()?).await;
    }
    let directory = tempfile::tempdir()?;
    let config = DatabaseConfig::Directory(directory.path().to_path_buf());
    let path = directory.path().to_str().context("a path of text")?.to_owned();
    kill_and_look(config, &path, "log::crash::acknowledged_appends_survive_a_kill_on_sqlite").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_appends_survive_a_kill_on_postgresql() -> Result<()> {
    if let (Some(database), Some(session)) = (told(DATABASE), told(SESSION)) {
        return append_for_ever(DatabaseConfig::Url(database.into()), session.parse()?).await;
    }
    let database = postgres::database().await?;
    let config = DatabaseConfig::Url(database.url().into());
    kill_and_look(config, database.url(), "log::crash::acknowledged_appends_survive_a_kill_on_postgresql")
        .await
}

/// The child: 16 writers, and a line for each acknowledged event.
async fn append_for_ever(config: DatabaseConfig, id: SessionId) -> Result<()> {
    let sessions = sessions(&Database::open(config).await?);
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let log = sessions.log().clone();
        writers.spawn(async move {
            loop {
                let event = said("still here");
                let seq = log.append(id, At::End, std::slice::from_ref(&event)).await?;
                println!("acknowledged {seq} {}", event.id);
            }
            #[expect(unreachable_code, reason = "names the type")]
            Ok::<_, anyhow::Error>(())
        });
    }
    writers.join_next().await.context("writers")??
}

async fn kill_and_look(config: DatabaseConfig, database: &str, test: &str) -> Result<()> {
    let id = {
        let first = Database::open(config.clone()).await?;
        let session = sessions(&first).create(&super::owner(), None, &super::by()).await?;
        first.close().await;
        session.id
    };
    let mut acknowledged = BTreeMap::new();
    for kill in 0..KILLS {
        let mut child = Command::new(std::env::current_exe()?)
            .args([test, "--exact", "--nocapture"])
            .env(DATABASE, database)
            .env(SESSION, id.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("its output")?).lines();
        let mut before = acknowledged.len();
        let deadline = tokio::time::sleep(Duration::from_mins(1));
        tokio::pin!(deadline);
        // Not before it writes; then at a moment of no meaning to it.
        while before == acknowledged.len() {
            let line = tokio::select! {
                line = lines.next_line() => line?.context("the appender ended by itself")?,
                () = &mut deadline => anyhow::bail!("the appender appends nothing"),
            };
            take(&line, &mut acknowledged);
        }
        tokio::time::sleep(Duration::from_micros(1_000 + 7_919 * kill * kill)).await;
        child.kill().await?;
        before = acknowledged.len();
        while let Some(line) = lines.next_line().await? {
            take(&line, &mut acknowledged);
        }
        ensure!(acknowledged.len() >= before);
    }
    look(config, id, &acknowledged).await
}

/// A line that was cut short by the kill acknowledges nothing.
fn take(line: &str, acknowledged: &mut BTreeMap<i64, String>) {
    let words: Vec<&str> = line.split(' ').collect();
    if let ["acknowledged", seq, event] = words[..]
        && let (Ok(seq), 37) = (seq.parse(), event.len())
    {
        acknowledged.insert(seq, event.to_owned());
    }
}

async fn look(config: DatabaseConfig, id: SessionId, acknowledged: &BTreeMap<i64, String>) -> Result<()> {
    ensure!(acknowledged.len() > usize::try_from(KILLS)?, "{} were acknowledged", acknowledged.len());
    let database = Database::open(config).await?;
    let sessions = sessions(&database);
    let (mut place, mut found) = (0, 0);
    loop {
        let after = Some(gateway::session::Seq(place));
        let slice = Slice { after, limit: Some(1_000), ..Slice::default() };
        let events = sessions.log().read(id, slice).await?;
        if events.is_empty() {
            break;
        }
        for event in events {
            place += 1;
            ensure!(event.seq.0 == place, "a gap or a duplicate at {place}");
            if let Some(expected) = acknowledged.get(&place) {
                ensure!(*expected == event.id.to_string(), "{place} holds another event than acknowledged");
                found += 1;
            }
        }
    }
    ensure!(found == acknowledged.len(), "{} of {} acknowledged events are there", found, acknowledged.len());
    Ok(())
}
