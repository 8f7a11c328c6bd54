//! What a log must say, whatever happened.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use gateway::access::Principal;
use gateway::database::{Database, DatabaseConfig};
use gateway::session::{Event, Seq, SessionLimits, Sessions, Slice};
use serde_json::Value;

/// A log read beside the gateway, from the database itself.
pub(crate) struct Reader {
    pub(crate) database: Database,
    sessions: Sessions,
}

impl Reader {
    pub(crate) async fn directory(data: &Path) -> Result<Self> {
        Self::open(DatabaseConfig::Directory(data.to_owned())).await
    }

    pub(crate) async fn url(url: &str) -> Result<Self> {
        Self::open(DatabaseConfig::Url(url.into())).await
    }

    async fn open(config: DatabaseConfig) -> Result<Self> {
        let database = Database::open(config).await?;
        let limits = SessionLimits { sessions: 1, stored_bytes: 1 };
        Ok(Self { sessions: Sessions::new(database.clone(), "reader".into(), limits), database })
    }

    /// All events of a session of the owner's.
    pub(crate) async fn events(&self, session: &str) -> Result<Vec<Event>> {
        let info = self.sessions.find(&Principal::owner(), &session.parse()?).await?;
        let mut events: Vec<Event> = Vec::new();
        loop {
            let after = Some(events.last().map_or(Seq(0), |event| event.seq));
            let page =
                self.sessions.slice(&info, Slice { after, limit: Some(1000), ..Slice::default() }).await?;
            if page.events.is_empty() {
                return Ok(events);
            }
            events.extend(page.events);
        }
    }

    /// Waits until the session's events are as wanted, and returns them.
    pub(crate) async fn until(&self, session: &str, wanted: impl Fn(&[Event]) -> bool) -> Result<Vec<Event>> {
        let start = Instant::now();
        loop {
            // It may not be there yet.
            let events = self.events(session).await.unwrap_or_default();
            if wanted(&events) {
                return Ok(events);
            }
            if start.elapsed() > Duration::from_secs(30) {
                bail!("the log of {session} did not come to what was waited for: {:?}", types(&events));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ids of the nodes of a status.
    pub(crate) async fn nodes(&self, status: &str) -> Result<Vec<String>> {
        let nodes = sqlx::query_scalar("select id from node where status = $1 order by started_at")
            .bind(status.to_owned())
            .fetch_all(self.database.reader())
            .await?;
        Ok(nodes)
    }

    /// Rows of a table.
    pub(crate) async fn rows(&self, table: &'static str) -> Result<i64> {
        let text = match table {
            "open_call" => "select count(*) from open_call",
            "instance" => "select count(*) from instance",
            _ => bail!("{table} is not asked for"),
        };
        Ok(sqlx::query_scalar(text).fetch_one(self.database.reader()).await?)
    }
}

pub(crate) fn types(events: &[Event]) -> Vec<&str> {
    events.iter().map(Event::kind).collect()
}

pub(crate) fn of<'a>(events: &'a [Event], kind: &str) -> Vec<&'a Event> {
    events.iter().filter(|event| event.kind() == kind).collect()
}

pub(crate) fn field<'a>(event: &'a Event, name: &str) -> &'a str {
    event.fields.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// How many calls ended in which way.
pub(crate) fn outcomes(events: &[Event]) -> BTreeMap<String, usize> {
    let mut outcomes = BTreeMap::new();
    for result in of(events, "agent.tool_result") {
        *outcomes.entry(field(result, "outcome").to_owned()).or_default() += 1;
    }
    outcomes
}

/// No gap, no duplicate, one outcome for every call, one end for every instance, one instance at a time.
pub(crate) fn check(events: &[Event]) -> Result<()> {
    for (place, event) in (1..).zip(events) {
        ensure!(event.seq == Seq(place), "{} stands where {place} should", event.seq);
    }
    let mut calls: HashMap<String, (bool, usize)> = HashMap::new();
    let mut live: HashMap<&str, &str> = HashMap::new();
    for event in events {
        match event.kind() {
            "agent.tool_use" => {
                ensure!(calls.insert(event.id.to_string(), (false, 0)).is_none(), "asked for twice");
            }
            "hand.call_started" => {
                let call = calls.get_mut(field(event, "tool_use_id")).context("started, not asked for")?;
                ensure!(*call == (false, 0), "{} started at {call:?}", field(event, "tool_use_id"));
                ensure!(
                    live.get(field(event, "hand")) == Some(&field(event, "instance")),
                    "{} started in an instance that is not there",
                    event.seq
                );
                call.0 = true;
            }
            "agent.tool_result" => {
                let call = calls.get_mut(field(event, "tool_use_id")).context("ended, not asked for")?;
                call.1 += 1;
            }
            "hand.provisioned" => {
                let before = live.insert(field(event, "hand"), field(event, "instance"));
                ensure!(before.is_none(), "{}: {before:?} is there", event.seq);
            }
            "hand.lost" | "hand.released" => {
                let gone = live.remove(field(event, "hand"));
                ensure!(gone == Some(field(event, "instance")), "{}: {gone:?} was there", event.seq);
            }
            _ => {}
        }
    }
    for (call, (_, outcomes)) in calls {
        ensure!(outcomes == 1, "{call} has {outcomes} outcomes");
    }
    Ok(())
}

/// The same, and no instance is left after the end.
pub(crate) fn check_ended(events: &[Event]) -> Result<()> {
    check(events)?;
    let there = of(events, "hand.provisioned").len();
    let gone = of(events, "hand.lost").len() + of(events, "hand.released").len();
    ensure!(there == gone, "{there} instances came and {gone} went");
    Ok(())
}

/// Processes that have any of `marks` in their command line.
pub(crate) fn processes(marks: &[String]) -> Result<Vec<(u32, String)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // It may have ended since.
        let Ok(line) = std::fs::read(format!("/proc/{pid}/cmdline")) else { continue };
        let line = String::from_utf8_lossy(&line).into_owned();
        if marks.iter().any(|mark| line.contains(mark)) {
            found.push((pid, line));
        }
    }
    Ok(found)
}

/// Groups of ours for these instances, in any hierarchy.
pub(crate) fn cgroups(instances: &[String]) -> Vec<PathBuf> {
    fn search(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
        let Ok(entries) = std::fs::read_dir(folder) else { return };
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            if entry.file_name().to_string_lossy().starts_with("manyhands-") {
                found.push(entry.path());
            } else if depth > 0 {
                search(&entry.path(), depth - 1, found);
            }
        }
    }
    let mut found = Vec::new();
    search(Path::new("/sys/fs/cgroup"), 8, &mut found);
    let ours = |path: &PathBuf| {
        instances.iter().any(|id| path.to_string_lossy().ends_with(&format!("manyhands-{id}")))
    };
    found.retain(ours);
    found
}

/// Nothing of these instances, and nothing that works in this folder, is left on the machine.
pub(crate) fn check_no_orphans(events: &[Event], data: &Path) -> Result<()> {
    let instances: Vec<String> =
        of(events, "hand.provisioned").iter().map(|event| field(event, "instance").to_owned()).collect();
    let mut marks = instances.clone();
    marks.push(data.join("work").display().to_string());
    let start = Instant::now();
    loop {
        let (processes, cgroups) = (processes(&marks)?, cgroups(&instances));
        if processes.is_empty() && cgroups.is_empty() {
            return Ok(());
        }
        // A killed process takes a moment to go.
        ensure!(start.elapsed() < Duration::from_secs(5), "left behind: {processes:?} {cgroups:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
