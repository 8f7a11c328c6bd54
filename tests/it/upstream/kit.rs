//! Hands around scripted servers, and callers that record.
#![expect(clippy::unwrap_used, reason = "in a test that is an assertion")]

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use hands::mcp::{Ask, Caller, Catalogue, Notice, Object, Reply, Unasked};
use hands::upstream::{Given, Limits, Protocol, Reach, Share, Trust, Upstream, UpstreamConfig};
use hands::{Call, CallContext, Hand, HandError, Handle, Lease, Outcome, Progress};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::web::Web;
use crate::sandbox_kit::lease;

pub(super) use crate::sandbox_kit::soon;

/// Which server stands behind a hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Era {
    Modern,
    Legacy,
}

/// How it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Http,
    Stdio,
}

/// Every pair of them.
pub(super) const PAIRS: [(Way, Era); 4] = [
    (Way::Http, Era::Modern),
    (Way::Http, Era::Legacy),
    (Way::Stdio, Era::Modern),
    (Way::Stdio, Era::Legacy),
];

/// A hand, the server behind it, and one lease.
pub(super) struct Rig {
    pub(super) hand: Arc<Upstream>,
    pub(super) lease: Lease,
    pub(super) web: Option<Web>,
    pub(super) folder: TempDir,
}

pub(super) fn given(text: &str) -> Given {
    let text = text.to_owned();
    Given::new(move || Ok(text.clone().into()))
}

pub(super) fn config(reach: Reach) -> UpstreamConfig {
    UpstreamConfig {
        name: "scripted".to_owned(),
        reach,
        protocol: Protocol::Auto,
        share: Share::Session,
        call_max: Duration::from_mins(2),
    }
}

/// The scripted server as a child process, with these arguments.
pub(super) fn script(folder: &TempDir, arguments: &[&str]) -> Reach {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("it/upstream/server.py");
    let mut command = vec!["python3".to_owned(), script.to_str().unwrap().to_owned()];
    command.push(folder.path().join("got").to_str().unwrap().to_owned());
    command.extend(arguments.iter().map(|&argument| argument.to_owned()));
    let environment = vec![("CONFIGURED".to_owned(), given("yes"))];
    Reach::Stdio { command, directory: None, environment }
}

impl Rig {
    pub(super) async fn new(way: Way, era: Era) -> Self {
        let folder = tempfile::tempdir().unwrap();
        match way {
            Way::Http => Self::web(Web::start(era).await),
            Way::Stdio => {
                let era = if era == Era::Modern { "modern" } else { "legacy" };
                Self::of(config(script(&folder, &[era])), folder)
            }
        }
    }

    pub(super) fn web(web: Web) -> Self {
        let reach = Reach::Http {
            url: web.url(),
            headers: vec![("X-Configured".to_owned(), given("yes"))],
            trust: Trust::Machine,
        };
        let mut rig = Self::of(config(reach), tempfile::tempdir().unwrap());
        rig.web = Some(web);
        rig
    }

    pub(super) fn of(config: UpstreamConfig, folder: TempDir) -> Self {
        Self::limited(config, folder, Limits::default())
    }

    pub(super) fn limited(config: UpstreamConfig, folder: TempDir, limits: Limits) -> Self {
        let hand = Arc::new(Upstream::limited(config, Catalogue::default(), limits));
        let lease = lease(folder.path(), "upstream");
        Self { hand, lease, web: None, folder }
    }

    pub(super) async fn handle(&self) -> Handle {
        self.hand.provision(&self.lease, &hands::NoProgress).await.unwrap()
    }

    pub(super) async fn try_call(
        &self,
        tool: &str,
        arguments: Value,
        context: CallContext,
    ) -> Result<Outcome, HandError> {
        let handle = self.hand.provision(&self.lease, &hands::NoProgress).await?;
        self.hand.execute(&handle, &call(tool, arguments), context).await
    }

    pub(super) async fn call(&self, tool: &str, arguments: Value) -> Outcome {
        self.try_call(tool, arguments, quiet()).await.unwrap()
    }

    /// All messages that the server got so far.
    pub(super) fn got(&self) -> Vec<Value> {
        if let Some(web) = &self.web {
            return web.got();
        }
        let text = std::fs::read_to_string(self.folder.path().join("got")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Those with this method.
    pub(super) fn got_of(&self, method: &str) -> Vec<Value> {
        self.got().into_iter().filter(|message| message["method"] == method).collect()
    }

    pub(super) async fn end(self) {
        self.hand.shutdown().await;
    }
}

pub(super) fn call(tool: &str, arguments: Value) -> Call {
    let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
    Call { tool: tool.to_owned(), arguments }
}

pub(super) fn quiet() -> CallContext {
    CallContext::quiet(CancellationToken::new())
}

/// A caller that can do everything, and records.
#[derive(Default)]
pub(super) struct Recorder {
    pub(super) notices: Mutex<Vec<Notice>>,
    pub(super) questions: Mutex<Vec<Object>>,
    /// What it answers with, in its turn.
    pub(super) answers: Mutex<Vec<Result<Value, Unasked>>>,
}

impl Progress for Recorder {
    fn step(&self, _: &str) {}

    fn output(&self, _: &str) {}

    fn notice(&self, notice: Notice) {
        self.notices.lock().unwrap().push(notice);
    }
}

#[async_trait]
impl Ask for Recorder {
    async fn ask(&self, questions: Object) -> Result<Object, Unasked> {
        let keys: Vec<_> = questions.keys().cloned().collect();
        self.questions.lock().unwrap().push(questions);
        let answer = self.answers.lock().unwrap().remove(0)?;
        Ok(keys.into_iter().map(|key| (key, answer.clone())).collect())
    }
}

impl Recorder {
    pub(super) fn answering(answers: Vec<Result<Value, Unasked>>) -> Arc<Self> {
        Arc::new(Self { answers: Mutex::new(answers), ..Self::default() })
    }

    pub(super) fn context(self: &Arc<Self>, log_level: Option<&str>) -> CallContext {
        let Value::Object(capabilities) = json!({"elicitation": {"form": {}}, "sampling": {}}) else {
            unreachable!()
        };
        let meta = json!({"vendor/key": 1, "io.modelcontextprotocol/clientInfo": "stolen", "progressToken": "theirs"});
        let Value::Object(meta) = meta else { unreachable!() };
        let caller = Caller { capabilities, log_level: log_level.map(str::to_owned), meta };
        CallContext {
            progress: Arc::clone(self) as _,
            ask: Arc::clone(self) as _,
            caller: Arc::new(caller),
            ..quiet()
        }
    }
}

/// The text of a result.
pub(super) fn text(outcome: &Outcome) -> &str {
    let Some(Reply::Result(result)) = &outcome.reply else { panic!("no result: {outcome:?}") };
    result["content"][0]["text"].as_str().unwrap()
}

/// The sentence of an error.
pub(super) fn error(outcome: &Outcome) -> &str {
    let Some(Reply::Error(error)) = &outcome.reply else { panic!("no error: {outcome:?}") };
    &error.message
}
