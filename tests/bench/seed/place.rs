//! Where the sessions are: a gateway with containers and a repository, and a model that takes its time.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures_util::future::try_join_all;
use gateway::brain::BrainSetting;
use gateway::harness::model::{self, Block, Delta, Emit, Message, Model, Request, Settings, Transcript};
use serde_json::json;
use tests::dockerd::{Dockerd, rootfs};
use tests::gateway::{Gateway, Options};

use crate::owner::Owner;

/// What the model takes before its first token and for each, in milliseconds: as a large one does that is near.
const FIRST_TOKEN_MS: u64 = 400;
const TOKEN_MS: u64 = 20;
/// What it says before it calls anything.
const WORDS: &str =
    "I look at what you have asked for and begin with the part that everything else depends on.";
/// Files of the repository, and the bytes of each, which nothing can compress.
const FILES: usize = if cfg!(debug_assertions) { 50 } else { 2_000 };
const FILE_BYTES: usize = 16 << 10;
/// Gets the repository where it is not there yet. All of it is copied, as over a network; in the sandbox it is somebody
/// else's.
const CLONE: &str = "test -d repository || git clone --quiet --upload-pack \"git -c safe.directory='*' upload-pack\" \
     file:///origin repository";
/// What a session in need of a container does in it.
const IN_CONTAINER: &str = "echo something > result && cat result";

/// What a session needs at some time.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Need {
    Container,
    Repository,
}

/// What a person wants.
pub(super) struct Session {
    pub(super) name: String,
    pub(super) needs: Vec<Need>,
    /// How long the model thinks about it, beside what it always takes.
    pub(super) thought: Duration,
}

impl Session {
    pub(super) fn needs(&self, need: Need) -> bool {
        self.needs.contains(&need)
    }

    fn prompt(&self) -> String {
        let mut prompt = format!("@wait {}ms\n@say {WORDS}\n", self.thought.as_millis());
        for need in &self.needs {
            let (hand, command) = match need {
                Need::Container => ("box", IN_CONTAINER.to_owned()),
                Need::Repository => ("disk", format!("({CLONE}) && git -C repository log -1 --format=%s")),
            };
            prompt += &format!("@call {hand}__bash {}\n", json!({"command": command}));
        }
        // Without a call the turn ends here.
        prompt + "@then\n@say That is all.\n"
    }
}

/// Everything that runs.
pub(super) struct Place {
    daemon: Dockerd,
    owner: Owner,
    model: Arc<dyn Model>,
    settings: Settings,
    _gateway: Gateway,
}

impl Place {
    pub(super) async fn new(scratch: &Path) -> Result<Self> {
        let folder = scratch.join("seed");
        std::fs::create_dir_all(&folder)?;
        let origin = repository(&folder)?;
        let daemon = Dockerd::start().await?;
        let config = format!(
            "[brain]\nmodel = \"scripted/seed\"\nfirst_token_ms = {FIRST_TOKEN_MS}\ntoken_ms = {TOKEN_MS}\n\
             [hands.box]\nkind = \"container\"\nrootfs = \"{}\"\nhost = \"{}\"\n\
             [hands.disk]\nkind = \"sandbox\"\nmounts = [\"{}:/origin:ro\"]\n",
            rootfs()?.display(),
            daemon.host(),
            origin.display()
        );
        let options = Options::default().data(&folder.join("data")).config(&config);
        let gateway = Gateway::start(options.env("MANYHANDS_LIMITS_INSTANCES", "64")).await?;
        let setting = BrainSetting {
            model: Some("scripted/seed".to_owned()),
            first_token_ms: FIRST_TOKEN_MS,
            token_ms: TOKEN_MS,
            ..BrainSetting::default()
        };
        Ok(Self {
            daemon,
            owner: Owner::of(&gateway)?,
            model: model::of(&setting, |_| None)?,
            settings: Settings::of(&setting)?,
            _gateway: gateway,
        })
    }

    /// The model, asked the same by nobody but us. Seconds to its first token, as in the other two.
    pub(super) async fn bare(&self, session: &Session) -> Result<f64> {
        let messages = vec![Message::user(vec![Block::Text(session.prompt())])];
        let transcript = Transcript { system: String::new(), messages };
        let request = Request { transcript: &transcript, tools: &[], settings: &self.settings };
        let mut first = First { begun: Instant::now(), seconds: None };
        self.model.think(&request, &mut first).await?;
        first.seconds.context("the model said nothing")
    }

    /// Has a container and the repository, and asks the model then.
    pub(super) async fn coupled(&self, session: &Session) -> Result<f64> {
        let begun = Instant::now();
        self.owner.call(&session.name, "box", "true").await?;
        if session.needs(Need::Repository) {
            self.owner.call(&session.name, "disk", CLONE).await?;
        }
        let before = begun.elapsed().as_secs_f64();
        Ok(before + self.decoupled(session).await?)
    }

    /// Asks the model, and has what its calls need.
    pub(super) async fn decoupled(&self, session: &Session) -> Result<f64> {
        let mut turn = self.owner.run(&session.name, &session.prompt()).await?;
        let first = turn.first_token().await?;
        let events = turn.end().await?;
        let results = events.iter().filter(|event| event["type"] == "agent.tool_result");
        let outcomes: Vec<_> = results.map(|result| &result["outcome"]).collect();
        ensure!(
            outcomes.len() == session.needs.len() && outcomes.iter().all(|outcome| *outcome == "ok"),
            "{events:#?}"
        );
        Ok(first)
    }

    /// Containers that were started for the sessions that are there: each stays until its session goes.
    pub(super) fn containers(&self) -> Result<usize> {
        let listed = self.daemon.docker(&["ps", "--all", "--quiet", "--no-trunc"]);
        let is_id = |line: &str| line.len() == 64 && line.chars().all(|c| c.is_ascii_hexdigit());
        ensure!(listed.lines().all(is_id), "docker ps says {listed}");
        Ok(listed.lines().count())
    }

    /// Their sessions go, with all that they have.
    pub(super) async fn forget(&self, sessions: &[Session]) -> Result<()> {
        try_join_all(sessions.iter().map(|session| self.owner.delete(&session.name))).await?;
        let left = self.containers()?;
        ensure!(left == 0, "{left} containers outlive their sessions");
        Ok(())
    }
}

/// When the first token comes.
struct First {
    begun: Instant,
    seconds: Option<f64>,
}

impl Emit for First {
    fn emit(&mut self, delta: Delta<'_>) {
        if matches!(delta, Delta::Text(text) if !text.is_empty()) {
            self.seconds.get_or_insert_with(|| self.begun.elapsed().as_secs_f64());
        }
    }
}

/// A repository with one commit, packed as on a server.
fn repository(folder: &Path) -> Result<PathBuf> {
    let origin = folder.join("origin");
    std::fs::create_dir_all(&origin)?;
    // Numbers that look like chance (xorshift), the same in each run.
    let mut number: u64 = 0x9E37_79B9_7F4A_7C15;
    for file in 0..FILES {
        let mut bytes = Vec::with_capacity(FILE_BYTES);
        while bytes.len() < FILE_BYTES {
            number ^= number << 13;
            number ^= number >> 7;
            number ^= number << 17;
            bytes.extend(number.to_le_bytes());
        }
        std::fs::write(origin.join(format!("file-{file}")), bytes)?;
    }
    let by = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "commit.gpgsign=false"];
    for arguments in [&["init", "--quiet"][..], &["add", "."], &["commit", "--quiet", "--message=All of it"]]
    {
        let mut git = Command::new("git");
        let done =
            git.current_dir(&origin).args(by).args(arguments).status().context("git does not start")?;
        ensure!(done.success(), "git {arguments:?} failed");
    }
    Ok(origin)
}
