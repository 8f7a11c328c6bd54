//! Hands: what a session can do to the world.
//!
//! A hand lists tools and executes one in an *instance* that is provisioned on first use,
//! replaced when it dies and released when nobody needs it.
//!
//! # The contract of every kind
//!
//! - *Nothing is made before it is needed*, and once however many ask for it: listing tools touches nothing, and
//!   [`Hand::provision`] is idempotent. What takes long is said while it is done, to everybody who waits for it.
//! - *A call ends in one of four ways*: as asked or by the tool's own failure ([`Ending::Ok`], [`Ending::Error`]); because
//!   its caller gave up or its time was over ([`Ending::Cancelled`], [`Ending::Timeout`]), and then everything that it
//!   started has ended before the answer; or without an outcome, as [`HandError::Lost`], which says whether it may have
//!   had effects. What may have run is never tried again by a hand.
//! - *Death is noticed*, however it shows: an end of a stream, an exit code, a status. The instance is then lost for
//!   good; the next provision makes another one of the same work.
//! - *[`Hand::release`] leaves nothing* but the work, *[`Hand::reap`] ends what a dead gateway left* and nothing else.
//! - *What a kind can beyond that it says*: [`Hand::files`], [`Hand::checkpoints`], [`Hand::far_work`], [`Hand::mcp`].
//! - *What is missing on a machine is one clear sentence with what to do* ([`HandError::Unavailable`]), and the kind's
//!   `inspect` says it beforehand.
//!
//! `tests/it/hand` holds every kind to it, one test for each kind and promise.
//!
//! **Invariant:** this crate knows nothing of sessions, logs, the vault or HTTP faces. It is
//! given names and folders, never a credential.

pub mod android;
pub mod canonical;
pub mod container;
pub mod disk;
pub mod emulator;
pub mod folder;
mod instances;
pub mod mcp;
pub mod open_files;
mod orphans;
pub mod posix;
mod remote;
pub mod sandbox;
mod spool;
pub mod ssh;
pub mod upstream;
pub mod vm;
pub mod web;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

pub use crate::spool::{END_CHARS, SPOOL_BYTES_MAX, Spool, Spooled, last_chars};

use crate::mcp::{Ask, AskNobody, Caller, McpFace, Notice, Object, Reply};
use crate::sandbox::CopyError;

/// Something that lists tools and executes them in instances of itself.
///
/// Every kind of hand passes the contract suite, `tests/it/hand.rs`.
#[async_trait]
pub trait Hand: Send + Sync + 'static {
    /// The tools this hand offers. Provisions nothing and touches no instance.
    async fn tools(&self) -> Result<Vec<Tool>, HandError>;

    /// Makes the leased instance ready. Idempotent: a second call with the same lease finds the first's work. What
    /// takes long says so as steps.
    async fn provision(&self, lease: &Lease, progress: &dyn Progress) -> Result<Handle, HandError>;

    /// Executes one call and waits for its end. A tool that ran and failed is an [`Outcome`].
    ///
    /// Returns early, with everything that the call started ended, once `context.cancel` fires.
    async fn execute(&self, handle: &Handle, call: &Call, context: CallContext)
    -> Result<Outcome, HandError>;

    /// Whether the instance is there, as far as can be told without asking it.
    fn alive(&self, handle: &Handle) -> bool;

    /// Ends the instance and everything that runs in it. Its work stays. Idempotent.
    async fn release(&self, handle: Handle) -> Result<(), HandError>;

    /// Ends what earlier processes of this gateway left behind of `instances`: processes, cgroups,
    /// mounts. Their work stays. Touches nothing of any other instance.
    async fn reap(&self, instances: &[InstanceId]) -> Result<(), HandError>;

    /// Ends whatever it holds beside instances and waits for that: it is not used again.
    async fn shutdown(&self) {}

    /// How files go in and out of its instances, where they can.
    fn files(&self) -> Option<&dyn Files> {
        None
    }

    /// How the state of its instances is kept and brought back, where it can be.
    fn checkpoints(&self) -> Option<&dyn Checkpoints> {
        None
    }

    /// How work that lies elsewhere than in leases' folders is removed, where it does.
    fn far_work(&self) -> Option<&dyn FarWork> {
        None
    }

    /// What it has beyond tools, when it is an MCP server.
    fn mcp(&self) -> Option<&dyn McpFace> {
        None
    }

    /// What a person should know before using it: limits that hold, mounts, network, isolation.
    fn about(&self) -> Value;
}

/// Copies a file or a folder in and out of instances, as a tar stream ([`sandbox::pack`], [`sandbox::Landing`]).
#[async_trait]
pub trait Files: Send + Sync {
    /// Makes `to`, below `/workspace` unless absolute, of a stream from [`sandbox::pack`]. Refuses what is there
    /// already. Who gives the stream knows how much of it has gone. One that fails is not at its end: nothing becomes
    /// of it.
    async fn copy_in(
        &self,
        handle: &Handle,
        to: &str,
        archive: Box<dyn AsyncRead + Send + Unpin>,
        cancel: &CancellationToken,
    ) -> Result<(), CopyError>;

    /// Writes a stream for [`sandbox::Landing`] of `from`, below `/workspace` unless absolute. `moved` is told how
    /// many bytes have come so far. Gives how many pipes, sockets and devices are not in it.
    async fn copy_out(
        &self,
        handle: &Handle,
        from: &str,
        archive: &mut (dyn AsyncWrite + Send + Unpin),
        moved: &(dyn Fn(u64) + Send + Sync),
        cancel: &CancellationToken,
    ) -> Result<u64, CopyError>;
}

/// Keeps the state of instances beside their work, where it outlives them, and brings it back.
#[async_trait]
pub trait Checkpoints: Send + Sync {
    /// Keeps the state as `name`, durably; an earlier one of that name is replaced only when this one is whole. Names are
    /// `[a-z0-9][a-z0-9-]{0,31}`.
    async fn checkpoint(&self, handle: &Handle, name: &str) -> Result<(), HandError>;

    /// Brings the state back that was kept as `name`, in this or in an earlier instance of the same work.
    async fn restore(&self, handle: &Handle, name: &str) -> Result<(), HandError>;
}

/// Work of instances that lies on a host, a device or a daemon.
#[async_trait]
pub trait FarWork: Send + Sync {
    /// Removes the work of the leases whose folder on this machine is `work`, of which no instance is alive. Idempotent.
    async fn remove(&self, work: &Path) -> Result<(), HandError>;
}

/// Names one instance of a hand: unique over all nodes and starts, safe in a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InstanceId(pub String);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What to provision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The instance.
    pub instance: InstanceId,
    /// The folder on this machine that holds the instance's persistent work. The hand makes it when
    /// it is missing; it outlives the instance.
    pub work: PathBuf,
    /// On whose behalf. Means nothing to a hand but that what belongs to one owner is not for another.
    pub owner: Owner,
}

/// Tells whose an instance is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(pub String);

/// A provisioned instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    /// Which one.
    pub instance: InstanceId,
}

/// A tool as brains and MCP clients see it, before the hand's name is put in front of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// Its own name, unique within the hand.
    pub name: String,
    /// What it does, for the model. Under 2 KB.
    pub description: String,
    /// JSON Schema (2020-12) of the arguments, an object.
    pub input_schema: Arc<Map<String, Value>>,
    /// Promises about its effects.
    pub effects: Effects,
    /// Its definition as an MCP server gave it, to be shown whole. None for the kinds of hand that are ours.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub definition: Option<Arc<Object>>,
}

/// What a tool may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effects {
    /// Changes nothing: clients may run several at once.
    ReadOnly,
    /// Adds or replaces, but can be undone or repeated without harm.
    Additive,
    /// May destroy.
    Destructive,
}

/// One request to use a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The tool's own name.
    pub tool: String,
    /// Its arguments, as yet unchecked.
    pub arguments: Map<String, Value>,
}

/// What surrounds a call.
#[derive(Clone)]
pub struct CallContext {
    /// Fires when nobody wants the outcome any more.
    pub cancel: CancellationToken,
    /// Where news of a running call goes.
    pub progress: Arc<dyn Progress>,
    /// Who calls.
    pub caller: Arc<Caller>,
    /// Takes questions back to whoever called.
    pub ask: Arc<dyn Ask>,
    /// Where an output is kept that is too long for memory.
    pub spool: Spool,
}

impl CallContext {
    /// Of a caller that is told nothing and can't be asked, but can cancel.
    pub fn quiet(cancel: CancellationToken) -> Self {
        Self {
            cancel,
            progress: Arc::new(NoProgress),
            caller: Arc::default(),
            ask: Arc::new(AskNobody),
            spool: Spool::default(),
        }
    }
}

/// Takes news of a call. Must not block: what is too much is dropped.
pub trait Progress: Send + Sync + 'static {
    /// This is being done before the call can run, in one sentence without an end: the latest counts.
    fn step(&self, what: &str);

    /// The call printed something.
    fn output(&self, text: &str);

    /// An MCP server said something about it.
    fn notice(&self, notice: Notice);
}

/// Drops all news.
pub struct NoProgress;

impl Progress for NoProgress {
    fn step(&self, _: &str) {}

    fn output(&self, _: &str) {}

    fn notice(&self, _: Notice) {}
}

/// What a call gave back.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// How it ended.
    pub ending: Ending,
    /// What there is to see; empty when there is a reply.
    pub content: Vec<Content>,
    /// What an MCP server answered, to be passed on unchanged.
    pub reply: Option<Reply>,
}

impl Outcome {
    /// An end with one text to see.
    pub fn ended(ending: Ending, text: impl Into<String>) -> Self {
        Self { ending, content: vec![Content::Text(text.into())], reply: None }
    }

    /// The tool did what it was asked.
    pub fn ok(text: impl Into<String>) -> Self {
        Self::ended(Ending::Ok, text)
    }

    /// The tool ran or was refused, and says why in one clear sentence.
    pub fn error(text: impl Into<String>) -> Self {
        Self::ended(Ending::Error, text)
    }
}

/// How a call ended, when its hand saw the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// As asked.
    Ok,
    /// The tool failed; the content says how.
    Error,
    /// The caller gave up; everything that the call started has ended.
    Cancelled,
    /// Its time ran out; everything that the call started has ended.
    Timeout,
}

/// A piece of an outcome.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Text, complete: who shows it decides how much of it.
    Text(String),
    /// A text that is too long for memory, complete.
    Long(Spooled),
    /// An image.
    Image {
        /// Its bytes.
        data: Bytes,
        /// Its media type, such as `image/png`.
        mime: &'static str,
    },
}

/// Why a call has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum HandError {
    /// The hand has no such tool.
    #[error("no tool named {0}")]
    UnknownTool(String),
    /// The instance died, or was never there. Never silently retried when it may have run.
    #[error("the hand was lost: {why}")]
    Lost {
        /// Whether the call may have had effects.
        may_have_run: bool,
        /// What was seen.
        why: String,
    },
    /// The machine can't offer the hand now. `remedy` is the one thing to do about it.
    #[error("{why}; {remedy}")]
    Unavailable {
        /// What is missing or refused.
        why: String,
        /// What a person can do.
        remedy: String,
    },
    /// The operating system refused something that should work.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The refusal.
        source: std::io::Error,
    },
}

/// Grace between asking a call to end and ending its whole instance.
pub const END_GRACE: Duration = Duration::from_secs(5);
