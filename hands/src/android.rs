//! An Android device through an adb server: its own shell, a folder that persists, its screen and its apps.
//!
//! The server is Google's and runs already, usually on port 5037; it is spoken to in its own protocol, for its command line
//! loses what we need. Commands run as the user `shell`, which may do less than root and more than an app.
//!
//! `/workspace` of the file tools is `/data/local/tmp/manyhands/{session's hand}/workspace` there, one for each session. Within
//! commands it is `$WORKSPACE`, and where they start. It outlives instances, and goes with its session.
//!
//! Files go by `tar` in a shell, not by adb's sync protocol. That moves one file at a time, makes neither links nor empty
//! folders, and leaves what it has begun when it breaks off. A tar is one stream that keeps them all, is unpacked beside
//! its target and put there whole, and ends with its call.

mod device;
mod line;
mod server;
mod tools;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

pub use self::device::inspect;

use self::line::AdbLine;
use crate::instances::Instances;
use crate::remote::{self, Line, Reached, Remote, Terms};
use crate::{
    Call, CallContext, FarWork, Files, Hand, HandError, Handle, InstanceId, Lease, Outcome, Progress, Tool,
};

/// Calls of one instance at once; others wait.
const CALLS: usize = 8;
/// Channels that background processes may keep open.
const LEFT: usize = 8;
/// Where adb servers listen unless told otherwise.
const ADB_PORT: u16 = 5037;

/// How a device is reached and used.
#[derive(Clone, Debug)]
pub struct AndroidConfig {
    /// Where the adb server listens.
    pub server: SocketAddr,
    /// Which device.
    pub device: Device,
    /// The folder on it in which each session has its own; absolute.
    pub folder: String,
    /// What one call may print, in bytes.
    pub output: usize,
}

impl AndroidConfig {
    /// The usual settings.
    pub fn new(device: Device) -> Self {
        Self {
            server: SocketAddr::from((Ipv4Addr::LOCALHOST, ADB_PORT)),
            device,
            folder: "/data/local/tmp/manyhands".into(),
            output: 64 << 20,
        }
    }
}

/// Names a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// As `adb devices` lists it.
    Serial(String),
    /// `host:port` of its adbd. The adb server connects to it when it is not yet, or not any more.
    Address(String),
}

impl Device {
    /// How the adb server knows it.
    pub fn serial(&self) -> &str {
        let (Self::Serial(serial) | Self::Address(serial)) = self;
        serial
    }
}

/// A kind of hand that gives each lease a place on a device.
pub struct Android {
    config: AndroidConfig,
    terms: Terms,
    instances: Instances<Remote>,
}

impl Android {
    /// A hand that has connected to nothing yet.
    pub fn new(config: AndroidConfig) -> Self {
        let terms = Terms {
            host: format!("the device {}", config.device.serial()),
            workspace: format!("{}/{{work}}/workspace", config.folder.trim_end_matches('/')),
            calls: CALLS,
            left: LEFT,
            output: config.output,
            scratch: "/data/local/tmp",
            network: "the network of the device",
        };
        Self { config, terms, instances: Instances::new("its instance") }
    }

    async fn line(&self) -> Result<Arc<dyn Line>, HandError> {
        let serial = device::find(&self.config).await?;
        Ok(Arc::new(AdbLine::new(self.config.server, serial)))
    }

    async fn start(&self, lease: &Lease) -> Result<Arc<Remote>, HandError> {
        Remote::start(self.line().await?, &self.terms, lease, &self.instances.tasks).await
    }
}

#[async_trait]
impl Hand for Android {
    async fn tools(&self) -> Result<Vec<Tool>, HandError> {
        let mut all = remote::tools(&self.terms, "sh");
        all.extend(tools::list());
        Ok(all)
    }

    async fn provision(&self, lease: &Lease, _: &dyn Progress) -> Result<Handle, HandError> {
        self.instances.provision(lease, self.start(lease)).await
    }

    async fn execute(
        &self,
        handle: &Handle,
        call: &Call,
        context: CallContext,
    ) -> Result<Outcome, HandError> {
        let instance = self.instances.get(handle).await?;
        match tools::execute(&instance, call, &context).await {
            Some(outcome) => outcome,
            None => instance.execute(call, &context).await,
        }
    }

    fn alive(&self, handle: &Handle) -> bool {
        self.instances.alive(handle)
    }

    async fn release(&self, handle: Handle) -> Result<(), HandError> {
        self.instances.release(&handle).await
    }

    async fn reap(&self, instances: &[InstanceId]) -> Result<(), HandError> {
        if instances.is_empty() {
            return Ok(());
        }
        remote::reap(&*self.line().await?, &self.terms, instances).await
    }

    async fn shutdown(&self) {
        self.instances.shutdown().await;
    }

    fn files(&self) -> Option<&dyn Files> {
        Some(self)
    }

    fn far_work(&self) -> Option<&dyn FarWork> {
        Some(self)
    }

    fn about(&self) -> Value {
        json!({
            "kind": "android",
            "device": self.config.device.serial(),
            "adb_server": self.config.server.to_string(),
            "isolation": "none: commands run as the device's user shell and can do all that it can",
            "network": "the device's",
            "workspace": self.terms.workspace.replace("{work}", "{session}"),
            "calls_at_once": CALLS,
            "limits": { "output_bytes": self.config.output },
        })
    }
}

#[async_trait]
impl Reached for Android {
    fn instances(&self) -> &Instances<Remote> {
        &self.instances
    }

    /// Every command has a connection of its own to the adb server.
    async fn line_for_a_copy(&self) -> Result<Option<Arc<dyn Line>>, HandError> {
        Ok(None)
    }
}

#[async_trait]
impl FarWork for Android {
    async fn remove(&self, work: &Path) -> Result<(), HandError> {
        remote::remove(&*self.line().await?, &self.terms, work).await
    }
}
